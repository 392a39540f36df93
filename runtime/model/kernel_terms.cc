#include "runtime/model/kernel_terms.h"

#include <array>
#include <utility>

#include "kernels/error.h"

namespace weft::runtime {

kernels::Activation activation_named(const std::string& name, const std::string& where) {
  using kernels::Activation;
  constexpr std::array<std::pair<const char*, Activation>, 10> known{{{"relu", Activation::relu},
                                                                      {"relu2", Activation::relu_squared},
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

kernels::Scoring scoring_of(const policy::Retention& retention, int layer, int head) {
  if (retention.everything(layer, head)) return kernels::Scoring::none;
  if (retention.scored()) return kernels::Scoring::attention;
  using Rule = policy::Retention::Rule;
  if (retention.rule == Rule::random) return kernels::Scoring::random;
  if (retention.rule == Rule::keydiff) return kernels::Scoring::keys;
  return kernels::Scoring::none;
}

/// Kernels count heads from `head`, the first of a run.
std::uint64_t seed_of(const policy::Retention& retention, int layer, int head) {
  return retention.seed * 0x9E3779B97F4A7C15u + static_cast<std::uint64_t>(layer) +
         static_cast<std::uint64_t>(head) * 0xD1B54A32D192ED03u;
}

}  // namespace weft::runtime
