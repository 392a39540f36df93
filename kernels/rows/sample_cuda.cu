// kernels/rows/sample_cuda.cu: the next token of each row, and log-probabilities of given ones and of the likeliest, a
// thread block for each row.
//
// Weights are integers, 2^40 for the likeliest token: their sums are exact, so a token does not depend on the order of
// threads.
#include <algorithm>

#include "kernels/machine/device_cuda.h"
#include "kernels/machine/ops_cuda.h"
#include "kernels/random.h"
#include "kernels/rows/select_cuda.h"

namespace weft::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
static_assert(kThreads == kDigits);
constexpr int kBlocks = 4;  // blocks that fit a multiprocessor at once: tells ptxas how many registers it may use

__device__ int id_of(std::uint64_t key) { return static_cast<int>(0xFFFFFFFFu - static_cast<std::uint32_t>(key)); }

/// The largest key below `bound` among the finite logits. A key is the logit, then the id downwards; 0, which is less
/// than any, means that there is none. All threads get it; `shared` holds a number per warp.
__device__ std::uint64_t largest_below(std::uint64_t bound, const float* logits, int vocab, std::uint64_t* shared) {
  std::uint64_t best = 0;
  for (int id = threadIdx.x; id < vocab; id += kThreads) {
    const float x = logits[id];
    if (!(fabsf(x) <= 3.402823466e38f)) continue;
    const std::uint64_t key = std::uint64_t{order_of(x)} << 32 | (0xFFFFFFFFu - static_cast<std::uint32_t>(id));
    best = key > best && key < bound ? key : best;
  }
  struct Larger {
    __device__ std::uint64_t operator()(std::uint64_t a, std::uint64_t b) const { return a > b ? a : b; }
  };
  return block_reduce(best, Larger{}, shared);
}

/// The lowest id among the largest finite logits, or -1.
__device__ int most_likely(const float* logits, int vocab, std::uint64_t* shared) {
  const std::uint64_t best = largest_below(~std::uint64_t{0}, logits, vocab, shared);
  return best == 0 ? -1 : id_of(best);
}

/// The logarithm of the sum of exp(logits - max). All threads get it.
__device__ double log_sum_exp(const float* logits, int vocab, float max, double* shared) {
  double sum = 0;
  for (int id = threadIdx.x; id < vocab; id += kThreads) sum += static_cast<double>(expf(logits[id] - max));
  return log(block_reduce(sum, Sum{}, shared));
}

/// The weights of one row's tokens after the cut at min_p, before the others; a logit that is not finite has none.
struct Weights {
  const float* logits;
  double max, temperature, cut;  // a logit below max + cut is cut by min_p
  float most, least;             // a logit below most + least has no weight: doubles are slow on many cards
  __device__ Weights(const float* row, float largest, const SampleParams& p)
      : logits(row), max(largest), temperature(p.temperature),
        cut(p.min_p > 0 ? temperature * log(static_cast<double>(p.min_p)) : -INFINITY), most(largest),
        least(-28 * p.temperature) {}  // exp(-28) * 2^40 < 0.77
  __device__ std::uint64_t operator()(int id) const {
    const float x = logits[id];
    if (x - most < least || !(fabsf(x) <= 3.402823466e38f)) return 0;
    const double below = static_cast<double>(x) - max;
    return below < cut ? 0 : static_cast<std::uint64_t>(exp(below / temperature) * 0x1p40);
  }
};

template <class Weight> __device__ std::uint64_t total_of(int vocab, const Weight& weight, std::uint64_t* shared) {
  std::uint64_t sum = 0;
  for (int id = threadIdx.x; id < vocab; id += kThreads) sum += weight(id);
  return block_reduce(sum, Sum{}, shared);
}

/// The lowest id at which the running weight passes `uniform` times that of all. If rounding prevents that, the highest
/// that weighs anything. Each warp adds up a piece of the ids; then the piece with the id is divided again.
template <class Weight> __device__ int id_at(int count, const Weight& weight, double uniform, std::uint64_t* shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  std::uint64_t target = 0;
  int begin = 0, end = count;
  for (bool whole = true; whole || end - begin > kWarp; whole = false) {
    const int piece = ((end - begin + kWarps - 1) / kWarps + kWarp - 1) / kWarp * kWarp;
    std::uint64_t sum = 0;
    for (int id = begin + warp * piece + lane; id < min(begin + (warp + 1) * piece, end); id += kWarp)
      sum += weight(id);
    sum = warp_reduce(sum, Sum{});
    __syncthreads();
    if (lane == 0) shared[warp] = sum;
    __syncthreads();
    std::uint64_t total = 0;
    for (int w = 0; w < kWarps; ++w) total += shared[w];
    if (whole) target = static_cast<std::uint64_t>(uniform * static_cast<double>(total));
    if (total <= target) target = total - 1;
    int chosen = 0;
    for (; target >= shared[chosen]; ++chosen) target -= shared[chosen];
    begin += chosen * piece, end = min(begin + piece, end);
  }
  const std::uint64_t mine = begin + lane < end ? weight(begin + lane) : 0;
  std::uint64_t running = mine;
  for (int step = 1; step < kWarp; step *= 2) {
    const std::uint64_t before = __shfl_up_sync(kWholeWarp, running, step);
    if (lane >= step) running += before;
  }
  return begin + __ffs(static_cast<int>(__ballot_sync(kWholeWarp, running > target))) - 1;
}

/// The logit of a changed token before its change.
struct Before {
  std::int32_t row, token;
  float logit;
};

/// Grid: the changes, a thread for each. before[i]: of the token of change i.
__global__ void change_logits(float* logits, std::int64_t stride, const LogitChange* changes, int count,
                              Before* before) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  const LogitChange change = changes[i];
  if (change.row < 0) {
    before[i] = {0x7FFFFFFF, 0, 0};  // behind those of all rows
    return;
  }
  float& logit = logits[change.row * stride + change.token];
  before[i] = {change.row, change.token, logit};
  float x = logit + change.bias;
  x = x > 0 ? x / change.repetition : __fmul_rn(x, change.repetition);  // as the CPU: not fused with what follows
  logit = x - change.penalty;
}

/// Grid: rows. masks [any, words]: in mapped host memory; a warp reads a word once for its 32 tokens.
__global__ void __launch_bounds__(kThreads)
    mask_logits(float* logits, std::int64_t stride, int vocab, const std::int32_t* mask, const std::uint32_t* masks,
                std::int64_t words) {
  static_assert(kWarp == 32);
  const std::int32_t own = mask[blockIdx.x];
  if (own < 0) return;
  logits += blockIdx.x * stride, masks += own * words;
  for (int id = static_cast<int>(threadIdx.x); id < vocab; id += kThreads)
    if (!(masks[id / kWarp] >> id % kWarp & 1)) logits[id] = -INFINITY;
}

/// The logit of a token before any change, if it is `now` after them.
__device__ float before_change(const Before* before, int count, std::int32_t row, std::int32_t token, float now) {
  int first = 0;
  for (int size = count; size > 0;) {
    const int half = size / 2;
    const Before each = before[first + half];
    const bool less = each.row < row || (each.row == row && each.token < token);
    if (less) first += half + 1;
    size = less ? size - half - 1 : half;
  }
  return first < count && before[first].row == row && before[first].token == token ? before[first].logit : now;
}

/// Grid: rows. before [changes]: what change_logits() left
__global__ void __launch_bounds__(kThreads, kBlocks)
    sample_rows(const float* logits, std::int64_t stride, int vocab, const SampleParams* params, std::int32_t* token,
                float* logit, const Before* before, int changes) {
  WEFT_SHARED(std::uint64_t, partial, [kWarps]);
  WEFT_SHARED(SelectShared, select);
  logits += blockIdx.x * stride;
  const SampleParams p = params[blockIdx.x];
  const auto choose = [&](int id) {
    if (threadIdx.x != 0) return;
    token[blockIdx.x] = id;
    if (logit)
      logit[blockIdx.x] =
          id < 0 ? NAN : before_change(before, changes, static_cast<std::int32_t>(blockIdx.x), id, logits[id]);
  };
  const int best = most_likely(logits, vocab, partial);
  if (best < 0 || p.temperature == 0 || p.top_k == 1) return choose(best);
  const Weights weight(logits, logits[best], p);
  const double uniform = unit_double(random_bits(p.key, p.counter));
  // Without a cut the lower id comes first; otherwise the likelier, and the lower id among equals.
  if (p.top_k <= 0 && !(p.top_p < 1)) return choose(id_at(vocab, weight, uniform, partial));
  const auto key = [&](int id) {
    return std::uint64_t{order_of(logits[id])} << 32 | (0xFFFFFFFFu - static_cast<std::uint32_t>(id));
  };
  std::uint64_t least = 0;  // the key of the last one that stays
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
  choose(id_of(select_key(vocab, key, kept, target, select)));
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
  const double log_sum = log_sum_exp(logits, vocab, max, sums);
  if (threadIdx.x != 0) return;
  logprob[blockIdx.x] = static_cast<float>(static_cast<double>(logits[wanted]) - static_cast<double>(max) - log_sum);
  greedy[blockIdx.x] = wanted == best;
}

/// Grid: the rows asked for. One pass over the row for each of the likeliest, because few are asked for.
__global__ void __launch_bounds__(kThreads)
    top_log_probs(const float* logits, std::int64_t stride, int vocab, const std::int32_t* row, int count,
                  std::int32_t* token, float* logprob, double* log_sum) {
  WEFT_SHARED(std::uint64_t, partial, [kWarps]);
  WEFT_SHARED(double, sums, [kWarps]);
  logits += row[blockIdx.x] * stride;
  token += blockIdx.x * std::int64_t{count}, logprob += blockIdx.x * std::int64_t{count};
  std::uint64_t key = largest_below(~std::uint64_t{0}, logits, vocab, partial);
  const float max = key == 0 ? NAN : logits[id_of(key)];
  const double total = static_cast<double>(max) + log_sum_exp(logits, vocab, max, sums);
  if (threadIdx.x == 0) log_sum[blockIdx.x] = total;
  for (int place = 0; place < count; ++place) {
    if (place > 0) key = largest_below(key, logits, vocab, partial);
    if (threadIdx.x != 0) continue;
    token[place] = key == 0 ? -1 : id_of(key);
    logprob[place] = key == 0 ? NAN : static_cast<float>(static_cast<double>(logits[id_of(key)]) - total);
  }
}

}  // namespace

void CudaOps::run(const Sample& op, Stream& any) const {
  check(op);
  auto& stream = static_cast<CudaStream&>(any);
  if (op.logits.rows == 0) return;
  auto* const logits = static_cast<float*>(op.logits.data);
  auto* const before =
      op.changes.empty() ? nullptr : reinterpret_cast<Before*>(stream.workspace(op.changes.size() * sizeof(Before)));
  constexpr std::size_t at_once = CudaStream::kRing / 4 / sizeof(LogitChange);  // a history may be longer than the ring
  constexpr int threads = 128;
  for (std::size_t first = 0; first < op.changes.size(); first += at_once) {
    const auto some = op.changes.subspan(first, std::min(at_once, op.changes.size() - first));
    launch(change_logits, dim3(blocks_for(static_cast<std::int64_t>(some.size()), threads)), threads, 0, stream, logits,
           op.logits.stride, stream.upload(some), static_cast<int>(some.size()), before + first);
  }
  if (!op.mask.empty())
    launch(mask_logits, dim3(static_cast<unsigned>(op.logits.rows)), kThreads, 0, stream, logits, op.logits.stride,
           static_cast<int>(op.logits.cols), stream.upload(op.mask), op.masks.data(), mask_words(op.logits.cols));
  launch(sample_rows, dim3(static_cast<unsigned>(op.logits.rows)), kThreads, 0, stream, logits, op.logits.stride,
         static_cast<int>(op.logits.cols), stream.upload(op.params), op.token.data(), op.logit.data(), before,
         static_cast<int>(op.changes.size()));
}

void CudaOps::run(const LogProbs& op, Stream& any) const {
  check(op);
  auto& stream = static_cast<CudaStream&>(any);
  if (op.logits.rows == 0) return;
  launch(log_probs, dim3(static_cast<unsigned>(op.logits.rows)), kThreads, 0, stream,
         static_cast<const float*>(op.logits.data), op.logits.stride, static_cast<int>(op.logits.cols),
         stream.upload(op.target), op.logprob.data(), op.greedy.data());
}

void CudaOps::run(const TopLogProbs& op, Stream& any) const {
  check(op);
  auto& stream = static_cast<CudaStream&>(any);
  if (op.row.empty()) return;
  launch(top_log_probs, dim3(static_cast<unsigned>(op.row.size())), kThreads, 0, stream,
         static_cast<const float*>(op.logits.data), op.logits.stride, static_cast<int>(op.logits.cols),
         stream.upload(op.row), op.count, op.token.data(), op.logprob.data(), op.log_sum.data());
}

}  // namespace weft::kernels
