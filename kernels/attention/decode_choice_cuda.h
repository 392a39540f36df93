// kernels/attention/decode_choice_cuda.h: turns logits into probabilities, updates the scores and chooses the victim.
// The threads of one block do it together.
#pragma once

#include "kernels/attention/decode_tile_cuda.h"

namespace weft::kernels::cuda::decode {

/// Caps the logits of one head, except those of empty slots. A thread caps those that it reads in softmax().
__device__ inline void cap_logits(float* p, const std::int32_t* position, int slots, float cap) {
  for (int s = threadIdx.x; s < slots; s += kThreads)
    if (position[s] >= 0) p[s] = cap * fast_tanh(p[s] / cap);
}

/// Turns the logits of one head into probabilities; those of empty slots are 0. All threads call it; `shared` holds a
/// float per warp. `sink` and `rest`, if not null, are one more logit each: a sink logit, and that of KvSlots::rest.
__device__ inline void softmax(float* p, int slots, float* shared, const float* sink, float* rest = nullptr) {
  float most = rest ? *rest : -INFINITY;
  if (sink) most = fmaxf(most, *sink);
  for (int s = threadIdx.x; s < slots; s += kThreads) most = fmaxf(most, p[s]);
  most = block_reduce(most, Largest{}, shared);
  float sum = 0;
  for (int s = threadIdx.x; s < slots; s += kThreads) {
    const float e = __expf(p[s] - most);
    p[s] = e;
    sum += e;
  }
  const float of_rest = rest ? __expf(*rest - most) : 0.0f;
  if (rest && threadIdx.x == 0) sum += of_rest;
  if (sink && threadIdx.x == 0) sum += __expf(*sink - most);
  const float inverse = 1.0f / block_reduce(sum, Sum{}, shared);
  for (int s = threadIdx.x; s < slots; s += kThreads) p[s] *= inverse;
  if (rest && threadIdx.x == 0) *rest = of_rest * inverse;
  __syncthreads();
}

/// Sums `kParts` partial rows of `heads` heads, [kParts, heads, dim] in shared memory, into rows of `out`, or with
/// kAdds adds the sums to these. All threads call it when they have written their parts.
template <int kParts, bool kAdds = false>
__device__ __forceinline__ void add_parts(const float* shared, int heads, int dim, float* out,
                                          std::int64_t out_stride) {
  __syncthreads();
  for (int i = threadIdx.x; i < heads * dim; i += kThreads) {
    float total = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) total += shared[part * heads * dim + i];
    float& sum = out[i / dim * out_stride + i % dim];
    sum = kAdds ? sum + total : total;
  }
  __syncthreads();
}

/// A slot that may be evicted. One whose score is NaN is evicted last.
struct Victim {
  float score;
  std::int32_t position, slot;
};
struct First {
  __device__ Victim operator()(const Victim& a, const Victim& b) const {
    if (a.slot < 0 || b.slot < 0) return a.slot < 0 ? b : a;
    const bool a_number = a.score == a.score, b_number = b.score == b.score;
    if (a_number != b_number) return a_number ? a : b;
    if (a_number && a.score != b.score) return a.score < b.score ? a : b;
    return a.position < b.position ? a : b;
  }
};
template <class Op> __device__ Victim block_reduce_candidate(Victim x, Op op, Victim* shared) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const Victim other{__shfl_xor_sync(kWholeWarp, x.score, step), __shfl_xor_sync(kWholeWarp, x.position, step),
                       __shfl_xor_sync(kWholeWarp, x.slot, step)};
    x = op(x, other);
  }
  __syncthreads();
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  x = shared[0];
  for (int w = 1; w < kThreads / kWarp; ++w) x = op(x, shared[w]);
  return x;
}
struct Lowest {
  __device__ int operator()(int a, int b) const { return a < b ? a : b; }
};

struct ChoiceShared {
  Victim candidate[kThreads / kWarp];
  int number[kThreads / kWarp];
};

/// A slot's new score, from its score so far and the probabilities p [group, slots] that it got.
__device__ inline float new_score(const DecodeArgs& a, float score, const float* p, std::int64_t stride) {
  if (a.statistic == Statistic::largest) {
    float most = 0;
    for (int g = 0; g < a.group; ++g) most = fmaxf(most, p[g * stride]);
    return fmaxf(a.decay * score, most);
  }
  float sum = 0;
  for (int g = 0; g < a.group; ++g) sum += p[g * stride];
  return a.decay * score + sum;
}

/// The slots of a range: the one whose token goes first, whether that is because it left the model's window, how many
/// are visible, and the first empty one, or the end of the range.
struct ScannedSlots {
  Victim victim;
  bool leaves;
  int visible, empty;
};

/// The last position of a token that may be evicted.
__device__ inline std::int64_t newest_victim(const Row& row) {
  return std::int64_t{row.position} - row.keep.recent - row.keep.grace;
}

/// Updates the scores of slots `begin` to before `end` by the probabilities p [group, slots]. The victim is among the
/// positions from `oldest` to `newest`. All threads call it and get the same.
template <class T>
__device__ __forceinline__ ScannedSlots scan_slots(const DecodeArgs& a, const Tile<T>& t, const std::int32_t* position,
                                                   const float* p, std::int64_t stride, int begin, int end,
                                                   std::int32_t oldest, std::int64_t newest, ChoiceShared& shared) {
  const std::int32_t seen_from = t.row.keep.seen_from(t.row.position + 1);
  Victim mine{0, 0, -1};
  int visible = 0, empty = end;
  for (int s = begin + static_cast<int>(threadIdx.x); s < end; s += kThreads) {
    const std::int32_t at = position[s];
    if (at < 0) {
      empty = min(empty, s);
      continue;
    }
    ++visible;
    float score = a.scoring == Scoring::none ? 0.0f : t.score[s];
    if (a.scoring == Scoring::attention) {
      score = new_score(a, score, p + s, stride);
      t.score[s] = score;
    }
    if (t.home.k && a.scoring != Scoring::none) t.home.score[s] = score;
    const bool leaves = at < seen_from;  // the window; at most one token does, and it goes before all others
    if (leaves || (at >= oldest && at <= newest)) mine = First{}(mine, Victim{leaves ? -INFINITY : score, at, s});
  }
  visible = block_reduce(visible, Sum{}, shared.number);
  empty = block_reduce(empty, Lowest{}, shared.number);
  const Victim victim = block_reduce_candidate(mine, First{}, shared.candidate);
  return {victim, victim.slot >= 0 && victim.position < seen_from, visible, empty};
}

/// Updates the scores by the probabilities p [group, slots] and frees a slot: the victim's if the budget is full,
/// otherwise the first empty one. All threads call it and get the slot of the victim, or -1.
template <class T>
__device__ int keep_scores(const DecodeArgs& a, const Tile<T>& t, const std::int32_t* position, const float* p,
                           std::int64_t stride, ChoiceShared& shared) {
  const int slots = a.slots.slots;
  const auto [victim, leaves, visible, empty] =
      scan_slots(a, t, position, p, stride, 0, slots, t.row.keep.sinks, newest_victim(t.row), shared);
  const bool evicts = victim.slot >= 0 && (leaves || visible > t.row.keep.budget());
  if (threadIdx.x != 0) return evicts ? victim.slot : -1;
  const std::int32_t free_slot = evicts ? victim.slot : empty < slots ? empty : -1;
  if (evicts) t.position[victim.slot] = -1;
  *t.free_slot = free_slot;
  if (t.home.k) {
    if (evicts) t.home.position[victim.slot] = -1;
    *t.home.free_slot = free_slot;
  }
  if (a.evicted) a.evicted[t.index * a.evicted_stride + t.head] = evicts ? victim.position : -1;
  return evicts ? victim.slot : -1;
}

/// The number of floats for positions and probabilities, rounded up to whole words of 16 bytes.
__host__ __device__ inline int slot_floats(int group, int slots) { return ((group + 1) * slots + 3) / 4 * 4; }

/// A whole step of one row and KV head. Shared: positions [slots], probabilities [group, slots], and the memory of
/// values(). logits(tile, position, p) fills p [group, slots]; values(tile, position, p, shared, out) sums the values.
template <class T, class Logits, class Values>
__device__ __forceinline__ void fused_step(const DecodeArgs& a, const Logits& logits, const Values& values) {
  WEFT_DYNAMIC_SHARED(std::int32_t, position);
  WEFT_SHARED(float, partial, [kThreads / kWarp]);
  WEFT_SHARED(ChoiceShared, choice);
  const int slots = a.slots.slots, dim = a.slots.head_dim;
  float* const p = reinterpret_cast<float*>(position + slots);
  float* const sums = reinterpret_cast<float*>(position) + slot_floats(a.group, slots);
  const Tile<T> t(a);
  float* const out = a.out + t.index * a.out_stride + t.head * a.group * dim;
  if (without_room(t)) {
    for (int i = threadIdx.x; i < a.group * dim; i += kThreads) out[i] = NAN;
    return;
  }
  write_token(a, t);
  __syncthreads();
  for (int s = threadIdx.x; s < slots; s += kThreads) position[s] = t.position[s];
  __syncthreads();
  if (a.probabilities) {
    for (int i = threadIdx.x; i < a.group * slots; i += kThreads) {
      const float* const given = a.probabilities + (t.probabilities_row(a) + i / slots) * a.probabilities_stride;
      p[i] = position[i % slots] >= 0 ? given[i % slots] : 0.0f;
    }
    __syncthreads();
  } else {
    logits(t, position, p);
    __syncthreads();
    for (int g = 0; g < a.group; ++g) {
      if (a.cap > 0) cap_logits(p + g * slots, position, slots, a.cap);
      softmax(p + g * slots, slots, partial, t.sink_logit(a, g));
    }
  }
  [[maybe_unused]] const int moved = keep_scores(a, t, position, p, slots, choice);
  values(t, position, p, sums, out);
  if constexpr (has_cold<T>) move_cold(a, t, moved);
}

}  // namespace weft::kernels::cuda::decode
