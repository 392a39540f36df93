// kernels/quantised.h: numbers of 4 or 8 bits. A group of neighbours shares a scale and a minimum in fp16: a number is
// scale * level + minimum, by one fused multiply-add in fp32. Its level is from 0 to 15 or 255. Levels of 4 bits may
// stand for levels of 8 bits by a table; then a number is what it would be if those were stored. Groups of floats of 8
// bits share a scale in fp32 and have no minimum: a number is the float times its scale, rounded to fp32.
//
// The scale itself is stored, not its inverse, which would overflow fp16 if a group's numbers are nearly equal.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "kernels/tensor.h"

namespace weft {

struct GroupScale {
  f16 scale, minimum;
};

constexpr int levels_of(DType dtype) { return dtype == DType::i4 ? 15 : 255; }  ///< the highest level
inline constexpr std::array<std::array<std::uint8_t, 16>, 4> kLevelTables{{
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4},               // 16 + twice the numbers of E2M1
    {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241},    // 128 + the numbers of IQ4_NL (GGUF)
    {16, 50, 69, 84, 96, 107, 118, 128, 137, 146, 156, 166, 177, 191, 209, 240},  // 128 + kOneOfNf4 times those of NF4
}};
/// The level of NF4's 1 above that of 0. Rounding to 127 steps would err more, and shift the mean of normally
/// distributed numbers four times as much.
inline constexpr int kOneOfNf4 = 112;
/// The levels that those of i4 stand for. The level of 0 is 16 in e2m1, 128 in nf4, and would be 128 in iq4_nl.
constexpr const std::array<std::uint8_t, 16>& level_table(LevelTable table) {
  return kLevelTables[static_cast<std::size_t>(table)];
}
inline constexpr float kFloat8ScaleEnd = 256;  ///< scales of f8 are below it, so that products may multiply them

/// The layout of a quantised matrix [rows, cols] in memory: tiles of 16 rows, one after another. A tile holds its
/// groups, from the first column on. A group holds 16 scales, 16 minima, then the levels in lines of 64 bytes. In f8
/// the scales, of fp32, fill the place of both. A line has 4 bytes for each of the 16 rows: in i8 and f8 the levels of
/// 4 columns; in i4 of 8, the first 4 in the low halves of the bytes. Integer products of 16 rows can thus use a line
/// as a vector as it is. Rows and columns beyond the matrix have level 0, and such rows also scale and minimum 0.
/// Everything is a multiple of 64 bytes.
struct QuantisedLayout {
  static constexpr std::int64_t kTileRows = 16, kLine = 64;

  DType dtype = DType::i4;
  int group = 64;
  std::int64_t rows = 0, cols = 0;
  LevelTable table = LevelTable::even;

  template <class Void> static constexpr QuantisedLayout of(const BasicView<Void>& v) {
    return {v.dtype, v.group, v.rows, v.cols, v.table};
  }
  constexpr std::int64_t tiles() const { return (rows + kTileRows - 1) / kTileRows; }
  constexpr std::int64_t groups() const { return (cols + group - 1) / group; }  ///< groups in a row
  constexpr std::int64_t line_cols() const { return dtype == DType::i4 ? 8 : 4; }
  constexpr std::int64_t group_bytes() const { return kLine + group / line_cols() * kLine; }
  constexpr std::int64_t tile_bytes() const { return groups() * group_bytes(); }
  constexpr std::int64_t bytes() const { return tiles() * tile_bytes(); }
  /// The byte of a tile's row and a group's column after the group's scales, and the shift of the level in bits.
  struct Place {
    std::int64_t byte;
    int shift;
  };
  constexpr Place place(std::int64_t row, std::int64_t column) const {
    return {column / line_cols() * kLine + row * 4 + column % 4, column % line_cols() < 4 ? 0 : 4};
  }
};

namespace kernels {

/// Writes the `count` levels of a group, one per byte, and their scale. Returns false if a number is not finite, or if
/// the group's scale or minimum would overflow fp16; the outputs are then undefined. A group of equal numbers has scale
/// 0. For 4 bits it searches for the scale and minimum with the least sum of squared errors. This is the definition of
/// the levels; quantise_tile() is fast.
bool quantise_group(const float* numbers, std::int64_t count, DType dtype, std::uint8_t* levels, GroupScale& scale);

/// Quantises one tile: at most 16 rows of layout.cols numbers of a float type, into layout.tile_bytes() bytes, with the
/// instructions that this processor has (kernels/levels/quantise.h). Returns the row whose group cannot be quantised,
/// or -1.
std::int64_t quantise_tile(const QuantisedLayout& layout, const ConstView& numbers, std::byte* to);
/// Rows with known levels, a byte for each.
struct KnownLevels {
  const std::uint8_t* levels = nullptr;  ///< [rows, cols], from 0 to levels_of(the layout's type)
  const GroupScale* scales = nullptr;    ///< [rows, layout.groups()]; not of f8
  const float* wide_scales = nullptr;    ///< the same of f8
};
/// Writes the tile that holds these `rows` <= 16 rows.
void pack_tile(const QuantisedLayout& layout, const KnownLevels& levels, std::int64_t rows, std::byte* to);
/// Rounds a scale and a minimum; nullopt if one overflows fp16 or is not finite.
std::optional<GroupScale> rounded_scale(float scale, float minimum);
/// Writes the numbers [layout.cols] of row `row`.
void dequantise_row(const QuantisedLayout& layout, const std::byte* from, std::int64_t row, float* numbers);

}  // namespace kernels
}  // namespace weft
