// kernels/prefill_tensor_cuda.h: attention of prompts, and the scores of their tokens, on tensor cores.
//
// The structure is FlashAttention-2's (arXiv 2307.08691): a tile of 64 rows meets tiles of 64 keys; a warp has 16 of
// the rows, with their queries, logits and outputs in registers, and rescales sums and outputs when a row's largest
// logit grows. Only keys and values pass through shared memory. Each is on its way while the other is multiplied. The
// scores of tokens are sums over the columns of the same logits: there a warp has 16 of the keys in registers, and the
// rows pass through shared memory.
#pragma once

#include "kernels/tensor_core_cuda.h"

namespace weft::kernels::cuda::prefill {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kTile = 64;        // rows, and keys
constexpr int kChunk = 8;        // numbers of 16 bits that are moved at once
constexpr int kTensorDim = 128;  // of head_dim, at most
constexpr float kLog2E = 1.44269504f;
static_assert(kTile == kWarps * 16);

/// Consecutive rows or keys of one sequence.
struct Block {
  std::int32_t begin, length;  // the sequence's rows in the call
  std::int32_t first;          // within the sequence
};

struct Args {
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
  int window;
};

/// kTile rows of kDim numbers in shared memory. Chunks change places within their row so that neither writes of whole
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

  /// Begins to copy up to `count` rows of `from`; zeros elsewhere. All threads.
  __device__ void begin_load(const T* from, std::int64_t stride, int count, int head_dim) const {
    each_chunk(from, stride, [&](T* to, const T* eight, int row, int column) {
      begin_copy(to, eight, row < count && column < head_dim);
    });
  }

  /// Up to `count` rows of `from`, rounded; zeros elsewhere. All threads.
  __device__ void load(const float* from, std::int64_t stride, int count, int head_dim) const {
    each_chunk(from, stride, [&](T* to, const float* eight, int row, int column) {
      Pack<float, kChunk> x = {};
      if (row < count && column < head_dim) x = load_pack<kChunk>(eight);
      *reinterpret_cast<uint4*>(to) = {pack_pair<T>(x.at[0], x.at[1]), pack_pair<T>(x.at[2], x.at[3]),
                                       pack_pair<T>(x.at[4], x.at[5]), pack_pair<T>(x.at[6], x.at[7])};
    });
  }
};

/// Where a lane is in fragments: tensor_core_cuda.h's g and t, and its row of the two that it has.
struct Lane {
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

/// Sum and Largest over the four lanes that have one row.
template <class Op> __device__ inline float over_row(float x, Op op) { return warp_reduce<4>(x, op); }

/// What a block of threads of attend() works on. It is asked for again at the end: registers are scarce in between.
struct Rows {
  Block block;
  int head, rows;
  __device__ explicit Rows(const Args& a)
      : block(a.blocks[blockIdx.x / a.heads]), head(static_cast<int>(blockIdx.x % a.heads)),
        rows(min(kTile, block.length - block.first)) {}
  __device__ std::int64_t token(int row) const { return std::int64_t{block.begin} + block.first + row; }
};

/// Turns the logits of a tile, which it scales, into weights relative to each row's largest so far; rescales what there
/// is of sum and out where that grows.
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

template <class T, int kDim> __device__ __forceinline__ void attend(const Args& a) {
  WEFT_DYNAMIC_SHARED(T, memory);
  const Tile<T, kDim> keys{memory}, values{memory + kTile * kDim};
  const T *k, *v;
  int count, tile;  // the tile on the diagonal comes first
  {
    const Rows mine(a);
    k = static_cast<const T*>(a.k) + mine.token(0) * a.k_stride + mine.head / a.group * a.head_dim;
    v = static_cast<const T*>(a.v) + mine.token(0) * a.v_stride + mine.head / a.group * a.head_dim;
    count = mine.rows, tile = mine.block.first / kTile;
  }
  keys.begin_load(k, a.k_stride, count, a.head_dim);
  std::uint32_t q[kDim / 16][4];
  {
    const Rows mine(a);
    values.load(a.q + mine.token(0) * a.q_stride + mine.head * a.head_dim, a.q_stride, mine.rows, a.head_dim);
  }
  __syncthreads();
  hold_rows<T, kDim>(values, q);

  float out[kDim / 8][4] = {}, most[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  for (bool diagonal = true; tile >= 0; --tile, diagonal = false, count = kTile) {
    end_copies();
    __syncthreads();  // the keys are there, and nobody needs the last values
    values.begin_load(v, a.v_stride, count, a.head_dim);
    v -= kTile * a.v_stride;
    float p[kTile / 8][4];
    multiply_rows<T, kDim>(q, keys, p);
    if (diagonal) {
      const Lane at;
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (n * 8 + at.t * 2 + i % 2 > at.row + i / 2 * 8) p[n][i] = -INFINITY;
    }
    weigh<kDim>(p, a.scale * kLog2E, most, sum, out);
    end_copies();
    __syncthreads();  // the values are there, and nobody needs these keys
    k -= kTile * a.k_stride;
    if (tile > 0) keys.begin_load(k, a.k_stride, kTile, a.head_dim);
    add_values<T, kDim>(p, values, out);
  }

  const Rows mine(a);
  const Lane at;
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
template <class T, int kDim> __global__ void __launch_bounds__(kThreads, 2) prefill_tensor(Args a) {
  if constexpr (kMultiplies<T>) attend<T, kDim>(a);
}

template <bool kLargest> using Gathered = std::conditional_t<kLargest, Largest, Sum>;
/// Sums how many are more than an even share.
struct Count : Sum {};
/// The sum, the largest or the count of what there is and what row `row` of the sequence gives.
template <class How> __device__ __forceinline__ float gathered(float x, float p, int row) {
  if constexpr (std::is_same_v<How, Count>) p = p * static_cast<float>(row + 1) >= kMoreThanEven ? 1.0f : 0.0f;
  return How{}(x, p);
}

template <class T, int kDim, class How> __device__ __forceinline__ void sum_columns(const Args& a) {
  WEFT_DYNAMIC_SHARED(T, memory);
  WEFT_SHARED(float, shift, [kTile]);
  const Tile<T, kDim> queries{memory};
  const Block block = a.blocks[blockIdx.x / a.kv_heads];
  const int kv_head = static_cast<int>(blockIdx.x % a.kv_heads), count = min(kTile, block.length - block.first);
  const int first_row = a.window > 0 ? max(0, block.length - a.window) : 0;
  const Lane at;
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
          sum[i / 2] =
              gathered<How>(sum[i / 2], fast_exp2(__fmaf_rn(p[n][i], to_exp2, shift[n * 8 + at.t * 2 + i % 2])),
                            first + n * 8 + at.t * 2 + i % 2);
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
template <class T, int kDim, bool kLargest> __global__ void __launch_bounds__(kThreads, 2) column_sums_tensor(Args a) {
  if constexpr (kMultiplies<T>) sum_columns<T, kDim, Gathered<kLargest>>(a);
}
template <class T, int kDim> __global__ void __launch_bounds__(kThreads, 2) column_counts_tensor(Args a) {
  if constexpr (kMultiplies<T>) sum_columns<T, kDim, Count>(a);
}

/// Calls f.operator()<kDim>() with the tile's numbers of a row for heads of `head_dim`.
template <class F> void with_tile(int head_dim, const F& f) {
  if (head_dim <= 32) f.template operator()<32>();
  else if (head_dim <= 64) f.template operator()<64>();
  else if (head_dim <= 96) f.template operator()<96>();
  else f.template operator()<kTensorDim>();
}

}  // namespace weft::kernels::cuda::prefill
