#include "kernels/quantised.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace weft::kernels {
namespace {

constexpr std::int64_t kTileRows = QuantisedLayout::kTileRows, kLine = QuantisedLayout::kLine;
constexpr std::int64_t kMostGroup = 128;

/// The byte of row `row` and column `column` of a group, behind its scales, and by how many bits it is shifted.
struct Place {
  std::int64_t byte;
  int shift;
};
Place place_of(DType dtype, std::int64_t row, std::int64_t column) {
  if (dtype == DType::i8) return {column / 4 * kLine + row * 4 + column % 4, 0};
  return {column / 8 * kLine + row * 4 + column % 4, column % 8 < 4 ? 0 : 4};
}

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
  scale = {f16((most - least) / top), f16(least)};  // an overflow is an infinity, which f16 keeps
  const auto step = static_cast<float>(scale.scale), low = static_cast<float>(scale.minimum);
  if (!std::isfinite(step) || !std::isfinite(low)) return false;
  for (std::int64_t i = 0; i < count; ++i) {
    const float level = step > 0 ? std::nearbyint((numbers[i] - low) / step) : 0.0f;
    levels[i] = static_cast<std::uint8_t>(std::clamp(level, 0.0f, top));
  }
  return true;
}

std::int64_t quantise_tile(const QuantisedLayout& layout, const float* numbers, std::int64_t rows, std::int64_t stride,
                           std::byte* to) {
  std::memset(to, 0, static_cast<std::size_t>(layout.tile_bytes()));
  std::array<std::uint8_t, kMostGroup> levels{};
  for (std::int64_t g = 0; g < layout.groups(); ++g) {
    std::byte* const scales = to + g * layout.group_bytes();
    std::byte* const lines = scales + kLine;
    const std::int64_t first = g * layout.group, count = std::min<std::int64_t>(layout.group, layout.cols - first);
    for (std::int64_t row = 0; row < rows; ++row) {
      GroupScale scale;
      if (!quantise_group(numbers + row * stride + first, count, layout.dtype, levels.data(), scale)) return row;
      std::memcpy(scales + row * 2, &scale.scale, 2);
      std::memcpy(scales + kLine / 2 + row * 2, &scale.minimum, 2);
      for (std::int64_t i = 0; i < count; ++i) {
        const Place place = place_of(layout.dtype, row, i);
        lines[place.byte] |= static_cast<std::byte>(levels[static_cast<std::size_t>(i)] << place.shift);
      }
    }
  }
  return -1;
}

void dequantise_row(const QuantisedLayout& layout, const std::byte* from, std::int64_t row, float* numbers) {
  const std::byte* const tile = from + row / kTileRows * layout.tile_bytes();
  row %= kTileRows;
  const int mask = levels_of(layout.dtype);
  for (std::int64_t g = 0; g < layout.groups(); ++g) {
    const std::byte* const scales = tile + g * layout.group_bytes();
    const std::byte* const lines = scales + kLine;
    GroupScale scale;
    std::memcpy(&scale.scale, scales + row * 2, 2);
    std::memcpy(&scale.minimum, scales + kLine / 2 + row * 2, 2);
    const auto step = static_cast<float>(scale.scale), low = static_cast<float>(scale.minimum);
    const std::int64_t first = g * layout.group, count = std::min<std::int64_t>(layout.group, layout.cols - first);
    for (std::int64_t i = 0; i < count; ++i) {
      const Place place = place_of(layout.dtype, row, i);
      const int level = (static_cast<int>(lines[place.byte]) >> place.shift) & mask;
      numbers[first + i] = std::fma(static_cast<float>(level), step, low);
    }
  }
}

}  // namespace weft::kernels
