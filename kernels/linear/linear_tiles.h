// kernels/linear/linear_tiles.h: products of bf16 numbers by AMX, whose registers are tiles of 16 rows of 64 bytes, and
// the part of them that is compiled for it. Internal to kernels/ and the tests.
//
// Levels of quantised weights become bf16 numbers in a panel: their meaning (kernels/quantised.h), rounded once more.
//
// There is one order of summation. A step takes 32 columns: by fused multiply-adds from 0 on, the products of the even
// columns give one sum and those of the odd columns another, in ascending order; both are added, and then the step to
// the output. Steps follow each other in ascending order. Denormals count as 0. It is the order that TDPBF16PS defines
// (Intel, Instruction Set Extensions Programming Reference, 319433), whichever side the weights are on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/linear/linear_kernels.h"
#include "kernels/machine/thread_pool.h"

namespace weft::kernels {

constexpr std::int64_t kAmxRows = 16, kAmxStep = 32;  // numbers of a tile: 16 rows of 32 along k
constexpr std::int64_t kAmxTile = 1024;               // its bytes

/// Turns up to 16 rows of numbers into tiles, [steps] of kAmxTile bytes, with zeros beyond the last row and beyond k.
struct ToTiles {
  const void* from;  // [rows, k], stride numbers apart
  std::int64_t rows, k, stride;
  std::byte* to;
  std::int64_t tile = kAmxTile;  // of pairs: bytes between one tile and the next; of round_pairs 64 a row of x
};

/// Turns levels of 16 rows of weights into tiles of pairs, [steps] of kAmxTile bytes, with zeros beyond k.
struct ExpandLevels {
  const std::byte* from;  // groups of one tile (kernels/quantised.h)
  std::int64_t group, k, steps;
  const std::uint8_t* table;  // [16] of i4
  std::byte* to;
  const std::byte* prefetch;  // as many groups that will soon be needed in the second-level cache
};

/// sums = one or two tiles of rows of x times one or two tiles of rows of weights, which are taken as they lie.
struct FewRows {
  const std::byte* x;    // tiles of pairs: [row tiles][steps], of x_rows rows
  std::int64_t x_rows;   // as begin() has it; 16 if there are two tiles
  const bf16* weight;    // [columns] rows of k numbers, weight_stride apart
  const bf16* prefetch;  // as many rows that will soon be needed in the second-level cache
  std::int64_t weight_stride, k;
  std::int64_t columns;  // below 16 only if it is all there is
  std::int64_t rows;
  float* sums;  // [rows][columns rounded up], sums_stride apart
  std::int64_t sums_stride;
};

/// sums += one or two tiles of rows of x times two tiles of columns of weights.
struct ManyRows {
  const std::byte *x, *panel;       // [steps] tiles, of rows and of pairs
  std::int64_t x_tile, panel_tile;  // bytes between one tile of rows or columns and the next
  std::int64_t steps;
  float* sums;  // [rows][32], sums_stride apart; not read if `first`
  std::int64_t sums_stride;
  bool first;
  const std::byte* prefetch = nullptr;  // rows of weights that will soon be needed in the second-level cache
  std::int64_t prefetch_stride = 0, prefetch_rows = 0;  // a line of each a step
  const float* soon = nullptr;                          // [32 rows, 32] of a result that will soon be written, or null
  std::int64_t soon_stride = 0;
};

struct TileKernels {
  /// Sets this thread's tiles up, those of few() for so many rows of x: what is not there need not be loaded.
  void (*begin)(std::int64_t x_rows);
  void (*end)();                         ///< gives them back, so that the system saves no tiles where threads change
  void (*round_rows)(const ToTiles&);    ///< rounds f32 to tiles of rows
  void (*round_pairs)(const ToTiles&);   ///< rounds f32 to tiles of pairs along k
  void (*pair_weights)(const ToTiles&);  ///< makes tiles of pairs along k of bf16
  void (*expand4)(const ExpandLevels&);  ///< makes the same of i4
  void (*expand8)(const ExpandLevels&);
  /// Makes tiles of up to 32 rows of bf16: one for every 16 of their k columns, in pairs of rows, up to a multiple of
  /// 32 columns.
  void (*pair_rows)(const ToTiles&);
  void (*few[2][2])(const FewRows&);  ///< [i][j]: i + 1 tiles of rows, j + 1 tiles of columns
  void (*many[2])(const ManyRows&);   ///< [i]: i + 1 tiles of rows
  void (*finish)(const Finish&);      ///< takes sums that are already added up
};

const TileKernels* tile_kernels_amx();  ///< null if the file was compiled without the instructions

/// Computes products of the same x, which have passed check(), with x rounded to bf16. The weights are bf16 numbers, or
/// all have levels of i8 or i4.
void linear_tiles(std::span<const Linear> products, const TileKernels& kernels, ThreadPool& pool);

}  // namespace weft::kernels
