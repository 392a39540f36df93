// kernels/attention/kv_slots_cuda.cu: chooses the tokens that each head keeps of a prompt, and writes them into the
// slots.
#include <vector>

#include "kernels/attention/coarse_row_cuda.h"
#include "kernels/machine/device_cuda.h"
#include "kernels/machine/ops_cuda.h"
#include "kernels/random.h"
#include "kernels/rows/select_cuda.h"

namespace weft::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
static_assert(kThreads == kDigits);

/// One prompt, as the kernel sees it.
struct Prompt {
  std::int32_t prefix, begin, length, sequence;  // begin: the row where it would begin, had it no prefix
  std::int32_t whole;                            // its first column in a matrix of scores
  Keep keep;

  __device__ std::int64_t row(int token) const { return token < prefix ? token : std::int64_t{begin} + token; }
};

struct Args {
  const void *k, *v;
  std::int64_t k_stride, v_stride;
  const float* score;
  std::int64_t score_stride;
  const Prompt* prompts;
  Scoring scoring;
  std::uint64_t seed;
  int reach;  // neighbours on each side whose scores are pooled
  float* work;
  std::int64_t work_stride;
  KvSlots slots;
  std::int64_t k_row, v_row;  // elements of the kernel's types in one slot's key and value
};

/// Numbers the threads whose flag is set from 0 on, in order; the others get -1. Sets `total` to how many there are.
__device__ int rank_of(bool flag, int* shared, int& total) {
  const unsigned votes = __ballot_sync(kWholeWarp, flag);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  __syncthreads();
  if (lane == 0) shared[warp] = __popc(votes);
  __syncthreads();
  int before = 0;
  total = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += shared[w];
    total += shared[w];
  }
  return flag ? before + __popc(votes & ((1u << lane) - 1)) : -1;
}

/// Sums the tokens of a prompt that do not stay, one thread per column. `position` [kept] has those that stay,
/// ascending.
template <class From>
__device__ void sum_rest(const Args& a, const Prompt& prompt, const std::int32_t* position, int kept, int head,
                         float* rest) {
  const int dim = a.slots.head_dim;
  for (int i = threadIdx.x; i < 2 * dim; i += kThreads) {
    const std::int64_t stride = i < dim ? a.k_stride : a.v_stride;
    const From* const column = static_cast<const From*>(i < dim ? a.k : a.v) + head * dim + i % dim;
    float sum = 0;
    for (int s = 0, at = 0; s <= kept; ++s, ++at)
      for (const int end = s < kept ? position[s] : prompt.length; at < end; ++at)
        sum += to_float(column[prompt.row(at) * stride]);
    rest[1 + i] = sum;
  }
  if (threadIdx.x == 0) rest[0] = static_cast<float>(prompt.length - kept);
}

/// Writes Scoring::keys of a prompt to `work`, and the sum of its unit keys into the slots. Grid: KV heads, prompts.
/// Shared: sums [kWarps, head_dim]; the first row becomes that of all.
template <class From> __global__ void __launch_bounds__(kThreads) score_keys(Args a) {
  WEFT_DYNAMIC_SHARED(float, sums);
  const int head = blockIdx.x, dim = a.slots.head_dim, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const Prompt prompt = a.prompts[blockIdx.y];
  const From* const keys = static_cast<const From*>(a.k) + head * dim;
  float* const score = a.work + head * a.work_stride + prompt.whole;
  const auto inverse_of = [&](const From* key) {
    float square = 0;
    for (int d = lane; d < dim; d += kWarp) square += to_float(key[d]) * to_float(key[d]);
    return inverse_length(warp_reduce(square, Sum{}));
  };
  float* const mine = sums + warp * dim;
  for (int d = lane; d < dim; d += kWarp) mine[d] = 0;
  for (int at = warp; at < prompt.length; at += kWarps) {
    const From* const key = keys + prompt.row(at) * a.k_stride;
    const float inverse = inverse_of(key);
    for (int d = lane; inverse > 0 && d < dim; d += kWarp) mine[d] += to_float(key[d]) * inverse;
  }
  __syncthreads();
  for (int d = threadIdx.x; d < dim; d += kThreads) {
    for (int w = 1; w < kWarps; ++w) sums[d] += sums[w * dim + d];
    if (a.slots.key_sum) a.slots.key_sum[(std::int64_t{prompt.sequence} * a.slots.kv_heads + head) * dim + d] = sums[d];
  }
  __syncthreads();
  float square = 0;
  for (int d = lane; d < dim; d += kWarp) square += sums[d] * sums[d];
  const float of_sum = inverse_length(warp_reduce(square, Sum{}));
  for (int at = warp; at < prompt.length; at += kWarps) {
    const From* const key = keys + prompt.row(at) * a.k_stride;
    const float inverse = inverse_of(key);
    float dot = 0;
    for (int d = lane; d < dim; d += kWarp) dot += to_float(key[d]) * sums[d];
    dot = warp_reduce(dot, Sum{});
    if (lane == 0) score[at] = inverse > 0 && of_sum > 0 ? -dot * inverse * of_sum : 0.0f;
  }
}

constexpr int kMostMeans = 2 * 512;  // those of the largest heads that a step attends

/// The means of one head, or null.
__device__ float* mean_of(const KvSlots& s, std::int32_t sequence, int head) {
  return s.mean ? s.mean + (std::int64_t{sequence} * s.kv_heads + head) * 2 * s.head_dim : nullptr;
}

/// The same in `shared`, where there is room: means may lie in the host's memory, and each row needs them. All threads
/// call it.
__device__ const float* near_means(const KvSlots& s, std::int32_t sequence, int head, float (&shared)[kMostMeans]) {
  const float* const mean = mean_of(s, sequence, head);
  if (!mean || 2 * s.head_dim > kMostMeans) return mean;
  for (int i = threadIdx.x; i < 2 * s.head_dim; i += kThreads) shared[i] = mean[i];
  __syncthreads();
  return shared;
}

/// Writes the means of a prompt's keys and values, a thread for each number. Grid: KV heads, prompts.
__global__ void __launch_bounds__(kThreads) find_means(Args a) {
  const int head = blockIdx.x, dim = a.slots.head_dim;
  const Prompt prompt = a.prompts[blockIdx.y];
  for (int i = threadIdx.x; i < 2 * dim && prompt.length > 0; i += kThreads) {
    const std::int64_t stride = i < dim ? a.k_stride : a.v_stride;
    const float* const column = static_cast<const float*>(i < dim ? a.k : a.v) + head * dim + i % dim;
    float sum = 0;
    for (int at = 0; at < prompt.length; ++at) sum += column[prompt.row(at) * stride];
    mean_of(a.slots, prompt.sequence, head)[i] = sum / static_cast<float>(prompt.length);
  }
}

/// Writes the rows of a prompt's cold tokens, whose positions are in `position` [count], less `mean` unless that is
/// null. `shared` [kWarps, kKvGroup].
__device__ void write_cold(const Args& a, const Prompt& prompt, const std::int32_t* position, int count, int head,
                           const float* mean, std::uint32_t* shared) {
  const KvSlots& s = a.slots;
  const int groups = kv_groups(s.head_dim), lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const std::int64_t first = (std::int64_t{prompt.sequence} * s.kv_heads + head) * s.cold;
  std::uint32_t* const level = shared + warp * kKvGroup;
  for (int i = warp; i < 2 * count * groups; i += kWarps) {
    const int row = i / groups, group = i % groups, slot = row % count;
    const bool key = row < count;
    const int bits = key ? s.coarse.keys : s.coarse.values, words = 2 * bits;
    const float* const from = static_cast<const float*>(key ? a.k : a.v) + head * s.head_dim +
                              prompt.row(position[slot]) * (key ? a.k_stride : a.v_stride);
    const GroupLevels levels =
        levels_of_group<DType::i8>(from, s.head_dim, group, mean ? mean + (key ? 0 : s.head_dim) : nullptr);
    for (int n = 0; n < GroupLevels::kEach; ++n) level[n * kWarp + lane] = levels.level[n];
    __syncwarp();
    auto* const to =
        static_cast<std::uint32_t*>(key ? s.cold_k : s.cold_v) + (first + slot) * coarse_words(bits, s.head_dim);
    if (lane < words) to[group * words + lane] = plane_word(bits, lane, [&](int d) { return level[d]; });
    if (lane == words) to[groups * words + group] = levels.both;
    __syncwarp();
  }
}

/// Writes the rows of the tokens at the positions in `position` [count] into split slots. `shared` as in write_cold().
__device__ void write_split(const Args& a, const Prompt& prompt, const std::int32_t* position, int count, int head,
                            std::uint32_t* shared) {
  const KvSlots& s = a.slots;
  const int groups = kv_groups(s.head_dim), warp = threadIdx.x / kWarp;
  const std::int64_t at = std::int64_t{prompt.sequence} * s.kv_heads + head;
  for (int i = warp; i < 2 * count * groups; i += kWarps) {
    const int row = i / groups, slot = row % count;
    const bool keys = row < count;
    const float* const from = static_cast<const float*>(keys ? a.k : a.v) + head * s.head_dim +
                              prompt.row(position[slot]) * (keys ? a.k_stride : a.v_stride);
    write_split_group(from, s.head_dim, i % groups, {s, keys, at}, {KvSlots{}, keys, at}, slot,
                      shared + warp * kKvGroup);
  }
}

/// Thread blocks of keep_prompt at once on a multiprocessor; 0: as many as ptxas finds good. With rows of planes it
/// would take too few registers, and spill.
template <class T> constexpr int kBlocks = has_cold<T> || is_split<T> ? 4 : 0;

/// Grid: KV heads, prompts.
template <class T, int kPack> __global__ void __launch_bounds__(kThreads, (kBlocks<T>)) keep_prompt(Args a) {
  WEFT_SHARED(SelectShared, select);
  WEFT_SHARED(int, counts, [kWarps]);
  const int head = blockIdx.x, dim = a.slots.head_dim, slots = a.slots.slots;
  const Prompt prompt = a.prompts[blockIdx.y];
  const float* const given = a.score ? a.score + head * a.score_stride + prompt.whole : nullptr;
  const auto score = [&](int at) {
    if (a.scoring == Scoring::random)
      return unit_float(
          random_bits(a.seed, std::uint64_t{static_cast<std::uint32_t>(head)} << 32 | static_cast<std::uint32_t>(at)));
    if (!given || a.reach == 0) return given ? given[at] : 0.0f;
    const int first = max(0, at - a.reach), last = min(prompt.length - 1, at + a.reach);
    float sum = 0;
    for (int i = first; i <= last; ++i) sum += given[i];
    return sum / static_cast<float>(last - first + 1);
  };
  // Among equal scores the newer stays.
  const auto key = [&](int at) { return std::uint64_t{order_of(score(at))} << 32 | static_cast<std::uint32_t>(at); };

  const bool all = prompt.length <= prompt.keep.of_prompt();
  const int recent = all ? 0 : prompt.length - prompt.keep.recent;   // the first of those that stay in any case
  const int begin = all ? 0 : prompt.keep.seen_from(prompt.length);  // those before are outside the model's window
  const int sinks = max(begin, min(min(prompt.keep.sinks, prompt.keep.heavy), recent));
  const int heavy = prompt.keep.heavy - (sinks - begin);
  std::uint64_t least = 0;  // key of the last heavy one
  if (heavy > 0 && heavy < recent - sinks)
    least = select_key(
        recent - sinks, [&](int i) { return key(sinks + i); }, [](int) { return std::uint64_t{1}; },
        static_cast<std::uint64_t>(heavy) - 1, select);
  // Of the others the cold ones are those from this key on; 0: all.
  [[maybe_unused]] std::uint64_t least_cold = 0;
  const int cold = has_cold<T> && !all ? prompt.keep.cold : 0, hot = has_cold<T> ? a.slots.hot() : slots;
  if constexpr (has_cold<T>)
    if (cold > 0 && std::int64_t{heavy} + cold < recent - sinks)
      least_cold = select_key(
          recent - sinks, [&](int i) { return key(sinks + i); }, [](int) { return std::uint64_t{1}; },
          static_cast<std::uint64_t>(heavy) + static_cast<std::uint64_t>(cold) - 1, select);
  // The sequence is read only here, so that where its slots are takes no registers while the choice is made.
  const std::int64_t tile = std::int64_t{a.prompts[blockIdx.y].sequence} * a.slots.kv_heads + head;
  std::int32_t* const position = a.slots.position + tile * slots;
  float* const slot_score = a.slots.score ? a.slots.score + tile * slots : nullptr;
  int kept = 0, cooled = 0;
  for (int first = 0; first < prompt.length; first += kThreads) {
    const int at = first + static_cast<int>(threadIdx.x);
    const bool stays =
        at < prompt.length && at >= begin && (at >= recent || at < sinks || (heavy > 0 && key(at) >= least));
    int total = 0;
    const int rank = rank_of(stays, counts, total);
    if (stays) {
      position[kept + rank] = at;
      if (slot_score) slot_score[kept + rank] = score(at);
    }
    kept += total;
    if constexpr (has_cold<T>) {
      const bool cools = cold > 0 && at >= sinks && at < recent && !stays && key(at) >= least_cold;
      const int slot = hot + cooled + rank_of(cools, counts, total);
      if (cools) {
        position[slot] = at;
        if (slot_score) slot_score[slot] = score(at);
      }
      cooled += total;
    }
  }
  for (int s = kept + static_cast<int>(threadIdx.x); s < slots; s += kThreads) {
    if (has_cold<T> && s >= hot && s < hot + cooled) continue;
    position[s] = -1;
    if (slot_score) slot_score[s] = 0;
  }
  if (threadIdx.x == 0) a.slots.free_slot[tile] = kept;
  __syncthreads();

  using From = std::conditional_t<is_level<T>, float, T>;
  if (a.slots.rest)
    sum_rest<From>(a, prompt, position, kept, head, a.slots.rest + tile * rest_numbers(a.slots.head_dim));
  KeyOf<T>* const k = static_cast<KeyOf<T>*>(a.slots.k) + tile * hot * a.k_row;
  ValueOf<T>* const v = static_cast<ValueOf<T>*>(a.slots.v) + tile * hot * a.v_row;
  const auto from = [&](const void* rows, std::int64_t stride, int slot) {
    return static_cast<const From*>(rows) + prompt.row(position[slot]) * stride + head * dim;
  };
  if constexpr (is_split<T>) {
    WEFT_SHARED(std::uint32_t, levels, [kWarps * kKvGroup]);
    write_split(a, prompt, position, kept, head, levels);
  } else if constexpr (is_level<T>) {
    WEFT_SHARED(float, means, [kMostMeans]);
    const float* const mean = near_means(a.slots, a.prompts[blockIdx.y].sequence, head, means);
    for (int s = threadIdx.x / kWarp; s < kept; s += kWarps)
      for (int g = 0; g < kv_groups(dim); ++g) {
        quantise_group<KeyOf<T>::kType>(from(a.k, a.k_stride, s), dim, g, k + s * a.k_row, nullptr, mean);
        quantise_group<ValueOf<T>::kType>(from(a.v, a.v_stride, s), dim, g, v + s * a.v_row, nullptr,
                                          mean ? mean + dim : nullptr);
      }
    if constexpr (has_cold<T>) {
      WEFT_SHARED(std::uint32_t, levels, [kWarps * kKvGroup]);
      write_cold(a, prompt, position + hot, cooled, head, mean, levels);
    }
  } else {
    // A thread copies kPack numbers of a row: with rows of 8 or 16 packs a warp copies several at once. It divides once
    // and goes on from there.
    const int packs = dim / kPack, thread = static_cast<int>(threadIdx.x);
    int s = thread / packs, pack = thread % packs;
    while (s < kept) {
      const int d = pack * kPack;
      const auto keys = load_pack<kPack>(from(a.k, a.k_stride, s) + d);
      const auto values = load_pack<kPack>(from(a.v, a.v_stride, s) + d);
      store_pack(k + s * a.k_row + d, keys);
      store_pack(v + s * a.v_row + d, values);
      s += kThreads / packs, pack += kThreads % packs;
      if (pack >= packs) ++s, pack -= packs;
    }
  }
}

}  // namespace

void CudaOps::run(const KeepPrompt& op, Stream& any) const {
  check(op);
  auto& stream = static_cast<CudaStream&>(any);
  std::vector<Prompt> prompts;
  for (std::size_t i = 0; i < op.keep.size(); ++i)
    prompts.push_back({op.prefix, op.offsets[i] - op.prefix, op.prefix + op.offsets[i + 1] - op.offsets[i],
                       op.sequence[i], static_cast<std::int32_t>(whole_begin(op.offsets, op.prefix, i)), op.keep[i]});
  if (prompts.empty()) return;
  const std::size_t unit = is_quantised(op.slots.dtype) ? 1 : size_of(op.slots.dtype);
  const ConstView scores = op.scoring == Scoring::keys ? ConstView(op.work) : op.score;
  const Args args{.k = op.k.data,
                  .v = op.v.data,
                  .k_stride = op.k.stride,
                  .v_stride = op.v.stride,
                  .score = static_cast<const float*>(scores.data),
                  .score_stride = scores.stride,
                  .prompts = stream.upload(std::span<const Prompt>(prompts)),
                  .scoring = op.scoring,
                  .seed = op.seed,
                  .reach = op.pool / 2,
                  .work = static_cast<float*>(op.work.data),
                  .work_stride = op.work.stride,
                  .slots = op.slots,
                  .k_row = static_cast<std::int64_t>(op.slots.key_bytes() / unit),
                  .v_row = static_cast<std::int64_t>(op.slots.value_bytes() / unit)};
  const dim3 grid(op.slots.kv_heads, static_cast<unsigned>(prompts.size()));
  if (op.scoring == Scoring::keys)
    with_float_type(op.k.dtype, [&]<class From>() {
      launch(score_keys<From>, grid, kThreads, kWarps * op.slots.head_dim * sizeof(float), stream, args);
    });
  if (op.slots.mean) launch(find_means, grid, kThreads, 0, stream, args);
  if (op.slots.cold > 0) return launch(keep_prompt<ColdLevels, 1>, grid, kThreads, 0, stream, args);
  if (op.slots.split) return launch(keep_prompt<SplitLevels, 1>, grid, kThreads, 0, stream, args);
  with_slot_type(op.slots, [&]<class T>() {
    if constexpr (is_level<T>) {
      launch(keep_prompt<T, 1>, grid, kThreads, 0, stream, args);
    } else {
      const bool wide = in_packs(op.k.data, op.k.stride, op.slots.head_dim, sizeof(T)) &&
                        in_packs(op.v.data, op.v.stride, op.slots.head_dim, sizeof(T)) &&
                        in_packs(op.slots.k, 0, op.slots.head_dim, sizeof(T)) &&
                        in_packs(op.slots.v, 0, op.slots.head_dim, sizeof(T));
      launch(wide ? keep_prompt<T, kWide> : keep_prompt<T, 1>, grid, kThreads, 0, stream, args);
    }
  });
}

}  // namespace weft::kernels
