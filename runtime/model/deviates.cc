#include "runtime/model/deviates.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "kernels/small_floats.h"
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

namespace {

/// The spacing of equidistant levels with the least error for normal numbers, of their deviation (J. Max, Quantizing
/// for minimum distortion, 1960); of 256 levels they leave the tails to the last.
double spacing(DType type) { return type == DType::i4 ? 0.3352 : 8.4 / 255; }

/// Zeros the levels of a line's rows from `rows` on.
void clear_rows(std::byte* line, std::int64_t rows) {
  constexpr std::int64_t row_bytes = QuantisedLayout::kLine / QuantisedLayout::kTileRows;
  std::memset(line + rows * row_bytes, 0, static_cast<std::size_t>(QuantisedLayout::kLine - rows * row_bytes));
}

/// Zeros the levels of a group's columns from `count` on, and of rows from `rows` on.
void clear_beyond(const QuantisedLayout& layout, std::int64_t rows, std::int64_t count, std::byte* lines) {
  for (std::int64_t column = count; column < layout.group; ++column)
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto place = layout.place(row, column);
      lines[place.byte] &= layout.dtype != DType::i4 ? std::byte{0} : std::byte{0xF0} >> place.shift;
    }
  for (std::int64_t at = 0; at < layout.group_bytes() - QuantisedLayout::kLine; at += QuantisedLayout::kLine)
    clear_rows(lines + at, rows);
}

/// The bits of the number of E4M3 that is nearest.
std::uint8_t nearest_e4m3(float number) {
  std::uint8_t low = 0, high = 126;  // the largest
  const float size = std::abs(number);
  while (high - low > 1) {
    const auto middle = static_cast<std::uint8_t>((low + high) / 2);
    (e4m3(middle) <= size ? low : high) = middle;
  }
  const std::uint8_t nearest = e4m3(high) - size < size - e4m3(low) ? high : low;
  return number < 0 ? static_cast<std::uint8_t>(nearest | 128) : nearest;
}

}  // namespace

RandomLevels::RandomLevels(float deviation, DType type) : bytes_(normal_table().size()) {
  if (type == DType::f8) {
    const float step = normal_table().back() / 448;  // as FP8 is made: the largest number is 448 times the scale
    double numbers = 0;
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      bytes_[i] = nearest_e4m3(normal_table()[i] / step);
      numbers += double(e4m3(bytes_[i])) * double(e4m3(bytes_[i]));
    }
    wide_scale_ = deviation / static_cast<float>(std::sqrt(numbers / double(bytes_.size())));
    return;
  }
  const int top = levels_of(type);
  const double step = spacing(type), middle = top / 2.0;
  const auto level = [&](std::size_t quantile) {
    return static_cast<std::uint8_t>(
        std::clamp(std::nearbyint(double(normal_table()[quantile]) / step + middle), 0.0, double(top)));
  };
  double squares = 0;
  for (std::size_t i = 0; i < bytes_.size(); ++i) {
    const std::uint8_t low = level(type == DType::i8 ? i : i % 256 * 256 + 128);
    bytes_[i] = type == DType::i8 ? low : static_cast<std::uint8_t>(low | level(i / 256 * 256 + 128) << 4);
    squares += (low - middle) * (low - middle);
  }
  const double scale = double(deviation) / std::sqrt(squares / double(bytes_.size()));
  scale_ = {f16(static_cast<float>(scale)), f16(static_cast<float>(-middle * scale))};
}

void RandomLevels::draw(const QuantisedLayout& layout, std::uint64_t key, std::int64_t tile, std::byte* to) const {
  constexpr std::int64_t line = QuantisedLayout::kLine, tile_rows = QuantisedLayout::kTileRows;
  const std::int64_t rows = std::min(tile_rows, layout.rows - tile * tile_rows), bytes = layout.group_bytes() - line;
  std::uint64_t element = static_cast<std::uint64_t>(tile * layout.groups() * bytes / 4);
  for (std::int64_t g = 0; g < layout.groups(); ++g, to += layout.group_bytes()) {
    std::memset(to, 0, line);
    for (std::int64_t row = 0; row < rows; ++row) {
      if (layout.dtype == DType::f8) {
        std::memcpy(to + row * 4, &wide_scale_, 4);
        continue;
      }
      std::memcpy(to + row * 2, &scale_.scale, 2);
      std::memcpy(to + line / 2 + row * 2, &scale_.minimum, 2);
    }
    auto* out = reinterpret_cast<std::uint8_t*>(to + line);
    for (std::int64_t i = 0; i < bytes; i += 4, out += 4) {
      const std::uint64_t bits = mix(key + element++);
      out[0] = bytes_[bits & 0xFFFF], out[1] = bytes_[bits >> 16 & 0xFFFF];
      out[2] = bytes_[bits >> 32 & 0xFFFF], out[3] = bytes_[bits >> 48];
    }
    const std::int64_t count = std::min<std::int64_t>(layout.group, layout.cols - g * layout.group);
    if (rows < tile_rows || count < layout.group) clear_beyond(layout, rows, count, to + line);
  }
}

}  // namespace weft::runtime
