// kernels/attention/prefill_tile_cuda.h: tiles of a prompt's rows and keys in shared memory and in fragments of tensor
// cores, for attention of prompts and the scores of their tokens.
#pragma once

#include "kernels/machine/tensor_core_cuda.h"

namespace weft::kernels::cuda::prefill {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kTile = 64;        // rows, and keys
constexpr int kChunk = 8;        // numbers of 16 bits that are moved at once
constexpr int kTensorDim = 128;  // the largest head_dim
constexpr float kLog2E = 1.44269504f;
static_assert(kTile == kWarps * 16);

/// Consecutive rows or keys of one sequence.
struct Block {
  std::int32_t begin, length;  // the sequence's rows in the call
  std::int32_t first;          // within the sequence
};

struct PrefillArgs {
  const float* q;
  const void *k, *v;
  std::int64_t q_stride, k_stride, v_stride;
  const Block* blocks;
  int heads, kv_heads, group, head_dim;
  float scale;
  float *out, *lse;  // lse of ColumnSums is read only
  std::int64_t out_stride, lse_stride;
  float* score;
  std::int64_t score_stride;
  int observation;
};

/// kTile rows of kDim numbers in shared memory. Chunks change places within their row, so that neither writes of whole
/// rows nor load_tiles() meet in a bank.
template <class T, int kDim> struct Tile {
  static constexpr int kChunks = kDim / kChunk;
  static constexpr int kAcross = kChunks % 8 == 0 ? 8 : 4;  // chunks of a row that threads move at once
  static constexpr int kStep = kThreads / kAcross;          // rows that they move at once
  static constexpr std::size_t kBytes = sizeof(T) * kTile * kDim;
  T* numbers;

  __device__ static int turn(int row) { return kAcross == 8 ? row % 8 : row / 2 % 4; }
  __device__ T* chunk(int row, int chunk) const { return numbers + (row * kChunks + (chunk ^ turn(row))) * kChunk; }

  /// Calls move(to, from, row, column) for each chunk of the calling thread.
  template <class From, class Move>
  __device__ void each_chunk(const From* from, std::int64_t stride, const Move& move) const {
    const int first = static_cast<int>(threadIdx.x) / kAcross, column = static_cast<int>(threadIdx.x) % kAcross;
    T* const to = chunk(first, column);
    from += first * stride + column * kChunk;
#pragma unroll
    for (int i = 0; i < kTile / kStep; ++i, from += kStep * stride)
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

/// The place of a lane in fragments: g and t of tensor_core_cuda.h, and the first of its two rows.
struct FragmentPlace {
  int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  int row = static_cast<int>(threadIdx.x) / kWarp * 16 + g;  // the other is row + 8
};

/// The warp's 16 rows of a tile, in registers.
template <class T, int kDim>
__device__ __forceinline__ void hold_rows(const Tile<T, kDim>& tile, std::uint32_t (&rows)[kDim / 16][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, first = static_cast<int>(threadIdx.x) / kWarp * 16;
#pragma unroll
  for (int d = 0; d < kDim / 16; ++d) load_tiles<false>(rows[d], tile.chunk(first + lane % 16, 2 * d + lane / 16));
}

/// sums [16 of the warp, kTile] = rows tile^T, unscaled.
template <class T, int kDim>
__device__ inline void multiply_rows(const std::uint32_t (&rows)[kDim / 16][4], const Tile<T, kDim>& tile,
                                     float (&sums)[kTile / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int row = lane % 8 + lane / 16 * 8, half = lane / 8 % 2;
#pragma unroll
  for (int n = 0; n < kTile / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[n][i] = 0;
#pragma unroll
  for (int d = 0; d < kDim / 16; ++d)
#pragma unroll
    for (int n = 0; n < kTile / 16; ++n) {
      std::uint32_t b[4];
      load_tiles<false>(b, tile.chunk(n * 16 + row, 2 * d + half));
      multiply_tiles<T>(sums[2 * n], rows[d], b[0], b[1]);
      multiply_tiles<T>(sums[2 * n + 1], rows[d], b[2], b[3]);
    }
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
