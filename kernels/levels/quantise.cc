// kernels/levels/quantise.cc: chooses how this processor quantises tiles.
#include "kernels/levels/quantise.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/machine/cpu_features.h"

namespace weft::kernels {
namespace {

float number_at(const ConstView& row, std::int64_t i) {
  switch (row.dtype) {
    case DType::f16: return static_cast<float>(row.as<f16>()[i]);
    case DType::bf16: return static_cast<float>(row.as<bf16>()[i]);
    default: return row.as<float>()[i];
  }
}

std::int64_t quantise_plainly(const QuantiseTile& t) {
  constexpr std::int64_t line = QuantisedLayout::kLine;
  const QuantisedLayout layout{t.four ? DType::i4 : DType::i8, static_cast<int>(t.group), t.rows, t.cols};
  std::memset(t.to, 0, static_cast<std::size_t>(layout.tile_bytes()));
  const ConstView all(t.numbers, t.type, t.rows, t.cols, t.stride);
  std::array<float, kMostGroup> numbers{};
  std::array<std::uint8_t, kMostGroup> levels{};
  for (std::int64_t g = 0; g < layout.groups(); ++g) {
    std::byte* const scales = t.to + g * layout.group_bytes();
    const std::int64_t first = g * t.group, count = std::min(t.group, t.cols - first);
    for (std::int64_t row = 0; row < t.rows; ++row) {
      const ConstView group = all.slice(row, 1).columns(first, count);
      for (std::int64_t i = 0; i < count; ++i) numbers[static_cast<std::size_t>(i)] = number_at(group, i);
      GroupScale scale;
      if (!quantise_group(numbers.data(), count, layout.dtype, levels.data(), scale)) return row;
      std::memcpy(scales + row * 2, &scale.scale, 2);
      std::memcpy(scales + line / 2 + row * 2, &scale.minimum, 2);
      for (std::int64_t i = 0; i < count; ++i) {
        const auto place = layout.place(row, i);
        scales[line + place.byte] |= static_cast<std::byte>(levels[static_cast<std::size_t>(i)] << place.shift);
      }
    }
  }
  return -1;
}

std::vector<QuantiseKernel> find_quantise_kernels() {
  std::vector<QuantiseKernel> found;
  if (const auto kernel = quantise_avx512(); kernel && cpu_has_avx512()) found.push_back({"AVX-512", kernel});
  if (const auto kernel = quantise_avx2(); kernel && cpu_has_avx2()) found.push_back({"AVX2", kernel});
  found.push_back({"plain C++", quantise_plainly});
  return found;
}

}  // namespace

const std::vector<QuantiseKernel>& quantise_kernels() {
  static const std::vector<QuantiseKernel> found = find_quantise_kernels();
  return found;
}

QuantiseTile arguments_of(const QuantisedLayout& layout, const ConstView& numbers, std::byte* to) {
  return {.numbers = numbers.data,
          .type = numbers.dtype,
          .rows = numbers.rows,
          .stride = numbers.stride,
          .cols = layout.cols,
          .group = layout.group,
          .group_bytes = layout.group_bytes(),
          .four = layout.dtype == DType::i4,
          .to = to};
}

std::int64_t quantise_tile(const QuantisedLayout& layout, const ConstView& numbers, std::byte* to) {
  return quantise_kernels().front().quantise(arguments_of(layout, numbers, to));
}

}  // namespace weft::kernels
