// runtime/gguf/formats_of_256.cc: blocks of 256 numbers in groups of 32 or 16. A group's scale is a number of 6 or 8
// bits times the block's scale in fp16, which is exact in fp32 but not in fp16.
#include <array>

#include "runtime/gguf/block_reader.h"

namespace weft::runtime {
namespace {

constexpr int kGroups = 8, kPacked = 12;  // groups of 32; bytes of their scales and minima, 6 bits each

/// Reads the scales and minima of a block that begins with both factors. The first four groups have theirs in the low 6
/// bits of bytes 0-3 and 4-7; of the others the low 4 bits are in bytes 8-11, and the high 2 bits are those that the
/// first eight bytes have left.
void read_scales(const std::byte* block, const BlockParts& to) {
  const float scale = fp16_at(block), minimum = fp16_at(block + 2);
  const std::byte* const packed = block + 4;
  for (int g = 0; g < kGroups / 2; ++g) {
    const int first = byte_at(packed, g), second = byte_at(packed, g + 4), both = byte_at(packed, g + 8);
    to.scales[g] = scale * static_cast<float>(first & 63);
    to.minima[g] = -minimum * static_cast<float>(second & 63);
    to.scales[g + 4] = scale * static_cast<float>((both & 15) | (first >> 6) << 4);
    to.minima[g + 4] = -minimum * static_cast<float>((both >> 4) | (second >> 6) << 4);
  }
}

void q4_k(const std::byte* block, const BlockParts& to) {
  read_scales(block, to);
  for (int pair = 0; pair < kGroups / 2; ++pair)
    split_halves(block + 4 + kPacked + pair * 32, 32, to.levels + pair * 64);
}

void q5_k(const std::byte* block, const BlockParts& to) {
  read_scales(block, to);
  const std::byte* const high = block + 4 + kPacked;  // bit g of byte i is the fifth bit of level i of group g
  for (int pair = 0; pair < kGroups / 2; ++pair) split_halves(high + 32 + pair * 32, 32, to.levels + pair * 64);
  for (int i = 0; i < 256; ++i) to.levels[i] |= static_cast<std::uint8_t>((byte_at(high, i % 32) >> i / 32 & 1) << 4);
}

/// Each half of a block has 64 bytes of low halves and 32 bytes of high pairs of bits.
void q6_k(const std::byte* block, const BlockParts& to) {
  const std::byte *low = block, *high = block + 128, *scales = block + 192;
  const float scale = fp16_at(block + 208);
  for (int half = 0; half < 2; ++half) {
    std::uint8_t* const levels = to.levels + half * 128;
    split_halves(low + half * 64, 64, levels);
    for (int i = 0; i < 128; ++i)
      levels[i] |= static_cast<std::uint8_t>((byte_at(high, half * 32 + i % 32) >> i / 32 * 2 & 3) << 4);
  }
  for (int g = 0; g < 16; ++g) {
    to.scales[g] = scale * static_cast<float>(static_cast<std::int8_t>(scales[g]));
    to.minima[g] = -32 * to.scales[g];
  }
}

/// A format whose scales fp16 rounds.
constexpr BlockFormat of_256(std::uint32_t id, const char* name, int bytes, DType type, int group,
                             decltype(BlockFormat::read) read) {
  return {.id = id,
          .name = name,
          .numbers = 256,
          .bytes = bytes,
          .type = type,
          .group = group,
          .exact = false,
          .read = read};
}

constexpr std::array kFormatsOf256{of_256(12, "Q4_K", 144, DType::i4, 32, q4_k),
                                   of_256(13, "Q5_K", 176, DType::i8, 32, q5_k),
                                   of_256(14, "Q6_K", 210, DType::i8, 16, q6_k)};

}  // namespace

std::span<const BlockFormat> formats_of_256() { return kFormatsOf256; }

}  // namespace weft::runtime
