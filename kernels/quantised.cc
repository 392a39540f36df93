#include "kernels/quantised.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/small_floats.h"

namespace weft::kernels {
namespace {

constexpr std::int64_t kTileRows = QuantisedLayout::kTileRows, kLine = QuantisedLayout::kLine;

/// The nearest whole number, the even one of two equally near, for |x| below 2^22: a nearbyint() that can be
/// vectorised.
float nearest(float x) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23, beyond which floats are whole
  return (x + kShift) - kShift;
}

float half(float x) { return static_cast<float>(f16(x)); }

/// Numbers of one group and the levels that a scale and a minimum give them.
class Fit {
 public:
  Fit(const float* numbers, std::int64_t count, float top) : x_(numbers), count_(count), top_(top) {}

  float scale = 0, minimum = 0;
  double error = std::numeric_limits<double>::infinity();  ///< sum of squares

  float level(std::int64_t i, float s, float m) const {
    return s > 0 ? std::clamp(nearest(std::clamp((x_[i] - m) / s, -1.0f, top_ + 1)), 0.0f, top_) : 0.0f;
  }
  /// Adopts a scale and a minimum if they are better. scale * level is exact in fp32, so the sum rounds once.
  bool offer(float s, float m) {
    std::array<double, 4> sums{};
    for (std::int64_t i = 0; i < count_; ++i) {
      const float off = level(i, s, m) * s + m - x_[i];
      sums[static_cast<std::size_t>(i % 4)] += static_cast<double>(off) * static_cast<double>(off);
    }
    const double found = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    if (!(found < error)) return false;
    scale = s, minimum = m, error = found;
    return true;
  }
  /// Begins with the levels that `s` and `m` give. Alternately fits the best line through the numbers over the levels,
  /// and takes the levels of that line.
  void refine(float s, float m) {
    constexpr int kMost = 4;
    Fit best(x_, count_, top_);
    best.offer(s, m);
    for (int i = 0; i < kMost && best.step(); ++i) {}
    if (best.error < error) *this = best;
  }

 private:
  bool step() {
    double levels = 0, squares = 0, numbers = 0, products = 0;
    for (std::int64_t i = 0; i < count_; ++i) {
      const double l = static_cast<double>(level(i, scale, minimum)), x = static_cast<double>(x_[i]);
      levels += l, squares += l * l, numbers += x, products += l * x;
    }
    const auto n = static_cast<double>(count_);
    const double spread = n * squares - levels * levels;
    if (spread <= 0) return false;
    const float s = half(static_cast<float>((n * products - levels * numbers) / spread));
    const float m = half(static_cast<float>((numbers - static_cast<double>(s) * levels) / n));
    return s > 0 && std::isfinite(s) && std::isfinite(m) && offer(s, m);
  }

  const float* x_;
  std::int64_t count_;
  float top_;
};

/// The shares of a group's range that are cut off at its lower and upper end before refinement: a finer scale for all
/// others is worth more than a few numbers at the ends. Together with the refinement this removes a fifth of the error
/// of normally distributed numbers (groups of 64); 25 starts would remove hardly more.
constexpr std::array<std::pair<float, float>, 5> kCuts{
    {{0.0f, 0.0f}, {0.08f, 0.0f}, {0.0f, 0.08f}, {0.08f, 0.08f}, {0.16f, 0.16f}}};

}  // namespace

bool quantise_group(const float* numbers, std::int64_t count, DType dtype, std::uint8_t* levels, GroupScale& scale) {
  float least = numbers[0], most = numbers[0];
  bool finite = true;
  for (std::int64_t i = 0; i < count; ++i) {
    finite &= std::isfinite(numbers[i]);
    least = std::min(least, numbers[i]), most = std::max(most, numbers[i]);
  }
  if (!finite) return false;
  const auto top = static_cast<float>(levels_of(dtype));
  Fit fit(numbers, count, top);
  const float whole = half((most - least) / top), low = half(least);  // an overflow is an infinity, which f16 keeps
  if (!std::isfinite(whole) || !std::isfinite(low)) return false;
  fit.offer(whole, low);
  if (dtype == DType::i4 && whole > 0) {  // 8 bits leave nothing to gain
    for (const auto& [below, above] : kCuts) {
      const float from = least - below * least, to = most - above * most;
      fit.refine(half((to - from) / top), half(from));
    }
  }
  scale = {f16(fit.scale), f16(fit.minimum)};
  for (std::int64_t i = 0; i < count; ++i) levels[i] = static_cast<std::uint8_t>(fit.level(i, fit.scale, fit.minimum));
  return true;
}

namespace {

/// Writes the levels of one row and group into the row's bytes of the lines.
void pack_group(const std::uint8_t* levels, std::int64_t count, DType type, std::byte* lines) {
  const std::int64_t of_line = type == DType::i4 ? 8 : 4;
  const auto put = [&](const std::uint8_t* of, std::byte* line) {
    std::uint32_t first = 0, second = 0;
    std::memcpy(&first, of, sizeof first);
    if (type == DType::i4) {
      std::memcpy(&second, of + 4, sizeof second);
      first |= second << 4;
    }
    std::memcpy(line, &first, sizeof first);
  };
  for (; count >= of_line; count -= of_line, levels += of_line, lines += kLine) put(levels, lines);
  if (count == 0) return;
  std::array<std::uint8_t, 8> rest{};
  std::copy_n(levels, count, rest.begin());
  put(rest.data(), lines);
}

}  // namespace

void pack_tile(const QuantisedLayout& layout, const KnownLevels& levels, std::int64_t rows, std::byte* to) {
  std::memset(to, 0, static_cast<std::size_t>(layout.tile_bytes()));
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t g = 0; g < layout.groups(); ++g) {
      std::byte* const scales = to + g * layout.group_bytes();
      const std::int64_t at = row * layout.groups() + g;
      if (layout.dtype == DType::f8) {
        std::memcpy(scales + row * 4, levels.wide_scales + at, 4);
      } else {
        std::memcpy(scales + row * 2, &levels.scales[at].scale, 2);
        std::memcpy(scales + kLine / 2 + row * 2, &levels.scales[at].minimum, 2);
      }
      const std::int64_t first = g * layout.group, count = std::min<std::int64_t>(layout.group, layout.cols - first);
      pack_group(levels.levels + row * layout.cols + first, count, layout.dtype, scales + kLine + row * 4);
    }
}

std::optional<GroupScale> rounded_scale(float scale, float minimum) {
  const GroupScale both{f16(scale), f16(minimum)};
  if (!std::isfinite(static_cast<float>(both.scale)) || !std::isfinite(static_cast<float>(both.minimum))) return {};
  return both;
}

void dequantise_row(const QuantisedLayout& layout, const std::byte* from, std::int64_t row, float* numbers) {
  const std::byte* const tile = from + row / kTileRows * layout.tile_bytes();
  row %= kTileRows;
  const int mask = levels_of(layout.dtype);
  const auto& table = level_table(layout.table);
  for (std::int64_t g = 0; g < layout.groups(); ++g) {
    const std::byte* const scales = tile + g * layout.group_bytes();
    const std::byte* const lines = scales + kLine;
    const std::int64_t first = g * layout.group, count = std::min<std::int64_t>(layout.group, layout.cols - first);
    if (layout.dtype == DType::f8) {
      float scale = 0;
      std::memcpy(&scale, scales + row * 4, 4);
      for (std::int64_t i = 0; i < count; ++i)
        numbers[first + i] = e4m3(static_cast<std::uint8_t>(lines[layout.place(row, i).byte])) * scale;
      continue;
    }
    GroupScale scale;
    std::memcpy(&scale.scale, scales + row * 2, 2);
    std::memcpy(&scale.minimum, scales + kLine / 2 + row * 2, 2);
    const auto step = static_cast<float>(scale.scale), low = static_cast<float>(scale.minimum);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto place = layout.place(row, i);
      int level = (static_cast<int>(lines[place.byte]) >> place.shift) & mask;
      if (layout.dtype == DType::i4) level = table[static_cast<std::size_t>(level)];
      numbers[first + i] = std::fma(static_cast<float>(level), step, low);
    }
  }
}

}  // namespace weft::kernels
