#include "runtime/engine/policy_text.h"

#include <cmath>

namespace weft::runtime {

std::string percentages(const policy::Fractions& shares) {
  const auto percent = [](double share) { return std::to_string(std::lround(share * 100)); };
  return percent(shares.device()) + "/" + percent(shares.host()) + "/" + percent(shares.disk());
}

std::string policy_line(const policy::Policy& policy) {
  return "block of " + std::to_string(policy.gpu_batch_size) + " x " + std::to_string(policy.num_gpu_batches) +
         " sequences; device/host/disk percent: weights " + percentages(policy.weights) + ", kv " +
         percentages(policy.kv) + (policy.kv_format.dtype ? " in " + to_text(policy.kv_format, DType::f16) : "") +
         ", activations " + percentages(policy.activations) + "; retention " + name_of(policy.retention.rule) +
         (policy.retention.alike() ? "" : " by layer") +
         (policy.weight_format ? "; weights " + policy::to_text(*policy.weight_format) : "") + "; attention on " +
         policy::attention_to_text(policy.attention_on_host) + "; " + (policy.continuous ? "continuous" : "static") +
         " schedule";
}

}  // namespace weft::runtime
