// kernels/vector_decode.h: one decode step of one row and KV head over fixed slots, over a vector type S (vector_math.h).
//
// Memory bandwidth is what this costs, so keys and values are each read once and everything between stays in the cache.
// Empty slots are skipped: what lies in them is never read, and the order of every sum is that of the visible slots
// alone, whatever the capacity of the block. Almost always the visible slots are one run from the first on.
#pragma once

#include "kernels/vector_math.h"

namespace weft::kernels {

constexpr std::uintptr_t kAheadBytes = 4096;  ///< how far prefetches run ahead: a few hundred ns of one core's bandwidth
constexpr int kRowsAtOnce = 4;              ///< keys whose products are summed side by side, to hide the latency of fma

/// Consecutive visible slots.
struct SlotRun {
  std::int32_t first, count;
};

/// What the parts of one decode tile share. Entries are the visible slots in order; lists hold whole vectors.
template <class T> struct DecodeState {
  const DecodeTile& tile;
  T *k, *v;
  float* q = nullptr;             // [group, dim], scaled
  float* p = nullptr;             // [group, entries]: logits, then probabilities
  float* value = nullptr;         // [entries]: scores, for the choice of the victim
  std::int32_t* place = nullptr;  // [entries]: the position
  SlotRun* run = nullptr;         // [entries / 2]
  std::int64_t dim = 0, stride = 0;  // of a row of q, and of p
  int runs = 0, count = 0;           // visible slots
  int first_empty = -1;
};

/// Where the rows of a run go on in memory: past its end `next` follows, or nothing. Addresses, for some are past an end.
struct Ahead {
  std::uintptr_t begin, next;
  std::uintptr_t bytes;  // of the run

  /// What is read kAheadBytes after `offset`; where nothing is, something in the cache.
  std::uintptr_t after(std::uintptr_t offset) const {
    const std::uintptr_t target = offset + kAheadBytes;
    return target < bytes ? begin + target : next != 0 ? next + (target - bytes) : begin + offset;
  }
};

inline constexpr std::uintptr_t kLine = 64;

template <int Bytes> void prefetch(std::uintptr_t from) {
  WEFT_UNROLL for (std::uintptr_t i = 0; i < Bytes; i += kLine) __builtin_prefetch(reinterpret_cast<const void*>(from + i));
}

template <class T> Ahead ahead_in(const T* rows, const T* next, const SlotRun& run, std::uintptr_t row_bytes) {
  return {reinterpret_cast<std::uintptr_t>(rows) + static_cast<std::uintptr_t>(run.first) * row_bytes,
          reinterpret_cast<std::uintptr_t>(next), static_cast<std::uintptr_t>(run.count) * row_bytes};
}

/// Finds the visible slots, the new token among them.
template <class S, class T> void list_entries(DecodeState<T>& s) {
  const DecodeTile& t = s.tile;
  int count = 0, empty = -1, runs = 0, run_end = -1;
  const auto extend = [&](int slot, int slots) {
    if (run_end == slot) s.run[runs - 1].count += slots;
    else s.run[runs++] = {slot, slots};
    run_end = slot + slots;
  };
  for (int first = 0; first < t.slots; first += kLanes) {
    const int lanes = t.slots - first < kLanes ? t.slots - first : kLanes;
    if (lanes == kLanes && !S::any_negative(t.position + first)) {
      WEFT_UNROLL for (int i = 0; i < kLanes; ++i) s.place[count + i] = t.position[first + i];
      extend(first, kLanes);
      count += kLanes;
      continue;
    }
    for (int slot = first; slot < first + lanes; ++slot)
      if (t.position[slot] >= 0) {
        s.place[count++] = t.position[slot];
        extend(slot, 1);
      } else if (empty < 0) {
        empty = slot;
      }
  }
  s.count = count;
  s.runs = runs;
  s.first_empty = empty;
}

/// sum[H][kRowsAtOnce] = the vectors whose lanes add up to the products of H queries with as many keys. Prefetches as
/// many bytes as it reads from `ahead` on, little by little: a burst would fill the processor's queue of open loads.
template <class S, int H, class T>
void multiply_keys(const float* q, std::int64_t q_stride, const T* const (&row)[kRowsAtOnce], int head_dim,
                   std::uintptr_t ahead, typename S::V (&sum)[H][kRowsAtOnce]) {
  constexpr int step = kRowsAtOnce * kLanes * static_cast<int>(sizeof(T));
  WEFT_UNROLL for (int h = 0; h < H; ++h)
    WEFT_UNROLL for (int i = 0; i < kRowsAtOnce; ++i) sum[h][i] = S::zero();
  int d = 0;
  for (; d + kLanes <= head_dim; d += kLanes, ahead += step) {
    prefetch<step>(ahead);
    typename S::V query[H];
    WEFT_UNROLL for (int h = 0; h < H; ++h) query[h] = S::load(q + h * q_stride + d);
    WEFT_UNROLL for (int i = 0; i < kRowsAtOnce; ++i) {
      const typename S::V x = S::load(row[i] + d);
      WEFT_UNROLL for (int h = 0; h < H; ++h) sum[h][i] = S::fma(x, query[h], sum[h][i]);
    }
  }
  if (d == head_dim) return;
  WEFT_UNROLL for (int i = 0; i < kRowsAtOnce; ++i) {
    const typename S::V x = S::load_first(row[i] + d, head_dim - d);
    WEFT_UNROLL for (int h = 0; h < H; ++h) sum[h][i] = S::fma(x, S::load(q + h * q_stride + d), sum[h][i]);
  }
}

/// Logits of H query heads from `head` on; those past the last entry become -inf.
template <class S, int H, class T> void logits(const DecodeState<T>& s, int head) {
  const int head_dim = s.tile.head_dim;
  const std::uintptr_t row_bytes = sizeof(T) * static_cast<std::uintptr_t>(head_dim);
  const float* q = s.q + head * s.dim;
  float* out = s.p + head * s.stride;
  for (int r = 0; r < s.runs; ++r) {
    const SlotRun& run = s.run[r];
    // After the last keys come the first values.
    const T* next = r + 1 < s.runs ? s.k : s.v;
    next += static_cast<std::int64_t>(s.run[r + 1 < s.runs ? r + 1 : 0].first) * head_dim;
    const Ahead ahead = ahead_in<T>(s.k, next, run, row_bytes);
    const T* rows = s.k + static_cast<std::int64_t>(run.first) * head_dim;
    for (int first = 0; first < run.count; first += kLanes, out += kLanes) {
      typename S::V sums[H][kLanes];
      WEFT_UNROLL for (int u = 0; u < kLanes; u += kRowsAtOnce) {
        const T* row[kRowsAtOnce];
        WEFT_UNROLL for (int i = 0; i < kRowsAtOnce; ++i) {
          const int index = first + u + i;
          row[i] = rows + static_cast<std::int64_t>(index < run.count ? index : run.count - 1) * head_dim;
        }
        typename S::V sum[H][kRowsAtOnce];
        multiply_keys<S, H>(q, s.dim, row, head_dim, ahead.after(static_cast<std::uintptr_t>(first + u) * row_bytes), sum);
        WEFT_UNROLL for (int h = 0; h < H; ++h)
          WEFT_UNROLL for (int i = 0; i < kRowsAtOnce; ++i) sums[h][u + i] = sum[h][i];
      }
      // What is stored past the run's end is overwritten by the next run, or by the infinities below.
      WEFT_UNROLL for (int h = 0; h < H; ++h) S::store(out + h * s.stride, S::sums(sums[h]));
    }
    out += run.count - whole_vectors(run.count);
  }
  for (int h = 0; h < H; ++h)
    for (std::int64_t i = s.count; i < whole_vectors(s.count); ++i) s.p[(head + h) * s.stride + i] = -__builtin_inff();
}

/// Turns one head's logits into probabilities; past the last entry they are 0.
template <class S> void softmax(float* p, int count) {
  typename S::V most = S::load(p);
  for (int i = kLanes; i < count; i += kLanes) most = S::max(most, S::load(p + i));
  const typename S::V max = S::all(S::largest(most));
  typename S::V sum = S::zero();
  for (int i = 0; i < count; i += kLanes) {
    const typename S::V x = exp_of<S>(S::sub(S::load(p + i), max));
    S::store(p + i, x);
    sum = S::add(sum, x);
  }
  const typename S::V inverse = S::all(1.0f / S::sum(sum));
  for (int i = 0; i < count; i += kLanes) S::store(p + i, S::mul(S::load(p + i), inverse));
}

/// out[H, 16 * N columns from d on] = p v, for H query heads; `last` lanes of the last vector exist.
template <class S, int H, int N, class T> void weigh_values(const DecodeState<T>& s, int head, int d, int last) {
  const DecodeTile& t = s.tile;
  const std::uintptr_t row_bytes = sizeof(T) * static_cast<std::uintptr_t>(t.head_dim);
  const std::uintptr_t offset = sizeof(T) * static_cast<std::uintptr_t>(d);
  const float* p = s.p + head * s.stride;
  typename S::V sum[H][N];
  WEFT_UNROLL for (int h = 0; h < H; ++h)
    WEFT_UNROLL for (int n = 0; n < N; ++n) sum[h][n] = S::zero();
  const auto add = [&](const T* row, std::uintptr_t soon, auto load_last) {
    prefetch<N * kLanes * static_cast<int>(sizeof(T))>(soon);
    typename S::V weight[H];
    WEFT_UNROLL for (int h = 0; h < H; ++h) weight[h] = S::all(p[h * s.stride]);
    WEFT_UNROLL for (int n = 0; n < N; ++n) {
      const typename S::V x = n + 1 < N ? S::load(row + n * kLanes) : load_last(row + n * kLanes);
      WEFT_UNROLL for (int h = 0; h < H; ++h) sum[h][n] = S::fma(x, weight[h], sum[h][n]);
    }
    ++p;
  };
  for (int r = 0; r < s.runs; ++r) {
    const SlotRun& run = s.run[r];
    const auto* next = static_cast<const T*>(t.next_k);
    if (r + 1 < s.runs) next = s.v + static_cast<std::int64_t>(s.run[r + 1].first) * t.head_dim;
    const Ahead ahead = ahead_in<T>(s.v, next, run, row_bytes);
    const T* row = s.v + static_cast<std::int64_t>(run.first) * t.head_dim + d;
    for (int i = 0; i < run.count; ++i, row += t.head_dim) {
      const std::uintptr_t soon = ahead.after(static_cast<std::uintptr_t>(i) * row_bytes + offset);
      if (last == kLanes) add(row, soon, [](const T* from) { return S::load(from); });
      else add(row, soon, [last](const T* from) { return S::load_first(from, last); });
    }
  }
  WEFT_UNROLL for (int h = 0; h < H; ++h)
    WEFT_UNROLL for (int n = 0; n < N; ++n) {
      float* out = t.out + (head + h) * t.head_dim + d + n * kLanes;
      store_some<S>(out, sum[h][n], n + 1 < N ? kLanes : last);
    }
}

/// The output of H query heads, as many vectors of columns at once as registers allow.
template <class S, int H, class T> void outputs(const DecodeState<T>& s, int head) {
  const int vectors = static_cast<int>(s.dim / kLanes);
  for (int n = 0; n < vectors;) {
    const int left = vectors - n, d = n * kLanes;
    const int at_once = left >= 8 && H <= 2 ? 8 : left >= 5 && left < 8 && H <= 2 ? left : left >= 4 ? 4 : left;
    n += at_once;
    const int last = n == vectors ? s.tile.head_dim - (n - 1) * kLanes : kLanes;
    switch (at_once) {
      case 1: weigh_values<S, H, 1>(s, head, d, last); break;
      case 2: weigh_values<S, H, 2>(s, head, d, last); break;
      case 3: weigh_values<S, H, 3>(s, head, d, last); break;
      case 4: weigh_values<S, H, 4>(s, head, d, last); break;
      case 5: weigh_values<S, H, 5>(s, head, d, last); break;
      case 6: weigh_values<S, H, 6>(s, head, d, last); break;
      case 7: weigh_values<S, H, 7>(s, head, d, last); break;
      default: weigh_values<S, H, 8>(s, head, d, last); break;
    }
  }
}

/// score = decay * score + the probabilities of the group. Leaves the new scores in s.value.
template <class S, class T> void add_to_scores(DecodeState<T>& s) {
  const DecodeTile& t = s.tile;
  int entry = 0;
  for (int r = 0; r < s.runs; ++r)
    for (int first = 0; first < s.run[r].count; first += kLanes) {
      const int left = s.run[r].count - first, lanes = left < kLanes ? left : kLanes;
      typename S::V score = S::zero();
      if (t.score) score = load_some<S>(t.score + s.run[r].first + first, lanes);
      if (t.scoring == Scoring::attention) {
        typename S::V sum = S::load(s.p + entry);
        for (int g = 1; g < t.group; ++g) sum = S::add(sum, S::load(s.p + g * s.stride + entry));
        score = S::fma(S::all(t.decay), score, sum);
        store_some<S>(t.score + s.run[r].first + first, score, lanes);
      }
      S::store(s.value + entry, score);
      entry += lanes;
    }
}

/// The entry of the candidate with the lowest score, of equal ones the oldest; a score that is no number is never lowest.
template <class S, class T> int choose_victim(const DecodeState<T>& s) {
  const DecodeTile& t = s.tile;
  const std::int64_t newest = std::int64_t{t.token} - t.keep.recent - t.keep.grace;
  const std::int32_t low = t.keep.sinks, high = newest < 0 ? -1 : static_cast<std::int32_t>(newest);
  const float infinity = __builtin_inff();
  typename S::V least = S::all(infinity);
  for (int first = 0; first < s.count; first += kLanes) {
    const int lanes = s.count - first < kLanes ? s.count - first : kLanes;
    const typename S::V score = S::between(S::load(s.value + first), s.place + first, low, high, infinity);
    S::store(s.value + first, S::first(score, lanes, infinity));
    least = S::min(S::load(s.value + first), least);
  }
  const float lowest = S::smallest(least);
  int victim = -1;
  for (int first = 0; first < s.count; first += kLanes) {
    if (!S::any_equal(S::load(s.value + first), lowest)) continue;
    for (int i = first; i < s.count && i < first + kLanes; ++i) {
      if (s.value[i] != lowest || s.place[i] < low || s.place[i] > high) continue;
      if (victim < 0 || s.place[i] < s.place[victim]) victim = i;
    }
  }
  if (victim >= 0) return victim;
  for (int i = 0; i < s.count; ++i) {  // no candidate's score is a number
    if (s.place[i] < low || s.place[i] > high) continue;
    if (victim < 0 || s.place[i] < s.place[victim]) victim = i;
  }
  return victim;
}

/// Rounds the new key and value into the free slot.
template <class S, class T> void write_token(const DecodeState<T>& s) {
  const DecodeTile& t = s.tile;
  const std::int32_t slot = *t.free_slot;
  for (int d = 0; d < t.head_dim; d += kLanes) {
    const int lanes = t.head_dim - d < kLanes ? t.head_dim - d : kLanes;
    store_some<S>(s.k + static_cast<std::int64_t>(slot) * t.head_dim + d, load_some<S>(t.k + d, lanes), lanes);
    store_some<S>(s.v + static_cast<std::int64_t>(slot) * t.head_dim + d, load_some<S>(t.v + d, lanes), lanes);
  }
  t.position[slot] = t.token;
  if (t.score) t.score[slot] = t.new_score;
}

/// The slot of an entry.
template <class T> int slot_of(const DecodeState<T>& s, int entry) {
  int r = 0;
  for (; entry >= s.run[r].count; ++r) entry -= s.run[r].count;
  return s.run[r].first + entry;
}

template <class S, class T> void find_probabilities(const DecodeState<T>& s) {
  const DecodeTile& t = s.tile;
  if (t.probabilities) {
    for (int g = 0; g < t.group; ++g)
      for (int i = 0; i < static_cast<int>(whole_vectors(s.count)); ++i)
        s.p[g * s.stride + i] = i < s.count ? t.probabilities[g * t.probabilities_stride + slot_of(s, i)] : 0.0f;
    return;
  }
  for (int g = 0; g < t.group; ++g)
    for (int d = 0; d < t.head_dim; d += kLanes) {
      const int lanes = t.head_dim - d < kLanes ? t.head_dim - d : kLanes;
      S::store(s.q + g * s.dim + d, S::mul(load_some<S>(t.q + g * t.head_dim + d, lanes), S::all(t.scale)));
    }
  int head = 0;
  if constexpr (S::kHeads >= 4)
    for (; head + 4 <= t.group; head += 4) logits<S, 4>(s, head);
  if constexpr (S::kHeads >= 2)
    for (; head + 2 <= t.group; head += 2) logits<S, 2>(s, head);
  for (; head < t.group; ++head) logits<S, 1>(s, head);
  for (int g = 0; g < t.group; ++g) softmax<S>(s.p + g * s.stride, s.count);
}

template <class S, class T> void decode_tile_of(const DecodeTile& t) {
  const std::int64_t entries = whole_vectors(t.slots) + kLanes;
  DecodeState<T> s{t, static_cast<T*>(t.slot_k), static_cast<T*>(t.slot_v)};
  s.dim = whole_vectors(t.head_dim), s.stride = entries;
  s.q = t.scratch;
  s.p = s.q + t.group * s.dim;
  s.value = s.p + t.group * entries;
  s.place = reinterpret_cast<std::int32_t*>(s.value + entries);
  s.run = reinterpret_cast<SlotRun*>(s.place + entries);

  write_token<S>(s);
  list_entries<S>(s);
  find_probabilities<S>(s);
  int head = 0;
  if constexpr (S::kHeads >= 4)
    for (; head + 4 <= t.group; head += 4) outputs<S, 4>(s, head);
  if constexpr (S::kHeads >= 2)
    for (; head + 2 <= t.group; head += 2) outputs<S, 2>(s, head);
  for (; head < t.group; ++head) outputs<S, 1>(s, head);

  add_to_scores<S>(s);
  const int victim = s.count > t.keep.budget() ? choose_victim<S>(s) : -1;
  const int freed = victim >= 0 ? slot_of(s, victim) : s.first_empty;
  if (victim >= 0) t.position[freed] = -1;
  *t.free_slot = freed;
  if (t.evicted) *t.evicted = victim >= 0 ? s.place[victim] : -1;
}

template <class S> void decode_tile(const DecodeTile& t) {
  if (t.dtype == DType::f32) decode_tile_of<S, float>(t);
  else if (t.dtype == DType::f16) decode_tile_of<S, f16>(t);
  else decode_tile_of<S, bf16>(t);
}

}  // namespace weft::kernels
