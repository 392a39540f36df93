// kernels/prefill_attention_cuda.cu: attention of whole prompts and the scores of their tokens, tile by tile.
//
// On tensor cores a tile of 64 rows meets tiles of 64 keys. The row sums come first and the outputs in a second pass
// that recomputes the products: then no accumulator has ever to be rescaled, which fragments of opaque layout could
// not be, and H2O's column sums, the third pass of the same shape, need the row sums anyway. fp32 keys, and heads of
// more than 128, take plain kernels: a block for each row or key.
#include <mma.h>

#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/device_cuda.h"
#include "kernels/error.h"
#include "kernels/ops_cuda.h"

namespace weft::kernels {
namespace {

using namespace cuda;
namespace wmma = nvcuda::wmma;

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kTile = 64;      // rows, and keys
constexpr int kFragment = 16;  // rows and columns of a fragment; a warp has 16 rows of a tile
constexpr int kTensorDim = 128, kMostDim = 1024;
constexpr int kScoreStride = kTile + 4, kWeightStride = kTile + 8;  // apart, against bank conflicts
static_assert(kTile == kWarps * kFragment);

/// Whether the code at hand may multiply T on tensor cores: Turing's know no bfloat16.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
template <class T> constexpr bool kMultiplies = !std::is_same_v<T, __nv_bfloat16>;
#else
template <class T> constexpr bool kMultiplies = true;
#endif

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
  int heads, group, head_dim;
  float scale;
  float *out, *lse;  // lse of ColumnSums is read only
  std::int64_t out_stride, lse_stride;
  float* score;
  std::int64_t score_stride;
  int window;
};

/// Shared memory of the tensor kernels, in this order; each part begins at a multiple of 32 bytes.
struct Shared {
  int dim, stride;  // head_dim in whole fragments; of a row of q, k or v
  __host__ __device__ explicit Shared(int head_dim)
      : dim((head_dim + kFragment - 1) / kFragment * kFragment), stride(dim + 8) {}
  __host__ __device__ std::size_t rows_bytes() const { return std::size_t{2} * kTile * stride; }
  static constexpr std::size_t kScoreBytes = sizeof(float) * kTile * kScoreStride;
  static constexpr std::size_t kWeightBytes = std::size_t{2} * kTile * kWeightStride;
  __host__ __device__ std::size_t bytes() const { return 2 * rows_bytes() + kScoreBytes + kWeightBytes; }
};

/// 8 numbers from memory that is aligned to them, rounded.
template <class From, class T> __device__ uint4 load_eight(const From* from) {
  if constexpr (std::is_same_v<From, T>) {
    return *reinterpret_cast<const uint4*>(from);
  } else {
    const float4 low = reinterpret_cast<const float4*>(from)[0], high = reinterpret_cast<const float4*>(from)[1];
    const float numbers[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    T rounded[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) rounded[i] = from_float<T>(numbers[i]);
    uint4 raw;
    memcpy(&raw, rounded, sizeof raw);
    return raw;
  }
}

/// to [kTile, stride] = up to `count` rows of `from`, rounded; zeros elsewhere. All threads.
template <class From, class T>
__device__ void load_rows(const From* from, std::int64_t from_stride, int count, int head_dim, T* to, Shared shape) {
  constexpr int vector = 8;
  const bool aligned =
      reinterpret_cast<std::uintptr_t>(from) % 16 == 0 && from_stride % vector == 0 && head_dim % vector == 0;
  if (aligned) {
    const int columns = shape.dim / vector;
    for (int i = threadIdx.x; i < kTile * columns; i += kThreads) {
      const int row = i / columns, d = i % columns * vector;
      const uint4 eight = row < count && d < head_dim ? load_eight<From, T>(from + row * from_stride + d) : uint4{};
      *reinterpret_cast<uint4*>(to + row * shape.stride + d) = eight;
    }
    return;
  }
  for (int i = threadIdx.x; i < kTile * shape.dim; i += kThreads) {
    const int row = i / shape.dim, d = i % shape.dim;
    const float x = row < count && d < head_dim ? to_float(from[row * from_stride + d]) : 0.0f;
    to[row * shape.stride + d] = from_float<T>(x);
  }
}

/// score [16 of the warp, kTile] = q k^T, unscaled.
template <class T> __device__ void multiply_keys(const T* q, const T* k, float* score, Shared shape, int warp) {
  wmma::fragment<wmma::accumulator, kFragment, kFragment, kFragment, float> sum[kTile / kFragment];
#pragma unroll
  for (auto& s : sum) wmma::fill_fragment(s, 0.0f);
  for (int d = 0; d < shape.dim; d += kFragment) {
    wmma::fragment<wmma::matrix_a, kFragment, kFragment, kFragment, T, wmma::row_major> a;
    wmma::load_matrix_sync(a, q + warp * kFragment * shape.stride + d, shape.stride);
#pragma unroll
    for (int n = 0; n < kTile / kFragment; ++n) {
      wmma::fragment<wmma::matrix_b, kFragment, kFragment, kFragment, T, wmma::col_major> b;
      wmma::load_matrix_sync(b, k + n * kFragment * shape.stride + d, shape.stride);
      wmma::mma_sync(sum[n], a, b, sum[n]);
    }
  }
#pragma unroll
  for (int n = 0; n < kTile / kFragment; ++n)
    wmma::store_matrix_sync(score + warp * kFragment * kScoreStride + n * kFragment, sum[n], kScoreStride,
                            wmma::mem_row_major);
  __syncwarp();
}

/// What a lane holds of its row: two lanes share one, half a tile of keys each.
struct RowSum {
  float most = -INFINITY, sum = 0;
  __device__ void add(float x) {
    if (x > most) {
      sum *= __expf(most - x);
      most = x;
    }
    sum += __expf(x - most);
  }
  /// log of the sum of exp over both lanes.
  __device__ float log_sum() const {
    const float other_most = __shfl_xor_sync(kWholeWarp, most, 1), other_sum = __shfl_xor_sync(kWholeWarp, sum, 1);
    const float all = fmaxf(most, other_most);
    return all + logf(sum * __expf(most - all) + other_sum * __expf(other_most - all));
  }
};

template <class T> __device__ __forceinline__ void prefill_tile(const Args& a) {
  WEFT_DYNAMIC_SHARED(unsigned char, memory);
  const Shared shape(a.head_dim);
  T* const q = reinterpret_cast<T*>(memory);
  T* const keys = reinterpret_cast<T*>(memory + shape.rows_bytes());  // then values
  float* const score = reinterpret_cast<float*>(memory + 2 * shape.rows_bytes());
  T* const weight = reinterpret_cast<T*>(memory + 2 * shape.rows_bytes() + Shared::kScoreBytes);
  const Block block = a.blocks[blockIdx.x];
  const int head = blockIdx.y, kv_head = head / a.group, rows = min(kTile, block.length - block.first);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int row = warp * kFragment + lane / 2, half = lane % 2 * (kTile / 2), last_key = block.first + row;
  const T* const k = static_cast<const T*>(a.k) + block.begin * a.k_stride + kv_head * a.head_dim;
  const T* const v = static_cast<const T*>(a.v) + block.begin * a.v_stride + kv_head * a.head_dim;
  const auto q_row = [&](int r) { return a.q + (block.begin + block.first + r) * a.q_stride + head * a.head_dim; };
  load_rows(q_row(0), a.q_stride, rows, a.head_dim, q, shape);

  RowSum sums;
  for (int first = 0; first <= block.first; first += kTile) {
    __syncthreads();
    load_rows(k + first * a.k_stride, a.k_stride, block.length - first, a.head_dim, keys, shape);
    __syncthreads();
    multiply_keys(q, keys, score, shape, warp);
    for (int c = half; c < half + kTile / 2; ++c)
      if (first + c <= last_key) sums.add(a.scale * score[row * kScoreStride + c]);
    __syncwarp();
  }
  const float lse = sums.log_sum();
  if (a.lse && half == 0 && row < rows) a.lse[head * a.lse_stride + block.begin + block.first + row] = lse;

  wmma::fragment<wmma::accumulator, kFragment, kFragment, kFragment, float> out[kTensorDim / kFragment];
#pragma unroll
  for (auto& o : out) wmma::fill_fragment(o, 0.0f);
  for (int first = 0; first <= block.first; first += kTile) {
    __syncthreads();
    load_rows(k + first * a.k_stride, a.k_stride, block.length - first, a.head_dim, keys, shape);
    __syncthreads();
    multiply_keys(q, keys, score, shape, warp);
    for (int c = half; c < half + kTile / 2; ++c)
      weight[row * kWeightStride + c] =
          from_float<T>(first + c <= last_key ? __expf(a.scale * score[row * kScoreStride + c] - lse) : 0.0f);
    __syncthreads();
    load_rows(v + first * a.v_stride, a.v_stride, block.length - first, a.head_dim, keys, shape);
    __syncthreads();
    for (int c = 0; c < kTile; c += kFragment) {
      wmma::fragment<wmma::matrix_a, kFragment, kFragment, kFragment, T, wmma::row_major> p;
      wmma::load_matrix_sync(p, weight + warp * kFragment * kWeightStride + c, kWeightStride);
#pragma unroll
      for (int n = 0; n < kTensorDim / kFragment; ++n)
        if (n * kFragment < shape.dim) {
          wmma::fragment<wmma::matrix_b, kFragment, kFragment, kFragment, T, wmma::row_major> b;
          wmma::load_matrix_sync(b, keys + c * shape.stride + n * kFragment, shape.stride);
          wmma::mma_sync(out[n], p, b, out[n]);
        }
    }
  }
  __syncthreads();  // the rows of q and the values make room for the outputs
  float* const result = reinterpret_cast<float*>(memory);
  const int result_stride = shape.dim + 4;
#pragma unroll
  for (int n = 0; n < kTensorDim / kFragment; ++n)
    if (n * kFragment < shape.dim)
      wmma::store_matrix_sync(result + warp * kFragment * result_stride + n * kFragment, out[n], result_stride,
                              wmma::mem_row_major);
  __syncthreads();
  for (int i = threadIdx.x; i < rows * a.head_dim; i += kThreads)
    a.out[(block.begin + block.first + i / a.head_dim) * a.out_stride + head * a.head_dim + i % a.head_dim] =
        result[i / a.head_dim * result_stride + i % a.head_dim];
}

/// Grid: tiles of rows, heads.
template <class T> __global__ void __launch_bounds__(kThreads) prefill_tensor(Args a) {
  if constexpr (kMultiplies<T>) prefill_tile<T>(a);
}

/// A thread adds half the rows of a tile for one key.
template <class T> __device__ __forceinline__ void column_sums_tile(const Args& a) {
  WEFT_DYNAMIC_SHARED(unsigned char, memory);
  WEFT_SHARED(float, lse, [kTile]);
  WEFT_SHARED(float, other_half, [kTile]);
  const Shared shape(a.head_dim);
  T* const q = reinterpret_cast<T*>(memory);
  T* const keys = reinterpret_cast<T*>(memory + shape.rows_bytes());
  float* const score = reinterpret_cast<float*>(memory + 2 * shape.rows_bytes());
  const Block block = a.blocks[blockIdx.x];
  const int kv_head = blockIdx.y, count = min(kTile, block.length - block.first);
  const int warp = threadIdx.x / kWarp, column = threadIdx.x % kTile, half = threadIdx.x / kTile * (kTile / 2);
  const int first_row = a.window > 0 ? max(0, block.length - a.window) : 0;
  load_rows(static_cast<const T*>(a.k) + (block.begin + block.first) * a.k_stride + kv_head * a.head_dim, a.k_stride,
            count, a.head_dim, keys, shape);
  float sum = 0;
  for (int g = 0; g < a.group; ++g) {
    const int head = kv_head * a.group + g;
    for (int first = max(block.first, first_row / kTile * kTile); first < block.length; first += kTile) {
      const int rows = min(kTile, block.length - first);
      __syncthreads();
      load_rows(a.q + (block.begin + first) * a.q_stride + head * a.head_dim, a.q_stride, rows, a.head_dim, q, shape);
      if (static_cast<int>(threadIdx.x) < rows)
        lse[threadIdx.x] = a.lse[head * a.lse_stride + block.begin + first + threadIdx.x];
      __syncthreads();
      multiply_keys(q, keys, score, shape, warp);
      __syncthreads();
      for (int r = half; r < min(half + kTile / 2, rows); ++r)
        if (first + r >= max(block.first + column, first_row))
          sum += __expf(a.scale * score[r * kScoreStride + column] - lse[r]);
    }
  }
  __syncthreads();
  if (half > 0) other_half[column] = sum;
  __syncthreads();
  if (half == 0 && column < count)
    a.score[kv_head * a.score_stride + block.begin + block.first + column] = sum + other_half[column];
}

/// Grid: tiles of keys, KV heads.
template <class T> __global__ void __launch_bounds__(kThreads) column_sums_tensor(Args a) {
  if constexpr (kMultiplies<T>) column_sums_tile<T>(a);
}

template <class T> __device__ float dot(const float* q, const T* k, int head_dim) {
  float sum = 0;
  for (int d = 0; d < head_dim; ++d) sum += q[d] * to_float(k[d]);
  return sum;
}

/// Grid: rows (blocks of one), heads.
template <class T> __global__ void __launch_bounds__(kThreads) prefill_plain(Args a) {
  WEFT_SHARED(float, q, [kMostDim]);
  WEFT_SHARED(float, weight, [kThreads]);
  WEFT_SHARED(float, partial, [kWarps]);
  const Block block = a.blocks[blockIdx.x];
  const int head = blockIdx.y, kv_head = head / a.group, keys = block.first + 1;
  const T* const k = static_cast<const T*>(a.k) + block.begin * a.k_stride + kv_head * a.head_dim;
  const T* const v = static_cast<const T*>(a.v) + block.begin * a.v_stride + kv_head * a.head_dim;
  for (int d = threadIdx.x; d < a.head_dim; d += kThreads)
    q[d] = a.scale * a.q[(block.begin + block.first) * a.q_stride + head * a.head_dim + d];
  __syncthreads();
  RowSum sums;
  for (int j = threadIdx.x; j < keys; j += kThreads) sums.add(dot(q, k + j * a.k_stride, a.head_dim));
  const float most = block_reduce(sums.most, Largest{}, partial);
  const float sum = block_reduce(sums.sum * __expf(sums.most - most), Sum{}, partial), lse = most + logf(sum);
  if (a.lse && threadIdx.x == 0) a.lse[head * a.lse_stride + block.begin + block.first] = lse;

  float out[kMostDim / kThreads] = {};
  for (int first = 0; first < keys; first += kThreads) {
    const int j = first + static_cast<int>(threadIdx.x);
    __syncthreads();
    weight[threadIdx.x] = j < keys ? __expf(dot(q, k + j * a.k_stride, a.head_dim) - lse) : 0.0f;
    __syncthreads();
    for (int c = 0; c < min(kThreads, keys - first); ++c)
      for (int i = 0, d = threadIdx.x; d < a.head_dim; ++i, d += kThreads)
        out[i] += weight[c] * to_float(v[(first + c) * a.v_stride + d]);
  }
  for (int i = 0, d = threadIdx.x; d < a.head_dim; ++i, d += kThreads)
    a.out[(block.begin + block.first) * a.out_stride + head * a.head_dim + d] = out[i];
}

/// Grid: keys (blocks of one), KV heads.
template <class T> __global__ void __launch_bounds__(kThreads) column_sums_plain(Args a) {
  WEFT_SHARED(float, partial, [kWarps]);
  const Block block = a.blocks[blockIdx.x];
  const int kv_head = blockIdx.y, first_row = a.window > 0 ? max(0, block.length - a.window) : 0;
  const T* const k = static_cast<const T*>(a.k) + (block.begin + block.first) * a.k_stride + kv_head * a.head_dim;
  float sum = 0;
  for (int g = 0; g < a.group; ++g) {
    const int head = kv_head * a.group + g;
    for (int i = max(block.first, first_row) + static_cast<int>(threadIdx.x); i < block.length; i += kThreads) {
      const float* const q = a.q + (block.begin + i) * a.q_stride + head * a.head_dim;
      sum += __expf(a.scale * dot(q, k, a.head_dim) - a.lse[head * a.lse_stride + block.begin + i]);
    }
  }
  sum = block_reduce(sum, Sum{}, partial);
  if (threadIdx.x == 0) a.score[kv_head * a.score_stride + block.begin + block.first] = sum;
}

/// The blocks of `size` rows or keys, those with the most work first: the last rows, or the first keys.
std::vector<Block> blocks_of(std::span<const std::int32_t> offsets, int size, bool rows) {
  std::vector<Block> blocks;
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i)
    for (std::int32_t first = 0; first < offsets[i + 1] - offsets[i]; first += size)
      blocks.push_back({offsets[i], offsets[i + 1] - offsets[i], first});
  const auto work = [&](const Block& b) { return rows ? b.first : b.length - b.first; };
  std::stable_sort(blocks.begin(), blocks.end(), [&](const Block& a, const Block& b) { return work(a) > work(b); });
  return blocks;
}

/// Of the code that runs, which may have been compiled for an older device than the present one.
bool multiplies_bfloat16() {
  static const bool known = [] {
    cudaFuncAttributes attributes;
    check(cudaFuncGetAttributes(&attributes, prefill_tensor<__nv_bfloat16>), "cudaFuncGetAttributes");
    return attributes.ptxVersion >= 80;
  }();
  return known;
}

bool on_tensor_cores(DType dtype, int head_dim) {
  return dtype != DType::f32 && head_dim <= kTensorDim && (dtype != DType::bf16 || multiplies_bfloat16());
}

void check_dim(const char* op, int head_dim) {
  if (head_dim > kMostDim)
    throw UsageError(std::string(op) + ": head_dim is " + std::to_string(head_dim) + ", on a GPU at most " +
                     std::to_string(kMostDim));
}

template <class Op> Args args_of(const Op& op) {
  Args args{};
  args.q = static_cast<const float*>(op.q.data), args.q_stride = op.q.stride;
  args.k = op.k.data, args.k_stride = op.k.stride;
  args.heads = op.heads, args.group = op.heads / op.kv_heads, args.head_dim = op.head_dim;
  args.scale = op.scale;
  args.lse = static_cast<float*>(const_cast<void*>(static_cast<const void*>(op.lse.data)));
  args.lse_stride = op.lse.stride;
  return args;
}

}  // namespace

void CudaOps::run(const PrefillAttention& op, Stream& any) const {
  check(op);
  check_dim("prefill_attention", op.head_dim);
  auto& stream = static_cast<CudaStream&>(any);
  const bool tensor = on_tensor_cores(op.k.dtype, op.head_dim);
  const std::vector<Block> blocks = blocks_of(op.offsets, tensor ? kTile : 1, true);
  if (blocks.empty()) return;
  Args args = args_of(op);
  args.v = op.v.data, args.v_stride = op.v.stride;
  args.out = static_cast<float*>(op.out.data), args.out_stride = op.out.stride;
  args.blocks = stream.upload(std::span<const Block>(blocks));
  const dim3 grid(static_cast<unsigned>(blocks.size()), op.heads);
  with_float_type(op.k.dtype, [&]<class T>() {
    if constexpr (!std::is_same_v<T, float>)
      if (tensor) return launch(prefill_tensor<T>, grid, kThreads, Shared(op.head_dim).bytes(), stream, args);
    launch(prefill_plain<T>, grid, kThreads, 0, stream, args);
  });
}

void CudaOps::run(const ColumnSums& op, Stream& any) const {
  check(op);
  check_dim("column_sums", op.head_dim);
  auto& stream = static_cast<CudaStream&>(any);
  const bool tensor = on_tensor_cores(op.k.dtype, op.head_dim);
  const std::vector<Block> blocks = blocks_of(op.offsets, tensor ? kTile : 1, false);
  if (blocks.empty()) return;
  Args args = args_of(op);
  args.score = static_cast<float*>(op.score.data), args.score_stride = op.score.stride;
  args.window = op.window;
  args.blocks = stream.upload(std::span<const Block>(blocks));
  const dim3 grid(static_cast<unsigned>(blocks.size()), op.kv_heads);
  with_float_type(op.k.dtype, [&]<class T>() {
    if constexpr (!std::is_same_v<T, float>)
      if (tensor) return launch(column_sums_tensor<T>, grid, kThreads, Shared(op.head_dim).bytes(), stream, args);
    launch(column_sums_plain<T>, grid, kThreads, 0, stream, args);
  });
}

}  // namespace weft::kernels
