#include "runtime/model/deviates.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/base/hash.h"
#include "runtime/checkpoint/float_types.h"

namespace weft::runtime {
namespace {

/// Quantiles of the normal distribution, so that 16 random bits give one deviate.
const std::vector<float>& normal_table() {
  static const std::vector<float> table = [] {
    constexpr int kEntries = 1 << 16;
    std::vector<float> values(kEntries);
    double x = -4.6;
    for (int i = 0; i < kEntries; ++i) {
      const double p = (i + 0.5) / kEntries;
      for (int step = 0; step < 50; ++step) {  // Newton's method from the previous quantile
        const double density = std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
        const double error = 0.5 * std::erfc(-x / std::numbers::sqrt2) - p;
        x -= error / density;
        if (std::abs(error) < 1e-13) break;
      }
      values[static_cast<std::size_t>(i)] = static_cast<float>(x);
    }
    return values;
  }();
  return table;
}

}  // namespace

Deviates::Deviates(float deviation, float mean, DType type)
    : type_(type), values_(normal_table().size() * size_of(type)) {
  with_type(type, [&]<class T>(T) {
    auto* const to = reinterpret_cast<T*>(values_.data());
    for (std::size_t i = 0; i < normal_table().size(); ++i) to[i] = T(mean + deviation * normal_table()[i]);
  });
}

/// 64 random bits give four deviates.
void Deviates::draw(std::uint64_t key, std::uint64_t first, std::int64_t count, std::byte* to) const {
  with_type(type_, [&]<class T>(T) {
    const T* const values = reinterpret_cast<const T*>(values_.data());
    T* out = reinterpret_cast<T*>(to);
    const std::uint64_t end = first + static_cast<std::uint64_t>(count);
    std::uint64_t element = first;
    const auto one_by_one = [&](std::uint64_t until) {
      for (; element < until; ++element) *out++ = values[mix(key + element / 4) >> (16 * (element % 4)) & 0xFFFF];
    };
    one_by_one(std::min(end, (first + 3) / 4 * 4));
    for (; element + 4 <= end; element += 4, out += 4) {
      const std::uint64_t bits = mix(key + element / 4);
      out[0] = values[bits & 0xFFFF], out[1] = values[bits >> 16 & 0xFFFF];
      out[2] = values[bits >> 32 & 0xFFFF], out[3] = values[bits >> 48];
    }
    one_by_one(end);
  });
}

}  // namespace weft::runtime
