// kernels/attention/prefill_cuda.cu: attention of whole prompts and the scores of their tokens.
//
// Tensor cores do it tile by tile (prefill_tensor_cuda.h). fp32 keys, and heads of more than 128 or of odd sizes, take
// plain kernels with a thread block for each row or key.
#include <algorithm>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/attention/column_sums_tensor_cuda.h"
#include "kernels/attention/prefill_tensor_cuda.h"
#include "kernels/error.h"
#include "kernels/machine/ops_cuda.h"

namespace weft::kernels {
namespace {

using namespace cuda;
using namespace cuda::prefill;

constexpr int kMostDim = 1024;

/// One thread's part of the softmax sum of a row of logits.
struct RowSum {
  float most = -INFINITY, sum = 0;
  __device__ void add(float x) {
    if (x > most) {
      sum *= __expf(most - x);
      most = x;
    }
    sum += __expf(x - most);
  }
};

template <class T> __device__ float query(const PrefillArgs& a, std::int64_t i) {
  return a.q_is_float ? static_cast<const float*>(a.q)[i] : to_float(static_cast<const T*>(a.q)[i]);
}

template <class Q, class T> __device__ float dot(const Q* q, const T* k, int head_dim) {
  float sum = 0;
  for (int d = 0; d < head_dim; ++d) sum += to_float(q[d]) * to_float(k[d]);
  return sum;
}

__device__ float capped(const PrefillArgs& a, float logit) {
  return a.cap > 0 ? a.cap * fast_tanh(logit / a.cap) : logit;
}

/// Grid: rows (blocks of one), heads.
template <class T> __global__ void __launch_bounds__(kThreads) prefill_plain(PrefillArgs a) {
  WEFT_SHARED(float, q, [kMostDim]);
  WEFT_SHARED(float, weight, [kThreads]);
  WEFT_SHARED(float, partial, [kWarps]);
  const Block block = a.blocks[blockIdx.x];
  const int head = blockIdx.y, kv_head = head / a.group;
  const int begin = max(0, block.first + 1 - a.window), keys = block.first + 1;
  const auto row_of = [&](const void* matrix, std::int64_t stride, int token) {
    return static_cast<const T*>(matrix) + a.row_of(block, token) * stride + kv_head * a.head_dim;
  };
  const std::int64_t at = (block.query + block.first) * a.q_stride + head * a.head_dim;
  for (int d = threadIdx.x; d < a.head_dim; d += kThreads) q[d] = a.scale * query<T>(a, at + d);
  __syncthreads();
  RowSum sums;
  if (a.sink_logits && threadIdx.x == 0) sums.add(a.sink_logits[head]);
  for (int j = begin + static_cast<int>(threadIdx.x); j < keys; j += kThreads)
    sums.add(capped(a, dot(q, row_of(a.k, a.k_stride, j), a.head_dim)));
  const float most = block_reduce(sums.most, Largest{}, partial);
  const float sum = block_reduce(sums.sum * __expf(sums.most - most), Sum{}, partial), lse = most + logf(sum);
  if (a.lse && threadIdx.x == 0) a.lse[head * a.lse_stride + block.query + block.first] = lse;

  float out[kMostDim / kThreads] = {};
  for (int first = begin; first < keys; first += kThreads) {
    const int j = first + static_cast<int>(threadIdx.x);
    __syncthreads();
    weight[threadIdx.x] = j < keys ? __expf(capped(a, dot(q, row_of(a.k, a.k_stride, j), a.head_dim)) - lse) : 0.0f;
    __syncthreads();
    for (int c = 0; c < min(kThreads, keys - first); ++c)
      for (int i = 0, d = threadIdx.x; d < a.head_dim; ++i, d += kThreads)
        out[i] += weight[c] * to_float(row_of(a.v, a.v_stride, first + c)[d]);
  }
  const std::int64_t to = (block.query + block.first) * a.out_stride + head * a.head_dim;
  for (int i = 0, d = threadIdx.x; d < a.head_dim; ++i, d += kThreads) {
    if (a.out_is_float) static_cast<float*>(a.out)[to + d] = out[i];
    else static_cast<T*>(a.out)[to + d] = from_float<T>(out[i]);
  }
}

/// Grid: keys (blocks of one), KV heads.
template <class T, class How> __global__ void __launch_bounds__(kThreads) column_sums_plain(PrefillArgs a) {
  WEFT_SHARED(float, partial, [kWarps]);
  const Block block = a.blocks[blockIdx.x];
  const int kv_head = blockIdx.y, first_row = a.first_row(block);
  const T* const k = static_cast<const T*>(a.k) + a.row_of(block, block.first) * a.k_stride + kv_head * a.head_dim;
  float sum = 0;
  for (int g = 0; g < a.group; ++g) {
    const int head = kv_head * a.group + g;
    const int end = min(block.length - block.first, a.window) + block.first;
    for (int i = max(block.first, first_row) + static_cast<int>(threadIdx.x); i < end; i += kThreads) {
      const std::int64_t at = (block.query + i) * a.q_stride + head * a.head_dim;
      const float product = a.q_is_float ? dot(static_cast<const float*>(a.q) + at, k, a.head_dim)
                                         : dot(static_cast<const T*>(a.q) + at, k, a.head_dim);
      sum = How{}(sum, __expf(capped(a, a.scale * product) - a.lse[head * a.lse_stride + block.query + i]));
    }
  }
  sum = block_reduce(sum, How{}, partial);
  if (threadIdx.x != 0) return;
  if (a.before && block.first < a.prefix) sum = How{}(a.before[kv_head * a.before_stride + block.first], sum);
  a.score[kv_head * a.score_stride + block.whole + block.first] = sum;
}

/// The blocks of `size` rows or keys, those with the most work first: the last rows, or the first keys. Rows are those
/// of the call, keys those of whole prompts.
template <class Op> std::vector<Block> blocks_of(const Op& op, int size, bool rows) {
  const auto offsets = op.offsets;
  const int prefix = op.prefix;
  std::vector<Block> blocks;
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const std::int32_t begin = offsets[i] - prefix, length = offsets[i + 1] - begin;
    for (std::int32_t first = rows ? prefix : 0; first < length; first += size)
      blocks.push_back({begin, length, first, static_cast<std::int32_t>(whole_begin(offsets, prefix, i)),
                        static_cast<std::int32_t>(begin - op.q_begin)});
  }
  const auto work = [&](const Block& b) { return rows ? b.first : b.length - b.first; };
  std::stable_sort(blocks.begin(), blocks.end(), [&](const Block& a, const Block& b) { return work(a) > work(b); });
  return blocks;
}

template <class T, int kDim, int kStrips> auto column_sums_kernel(bool largest, bool capped) {
  if (capped) return largest ? column_sums_capped<T, kDim, kStrips, true> : column_sums_capped<T, kDim, kStrips, false>;
  return largest ? column_sums_tensor<T, kDim, kStrips, true> : column_sums_tensor<T, kDim, kStrips, false>;
}

/// Whether the kernels have been compiled for more than Turing.
bool beyond_turing() {
  static const bool compiled = multiplies<__nv_bfloat16>(prefill_tensor<__nv_bfloat16, 64, 1>);
  return compiled;
}

/// Whether tensor cores can do it: heads are whole chunks, each in words of 16 bytes, as in all published models.
bool on_tensor_cores(DType dtype, int head_dim, std::initializer_list<ConstView> rows) {
  return dtype != DType::f32 && head_dim <= kTensorDim && head_dim % kChunk == 0 &&
         std::all_of(rows.begin(), rows.end(),
                     [&](const ConstView& x) { return in_packs(x.data, x.stride, x.cols, size_of(x.dtype)); }) &&
         (dtype != DType::bf16 || beyond_turing());
}

void check_on_gpu(const char* op, int head_dim, int prefix) {
  if (prefix % kPrefixStep != 0)
    throw UsageError(std::string(op) + ": prefix is " + std::to_string(prefix) + ", on a GPU a multiple of " +
                     std::to_string(kPrefixStep));
  if (head_dim > kMostDim)
    throw UsageError(std::string(op) + ": head_dim is " + std::to_string(head_dim) + ", on a GPU at most " +
                     std::to_string(kMostDim));
}

static_assert(kPrefixStep % kTile == 0);

/// Strips of rows or keys that a warp takes: two for prompts that fill them with `tokens` in all, where shared memory
/// holds two thread blocks all the same.
int strips_for(std::int64_t tokens, std::size_t sequences, std::size_t shared_bytes_of_two, const CudaStream& stream) {
  return beyond_turing() && stream.holds_two(shared_bytes_of_two) &&
                 tokens > 2 * kTile * static_cast<std::int64_t>(sequences)
             ? 2
             : 1;
}

template <class Op> PrefillArgs args_of(const Op& op) {
  PrefillArgs args{};
  args.q = op.q.data, args.q_stride = op.q.stride, args.q_is_float = op.q.dtype == DType::f32;
  args.k = op.k.data, args.k_stride = op.k.stride;
  args.heads = op.heads, args.kv_heads = op.kv_heads, args.group = op.heads / op.kv_heads, args.head_dim = op.head_dim;
  args.scale = op.scale, args.cap = op.cap, args.prefix = op.prefix;
  args.window = op.window > 0 ? op.window : 1 << 30;
  args.lse = static_cast<float*>(const_cast<void*>(static_cast<const void*>(op.lse.data)));
  args.lse_stride = op.lse.stride;
  return args;
}

}  // namespace

void CudaOps::run(const PrefillAttention& op, Stream& any) const {
  check(op);
  check_on_gpu("prefill_attention", op.head_dim, op.prefix);
  auto& stream = static_cast<CudaStream&>(any);
  if (op.offsets.back() == op.offsets.front()) return;
  PrefillArgs args = args_of(op);
  args.v = op.v.data, args.v_stride = op.v.stride;
  if (!op.sink_logits.empty()) args.sink_logits = stream.upload(op.sink_logits);
  args.out = op.out.data, args.out_stride = op.out.stride, args.out_is_float = op.out.dtype == DType::f32;
  const auto upload_blocks = [&](int rows) {
    const std::vector<Block> blocks = blocks_of(op, rows, true);
    args.blocks = stream.upload(std::span<const Block>(blocks));
    return static_cast<unsigned>(blocks.size());
  };
  with_float_type(op.k.dtype, [&]<class T>() {
    if constexpr (!std::is_same_v<T, float>)
      if (on_tensor_cores(op.k.dtype, op.head_dim, {op.q, op.k, op.v, op.out}))
        return with_tile(op.head_dim, [&]<int kDim>() {
          const auto run = [&]<int kStrips>() {
            launch(op.cap > 0 ? prefill_capped<T, kDim, kStrips> : prefill_tensor<T, kDim, kStrips>,
                   upload_blocks(kTile * kStrips) * op.heads, kThreads, kPrefillBytes<T, kDim, kStrips>, stream, args);
          };
          const std::int64_t rows = op.offsets.back() - op.offsets.front();
          if (strips_for(rows, op.offsets.size() - 1, kPrefillBytes<T, kDim, 2>, stream) == 2)
            run.template operator()<2>();
          else run.template operator()<1>();
        });
    launch(prefill_plain<T>, dim3(upload_blocks(1), op.heads), kThreads, 0, stream, args);
  });
}

void CudaOps::run(const ColumnSums& op, Stream& any) const {
  check(op);
  check_on_gpu("column_sums", op.head_dim, op.prefix);
  auto& stream = static_cast<CudaStream&>(any);
  if (op.offsets.back() == op.offsets.front()) return;
  PrefillArgs args = args_of(op);
  args.score = static_cast<float*>(op.score.data), args.score_stride = op.score.stride;
  args.observation = op.observation;
  args.before = static_cast<const float*>(op.before.data), args.before_stride = op.before.stride;
  const auto upload_blocks = [&](int keys) {
    const std::vector<Block> blocks = blocks_of(op, keys, false);
    args.blocks = stream.upload(std::span<const Block>(blocks));
    return static_cast<unsigned>(blocks.size());
  };
  const bool largest = op.statistic == Statistic::largest;
  with_float_type(op.k.dtype, [&]<class T>() {
    if constexpr (!std::is_same_v<T, float>)
      if (on_tensor_cores(op.k.dtype, op.head_dim, {op.q, op.k}))
        return with_tile(op.head_dim, [&]<int kDim>() {
          const auto run = [&]<int kStrips>() {
            launch(column_sums_kernel<T, kDim, kStrips>(largest, op.cap > 0),
                   upload_blocks(kTile * kStrips) * op.kv_heads, kThreads, kColumnSumsBytes<T, kDim>, stream, args);
          };
          const std::int64_t keys = whole_begin(op.offsets, op.prefix, op.offsets.size() - 1);
          // Two strips of keys may not lie across the end of the prefix.
          if (op.prefix % (2 * kTile) == 0 &&
              strips_for(keys, op.offsets.size() - 1, kColumnSumsBytes<T, kDim>, stream) == 2)
            run.template operator()<2>();
          else run.template operator()<1>();
        });
    launch(largest ? column_sums_plain<T, Largest> : column_sums_plain<T, Sum>, dim3(upload_blocks(1), op.kv_heads),
           kThreads, 0, stream, args);
  });
}

}  // namespace weft::kernels
