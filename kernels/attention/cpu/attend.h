// kernels/attention/cpu/attend.h: the reading part of a decode step: products with the keys, softmax, weighted sum of
// the values, over a vector type S (cpu/math.h).
//
// The cost is memory bandwidth, so keys and values are each read once and everything between stays in the cache.
#pragma once

#include "kernels/attention/cpu/slots.h"

namespace weft::kernels {

/// Calls f.operator()<H>(head) for all query heads of a group, as many at a time as the vector type has registers for;
/// only `kThrees` allows three.
template <class S, bool kThrees = false, class F> void by_heads(int group, const F& f) {
  int head = 0;
  if constexpr (S::kHeads >= 4)
    for (; head + 4 <= group; head += 4) f.template operator()<4>(head);
  if constexpr (S::kHeads >= 4 && kThrees)
    if (head + 3 == group) return f.template operator()<3>(head);
  if constexpr (S::kHeads >= 2)
    for (; head + 2 <= group; head += 2) f.template operator()<2>(head);
  for (; head < group; ++head) f.template operator()<1>(head);
}

constexpr std::uintptr_t kAheadBytes = 8192;  ///< distance of prefetches: half a microsecond of reading

/// The memory from which a run of rows is read, and `next`, which is read after its end, or 0. Addresses are numbers
/// because some point past an end.
template <class S> struct Ahead {
  std::uintptr_t begin, next;
  std::uintptr_t bytes;  // of the run's rows

  /// The address that is read kAheadBytes after `offset`; if nothing is, one that is in the cache.
  std::uintptr_t after(std::uintptr_t offset) const {
    const std::uintptr_t target = offset + kAheadBytes;
    return target < bytes ? begin + target : next != 0 ? next + (target - bytes) : begin + offset;
  }
};

// GCC takes a function of prefetches alone for one without effects and removes the calls, unless it is inlined first.
template <class S, int Bytes> [[gnu::always_inline]] inline void prefetch(std::uintptr_t from) {
  WEFT_UNROLLED (std::uintptr_t i = 0; i < Bytes; i += kLine)
    __builtin_prefetch(reinterpret_cast<const void*>(from + i), 0, 2);  // NOLINT(performance-no-int-to-ptr)
}

template <class S, class T> Ahead<S> ahead_in(const T* rows, const T* next, int count, std::uintptr_t row_bytes) {
  return {reinterpret_cast<std::uintptr_t>(rows), reinterpret_cast<std::uintptr_t>(next),
          static_cast<std::uintptr_t>(count) * row_bytes};
}

/// sum[H][R] = the vectors whose lanes add up to the products of H queries with as many keys. It prefetches as many
/// bytes as it reads, from `ahead` on, little by little: a burst would fill the processor's queue of open loads.
template <class S, int H, int R, class T>
void multiply_keys(const float* q, std::int64_t q_stride, const T* const (&row)[R], int head_dim, std::uintptr_t ahead,
                   typename S::V (&sum)[H][R]) {
  constexpr int step = R * kLanes * static_cast<int>(sizeof(T));
  WEFT_UNROLLED (int h = 0; h < H; ++h)
    WEFT_UNROLLED (int i = 0; i < R; ++i) sum[h][i] = S::zero();
  int d = 0;
  for (; d + kLanes <= head_dim; d += kLanes, ahead += step) {
    prefetch<S, step>(ahead);
    typename S::V query[H];
    WEFT_UNROLLED (int h = 0; h < H; ++h) query[h] = S::load(q + h * q_stride + d);
    WEFT_UNROLLED (int i = 0; i < R; ++i) {
      const typename S::V x = S::load(row[i] + d);
      WEFT_UNROLLED (int h = 0; h < H; ++h) sum[h][i] = S::fma(x, query[h], sum[h][i]);
    }
  }
  if (d == head_dim) return;
  WEFT_UNROLLED (int i = 0; i < R; ++i) {
    const typename S::V x = S::load_first(row[i] + d, head_dim - d);
    WEFT_UNROLLED (int h = 0; h < H; ++h) sum[h][i] = S::fma(x, S::load(q + h * q_stride + d), sum[h][i]);
  }
}

/// Logits of H query heads from `head` on, with R keys side by side; those past the last entry become -inf.
template <class S, int H, int R, class T> void logits_of(const DecodeState<T>& s, int head) {
  const int head_dim = s.tile.head_dim;
  const std::uintptr_t row_bytes = sizeof(T) * static_cast<std::uintptr_t>(head_dim);
  const float* q = s.q + head * s.dim;
  float* out = s.p + head * s.stride;
  for (int r = 0; r < s.runs; ++r) {
    const SlotRun& run = s.run[r];
    // After the last keys come the first values.
    const T* next = r + 1 < s.runs ? s.k : s.v;
    next += first_row(s.tile, s.run[r + 1 < s.runs ? r + 1 : 0].first) * head_dim;
    const T* rows = s.k + first_row(s.tile, run.first) * head_dim;
    const Ahead<S> ahead = ahead_in<S>(rows, next, run.count, row_bytes);
    for (int first = 0; first < run.count; first += kLanes, out += kLanes) {
      typename S::V sums[H][kLanes];
      const auto add = [&](int u) {
        const T* row[R];
        WEFT_UNROLLED (int i = 0; i < R; ++i) {
          const int index = first + u + i;
          row[i] = rows + static_cast<std::int64_t>(index < run.count ? index : run.count - 1) * head_dim;
        }
        typename S::V sum[H][R];
        multiply_keys<S, H, R>(q, s.dim, row, head_dim, ahead.after(static_cast<std::uintptr_t>(first + u) * row_bytes),
                               sum);
        WEFT_UNROLLED (int h = 0; h < H; ++h)
          WEFT_UNROLLED (int i = 0; i < R; ++i) sums[h][u + i] = sum[h][i];
      };
      if constexpr (S::kUnrollsKeys)
        WEFT_UNROLLED (int u = 0; u < kLanes; u += R) add(u);
      else
        for (int u = 0; u < kLanes; u += R) add(u);
      // The next run, or the infinities below, overwrite what is stored past the run's end.
      WEFT_UNROLLED (int h = 0; h < H; ++h) S::store(out + h * s.stride, S::sums(sums[h]));
    }
    out += run.count - whole_vectors(run.count);
  }
  for (int h = 0; h < H; ++h)
    for (std::int64_t i = s.count; i < whole_vectors(s.count); ++i) s.p[(head + h) * s.stride + i] = -__builtin_inff();
}

/// Long keys are best read one or two at a time, because memory is fastest in order; with short ones, more at a time
/// hide fma's latency.
template <class S, int H, class T> void logits(const DecodeState<T>& s, int head) {
  if (sizeof(T) * static_cast<std::size_t>(s.tile.head_dim) <= 160) logits_of<S, H, S::kShortKeys>(s, head);
  else logits_of<S, H, 2>(s, head);
}

/// p = the probabilities of one head's logits, which may be p; past the last entry they are 0. `sink_logit`, if not
/// null, takes part. `coming`, if not null, goes on by `soon` bytes with 16 entries.
template <class S>
void softmax(const float* logit, float* p, int count, const float* sink_logit, Coming* coming = nullptr,
             std::uintptr_t soon = 0) {
  typename S::V most = S::load(logit);
  for (int i = kLanes; i < count; i += kLanes) most = S::max(most, S::load(logit + i));
  if (sink_logit) most = S::max(most, S::all(*sink_logit));
  const typename S::V max = S::all(S::largest(most));
  typename S::V sum = S::zero();
  for (int i = 0; i < count; i += kLanes) {
    if (coming) coming->go_on(soon);
    const typename S::V x = exp_of<S>(S::sub(S::load(logit + i), max));
    S::store(p + i, x);
    sum = S::add(sum, x);
  }
  float all = S::sum(sum);
  if (sink_logit) all += exp_of_one<S>(*sink_logit - S::largest(max));
  const typename S::V inverse = S::all(1.0f / all);
  for (int i = 0; i < count; i += kLanes) S::store(p + i, S::mul(S::load(p + i), inverse));
}

/// out[H, 16 * N columns from d on] = p v, for H query heads; `last` lanes of the last vector exist.
template <class S, int H, int N, class T> void weigh_values(const DecodeState<T>& s, int head, int d, int last) {
  const DecodeTile& t = s.tile;
  const std::uintptr_t row_bytes = sizeof(T) * static_cast<std::uintptr_t>(t.head_dim);
  constexpr int bytes = N * kLanes * static_cast<int>(sizeof(T));
  const std::uintptr_t offset = sizeof(T) * static_cast<std::uintptr_t>(d);
  const float* p = s.p + head * s.stride;
  typename S::V sum[H][N];
  WEFT_UNROLLED (int h = 0; h < H; ++h)
    WEFT_UNROLLED (int n = 0; n < N; ++n) sum[h][n] = S::zero();
  const auto add = [&](const T* row, std::uintptr_t soon, auto load_last) {
    prefetch<S, bytes>(soon);
    typename S::V weight[H];
    WEFT_UNROLLED (int h = 0; h < H; ++h) weight[h] = S::all(p[h * s.stride]);
    WEFT_UNROLLED (int n = 0; n < N; ++n) {
      const typename S::V x = n + 1 < N ? S::load(row + n * kLanes) : load_last(row + n * kLanes);
      WEFT_UNROLLED (int h = 0; h < H; ++h) sum[h][n] = S::fma(x, weight[h], sum[h][n]);
    }
    ++p;
  };
  for (int r = 0; r < s.runs; ++r) {
    const SlotRun& run = s.run[r];
    const T* next = t.next ? static_cast<const T*>(t.next->slot_k) + first_row(*t.next, 0) * t.head_dim : nullptr;
    if (r + 1 < s.runs) next = s.v + first_row(t, s.run[r + 1].first) * t.head_dim;
    const T* const rows = s.v + first_row(t, run.first) * t.head_dim;
    const Ahead<S> ahead = ahead_in<S>(rows, next, run.count, row_bytes);
    const T* row = rows + d;
    for (int i = 0; i < run.count; ++i, row += t.head_dim) {
      const std::uintptr_t soon = ahead.after(static_cast<std::uintptr_t>(i) * row_bytes + offset);
      if (last == kLanes) add(row, soon, [](const T* from) { return S::load(from); });
      else add(row, soon, [last](const T* from) { return S::load_first(from, last); });
    }
  }
  WEFT_UNROLLED (int h = 0; h < H; ++h)
    WEFT_UNROLLED (int n = 0; n < N; ++n) {
      float* out = t.out + (head + h) * t.head_dim + d + n * kLanes;
      store_some<S>(out, sum[h][n], n + 1 < N ? kLanes : last);
    }
}

/// weigh_values() for `vectors` <= N vectors.
template <class S, int H, int N, class T>
void weigh_vectors(const DecodeState<T>& s, int head, int d, int last, int vectors) {
  if (vectors == N) weigh_values<S, H, N>(s, head, d, last);
  else if constexpr (N > 1) weigh_vectors<S, H, N - 1>(s, head, d, last, vectors);
}

/// The output of H query heads, with as many vectors of columns at once as registers allow.
template <class S, int H, class T> void outputs_of(const DecodeState<T>& s, int head) {
  constexpr int most = H <= 2 ? S::kValueVectors : S::kValueVectors / 2;
  const int vectors = static_cast<int>(s.dim / kLanes);
  for (int n = 0; n < vectors; n += most) {
    const int at_once = vectors - n < most ? vectors - n : most, d = n * kLanes;
    const int last = n + at_once == vectors ? s.tile.head_dim - (vectors - 1) * kLanes : kLanes;
    weigh_vectors<S, H, most>(s, head, d, last, at_once);
  }
}

/// The outputs of all query heads.
template <class S, class T> void outputs(const DecodeState<T>& s) {
  by_heads<S, true>(s.tile.group, [&]<int H>(int head) { outputs_of<S, H>(s, head); });
}

}  // namespace weft::kernels
