// kernels/vector_decode.h: one decode step of one row and KV head over fixed slots, over a vector type S (vector_math.h).
//
// Memory bandwidth is what this costs, so keys and values are each read once and everything between stays in the cache.
// Empty slots are skipped by an index list: what lies in them is never read, and the order of every sum is that of the
// visible slots alone, whatever the capacity of the block.
#pragma once

#include "kernels/vector_math.h"

namespace weft::kernels {

constexpr int kAhead = 16;  ///< rows that the prefetches run ahead of the arithmetic; swept 4..32 on two machines' DRAM

inline constexpr std::int64_t kCacheLine = 64;

template <class T> void prefetch_row(const T* row, int head_dim) {
  const char* p = reinterpret_cast<const char*>(row);
  const auto bytes = static_cast<std::int64_t>(sizeof(T)) * head_dim;
  for (std::int64_t i = 0; i < bytes; i += kCacheLine) __builtin_prefetch(p + i);
}

/// What the parts of one decode tile share. Entries are the visible slots in order; lists hold whole vectors.
template <class T> struct DecodeState {
  const DecodeTile& tile;
  T *k, *v;
  float* q = nullptr;      // [group, dim], scaled
  float* p = nullptr;      // [group, entries]: logits, then probabilities
  float* value = nullptr;  // [entries]: scores, for the choice of the victim
  std::int32_t* entry = nullptr;  // [entries]: the slot
  std::int32_t* place = nullptr;  // [entries]: the position
  std::int64_t dim = 0, stride = 0;  // of a row of q, and of p
  int count = 0;                     // visible slots
  int first_empty = -1;
  bool dense = false;  // entry[i] == i
};

/// Lists the visible slots, the new token among them.
template <class S, class T> void list_entries(DecodeState<T>& s) {
  const DecodeTile& t = s.tile;
  int count = 0, empty = -1;
  for (int first = 0; first < t.slots; first += kLanes) {
    const int lanes = t.slots - first < kLanes ? t.slots - first : kLanes;
    if (lanes == kLanes && !S::any_negative(t.position + first)) {
      for (int i = 0; i < kLanes; ++i) s.entry[count + i] = first + i;
      for (int i = 0; i < kLanes; ++i) s.place[count + i] = t.position[first + i];
      count += kLanes;
      continue;
    }
    for (int slot = first; slot < first + lanes; ++slot) {
      const bool visible = t.position[slot] >= 0;
      s.entry[count] = slot;
      s.place[count] = t.position[slot];
      count += visible;
      if (!visible && empty < 0) empty = slot;
    }
  }
  s.count = count;
  s.first_empty = empty;
  s.dense = s.entry[count - 1] == count - 1;
}

/// Logits of H query heads from `head` on, 16 entries at a time; those past the last entry become -inf.
template <class S, int H, class T> void logits(const DecodeState<T>& s, int head) {
  constexpr int rows_at_once = 4;
  const int head_dim = s.tile.head_dim;
  const float* q = s.q + head * s.dim;
  for (int first = 0; first < s.count; first += kLanes) {
    typename S::V sums[H][kLanes];
    for (int u = 0; u < kLanes; u += rows_at_once) {
      const T* row[rows_at_once];
      typename S::V sum[H][rows_at_once];
      WEFT_UNROLL for (int i = 0; i < rows_at_once; ++i) {
        const int entry = first + u + i < s.count ? first + u + i : s.count - 1, ahead = entry + kAhead;
        row[i] = s.k + static_cast<std::int64_t>(s.entry[entry]) * head_dim;
        // The values come next, so the last prefetches are theirs.
        if (ahead < s.count) prefetch_row(s.k + static_cast<std::int64_t>(s.entry[ahead]) * head_dim, head_dim);
        else if (ahead - s.count < s.count)
          prefetch_row(s.v + static_cast<std::int64_t>(s.entry[ahead - s.count]) * head_dim, head_dim);
        WEFT_UNROLL for (int h = 0; h < H; ++h) sum[h][i] = S::zero();
      }
      for (int d = 0; d < head_dim; d += kLanes) {
        const int lanes = head_dim - d < kLanes ? head_dim - d : kLanes;
        WEFT_UNROLL for (int i = 0; i < rows_at_once; ++i) {
          const typename S::V x = load_some<S>(row[i] + d, lanes);
          WEFT_UNROLL for (int h = 0; h < H; ++h) sum[h][i] = S::fma(x, S::load(q + h * s.dim + d), sum[h][i]);
        }
      }
      WEFT_UNROLL for (int h = 0; h < H; ++h)
        WEFT_UNROLL for (int i = 0; i < rows_at_once; ++i) sums[h][u + i] = sum[h][i];
    }
    for (int h = 0; h < H; ++h) {
      typename S::V x = S::sums(sums[h]);
      if (s.count - first < kLanes) x = S::first(x, s.count - first, -__builtin_inff());
      S::store(s.p + (head + h) * s.stride + first, x);
    }
  }
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
  const float* p = s.p + head * s.stride;
  typename S::V sum[H][N];
  WEFT_UNROLL for (int h = 0; h < H; ++h)
    WEFT_UNROLL for (int n = 0; n < N; ++n) sum[h][n] = S::zero();
  for (int i = 0; i < s.count; ++i) {
    const T* row = s.v + static_cast<std::int64_t>(s.entry[i]) * t.head_dim + d;
    if (i + kAhead < s.count)
      prefetch_row(s.v + static_cast<std::int64_t>(s.entry[i + kAhead]) * t.head_dim + d, N * kLanes);
    typename S::V weight[H];
    WEFT_UNROLL for (int h = 0; h < H; ++h) weight[h] = S::all(p[h * s.stride + i]);
    WEFT_UNROLL for (int n = 0; n < N; ++n) {
      const typename S::V x = n + 1 < N ? S::load(row + n * kLanes) : load_some<S>(row + n * kLanes, last);
      WEFT_UNROLL for (int h = 0; h < H; ++h) sum[h][n] = S::fma(x, weight[h], sum[h][n]);
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
  const bool by_attention = t.scoring == Scoring::attention;
  for (int first = 0; first < s.count; first += kLanes) {
    const int lanes = s.count - first < kLanes ? s.count - first : kLanes;
    if (!t.score) {
      S::store(s.value + first, S::zero());
      continue;
    }
    if (!s.dense)
      for (int i = 0; i < lanes; ++i) s.value[first + i] = t.score[s.entry[first + i]];
    float* from = s.dense ? t.score + first : s.value + first;
    typename S::V score = load_some<S>(from, lanes);
    if (by_attention) {
      typename S::V sum = S::load(s.p + first);
      for (int g = 1; g < t.group; ++g) sum = S::add(sum, S::load(s.p + g * s.stride + first));
      score = S::fma(S::all(t.decay), score, sum);
      if (s.dense) store_some<S>(t.score + first, score, lanes);
    }
    S::store(s.value + first, score);
    if (by_attention && !s.dense)
      for (int i = 0; i < lanes; ++i) t.score[s.entry[first + i]] = s.value[first + i];
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
  int victim = -1, oldest = -1;
  for (int first = 0; first < s.count; first += kLanes) {
    if (victim >= 0 && !S::any_equal(S::load(s.value + first), lowest)) continue;
    for (int i = first; i < s.count && i < first + kLanes; ++i) {
      if (s.place[i] < low || s.place[i] > high) continue;
      if (oldest < 0 || s.place[i] < s.place[oldest]) oldest = i;
      if (s.value[i] == lowest && (victim < 0 || s.place[i] < s.place[victim])) victim = i;
    }
  }
  return victim >= 0 ? victim : oldest;
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

template <class S, class T> void find_probabilities(const DecodeState<T>& s) {
  const DecodeTile& t = s.tile;
  if (t.probabilities) {
    for (int g = 0; g < t.group; ++g)
      for (int i = 0; i < static_cast<int>(whole_vectors(s.count)); ++i)
        s.p[g * s.stride + i] = i < s.count ? t.probabilities[g * t.probabilities_stride + s.entry[i]] : 0.0f;
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
  s.entry = reinterpret_cast<std::int32_t*>(s.value + entries);
  s.place = s.entry + entries;

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
  if (victim >= 0) t.position[s.entry[victim]] = -1;
  *t.free_slot = victim >= 0 ? s.entry[victim] : s.first_empty;
  if (t.evicted) *t.evicted = victim >= 0 ? s.place[victim] : -1;
}

template <class S> void decode_tile(const DecodeTile& t) {
  if (t.dtype == DType::f32) decode_tile_of<S, float>(t);
  else if (t.dtype == DType::f16) decode_tile_of<S, f16>(t);
  else decode_tile_of<S, bf16>(t);
}

}  // namespace weft::kernels
