// runtime/gguf/formats_of_32.cc: blocks of 32 numbers with one scale in fp16, and perhaps a minimum. All are exactly
// groups of Weft; levels of 5 bits take 8.
#include <array>

#include "runtime/gguf/block_reader.h"

namespace weft::runtime {
namespace {

constexpr int kHalf = 16;  // levels of each half of a block

/// Adds the fifth bits, bit i of a word for level i.
void add_fifth_bits(const std::byte* from, std::uint8_t* levels) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, from, sizeof bits);
  for (int i = 0; i < 2 * kHalf; ++i) levels[i] |= static_cast<std::uint8_t>((bits >> i & 1) << 4);
}

void q4_0(const std::byte* block, const BlockParts& to) {
  split_halves(block + 2, kHalf, to.levels);
  around(fp16_at(block), 8, to);
}

void q4_1(const std::byte* block, const BlockParts& to) {
  split_halves(block + 4, kHalf, to.levels);
  to.scales[0] = fp16_at(block), to.minima[0] = fp16_at(block + 2);
}

void q5_0(const std::byte* block, const BlockParts& to) {
  split_halves(block + 6, kHalf, to.levels);
  add_fifth_bits(block + 2, to.levels);
  around(fp16_at(block), 16, to);
}

void q5_1(const std::byte* block, const BlockParts& to) {
  split_halves(block + 8, kHalf, to.levels);
  add_fifth_bits(block + 4, to.levels);
  to.scales[0] = fp16_at(block), to.minima[0] = fp16_at(block + 2);
}

void q8_0(const std::byte* block, const BlockParts& to) {
  for (int i = 0; i < 2 * kHalf; ++i) to.levels[i] = byte_at(block, 2 + i) ^ 0x80;  // -128 becomes 0
  around(fp16_at(block), 128, to);
}

constexpr std::array kFormatsOf32{
    BlockFormat{.id = 2, .name = "Q4_0", .numbers = 32, .bytes = 18, .type = DType::i4, .group = 32, .read = q4_0},
    BlockFormat{.id = 3, .name = "Q4_1", .numbers = 32, .bytes = 20, .type = DType::i4, .group = 32, .read = q4_1},
    BlockFormat{.id = 6, .name = "Q5_0", .numbers = 32, .bytes = 22, .type = DType::i8, .group = 32, .read = q5_0},
    BlockFormat{.id = 7, .name = "Q5_1", .numbers = 32, .bytes = 24, .type = DType::i8, .group = 32, .read = q5_1},
    BlockFormat{.id = 8, .name = "Q8_0", .numbers = 32, .bytes = 34, .type = DType::i8, .group = 32, .read = q8_0}};

}  // namespace

std::span<const BlockFormat> formats_of_32() { return kFormatsOf32; }

}  // namespace weft::runtime
