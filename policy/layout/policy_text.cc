#include "policy/layout/policy_text.h"

#include <algorithm>
#include <cmath>

namespace weft::policy {

std::string percentages(const Fractions& shares) {
  const auto percent = [](double share) { return std::to_string(std::lround(share * 100)); };
  return percent(shares.device()) + "/" + percent(shares.host()) + "/" + percent(shares.disk());
}

std::string retention_name(const Retention& retention) {
  const bool by_head = std::ranges::any_of(retention.layers, [](const auto& heads) { return heads.size() > 1; });
  return name_of(retention.rule) + std::string(by_head ? " by head" : retention.alike() ? "" : " by layer");
}

std::string policy_line(const Policy& policy) {
  return "block of " + std::to_string(policy.gpu_batch_size) + " x " + std::to_string(policy.num_gpu_batches) +
         " sequences; device/host/disk percent: weights " + percentages(policy.weights) + ", kv " +
         percentages(policy.kv) + (policy.kv_format.dtype ? " in " + to_text(policy.kv_format, DType::f16) : "") +
         ", activations " + percentages(policy.activations) + "; retention " + retention_name(policy.retention) +
         (policy.weight_format ? "; weights " + to_text(*policy.weight_format) : "") + "; attention on " +
         attention_to_text(policy.attention_on_host) + "; " + (policy.continuous ? "continuous" : "static") +
         " schedule";
}

}  // namespace weft::policy
