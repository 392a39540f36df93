// kernels/linear/linear_cut.h: the cut of a product of floats on a CPU into tiles, tasks and blocks. Internal to
// linear_pass.cc.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <bit>

#include "kernels/linear/linear_kernels.h"
#include "kernels/ops.h"

namespace weft::kernels {

constexpr std::int64_t kDirectRows = 16;          // up to this many, transposing the weights costs more than it saves
constexpr std::int64_t kDirectColumns = 24;       // columns of a task
constexpr std::int64_t kDirectTileFloats = 4096;  // of x: half of the first cache
constexpr std::int64_t kPanelK = 1408;            // 1/16 of 48 columns is half of a first cache of 32 KiB
constexpr std::int64_t kChunkFloats = 768;        // of a lane's sums, where one panel serves all rows: 48 KiB in all
constexpr std::int64_t kFloat8K = 1024;           // a tile's weights and a few rows of x fit the first caches

/// The cut of one pass over the weights of products that have all but their outputs in common: rows into tiles, columns
/// into tasks, k into blocks.
///
/// direct: few rows. Each weight is converted in a register where it is used; lanes run along k.
/// Otherwise a task's block of weights is converted and transposed into a panel, [16][steps][columns]; lanes run along
/// columns, one of the 16 partial sums after the other. Chunks of rows are as large as their sums fit the second cache,
/// or, where one panel has all of k, the first: sums then join the tree as soon as they are whole.
/// Quantised weights are stored in the order of panels, so even one row is multiplied this way. Weights of f8 that meet
/// few rows fill no panel: they are expanded in registers, and the sums are those of panels.
struct LinearCut {
  /// `op` is any of the products.
  LinearCut(const LinearKernels& kernels, const Linear& op, std::int64_t m)
      : rows(m), numbers(is_quantised(op.weight.dtype) && kernels.round_pairs != nullptr ? 2 : 1),
        in(op.weight.cols / numbers) {
    const bool few = m <= kDirectRows;
    direct = few && !is_quantised(op.weight.dtype);
    float8 = op.weight.dtype == DType::f8 && m <= kernels.float8_few;
    const std::int64_t most = direct   ? kernels.direct_rows
                              : float8 ? kernels.float8_rows
                                       : kernels.panel_rows,
                       tiles = divide_up(m, most);
    tile_rows = few ? divide_up(m, tiles) : most;
    padded_rows = tiles * tile_rows;
    task_columns = direct ? kDirectColumns : kernels.panel_columns;
    if (direct) {
      k_block = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(kDirectTileFloats / tile_rows)));
      k_blocks = std::max<std::int64_t>(1, divide_up(in, k_block));
      chunk_rows = padded_rows;
      group = kernels.direct_columns[tile_rows - 1];
    } else {
      k_blocks = std::max<std::int64_t>(1, divide_up(in, kPanelK));
      k_block = round_up(divide_up(in, k_blocks), std::max(64, op.weight.group));
      if (float8) k_block = kFloat8K, k_blocks = std::max<std::int64_t>(1, divide_up(in, k_block));
      chunk_rows = round_up(divide_up(padded_rows, divide_up(padded_rows, rows_in_cache())), tile_rows);
      if (one_panel()) chunk_rows = std::min(padded_rows, round_up(kChunkFloats / task_columns, tile_rows));
    }
  }

  /// Whether one panel serves all rows: it has all of k, and stays in the second cache.
  bool one_panel() const { return !lanes_of_x_together() && k_blocks == 1 && panel_floats() * 4 <= second_cache() / 2; }
  static std::int64_t second_cache() {
    static const long cache = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return std::max<std::int64_t>(cache, 512 << 10);
  }

  /// Rows whose sums take three quarters of the second cache: the panel has the rest.
  std::int64_t rows_in_cache() const {
    const std::int64_t bytes = second_cache() * 3 / 4;
    return std::clamp<std::int64_t>(bytes / (task_columns * kPartialSums * 4), 64, 256);
  }

  std::int64_t length(std::int64_t block) const { return std::min(k_block, in - block * k_block); }
  std::int64_t steps(std::int64_t block) const { return divide_up(length(block), kPartialSums); }

  bool lanes_of_x_together() const { return direct || float8; }
  // The 16 lanes' data is a cache line more than a power of two apart; otherwise it would all share a few cache sets.
  std::int64_t x_lane(std::int64_t block) const {
    return lanes_of_x_together() ? 0 : padded_rows * steps(block) + kPartialSums;
  }
  std::int64_t panel_lane(std::int64_t block) const { return task_columns * steps(block) + kPartialSums; }
  std::int64_t sums_lane() const { return task_columns * chunk_rows + kPartialSums; }

  std::int64_t packed_floats() const {
    return (padded_rows * divide_up(k_block, kPartialSums) + kPartialSums) * kPartialSums * k_blocks;
  }
  std::int64_t sums_floats() const {
    // finish() reads whole vectors of columns, and so past the end of the last row.
    return direct ? (padded_rows * task_columns + kPartialSums) * kPartialSums : sums_lane() * kPartialSums;
  }
  std::int64_t panel_floats() const { return direct ? 0 : panel_lane(0) * kPartialSums; }

  std::int64_t rows;
  std::int64_t numbers;  // of a row of levels that are one of `in`: two make a pair
  std::int64_t in;
  bool direct, float8;
  std::int64_t tile_rows, padded_rows, chunk_rows;
  std::int64_t task_columns;
  std::int64_t k_block, k_blocks;
  std::int64_t group = 0;  // columns of a direct tile
};

}  // namespace weft::kernels
