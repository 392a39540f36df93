#include "runtime/engine/activation.h"

#include <array>
#include <utility>

#include "kernels/error.h"

namespace weft::runtime {

kernels::Activation activation_named(const std::string& name, const std::string& where) {
  using kernels::Activation;
  constexpr std::array<std::pair<const char*, Activation>, 9> known{{{"relu", Activation::relu},
                                                                     {"gelu", Activation::gelu},
                                                                     {"gelu_new", Activation::gelu_tanh},
                                                                     {"gelu_fast", Activation::gelu_tanh},
                                                                     {"gelu_pytorch_tanh", Activation::gelu_tanh},
                                                                     {"quick_gelu", Activation::quick_gelu},
                                                                     {"silu", Activation::silu},
                                                                     {"swish", Activation::silu},
                                                                     {"tanh", Activation::tanh}}};
  std::string names;
  for (const auto& [known_name, activation] : known) {
    if (name == known_name) return activation;
    names += (names.empty() ? "" : ", ") + std::string(known_name);
  }
  throw DataError(where + ": activation '" + name.substr(0, 40) + "' is not supported; supported: " + names);
}

}  // namespace weft::runtime
