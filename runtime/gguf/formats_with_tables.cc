// runtime/gguf/formats_with_tables.cc: blocks of 32 levels of 4 bits that stand for the numbers of a table. As levels
// of 8 bits the table's numbers are even steps again, and the groups exactly those of the file.
#include <algorithm>
#include <array>

#include "kernels/small_floats.h"
#include "runtime/gguf/block_reader.h"

namespace weft::runtime {
namespace {

constexpr std::array<std::int8_t, 16> kIq4Nl{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/// Reads the levels at `from` through a table whose numbers are from -zero to 255 - zero.
void look_up(const std::byte* from, const std::array<std::int8_t, 16>& table, int zero, float scale,
             const BlockParts& to) {
  split_halves(from, 16, to.levels);
  for (int i = 0; i < 32; ++i) to.levels[i] = static_cast<std::uint8_t>(table[to.levels[i]] + zero);
  around(scale, zero, to);
}

void iq4_nl(const std::byte* block, const BlockParts& to) { look_up(block + 2, kIq4Nl, 128, fp16_at(block), to); }

/// A block of zeros has the smallest scale, which fp16 does not hold.
void mxfp4(const std::byte* block, const BlockParts& to) {
  constexpr int kZero = 16;
  look_up(block + 1, kTwiceE2M1, kZero, half_of_e8m0(byte_at(block, 0)), to);
  if (std::all_of(to.levels, to.levels + 32, [](std::uint8_t level) { return level == kZero; })) around(0, kZero, to);
}

constexpr std::array kFormatsWithTables{
    BlockFormat{.id = 20, .name = "IQ4_NL", .numbers = 32, .bytes = 18, .type = DType::i8, .group = 32, .read = iq4_nl},
    BlockFormat{.id = 39, .name = "MXFP4", .numbers = 32, .bytes = 17, .type = DType::i8, .group = 32, .read = mxfp4}};

}  // namespace

std::span<const BlockFormat> formats_with_tables() { return kFormatsWithTables; }

}  // namespace weft::runtime
