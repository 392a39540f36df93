// kernels/attention/prefill_tile_cuda.h: tiles of a prompt's rows and keys in shared memory and in fragments of tensor
// cores, for attention of prompts and the scores of their tokens.
//
// A warp holds one or two strips of 16 rows. With two, each fragment that it loads from shared memory, whose bandwidth
// bounds one strip, serves twice as many products.
#pragma once

#include "kernels/attention/prefill_args_cuda.h"
#include "kernels/machine/tensor_core_cuda.h"

namespace weft::kernels::cuda::prefill {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kTile = 64;        // rows that pass through shared memory at a time, and rows of four strips
constexpr int kStrip = 16;       // rows of a fragment
constexpr int kChunk = 8;        // numbers of 16 bits that are moved at once
constexpr int kTensorDim = 128;  // the largest head_dim
constexpr float kLog2E = 1.44269504f;
static_assert(kTile == kWarps * kStrip);

/// kRows rows of kDim numbers in shared memory. Chunks change places within their row, so that neither writes of whole
/// rows nor load_tiles() have bank conflicts.
template <class T, int kDim, int kRows = kTile> struct Tile {
  static constexpr int kChunks = kDim / kChunk;
  static constexpr int kAcross = kChunks % 8 == 0 ? 8 : 4;  // chunks of a row that threads move at once
  static constexpr int kStep = kThreads / kAcross;          // rows that they move at once
  static constexpr std::size_t kBytes = sizeof(T) * kRows * kDim;
  T* numbers;

  __device__ static int turn(int row) { return kAcross == 8 ? row % 8 : row / 2 % 4; }
  /// Rows a multiple of 8 apart have their chunks in the same order.
  __device__ T* chunk(int row, int chunk) const { return numbers + (row * kChunks + (chunk ^ turn(row))) * kChunk; }

  /// Calls move(to, from, row, column) for each chunk of the calling thread.
  template <class From, class Move>
  __device__ void each_chunk(const From* from, std::int64_t stride, const Move& move) const {
    const int first = static_cast<int>(threadIdx.x) / kAcross, column = static_cast<int>(threadIdx.x) % kAcross;
    T* const to = chunk(first, column);
    from += first * stride + column * kChunk;
#pragma unroll
    for (int i = 0; i < kRows / kStep; ++i, from += kStep * stride)
#pragma unroll
      for (int j = 0; j < kChunks / kAcross; ++j)
        move(to + (i * kStep * kChunks + j * kAcross) * kChunk, from + j * kAcross * kChunk, first + i * kStep,
             (column + j * kAcross) * kChunk);
  }

  /// Begins to copy up to `count` rows of `from`, with zeros elsewhere. All threads call it.
  __device__ void begin_load(const T* from, std::int64_t stride, int count, int head_dim) const {
    each_chunk(from, stride, [&](T* to, const T* eight, int row, int column) {
      begin_copy(to, eight, row < count && column < head_dim);
    });
  }

  /// The same for queries, which are rounded now if they are floats.
  __device__ void begin_load_queries(const PrefillArgs& a, std::int64_t token, int head, int count) const {
    const std::int64_t first = token * a.q_stride + std::int64_t{head} * a.head_dim;
    if (a.q_is_float) load(static_cast<const float*>(a.q) + first, a.q_stride, count, a.head_dim);
    else begin_load(static_cast<const T*>(a.q) + first, a.q_stride, count, a.head_dim);
  }

 private:
  /// Copies up to `count` rows of `from`, rounded, with zeros elsewhere. All threads call it.
  __device__ void load(const float* from, std::int64_t stride, int count, int head_dim) const {
    each_chunk(from, stride, [&](T* to, const float* eight, int row, int column) {
      Pack<float, kChunk> x = {};
      if (row < count && column < head_dim) x = load_pack<kChunk>(eight);
      *reinterpret_cast<uint4*>(to) = {pack_pair<T>(x.at[0], x.at[1]), pack_pair<T>(x.at[2], x.at[3]),
                                       pack_pair<T>(x.at[4], x.at[5]), pack_pair<T>(x.at[6], x.at[7])};
    });
  }
};

/// The place of a lane in fragments: g and t of tensor_core_cuda.h, and the first of its rows. The others of strip m
/// are row + 16 m and row + 16 m + 8.
template <int kStrips> struct FragmentPlace {
  int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  int begin = static_cast<int>(threadIdx.x) / kWarp * kStrip * kStrips;  // of the warp's rows
  int row = begin + g;
};

/// 16 rows of a tile, from `first` on, at columns [16 d, 16 d + 16).
template <class T, int kDim, int kRows>
__device__ __forceinline__ void load_strip(const Tile<T, kDim, kRows>& tile, int first, int d,
                                           std::uint32_t (&strip)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  load_tiles<false>(strip, tile.chunk(lane % 16, 2 * d + lane / 16) + first * kDim);
}

/// The warp's strips of rows, which it multiplies by tile after tile: in registers, or, if these would be too many, in
/// shared memory.
template <class T, int kDim, int kStrips, bool kInRegisters> struct Strips {
  Tile<T, kDim, kTile * kStrips> tile;
  std::uint32_t held[kInRegisters ? kStrips : 1][kInRegisters ? kDim / 16 : 1][4];

  /// Takes them out of shared memory, where all have arrived.
  __device__ __forceinline__ void hold(int first) {
    if constexpr (kInRegisters)
#pragma unroll
      for (int m = 0; m < kStrips; ++m)
#pragma unroll
        for (int d = 0; d < kDim / 16; ++d) load_strip(tile, first + m * kStrip, d, held[m][d]);
  }
  __device__ __forceinline__ void get(int first, int m, int d, std::uint32_t (&strip)[4]) const {
    if constexpr (kInRegisters) {
#pragma unroll
      for (int i = 0; i < 4; ++i) strip[i] = held[m][d][i];
    } else {
      load_strip(tile, first + m * kStrip, d, strip);
    }
  }
};

/// sums [strips of the warp, kTile] = rows keys^T, unscaled. `first` is the warp's first row.
template <class T, int kDim, int kStrips, bool kInRegisters>
__device__ __forceinline__ void multiply_rows(const Strips<T, kDim, kStrips, kInRegisters>& rows, int first,
                                              const Tile<T, kDim>& keys, float (&sums)[kStrips][kTile / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int row = lane % 8 + lane / 16 * 8, half = lane / 8 % 2;
  if (!kInRegisters) {
#pragma unroll
    for (int m = 0; m < kStrips; ++m)
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[m][n][i] = 0;
  }
  // More would take more addresses than there are registers for.
  [[maybe_unused]] constexpr int unrolled = kInRegisters ? kDim / 16 : 4;
#pragma unroll unrolled
  for (int d = 0; d < kDim / 16; ++d) {
    std::uint32_t strip[kStrips][4];
#pragma unroll
    for (int m = 0; m < kStrips; ++m) rows.get(first, m, d, strip[m]);
#pragma unroll
    for (int n = 0; n < kTile / 16; ++n) {
      std::uint32_t b[4];
      load_tiles<false>(b, keys.chunk(row, 2 * d + half) + n * kStrip * kDim);
#pragma unroll
      for (int m = 0; m < kStrips; ++m) {
        if (kInRegisters && d == 0) {
          begin_tiles<T>(sums[m][2 * n], strip[m], b[0], b[1]);
          begin_tiles<T>(sums[m][2 * n + 1], strip[m], b[2], b[3]);
        } else {
          multiply_tiles<T>(sums[m][2 * n], strip[m], b[0], b[1]);
          multiply_tiles<T>(sums[m][2 * n + 1], strip[m], b[2], b[3]);
        }
      }
    }
  }
}

/// Turns products into tanh(product * factor / 2), which makes them logits in units of the cap, for a factor of
/// 2 * scale / cap.
template <int kStrips>
__device__ __forceinline__ void cap_products(float (&sums)[kStrips][kTile / 8][4], float factor) {
#pragma unroll
  for (int m = 0; m < kStrips; ++m)
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sums[m][n][i] = 1.0f - __fdividef(2.0f, fast_exp2(sums[m][n][i] * factor * kLog2E) + 1.0f);
}

/// Gives no weight where hidden(row, column): a row from the thread block's first on, a column of the tile.
template <int kStrips, class Hidden>
__device__ __forceinline__ void hide(float (&sums)[kStrips][kTile / 8][4], const FragmentPlace<kStrips>& at,
                                     const Hidden& hidden) {
#pragma unroll
  for (int m = 0; m < kStrips; ++m)
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (hidden(at.row + m * kStrip + i / 2 * 8, n * 8 + at.t * 2 + i % 2)) sums[m][n][i] = -INFINITY;
}

/// Sum or Largest over the four lanes that have one row.
template <class Op> __device__ inline float over_row(float x, Op op) { return warp_reduce<4>(x, op); }

/// Calls f.operator()<kDim>() with the numbers in a row of the tile for heads of `head_dim`.
template <class F> void with_tile(int head_dim, const F& f) {
  if (head_dim <= 32) f.template operator()<32>();
  else if (head_dim <= 64) f.template operator()<64>();
  else if (head_dim <= 96) f.template operator()<96>();
  else f.template operator()<kTensorDim>();
}

}  // namespace weft::kernels::cuda::prefill
