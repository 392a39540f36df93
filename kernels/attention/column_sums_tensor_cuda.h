// kernels/attention/column_sums_tensor_cuda.h: the scores of a prompt's tokens on tensor cores: sums or largest values
// over the columns of the logits of prefill_tensor_cuda.h. A warp has 16 of the keys in registers, and the rows pass
// through shared memory.
#pragma once

#include <type_traits>

#include "kernels/attention/prefill_tile_cuda.h"

namespace weft::kernels::cuda::prefill {

/// The reduction of the weights that a token gets: their sum or the largest.
template <bool kLargest> using Gathered = std::conditional_t<kLargest, Largest, Sum>;

template <class T, int kDim, class How> __device__ __forceinline__ void sum_columns(const PrefillArgs& a) {
  WEFT_DYNAMIC_SHARED(T, memory);
  WEFT_SHARED(float, shift, [kTile]);
  const Tile<T, kDim> queries{memory};
  const Block block = a.blocks[blockIdx.x / a.kv_heads];
  const int kv_head = static_cast<int>(blockIdx.x % a.kv_heads), count = min(kTile, block.length - block.first);
  const int first_row = a.observation > 0 ? max(0, block.length - a.observation) : 0;
  const FragmentPlace at;
  const T* const k = static_cast<const T*>(a.k) + (block.begin + block.first) * a.k_stride + kv_head * a.head_dim;

  // The block's keys pass once through shared memory into registers.
  std::uint32_t keys[kDim / 16][4];
  queries.begin_load(k, a.k_stride, count, a.head_dim);
  end_copies();
  __syncthreads();
  hold_rows<T, kDim>(queries, keys);

  const float to_exp2 = a.scale * kLog2E;
  float sum[2] = {};
  for (int g = 0; g < a.group; ++g) {
    const int head = kv_head * a.group + g;
    for (int first = max(block.first, first_row / kTile * kTile); first < block.length; first += kTile) {
      const int rows = min(kTile, block.length - first);
      __syncthreads();
      queries.load(a.q + (block.begin + first) * a.q_stride + head * a.head_dim, a.q_stride, rows, a.head_dim);
      if (static_cast<int>(threadIdx.x) < kTile)
        shift[threadIdx.x] = static_cast<int>(threadIdx.x) < rows
                                 ? -kLog2E * a.lse[head * a.lse_stride + block.begin + first + threadIdx.x]
                                 : 0.0f;
      __syncthreads();
      float p[kTile / 8][4];
      multiply_rows<T, kDim>(keys, queries, p);
      if (first == block.first || first < first_row || rows < kTile) {
#pragma unroll
        for (int n = 0; n < kTile / 8; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int row = n * 8 + at.t * 2 + i % 2;
            if (row >= rows || first + row < max(block.first + at.row + i / 2 * 8, first_row)) p[n][i] = -INFINITY;
          }
      }
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          sum[i / 2] = How{}(sum[i / 2], fast_exp2(__fmaf_rn(p[n][i], to_exp2, shift[n * 8 + at.t * 2 + i % 2])));
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float all = over_row(sum[r], How{});
    if (at.t == 0 && at.row + r * 8 < count)
      a.score[kv_head * a.score_stride + block.begin + block.first + at.row + r * 8] = all;
  }
}

/// Grid: KV heads of tiles of keys. Shared: a tile.
template <class T, int kDim, bool kLargest>
__global__ void __launch_bounds__(kThreads, 2) column_sums_tensor(PrefillArgs a) {
  if constexpr (kMultiplies<T>) sum_columns<T, kDim, Gathered<kLargest>>(a);
}

}  // namespace weft::kernels::cuda::prefill
