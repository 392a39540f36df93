// kernels/attention/column_sums_tensor_cuda.h: the scores of a prompt's tokens on tensor cores: sums or largest values
// over the columns of the logits of prefill_tensor_cuda.h. A warp has 16 or 32 of the keys in registers, and the rows
// pass through shared memory, a tile on its way while the one before is multiplied.
#pragma once

#include <type_traits>

#include "kernels/attention/prefill_tile_cuda.h"

namespace weft::kernels::cuda::prefill {

/// The reduction of the weights that a token gets: their sum or the largest.
template <bool kLargest> using Gathered = std::conditional_t<kLargest, Largest, Sum>;

/// Shared memory: two tiles of rows, in which the keys come first.
template <class T, int kDim> constexpr std::size_t kColumnSumsBytes = 2 * Tile<T, kDim>::kBytes;

template <class T, int kDim, int kStrips, class How, bool kCapped>
__device__ __forceinline__ void sum_columns(const PrefillArgs& a) {
  WEFT_DYNAMIC_SHARED(T, memory);
  WEFT_SHARED(float, shift, [2][kTile]);
  const Block block = a.blocks[blockIdx.x / a.kv_heads];
  const int kv_head = static_cast<int>(blockIdx.x % a.kv_heads);
  const int count = min(kTile * kStrips, block.length - block.first);
  const int first_row = a.first_row(block);
  const FragmentPlace<kStrips> at;
  const T* const k = static_cast<const T*>(a.k) + a.row_of(block, block.first) * a.k_stride + kv_head * a.head_dim;

  // The block's keys pass once through shared memory into registers.
  Strips<T, kDim, kStrips, true> keys{{memory}, {}};
  keys.tile.begin_load(k, a.k_stride, count, a.head_dim);
  end_copies();
  __syncthreads();
  keys.hold(at.begin);
  __syncthreads();

  // The rows from `begin` on pass tile by tile, those of one query head after those of another.
  const int begin = max(block.first, first_row / kTile * kTile), heads = (kv_head + 1) * a.group;
  // One past the last row that sees one of these keys.
  const int length = min(block.length - block.first - count + 1, a.window) + block.first + count - 1;
  const auto begin_turn = [&](int head, int first, int buffer) {
    const int rows = min(kTile, block.length - first);
    Tile<T, kDim>{memory + buffer * kTile * kDim}.begin_load_queries(a, block.query + first, head, rows);
    if (static_cast<int>(threadIdx.x) < kTile)
      shift[buffer][threadIdx.x] = static_cast<int>(threadIdx.x) < rows
                                       ? -kLog2E * a.lse[head * a.lse_stride + block.query + first + threadIdx.x]
                                       : 0.0f;
  };
  const float to_exp2 = (kCapped ? a.cap : a.scale) * kLog2E;
  float sum[kStrips][2] = {};
  int next_head = kv_head * a.group, next = begin;
  begin_turn(next_head, next, 0);
  for (int buffer = 0; next_head < heads; buffer ^= 1) {
    const int first = next, rows = min(kTile, block.length - first);
    next += kTile;
    if (next >= length) ++next_head, next = begin;
    end_copies();
    __syncthreads();  // this turn's rows have arrived, and no thread needs those of the one before
    if (next_head < heads) begin_turn(next_head, next, buffer ^ 1);
    // Where a block has more keys than a tile has rows, the rows may all come before a warp's keys.
    if (kStrips > 1 && first + kTile <= block.first + at.begin) continue;
    float p[kStrips][kTile / 8][4];
    multiply_rows(keys, at.begin, Tile<T, kDim>{memory + buffer * kTile * kDim}, p);
    if constexpr (kCapped) cap_products(p, 2 * a.scale / a.cap);
    if (first < block.first + kTile * kStrips || first < first_row || rows < kTile)
      hide(p, at, [&](int key, int row) { return row >= rows || first + row < max(block.first + key, first_row); });
    if (first + kTile - block.first > a.window)
      hide(p, at, [&](int key, int row) { return first + row - block.first - key >= a.window; });
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
      const float2 of_rows = *reinterpret_cast<const float2*>(&shift[buffer][n * 8 + at.t * 2]);
#pragma unroll
      for (int m = 0; m < kStrips; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          sum[m][i / 2] =
              How{}(sum[m][i / 2], fast_exp2(__fmaf_rn(p[m][n][i], to_exp2, i % 2 == 0 ? of_rows.x : of_rows.y)));
    }
  }
#pragma unroll
  for (int m = 0; m < kStrips; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = at.row + m * kStrip + r * 8;
      float all = over_row(sum[m][r], How{});
      if (at.t != 0 || key >= count) continue;
      if (a.before && block.first < a.prefix) all = How{}(a.before[kv_head * a.before_stride + block.first + key], all);
      a.score[kv_head * a.score_stride + block.whole + block.first + key] = all;
    }
}

/// Grid: every KV head of every block of kStrips tiles of keys. Shared: kColumnSumsBytes.
template <class T, int kDim, int kStrips, bool kLargest>
__global__ void __launch_bounds__(kThreads, 2) column_sums_tensor(PrefillArgs a) {
  if constexpr (kMultiplies<T>) sum_columns<T, kDim, kStrips, Gathered<kLargest>, false>(a);
}
/// The same with a cap on the logits.
template <class T, int kDim, int kStrips, bool kLargest>
__global__ void __launch_bounds__(kThreads, 2) column_sums_capped(PrefillArgs a) {
  if constexpr (kMultiplies<T>) sum_columns<T, kDim, kStrips, Gathered<kLargest>, true>(a);
}

}  // namespace weft::kernels::cuda::prefill
