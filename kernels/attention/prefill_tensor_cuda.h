// kernels/attention/prefill_tensor_cuda.h: attention of prompts on tensor cores.
//
// The structure is FlashAttention-2's (arXiv 2307.08691): a tile of 64 or 128 rows meets tiles of 64 keys; a warp has
// 16 or 32 of the rows, with their logits and outputs in registers, and rescales sums and outputs when a row's largest
// logit grows. Keys and values pass through shared memory, each on its way while the other is multiplied. Whether a
// warp has one strip of rows or two changes no bit of the result.
#pragma once

#include "kernels/attention/prefill_tile_cuda.h"

namespace weft::kernels::cuda::prefill {

/// Whether registers hold the queries. Two strips of heads of more than 64 would be too many.
template <int kDim, int kStrips> constexpr bool kHoldsQueries = kStrips == 1 || kDim <= 64;

/// Shared memory: keys, values, and the queries of two strips; those of one come where values will be.
template <class T, int kDim, int kStrips>
constexpr std::size_t kPrefillBytes = Tile<T, kDim>::kBytes*(kStrips == 1 ? 2 : 4);

/// The work of one thread block of attend(). It is read again at the end, because registers are scarce in between.
template <int kStrips> struct QueryRows {
  Block block;
  int head, rows;
  __device__ explicit QueryRows(const PrefillArgs& a)
      : block(a.blocks[blockIdx.x / a.heads]), head(static_cast<int>(blockIdx.x % a.heads)),
        rows(min(kTile * kStrips, block.length - block.first)) {}
  __device__ std::int64_t query(int row) const { return std::int64_t{block.query} + block.first + row; }
};

/// The weights of a strip's rows for a tile of keys, rounded, as fragments of a product's left side.
using Weights = std::uint32_t[kTile / 16][4];

/// Scales the logits of a tile and turns them into weights relative to each row's largest so far. If that grows, it
/// also rescales sum and out.
template <class T, int kDim>
__device__ __forceinline__ void weigh(float (&p)[kTile / 8][4], float to_exp2, float (&most)[2], float (&sum)[2],
                                      float (&out)[kDim / 8][4], Weights& weights) {
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
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) weights[n / 2][n % 2 * 2 + r] = pack_pair<T>(p[n][2 * r], p[n][2 * r + 1]);
  }
}

/// out += the weights times the values.
template <class T, int kDim, int kStrips>
__device__ __forceinline__ void add_values(const Weights (&weights)[kStrips], const Tile<T, kDim>& values,
                                           float (&out)[kStrips][kDim / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int c = 0; c < kTile / 16; ++c)
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      std::uint32_t b[4];
      load_tiles<true>(b, values.chunk(lane % 16, 2 * n + lane / 16) + c * kStrip * kDim);
#pragma unroll
      for (int m = 0; m < kStrips; ++m) {
        multiply_tiles<T>(out[m][2 * n], weights[m][c], b[0], b[1]);
        multiply_tiles<T>(out[m][2 * n + 1], weights[m][c], b[2], b[3]);
      }
    }
}

template <class T, int kDim, int kStrips, bool kCapped> __device__ __forceinline__ void attend(const PrefillArgs& a) {
  WEFT_DYNAMIC_SHARED(T, memory);
  const Tile<T, kDim> keys{memory}, values{memory + kTile * kDim};
  Strips<T, kDim, kStrips, kHoldsQueries<kDim, kStrips>> queries{{memory + kTile * kDim * (kStrips == 1 ? 1 : 2)}, {}};
  const FragmentPlace<kStrips> at;
  int tile, count;    // the last tile of keys comes first; `count` of its keys are the prompt's
  int last_tile;      // the one that the window of the block's first row begins in
  int ahead;          // from the block's first row to the tile's first key
  int token, column;  // the first key's place in k and v
  const float unit = kCapped ? a.cap : a.scale;  // of the numbers that are weighed
  float sink = -INFINITY;                        // a sink logit is one more key, which comes first
  {
    const QueryRows<kStrips> mine(a);
    tile = (mine.block.first + mine.rows - 1) / kTile;
    last_tile = max(0, mine.block.first + 1 - a.window) / kTile;
    ahead = tile * kTile - mine.block.first;
    count = min(kTile, mine.block.length - tile * kTile);
    token = mine.block.begin + tile * kTile, column = mine.head / a.group * a.head_dim;
    queries.tile.begin_load_queries(a, mine.query(0), mine.head, mine.rows);
    if (a.sink_logits) sink = a.sink_logits[mine.head] / unit;
  }
  const auto rows_of = [&](const void* matrix, std::int64_t stride) {
    return static_cast<const T*>(matrix) + token * stride + column;
  };
  keys.begin_load(rows_of(a.k, a.k_stride), a.k_stride, count, a.head_dim);
  end_copies();
  __syncthreads();
  queries.hold(at.begin);

  float out[kStrips][kDim / 8][4] = {}, most[kStrips][2], sum[kStrips][2];
#pragma unroll
  for (int m = 0; m < kStrips; ++m) {
    most[m][0] = most[m][1] = sink;
    sum[m][0] = sum[m][1] = a.sink_logits && at.t == 0 ? 1.0f : 0.0f;
  }
  for (; tile >= last_tile; --tile, ahead -= kTile, count = kTile) {
    end_copies();
    __syncthreads();  // the keys have arrived, and no thread needs the last values
    values.begin_load(rows_of(a.v, a.v_stride), a.v_stride, count, a.head_dim);
    // Where a block has more rows than a tile has keys, the keys may all come after a warp's rows.
    const bool sees = kStrips == 1 || ahead <= at.begin;
    Weights weights[kStrips];
    if (sees) {
      float p[kStrips][kTile / 8][4];
      multiply_rows(queries, at.begin, keys, p);
      if constexpr (kCapped) cap_products(p, 2 * a.scale / a.cap);
      if (ahead >= 0) hide(p, at, [&](int row, int key) { return ahead + key > row; });
      if (ahead + a.window <= at.begin + kStrips * kStrip - 1)  // the window of the warp's last row hides some keys
        hide(p, at, [&](int row, int key) { return ahead + key + a.window <= row; });
#pragma unroll
      for (int m = 0; m < kStrips; ++m) weigh<T, kDim>(p[m], unit * kLog2E, most[m], sum[m], out[m], weights[m]);
    }
    end_copies();
    __syncthreads();  // the values have arrived, and no thread needs these keys
    token -= kTile;
    if (tile * kTile == a.prefix) token -= a.blocks[blockIdx.x / a.heads].begin;  // the prefix's keys are the next
    if (tile > last_tile) keys.begin_load(rows_of(a.k, a.k_stride), a.k_stride, kTile, a.head_dim);
    if (sees) add_values<T, kDim, kStrips>(weights, values, out);
  }

  const QueryRows<kStrips> mine(a);
#pragma unroll
  for (int m = 0; m < kStrips; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = at.row + m * kStrip + r * 8;
      const float all = over_row(sum[m][r], Sum{}), inverse = 1.0f / all;
      if (row >= mine.rows) continue;
      if (a.lse && at.t == 0) a.lse[mine.head * a.lse_stride + mine.query(row)] = unit * most[m][r] + logf(all);
      const std::int64_t to = mine.query(row) * a.out_stride + mine.head * a.head_dim;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        const int d = n * 8 + at.t * 2;
        if (d >= a.head_dim) continue;
        const float x = out[m][n][2 * r] * inverse, y = out[m][n][2 * r + 1] * inverse;
        if (a.out_is_float) *reinterpret_cast<float2*>(static_cast<float*>(a.out) + to + d) = {x, y};
        else *reinterpret_cast<std::uint32_t*>(static_cast<T*>(a.out) + to + d) = pack_pair<T>(x, y);
      }
    }
}

/// Whether the code at hand has this kernel. Turing has neither the registers nor the shared memory for two strips of
/// heads of more than 64; no more than for bfloat16.
template <class T, int kDim, int kStrips>
constexpr bool kAttends = kMultiplies<T> && (kMultiplies<__nv_bfloat16> || kHoldsQueries<kDim, kStrips>);

/// Grid: every head of every block of kStrips tiles of rows. Shared: kPrefillBytes.
template <class T, int kDim, int kStrips> __global__ void __launch_bounds__(kThreads, 2) prefill_tensor(PrefillArgs a) {
  if constexpr (kAttends<T, kDim, kStrips>) attend<T, kDim, kStrips, false>(a);
}
/// The same with a cap on the logits.
template <class T, int kDim, int kStrips> __global__ void __launch_bounds__(kThreads, 2) prefill_capped(PrefillArgs a) {
  if constexpr (kAttends<T, kDim, kStrips>) attend<T, kDim, kStrips, true>(a);
}

}  // namespace weft::kernels::cuda::prefill
