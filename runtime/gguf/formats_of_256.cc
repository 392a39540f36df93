// runtime/gguf/formats_of_256.cc: blocks of 256 numbers in groups of 32 or 16. A group's scale is a number of 4 to 8
// bits times the block's scale in fp16, which is exact in fp32 but not in fp16. Q3_K's are so small that the products
// of levels and scales are levels of 8 bits in groups of 32, exactly. TQ1_0 and TQ2_0 have one scale for a block.
#include <array>

#include "runtime/gguf/block_reader.h"

namespace weft::runtime {
namespace {

constexpr int kNumbers = 256;
constexpr int kGroups = 8, kPacked = 12;  // groups of 32; bytes of their scales and minima, 6 bits each

/// Number `i` of 256 that have 2 bits each. Byte b of each half of 64 bytes holds the numbers b, 32 + b, 64 + b and
/// 96 + b of that half.
int two_bits(const std::byte* from, int i) { return byte_at(from, i / 128 * 32 + i % 32) >> i / 32 % 4 * 2 & 3; }

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

/// Groups of 16: bytes of a scale (low half) and a minimum, levels of 2 bits, both factors.
void q2_k(const std::byte* block, const BlockParts& to) {
  const float scale = fp16_at(block + 80), minimum = fp16_at(block + 82);
  for (int i = 0; i < kNumbers; ++i) to.levels[i] = static_cast<std::uint8_t>(two_bits(block + 16, i));
  for (int g = 0; g < 16; ++g) {
    to.scales[g] = scale * static_cast<float>(byte_at(block, g) & 15);
    to.minima[g] = -minimum * static_cast<float>(byte_at(block, g) >> 4);
  }
}

/// Groups of 16: the third bit of each level, its lower two, scales of 6 bits, their factor. A number is the factor *
/// (scale - 32) * (level - 4). The product of the last two is from -124 to 128, so what is subtracted from 128 here is
/// a level of 8 bits, and the negative factor is the scale of all of them.
void q3_k(const std::byte* block, const BlockParts& to) {
  const std::byte *const high = block, *const low = block + 32, *const packed = block + 96;
  for (int i = 0; i < kNumbers; ++i) {
    const int g = i / 16, bit = byte_at(high, i % 32) >> i / 32 & 1;
    const int half = byte_at(packed, g % 8) >> g / 8 * 4 & 15, pair = byte_at(packed, 8 + g % 4) >> g / 4 * 2 & 3;
    to.levels[i] = static_cast<std::uint8_t>(128 - ((half | pair << 4) - 32) * ((two_bits(low, i) | bit << 2) - 4));
  }
  for (int g = 0; g < kGroups; ++g) around(-fp16_at(block + 108), 128, group_of(to, g));
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
  for (int i = 0; i < kNumbers; ++i)
    to.levels[i] |= static_cast<std::uint8_t>((byte_at(high, i % 32) >> i / 32 & 1) << 4);
}

constexpr int kZeroOfQ6K = 32;

/// Groups of 16. Each half of a block has 64 bytes of low halves and 32 bytes of high pairs of bits.
void q6_k(const std::byte* block, const BlockParts& to) {
  const std::byte *low = block, *high = block + 128, *scales = block + 192;
  const float scale = fp16_at(block + 208);
  for (int half = 0; half < 2; ++half) split_halves(low + half * 64, 64, to.levels + half * 128);
  for (int i = 0; i < kNumbers; ++i) to.levels[i] |= static_cast<std::uint8_t>(two_bits(high, i) << 4);
  for (int g = 0; g < 16; ++g) {
    to.scales[g] = scale * static_cast<float>(static_cast<std::int8_t>(scales[g]));
    to.minima[g] = -kZeroOfQ6K * to.scales[g];
  }
}

/// Gives each group of a block that holds -1, 0 and 1 times one scale its parts.
void around_one(const std::byte* scale, const BlockParts& to) {
  for (int g = 0; g < kGroups; ++g) around(fp16_at(scale), 1, group_of(to, g));
}

/// A byte holds five levels as the digits of a number between 0 and 1 in base 3, or four if it is one of the last 4.
void tq1_0(const std::byte* block, const BlockParts& to) {
  std::uint8_t* level = to.levels;
  const auto read = [&](int first, int bytes, int digits) {
    for (int digit = 0, power = 1; digit < digits; ++digit, power *= 3)
      for (int i = 0; i < bytes; ++i)
        *level++ = static_cast<std::uint8_t>((byte_at(block, first + i) * power & 255) * 3 >> 8);
  };
  read(0, 32, 5), read(32, 16, 5), read(48, 4, 4);
  around_one(block + 52, to);
}

void tq2_0(const std::byte* block, const BlockParts& to) {
  for (int i = 0; i < kNumbers; ++i) to.levels[i] = static_cast<std::uint8_t>(two_bits(block, i));
  around_one(block + 64, to);
}

constexpr BlockFormat of_256(std::uint32_t id, const char* name, int bytes, DType type, int group, bool exact,
                             decltype(BlockFormat::read) read, std::optional<int> zero = {}) {
  return {.id = id,
          .name = name,
          .numbers = kNumbers,
          .bytes = bytes,
          .type = type,
          .group = group,
          .exact = exact,
          .zero = zero,
          .read = read};
}

constexpr std::array kFormatsOf256{of_256(10, "Q2_K", 84, DType::i4, 16, false, q2_k),
                                   of_256(11, "Q3_K", 110, DType::i8, 32, true, q3_k),
                                   of_256(12, "Q4_K", 144, DType::i4, 32, false, q4_k),
                                   of_256(13, "Q5_K", 176, DType::i8, 32, false, q5_k),
                                   of_256(14, "Q6_K", 210, DType::i8, 16, false, q6_k, kZeroOfQ6K),
                                   of_256(34, "TQ1_0", 54, DType::i4, 32, true, tq1_0),
                                   of_256(35, "TQ2_0", 66, DType::i4, 32, true, tq2_0)};

}  // namespace

std::span<const BlockFormat> formats_of_256() { return kFormatsOf256; }

}  // namespace weft::runtime
