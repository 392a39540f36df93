// kernels/sample_cuda.cu: the next token of each row, and the log-probability of a given one, a block for each row.
//
// Weights are integers, 2^40 for the likeliest token: their sums are exact, so a token depends on no order of threads.
#include <vector>

#include "kernels/device_cuda.h"
#include "kernels/ops_cuda.h"
#include "kernels/random.h"
#include "kernels/select_cuda.h"

namespace weft::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kBlocks =
    4;  // on a multiprocessor, that registers must leave room for; without, ptxas would rather spill

/// The lowest id among the largest finite logits, or -1. All threads get it; `shared` holds a number per warp.
__device__ int most_likely(const float* logits, int vocab, std::uint64_t* shared) {
  std::uint64_t best = 0;  // logit, then the id downwards; 0 is less than any
  for (int id = threadIdx.x; id < vocab; id += kThreads) {
    const float x = logits[id];
    if (!(fabsf(x) <= 3.402823466e38f)) continue;
    const std::uint64_t key = std::uint64_t{order_of(x)} << 32 | (0xFFFFFFFFu - static_cast<std::uint32_t>(id));
    best = key > best ? key : best;
  }
  struct Larger {
    __device__ std::uint64_t operator()(std::uint64_t a, std::uint64_t b) const { return a > b ? a : b; }
  };
  best = block_reduce(best, Larger{}, shared);
  return best == 0 ? -1 : static_cast<int>(0xFFFFFFFFu - static_cast<std::uint32_t>(best));
}

/// The weights of one row's tokens before the cuts; what is not finite has none.
struct Weights {
  const float* logits;
  double max, temperature;
  __device__ std::uint64_t operator()(int id) const {
    const float x = logits[id];
    if (!(fabsf(x) <= 3.402823466e38f)) return 0;
    return static_cast<std::uint64_t>(exp((static_cast<double>(x) - max) / temperature) * 0x1p40);
  }
};

template <class Weight> __device__ std::uint64_t total_of(int vocab, const Weight& weight, std::uint64_t* shared) {
  std::uint64_t sum = 0;
  for (int id = threadIdx.x; id < vocab; id += kThreads) sum += weight(id);
  return block_reduce(sum, Sum{}, shared);
}

/// Grid: rows.
__global__ void __launch_bounds__(kThreads, kBlocks)
    sample_rows(const float* logits, std::int64_t stride, int vocab, const SampleParams* params, std::int32_t* token) {
  WEFT_SHARED(std::uint64_t, partial, [kWarps]);
  WEFT_SHARED(SelectShared, select);
  logits += blockIdx.x * stride;
  const SampleParams p = params[blockIdx.x];
  const int best = most_likely(logits, vocab, partial);
  if (best < 0 || p.temperature == 0 || p.top_k == 1) {
    if (threadIdx.x == 0) token[blockIdx.x] = best;
    return;
  }
  const Weights weight{logits, logits[best], p.temperature};
  const double uniform = unit_double(random_bits(p.key, p.counter));
  // The likelier first, of equals the lower id; without a cut simply the lower id first.
  const bool cut = p.top_k > 0 || p.top_p < 1;
  const auto key = [&](int id) {
    const std::uint64_t low = 0xFFFFFFFFu - static_cast<std::uint32_t>(id);
    return cut ? std::uint64_t{order_of(logits[id])} << 32 | low : low;
  };
  std::uint64_t least = 0;  // the key of the last that stays
  const auto kept = [&](int id) { return key(id) >= least ? weight(id) : 0; };
  if (p.top_k > 0 && p.top_k < vocab) {
    const auto one = [&](int id) { return std::uint64_t{fabsf(logits[id]) <= 3.402823466e38f}; };
    least = select_key(vocab, key, one, static_cast<std::uint64_t>(p.top_k) - 1, select);
  }
  std::uint64_t total = total_of(vocab, kept, partial);
  if (p.top_p < 1) {
    const auto wanted = static_cast<std::uint64_t>(static_cast<double>(p.top_p) * static_cast<double>(total));
    least = select_key(vocab, key, kept, wanted > 0 ? wanted - 1 : 0, select);
    total = total_of(vocab, kept, partial);
  }
  const auto target = static_cast<std::uint64_t>(uniform * static_cast<double>(total));
  const std::uint64_t chosen = select_key(vocab, key, kept, target, select);
  if (threadIdx.x == 0) token[blockIdx.x] = static_cast<int>(0xFFFFFFFFu - static_cast<std::uint32_t>(chosen));
}

/// Grid: rows.
__global__ void __launch_bounds__(kThreads)
    log_probs(const float* logits, std::int64_t stride, int vocab, const std::int32_t* target, float* logprob,
              std::uint8_t* greedy) {
  WEFT_SHARED(std::uint64_t, partial, [kWarps]);
  WEFT_SHARED(double, sums, [kWarps]);
  logits += blockIdx.x * stride;
  const int best = most_likely(logits, vocab, partial), wanted = target[blockIdx.x];
  const float max = best < 0 ? NAN : logits[best];
  double sum = 0;
  for (int id = threadIdx.x; id < vocab; id += kThreads) sum += static_cast<double>(expf(logits[id] - max));
  sum = block_reduce(sum, Sum{}, sums);
  if (threadIdx.x != 0) return;
  logprob[blockIdx.x] = static_cast<float>(static_cast<double>(logits[wanted]) - static_cast<double>(max) - log(sum));
  greedy[blockIdx.x] = wanted == best;
}

}  // namespace

void CudaOps::run(const Sample& op, Stream& any) const {
  check(op);
  auto& stream = static_cast<CudaStream&>(any);
  if (op.logits.rows == 0) return;
  launch(sample_rows, dim3(static_cast<unsigned>(op.logits.rows)), kThreads, 0, stream,
         static_cast<const float*>(op.logits.data), op.logits.stride, static_cast<int>(op.logits.cols),
         stream.upload(op.params), op.token.data());
}

void CudaOps::run(const LogProbs& op, Stream& any) const {
  check(op);
  auto& stream = static_cast<CudaStream&>(any);
  if (op.logits.rows == 0) return;
  launch(log_probs, dim3(static_cast<unsigned>(op.logits.rows)), kThreads, 0, stream,
         static_cast<const float*>(op.logits.data), op.logits.stride, static_cast<int>(op.logits.cols),
         stream.upload(op.target), op.logprob.data(), op.greedy.data());
}

}  // namespace weft::kernels
