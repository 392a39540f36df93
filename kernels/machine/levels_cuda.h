// kernels/machine/levels_cuda.h: levels of 4 and 8 bits, and floats of 8 bits, as fp16 numbers, two in a register,
// without conversions of integers.
#pragma once

#include <cstring>

#include "kernels/machine/device_cuda.h"
#include "kernels/machine/tensor_core_cuda.h"
#include "kernels/quantised.h"

namespace weft::kernels::cuda {

/// a b + c of the two fp16 numbers in each register, rounded once.
__device__ inline std::uint32_t fma_pair(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  __half2 x, y, z;
  memcpy(&x, &a, sizeof x), memcpy(&y, &b, sizeof y), memcpy(&z, &c, sizeof z);
  x = __hfma2(x, y, z);
  memcpy(&a, &x, sizeof a);
  return a;
}

/// The number in the low (high) half of a register, in both halves of one.
__device__ inline std::uint32_t low_twice(std::uint32_t x) { return __byte_perm(x, 0, 0x1010); }
__device__ inline std::uint32_t high_twice(std::uint32_t x) { return __byte_perm(x, 0, 0x3232); }
/// Number i of fp16 numbers that lie two in a word, in both halves of a register.
__device__ inline std::uint32_t twice(const Pack<std::uint32_t, 2>& of, int i) {
  return i % 2 == 0 ? low_twice(of.at[i / 2]) : high_twice(of.at[i / 2]);
}

/// The numbers of two bytes of a word, which `kBytes` selects (for bytes 0 and 1: 0x4140, for 2 and 3: 0x4342). In fp16
/// 0x6400 is 1024, and a level in its lowest bits is added to that.
template <unsigned kBytes> __device__ inline std::uint32_t byte_levels(std::uint32_t word) {
  return fma_pair(__byte_perm(word, 0x64646464u, kBytes), 0x3C003C00u, 0xE400E400u);  // 1 and -1024
}
/// Two bytes of a word, which `kBytes` selects into the upper halves of those of a register (for bytes 0 and 1: 0x1404,
/// for 2 and 3: 0x3424), as floats of 8 bits (E4M3) times their group's scale, rounded once. In fp16 the 8 bits at
/// these places are 2^-8 times what they stand for; `scale` makes up for that.
template <unsigned kBytes> __device__ inline std::uint32_t float8_numbers(std::uint32_t word, float scale) {
  const std::uint32_t high = __byte_perm(word, 0, kBytes);
  const std::uint32_t pair = (high & 0x80008000u) | (high >> 1 & 0x3F803F80u);
  __half numbers[2];
  memcpy(numbers, &pair, sizeof pair);
  return pack_pair<__half>(__half2float(numbers[0]) * scale, __half2float(numbers[1]) * scale);
}
/// The scale for that of the bits of a group's.
__device__ inline float float8_scale(std::uint32_t bits) { return __uint_as_float(bits) * 256.0f; }

/// The numbers of the low (high) halves of bytes 0 and 2.
__device__ inline std::uint32_t half_byte_levels(std::uint32_t word, bool high) {
  return high ? fma_pair((word & 0x00F000F0u) | 0x64006400u, 0x2C002C00u, 0xD400D400u)   // 1/16 and -64
              : fma_pair((word & 0x000F000Fu) | 0x64006400u, 0x3C003C00u, 0xE400E400u);  // 1 and -1024
}

/// Four levels to a word, from the first on.
struct TableWords {
  std::uint32_t at[4];
};
inline TableWords table_words(LevelTable table) {
  TableWords words;
  memcpy(words.at, level_table(table).data(), sizeof words.at);
  return words;
}
/// The numbers that the low (high) halves of bytes 0 and 2 stand for. All but the last step is the same for the low and
/// the high ones, and is done once where a caller wants both.
__device__ inline std::uint32_t table_levels(const TableWords& table, std::uint32_t word, bool high) {
  const std::uint32_t four = __byte_perm(word, 0, 0x4420);  // half bytes, as __byte_perm takes them
  const std::uint32_t below = __byte_perm(table.at[0], table.at[1], four & 0x7777u),
                      above = __byte_perm(table.at[2], table.at[3], four & 0x7777u);
  const std::uint32_t levels = __byte_perm(below, above, (four >> 1 & 0x4444u) | 0x3210u);
  return high ? byte_levels<0x4341>(levels) : byte_levels<0x4240>(levels);
}

}  // namespace weft::kernels::cuda
