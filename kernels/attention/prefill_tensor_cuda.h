// kernels/attention/prefill_tensor_cuda.h: attention of prompts on tensor cores.
//
// The structure is FlashAttention-2's (arXiv 2307.08691): a tile of 64 rows meets tiles of 64 keys; a warp has 16 of
// the rows, with their queries, logits and outputs in registers, and rescales sums and outputs when a row's largest
// logit grows. Only keys and values pass through shared memory. Each is on its way while the other is multiplied.
#pragma once

#include "kernels/attention/prefill_tile_cuda.h"

namespace weft::kernels::cuda::prefill {

/// The work of one thread block of attend(). It is read again at the end, because registers are scarce in between.
struct QueryRows {
  Block block;
  int head, rows;
  __device__ explicit QueryRows(const PrefillArgs& a)
      : block(a.blocks[blockIdx.x / a.heads]), head(static_cast<int>(blockIdx.x % a.heads)),
        rows(min(kTile, block.length - block.first)) {}
  __device__ std::int64_t token(int row) const { return std::int64_t{block.begin} + block.first + row; }
};

/// Scales the logits of a tile and turns them into weights relative to each row's largest so far. If that grows, it
/// also rescales sum and out.
template <int kDim>
__device__ __forceinline__ void weigh(float (&p)[kTile / 8][4], float to_exp2, float (&most)[2], float (&sum)[2],
                                      float (&out)[kDim / 8][4]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float largest = most[r];
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) largest = fmaxf(largest, fmaxf(p[n][2 * r], p[n][2 * r + 1]));
    largest = over_row(largest, Largest{});
    const float less = fast_exp2((most[r] - largest) * to_exp2), shift = -largest * to_exp2;
    most[r] = largest;
    sum[r] *= less;
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n)
#pragma unroll
      for (int i = 2 * r; i < 2 * r + 2; ++i) {
        p[n][i] = fast_exp2(__fmaf_rn(p[n][i], to_exp2, shift));
        sum[r] += p[n][i];
      }
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) out[n][2 * r] *= less, out[n][2 * r + 1] *= less;
  }
}

/// out += weights values.
template <class T, int kDim>
__device__ __forceinline__ void add_values(const float (&p)[kTile / 8][4], const Tile<T, kDim>& values,
                                           float (&out)[kDim / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int c = 0; c < kTile / 16; ++c) {
    const std::uint32_t weights[4] = {pack_pair<T>(p[2 * c][0], p[2 * c][1]), pack_pair<T>(p[2 * c][2], p[2 * c][3]),
                                      pack_pair<T>(p[2 * c + 1][0], p[2 * c + 1][1]),
                                      pack_pair<T>(p[2 * c + 1][2], p[2 * c + 1][3])};
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      std::uint32_t b[4];
      load_tiles<true>(b, values.chunk(c * 16 + lane % 16, 2 * n + lane / 16));
      multiply_tiles<T>(out[2 * n], weights, b[0], b[1]);
      multiply_tiles<T>(out[2 * n + 1], weights, b[2], b[3]);
    }
  }
}

template <class T, int kDim> __device__ __forceinline__ void attend(const PrefillArgs& a) {
  WEFT_DYNAMIC_SHARED(T, memory);
  const Tile<T, kDim> keys{memory}, values{memory + kTile * kDim};
  const T *k, *v;
  int count, tile;  // the tile on the diagonal comes first
  {
    const QueryRows mine(a);
    k = static_cast<const T*>(a.k) + mine.token(0) * a.k_stride + mine.head / a.group * a.head_dim;
    v = static_cast<const T*>(a.v) + mine.token(0) * a.v_stride + mine.head / a.group * a.head_dim;
    count = mine.rows, tile = mine.block.first / kTile;
  }
  keys.begin_load(k, a.k_stride, count, a.head_dim);
  std::uint32_t q[kDim / 16][4];
  {
    const QueryRows mine(a);
    values.load(a.q + mine.token(0) * a.q_stride + mine.head * a.head_dim, a.q_stride, mine.rows, a.head_dim);
  }
  __syncthreads();
  hold_rows<T, kDim>(values, q);

  float out[kDim / 8][4] = {}, most[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  for (bool diagonal = true; tile >= 0; --tile, diagonal = false, count = kTile) {
    end_copies();
    __syncthreads();  // the keys have arrived, and no thread needs the last values
    values.begin_load(v, a.v_stride, count, a.head_dim);
    v -= kTile * a.v_stride;
    float p[kTile / 8][4];
    multiply_rows<T, kDim>(q, keys, p);
    if (diagonal) {
      const FragmentPlace at;
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (n * 8 + at.t * 2 + i % 2 > at.row + i / 2 * 8) p[n][i] = -INFINITY;
    }
    weigh<kDim>(p, a.scale * kLog2E, most, sum, out);
    end_copies();
    __syncthreads();  // the values have arrived, and no thread needs these keys
    k -= kTile * a.k_stride;
    if (tile > 0) keys.begin_load(k, a.k_stride, kTile, a.head_dim);
    add_values<T, kDim>(p, values, out);
  }

  const QueryRows mine(a);
  const FragmentPlace at;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = at.row + r * 8;
    const float all = over_row(sum[r], Sum{}), inverse = 1.0f / all;
    if (row >= mine.rows) continue;
    if (a.lse && at.t == 0) a.lse[mine.head * a.lse_stride + mine.token(row)] = a.scale * most[r] + logf(all);
    float* const to = a.out + mine.token(row) * a.out_stride + mine.head * a.head_dim;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      const int d = n * 8 + at.t * 2;
      if (d < a.head_dim) *reinterpret_cast<float2*>(to + d) = {out[n][2 * r] * inverse, out[n][2 * r + 1] * inverse};
    }
  }
}

/// Grid: heads of tiles of rows. Shared: keys, values.
template <class T, int kDim> __global__ void __launch_bounds__(kThreads, 2) prefill_tensor(PrefillArgs a) {
  if constexpr (kMultiplies<T>) attend<T, kDim>(a);
}

}  // namespace weft::kernels::cuda::prefill
