#include "policy/layout/policy_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

namespace weft::policy {

std::string percentages(const Fractions& shares) {
  const std::array<double, 3> exact{shares.device() * 100, shares.host() * 100, shares.disk() * 100};
  std::array<long, 3> whole{};
  for (std::size_t i = 0; i < 3; ++i) whole[i] = std::lround(exact[i]);
  // Their sum is that of the shares: the number with the largest error in that direction gives way.
  for (long extra = whole[0] + whole[1] + whole[2] - std::lround(exact[0] + exact[1] + exact[2]); extra != 0;) {
    const long step = extra > 0 ? 1 : -1;
    const auto error = [&](std::size_t i) { return (double(whole[i]) - exact[i]) * double(step); };
    std::size_t most = 0;
    for (std::size_t i = 1; i < 3; ++i)
      if (error(i) > error(most)) most = i;
    whole[most] -= step;
    extra -= step;
  }
  return std::to_string(whole[0]) + "/" + std::to_string(whole[1]) + "/" + std::to_string(whole[2]);
}

std::string retention_name(const Retention& retention) {
  const bool by_head = std::ranges::any_of(retention.layers, [](const auto& heads) { return heads.size() > 1; });
  return name_of(retention.rule) +
         std::string(by_head             ? " by head"
                     : retention.alike() ? ""
                                         : " by layer") +
         (retention.selects() ? " read " + retention.read.text() : "");
}

std::string policy_line(const Policy& policy) {
  return "block of " + std::to_string(policy.gpu_batch_size) + " x " + std::to_string(policy.num_gpu_batches) +
         " sequences; device/host/disk percent: weights " + percentages(policy.weights) + ", kv " +
         percentages(policy.kv) + (policy.kv_format.dtype ? " in " + to_text(policy.kv_format, DType::f16) : "") +
         ", activations " + percentages(policy.activations) + "; retention " + retention_name(policy.retention) +
         (policy.weight_format ? "; weights " + to_text(*policy.weight_format) : "") + "; attention on " +
         host_share_to_text(policy.attention_on_host) +
         (policy.experts_on_host > 0 ? "; experts on " + host_share_to_text(policy.experts_on_host) : "") +
         (policy.max_batched_tokens ? "; prompts " + std::to_string(*policy.max_batched_tokens) + " tokens at a time"
                                    : "") +
         "; " + (policy.continuous ? "continuous" : "static") + " schedule";
}

}  // namespace weft::policy
