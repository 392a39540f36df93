#include "policy/layout/kv_share.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "kernels/error.h"
#include "offload/kv_layout.h"

namespace weft::policy {
namespace {

constexpr double kLeastFine = 0.02;  ///< share of tokens that stay fine beside cold ones

/// h2o of a share of the tokens, half of them recent.
std::string h2o(double tokens) {
  std::array<char, 32> half;
  std::snprintf(half.data(), half.size(), "%.4f", std::floor(tokens / 2 * 10'000 + 1e-6) / 10'000);
  return "h2o:" + std::string(half.data()) + ":" + half.data();
}

}  // namespace

KvChoice choose_for_share(double share, int head_dim) {
  if (share >= 1) return {"full", "auto"};
  const auto part = [&](std::size_t keys, std::size_t values) {
    return double(keys + values) / (2.0 * double(bytes_of(DType::f16, head_dim)));
  };
  offload::KvShape shape{.head_dim = head_dim, .dtype = DType::i8, .cold = 1};
  const double fine = part(shape.key_bytes(), shape.value_bytes());
  if (share >= fine) return {"full", "int8"};
  for (const kernels::CoarseBits& bits : {kernels::CoarseBits{4, 2}, kernels::CoarseBits{3, 2}}) {
    shape.coarse = bits;
    const double cold = part(shape.cold_key_bytes(), shape.cold_value_bytes());
    const double tokens = (share - cold) / (fine - cold);
    if (cold < fine && tokens >= kLeastFine)
      return {h2o(tokens) + ":cold=1.0", "int8:" + std::to_string(bits.keys) + ":" + std::to_string(bits.values)};
  }
  return {h2o(share / fine), "int8"};
}

std::optional<double> kv_share_from_text(std::string_view text, const std::string& where) {
  constexpr std::string_view name = "auto:";
  if (!text.starts_with(name)) return std::nullopt;
  const std::string_view number = text.substr(name.size());
  double share = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), share);
  if (error == std::errc() && end == number.data() + number.size() && share > 0 && share <= 1) return share;
  throw UsageError(
      where + ": auto is written auto:SHARE, the share that keys and values may take of the full cache's " +
      "bytes in 16 bits, above 0 and at most 1, such as auto:0.25; got '" + std::string(text.substr(0, 40)) + "'");
}

std::optional<KvChoice> settle_kv_share(PartialPolicy& policy, int head_dim) {
  if (!policy.kv_share) return std::nullopt;
  if (policy.kv_format)
    throw UsageError(
        "retention: 'auto' also chooses the type of keys and values; leave out --kv-dtype and the policy's kv dtype");
  KvChoice choice = choose_for_share(*policy.kv_share, head_dim);
  policy.retention = Retention::from_text(choice.retention);
  policy.kv_format = KvFormat::from_text(choice.format, "auto");
  policy.kv_share.reset();
  return choice;
}

}  // namespace weft::policy
