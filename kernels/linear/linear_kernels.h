// kernels/linear/linear_kernels.h: the part of linear_cpu that an instruction set contributes: leaf functions on plain
// pointers.
//
// There is one order of summation. Output (row m, column n) has 16 partial sums; sum l adds x[m, k] * weight[n, k] by
// fused multiply-add for k = l, l + 16, l + 32, ...; at the end l + 8 joins l, then l + 4, l + 2, l + 1. The sums stay
// whole vectors between blocks along k, so that no block size, tile shape or thread can change a bit of the result, and
// all instruction sets give the same bits.
//
// linear_avx512.cc and linear_avx2.cc are compiled with their set's flags. They call no inline function of a header
// that another file could share, because the linker keeps one copy of such a function, perhaps the other file's.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace weft::kernels {

constexpr std::int64_t divide_up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }
constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) { return divide_up(n, multiple) * multiple; }

constexpr int kPartialSums = 16;
constexpr int kMostTileRows = 12;
constexpr int kWeightTypes = 3;  // f32, f16, bf16: the values of DType

/// sums [rows][columns][16] += x-tile times weight-tile, converted in registers.
struct DirectTile {
  const float* x;        // [steps][rows][16], zeros beyond k
  const void* weight;    // [columns] rows of k numbers, weight_stride apart
  const void* prefetch;  // the weights of a tile that will soon be needed in the second-level cache
  std::int64_t weight_stride, k;
  float* sums;  // rows sums_stride floats apart; not read if `first`
  std::int64_t sums_stride;
  bool first;
};
using DirectKernel = void (*)(const DirectTile&);

/// sums [rows][columns] += x-tile times panel for one l of the partial sums: transposed, so that lanes run along
/// columns and each vector of sums stays in its register for all of a block's steps. Sums of other l that are whole
/// join it, in the order of the tree of all 16. The same for the tiles that follow in x, and in each list of sums.
struct PanelTile {
  std::int64_t tiles;
  const float* x;      // [tiles][steps][rows]
  const float* panel;  // [steps][columns]
  std::int64_t steps;
  const float* sums;  // not read if `first`
  bool first;
  int joins;             // the number of lists of sums to which these are added, the first list first
  const float* join[4];  // log2 of kPartialSums
  float* to;
  const void* prefetch;  // weights that will soon be needed in the second-level cache
  std::int64_t prefetch_lines;
};

/// Transposes up to 16 rows of numbers: to[l * lane_step + s * step + i] = from[i, s * 16 + l] for i < width, 0 beyond
/// the last row and beyond k.
struct Transpose {
  const void* from;  // [rows, k], stride numbers apart
  std::int64_t rows, k, stride;
  float* to;
  std::int64_t step, lane_step, width;
};

/// Unpacks groups of one tile of quantised weights to the transposed form of Transpose: to[l * lane_step + s * step +
/// i] = number [i, s * 16 + l], for all 16 rows and `steps` * 16 columns. Kernels for pairs have a pair of bf16 numbers
/// in the place of each of these, and zeros beyond k.
struct Unpack {
  const std::byte* from;  // kernels/quantised.h
  std::int64_t group, k, steps;
  float* to;
  std::int64_t step, lane_step;
  const std::uint8_t* table;  // [16] of i4
};

/// The sums of a few rows of x and groups of one tile of weights in f8, which are expanded in registers. A sum is that
/// of PanelTile: sum l of row i takes 16 floats, for the columns of the tile, at l * sums_lane + i * sums_stride.
struct Float8Tile {
  const float* x;         // [steps][rows][16], zeros beyond k
  const std::byte* from;  // kernels/quantised.h
  std::int64_t group, steps;
  float* sums;  // not read if `first`
  std::int64_t sums_lane, sums_stride;
  bool first;
};

/// Finishes one row of the result: adds up the partial sums, then applies bias, activation and the old value.
struct Finish {
  const float*
      sums;  // [columns rounded up to 16][16]; of panels [16][columns rounded up], lane_step apart; or [columns]
  std::int64_t lane_step;
  const void* bias;  // [columns] of bias_type, or null
  DType bias_type;
  Activation activation;
  bool accumulate;
  float* out;  // [columns]
  std::int64_t columns;
  std::int64_t rows = 1, sums_stride = 0, out_stride = 0;  // more than one row: for finish_sums
};

struct LinearKernels {
  const char* name;                   ///< "AVX-512", "AVX2"
  int direct_rows;                    ///< rows of the largest direct tile
  int direct_columns[kMostTileRows];  ///< columns of the direct tile of i + 1 rows
  DirectKernel direct[kWeightTypes][kMostTileRows];
  DirectKernel single[kWeightTypes][kMostTileRows];  ///< the same with one column
  int panel_rows, panel_columns;
  void (*panel[kMostTileRows])(const PanelTile&);  ///< [i] has i + 1 rows
  void (*transpose[kWeightTypes])(const Transpose&);
  void (*unpack4)(const Unpack&);  ///< unpacks i4
  void (*unpack8)(const Unpack&);
  void (*unpack_table)(const Unpack&);  ///< unpacks i4 by a table
  void (*unpack_f8)(const Unpack&);
  int float8_few;                                    ///< up to so many rows its tiles are faster than panels
  int float8_rows;                                   ///< rows of the largest tile
  void (*float8[kMostTileRows])(const Float8Tile&);  ///< [i] has i + 1 rows
  /// Spreads k numbers: to[s * step + 0..15] = from[s * 16 ...], zeros after them; step in floats, `to` 64-byte
  /// aligned.
  void (*spread)(const float* from, std::int64_t k, float* to, std::int64_t step);
  void (*finish_direct)(const Finish&);
  void (*finish_panel)(const Finish&);
  void (*finish_sums)(const Finish&);  ///< takes sums that are already added up
  /// Loads every byte, to measure memory. `prefetch` > 0 asks that many bytes ahead. `bytes` is a multiple of 1024.
  int (*read)(const void* from, std::int64_t bytes, std::int64_t prefetch);
  /// Null unless these are for Arithmetic::bfloat16: rounds 2 * `pairs` numbers to bf16 and stores two in the place of
  /// one.
  void (*round_pairs)(const float* from, std::int64_t pairs, float* to);
};

const LinearKernels* linear_kernels_avx512();  ///< null if the file was compiled without the instructions
const LinearKernels* linear_kernels_avx2();
/// The kernels for pairs. They have two bf16 numbers where the others have one f32 number of x or of the weights: x[m,
/// 2k] and x[m, 2k + 1] times weight[n, 2k] and weight[n, 2k + 1] are added to a sum as the processor does that. They
/// exist only for f32, and for levels of i8 and i4.
const LinearKernels* pair_kernels_avx512();

}  // namespace weft::kernels
