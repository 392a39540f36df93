// kernels/linear/linear_quantised.h: products with quantised weights in integer arithmetic (Arithmetic::int8), and the
// part of them that an instruction set contributes. Internal to kernels/ and the tests.
//
// There is one order of summation. The numbers of x that meet a group of weights become levels from -127 to 127 times a
// scale. For output (row m, column n) a group's levels give one exact integer d; the groups follow each other in
//   y = fma(float(d), scale of the weights * scale of x, y);   y = fma(minimum, scale of x * sum of x's levels, y)
// so that every instruction set gives the same bits, whatever rows share a call.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/linear/linear_kernels.h"
#include "kernels/machine/thread_pool.h"

namespace weft::kernels {

constexpr std::int64_t kQuad = 4;  // columns whose levels are next to each other: one lane of an integer product

constexpr int kMostIntegerRows = 16;

/// sums [rows][16] = `rows` rows of x times one tile of weights, over all groups.
struct IntegerTile {
  const std::int8_t* x;          // [quads][rows][4]; of AMX [groups][rows][group]
  const float *x_scale, *x_sum;  // [groups][rows]; x_sum: scale times the sum of the levels
  const std::byte* weight;       // kernels/quantised.h
  std::int64_t groups, quads;    // quads: of one group
  const std::uint8_t* table;     // [16] of tile_table
  bool prefetch;                 // whether the weights come from memory
  float* sums;
  const float* soon = nullptr;  // of AMX: [16 rows, 16] of a result that will soon be written, or null
  std::int64_t soon_stride = 0;
};

/// Quantises a row of x to levels. Levels of columns beyond the last are 0. A group with a number that is not finite
/// gets a scale that is not a number.
struct QuantiseRow {
  const float* from;  // [columns]
  std::int64_t columns, groups, group;
  std::int8_t* to;     // the first quad or group; quads are `rows` * 4 bytes apart, groups `rows` * `group`
  float *scale, *sum;  // groups `rows` floats apart
  std::int64_t rows;
};

/// Turns one tile of i4 into a tile of i8 with the levels that `table` gives.
struct WidenTile {
  const std::byte* from;
  std::int64_t groups, quads;  // quads: of one group
  const std::uint8_t* table;   // [16]
  std::byte* to;
};

struct IntegerKernels {
  const char* name;                                     ///< "AMX", "AVX-512 VNNI", "AVX2", "plain C++"
  int rows;                                             ///< rows of the largest tile
  void (*tile4[kMostIntegerRows])(const IntegerTile&);  ///< [i] has i + 1 rows; weights i4
  void (*tile8[kMostIntegerRows])(const IntegerTile&);
  void (*tile_table[2][kMostIntegerRows])(const IntegerTile&);  ///< i4 by a table of levels below 32, of any levels
  void (*quantise)(const QuantiseRow&);
  // Of AVX2; null in the others.
  void (*tile8_below_64[kMostIntegerRows])(const IntegerTile&);  ///< faster than tile8, for levels below 64
  bool (*all_below_64)(const std::byte* tile, std::int64_t groups, std::int64_t quads);
  // Of AMX; null in the others. Its tiles always have `rows` rows, those past the last of any levels and scale 0, and
  // the levels of a row of x lie together in each group. It has tile8 alone.
  void (*begin)(int group);  ///< sets this thread's registers up for weights in such groups
  void (*end)();             ///< gives them back
  void (*widen)(const WidenTile&);
};

struct RowScale {
  float scale, inverse;
};
/// The scale of a group of x whose largest absolute number has these bits. Each file that includes this has its own
/// copy.
[[maybe_unused]] static RowScale row_scale(int bits) {
  constexpr int kInfinity = 0x7F800000, kSmall = 0x0D800000;  // 2^-100, whose inverse would not be a number
  float most = 0;
  __builtin_memcpy(&most, &bits, sizeof most);
  if (bits >= kInfinity) return {__builtin_nanf(""), 0};
  if (bits < kSmall) return {0, 0};
  return {most / 127.0f, 127.0f / most};
}

const IntegerKernels* integer_kernels_amx();  ///< null if the file was compiled without the instructions
const IntegerKernels* integer_kernels_avx512();
const IntegerKernels* integer_kernels_avx2();
const IntegerKernels* integer_kernels_plain();

/// Computes products of the same x, which have passed check() and have quantised weights in groups of one size, in
/// integer arithmetic. x becomes levels once. `finish` takes Finish::sums [rows][columns].
void linear_integer(std::span<const Linear> products, const IntegerKernels& kernels, void (*finish)(const Finish&),
                    ThreadPool& pool);
/// Plain C++, for processors without AVX2: the same bits, slowly.
void finish_plain(const Finish&);
/// Computes `op`, which has passed check(), with weights of any type, in Arithmetic::exact.
void linear_exact_plain(const Linear& op, ThreadPool& pool);

}  // namespace weft::kernels
