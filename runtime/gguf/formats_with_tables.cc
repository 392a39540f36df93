// runtime/gguf/formats_with_tables.cc: levels of 4 bits that stand for the numbers of a table (kernels/quantised.h), in
// groups of 32, or of NVFP4 in groups of 16. Levels and groups stay those of the file. So do the scales of blocks of
// 32; those of IQ4_XS, which has blocks of eight groups, are products of two numbers, which fp16 rounds. So are
// NVFP4's, if another tensor has a scale for the whole matrix (runtime/stored/block_matrix.cc).
#include <algorithm>
#include <array>
#include <limits>

#include "kernels/small_floats.h"
#include "runtime/gguf/block_reader.h"

namespace weft::runtime {
namespace {

constexpr int kZeroOfIq4 = 128;

void iq4_nl(const std::byte* block, const BlockParts& to) {
  split_halves(block + 2, 16, to.levels);
  around(fp16_at(block), kZeroOfIq4, to);
}

/// The factor of the scales, their high pairs of bits in one word, their low halves, then the levels.
void iq4_xs(const std::byte* block, const BlockParts& to) {
  const int high = byte_at(block, 2) | byte_at(block, 3) << 8;
  for (int g = 0; g < 8; ++g) {
    const int scale = (byte_at(block, 4 + g / 2) >> g % 2 * 4 & 15) | (high >> g * 2 & 3) << 4;
    split_halves(block + 8 + g * 16, 16, to.levels + g * 32);
    around(fp16_at(block) * static_cast<float>(scale - 32), kZeroOfIq4, group_of(to, g));
  }
}

constexpr int kZeroOfE2M1 = 16;

/// A block of zeros has the smallest scale, which fp16 does not hold.
void mxfp4(const std::byte* block, const BlockParts& to) {
  split_halves(block + 1, 16, to.levels);
  const bool zeros = std::all_of(to.levels, to.levels + 32, [](std::uint8_t level) { return kTwiceE2M1[level] == 0; });
  around(zeros ? 0 : half_of_e8m0(byte_at(block, 0)), kZeroOfE2M1, to);
}

/// Half of a scale in E4M3, as kTwiceE2M1 needs it. What would be no number counts as 0; a sign, which no scale has, is
/// no number.
float half_of_scale(std::uint8_t bits) {
  constexpr int kNotANumber = 127;
  return bits == kNotANumber ? 0 : bits > kNotANumber ? std::numeric_limits<float>::quiet_NaN() : e4m3(bits) / 2;
}

/// Four groups of 16: their scales, then the levels of each.
void nvfp4(const std::byte* block, const BlockParts& to) {
  for (int g = 0; g < 4; ++g) {
    split_halves(block + 4 + g * 8, 8, to.levels + g * 16);
    around(half_of_scale(byte_at(block, g)), kZeroOfE2M1, {to.levels, to.scales + g, to.minima + g});
  }
}

constexpr BlockFormat with_table(std::uint32_t id, const char* name, int numbers, int bytes, LevelTable table,
                                 bool exact, decltype(BlockFormat::read) read) {
  return {.id = id,
          .name = name,
          .numbers = numbers,
          .bytes = bytes,
          .type = DType::i4,
          .group = 32,
          .table = table,
          .exact = exact,
          .zero = exact ? std::nullopt : std::optional(kZeroOfIq4),
          .read = read};
}

constexpr BlockFormat kNvfp4Blocks{.id = 40,
                                   .name = "NVFP4",
                                   .numbers = 64,
                                   .bytes = 36,
                                   .type = DType::i4,
                                   .group = 16,
                                   .table = LevelTable::e2m1,
                                   .zero = kZeroOfE2M1,
                                   .read = nvfp4};
constexpr std::array kFormatsWithTables{with_table(20, "IQ4_NL", 32, 18, LevelTable::iq4_nl, true, iq4_nl),
                                        with_table(23, "IQ4_XS", 256, 136, LevelTable::iq4_nl, false, iq4_xs),
                                        with_table(39, "MXFP4", 32, 17, LevelTable::e2m1, true, mxfp4), kNvfp4Blocks};

}  // namespace

std::span<const BlockFormat> formats_with_tables() { return kFormatsWithTables; }

}  // namespace weft::runtime
