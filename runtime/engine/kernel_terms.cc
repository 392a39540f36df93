#include "runtime/engine/kernel_terms.h"

#include <algorithm>
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

kernels::Statistic statistic_of(const policy::Retention& retention) {
  using From = policy::Retention::Statistic;
  switch (retention.statistic) {
    case From::sum: break;
    case From::largest: return kernels::Statistic::largest;
    case From::mean: return kernels::Statistic::mean;
    case From::count: return kernels::Statistic::count;
  }
  return kernels::Statistic::sum;
}

kernels::Scoring scoring_of(const policy::Retention& retention, int layer, int head) {
  if (retention.everything(layer, head)) return kernels::Scoring::none;
  if (retention.scored()) return kernels::Scoring::attention;
  using Rule = policy::Retention::Rule;
  if (retention.rule == Rule::random) return kernels::Scoring::random;
  if (retention.rule == Rule::keydiff) return kernels::Scoring::keys;
  const bool by_position = retention.rule == Rule::strided || retention.rule == Rule::fixed;
  return by_position ? kernels::Scoring::positions : kernels::Scoring::none;
}

bool by_value(const policy::Retention& retention, int layer, int head) {
  return retention.weight == policy::Retention::Weight::value &&
         scoring_of(retention, layer, head) == kernels::Scoring::attention;
}

/// Kernels count heads from `head`, the first of a run.
std::uint64_t seed_of(const policy::Retention& retention, int layer, int head) {
  return retention.seed * 0x9E3779B97F4A7C15u + static_cast<std::uint64_t>(layer) +
         static_cast<std::uint64_t>(head) * 0xD1B54A32D192ED03u;
}

std::int32_t stride_of(const policy::Retention& retention) { return std::max(1, retention.stride); }

}  // namespace weft::runtime
