// kernels/attention/cpu/columns.h: column sums, a tile of keys at a time, over a vector type S (cpu/math.h). Sums run
// as in prefill.h.
#pragma once

#include "kernels/attention/cpu/prefill.h"

namespace weft::kernels {

/// x + y, or the larger of them.
template <class S, Statistic kStatistic> typename S::V gathered(typename S::V x, typename S::V y) {
  if constexpr (kStatistic == Statistic::largest) return S::max(x, y);
  else return S::add(x, y);
}

/// The queries of one head of the group.
template <class S> SplitRows<float> queries_of(const ColumnTile& t, int head) {
  const std::int64_t column = std::int64_t{head} * t.head_dim;
  return {t.prefix_q + column, t.q + column, t.q_stride, t.prefix, t.q_begin};
}

/// Gathers in sum[kKeyColumns] the weights that rows first .. first + count of one head give to each of these keys, of
/// whose logits it has those before the cap.
template <class S, Statistic kStatistic>
void gather_columns(const ColumnTile& t, int head, int first, int count, float* logits, typename S::V* sum) {
  constexpr int vectors = kKeyColumns / kLanes;
  if (t.cap > 0) cap_logits<S>(logits, std::int64_t{count} * kKeyColumns, t.cap);
  const float* const prefix_lse = t.prefix_lse + head * t.lse_stride;
  const float* const own_lse = t.lse + head * t.lse_stride;
  for (int r = 0; r < count; ++r) {
    const int row = first + r, seen = row - t.first_key + 1, unseen = t.window > 0 ? seen - t.window : 0;
    for (int n = 0; n < unseen && n < kKeyColumns; ++n) logits[r * kKeyColumns + n] = -__builtin_inff();
    const typename S::V lse = S::all(row < t.prefix ? prefix_lse[row - t.q_begin] : own_lse[row - t.prefix]);
    for (int n = 0; n < vectors && n * kLanes < seen; ++n) {
      const typename S::V p = exp_of<S>(S::sub(S::load(logits + r * kKeyColumns + n * kLanes), lse));
      const int left = seen - n * kLanes;
      sum[n] = gathered<S, kStatistic>(sum[n], left < kLanes ? S::first(p, left, 0.0f) : p);
    }
  }
}

/// Adds up the weights of all rows. `add(head, first, count, sum)` gathers those of up to kKeyColumns rows.
template <class S, Statistic kStatistic, class Add> void sum_columns(const ColumnTile& t, const Add& add) {
  constexpr int vectors = kKeyColumns / kLanes;
  typename S::V total[vectors];
  for (int n = 0; n < vectors; ++n) {
    const int left = t.keys - n * kLanes;
    total[n] = t.before && left > 0 ? load_some<S>(t.before + t.first_key + n * kLanes, left < kLanes ? left : kLanes)
                                    : S::zero();
  }
  // Short fp32 sums, then their sum. Rows come in blocks that start at multiples of kKeyColumns, and a block's heads
  // one after another, so that the sum over a prefix of the prompt is the beginning of the sum over it all.
  const int start = t.first_row > t.first_key ? t.first_row : t.first_key;
  for (int chunk = start / kKeyColumns * kKeyColumns; chunk < t.length; chunk += kKeyColumns)
    for (int head = 0; head < t.group; ++head) {
      typename S::V sum[vectors];
      for (auto& v : sum) v = S::zero();
      const int end = t.length < chunk + kKeyColumns ? t.length : chunk + kKeyColumns;
      const int row = chunk > start ? chunk : start;
      add(head, row, end - row, sum);
      for (int n = 0; n < vectors; ++n) total[n] = gathered<S, kStatistic>(total[n], sum[n]);
    }
  for (int n = 0; n < vectors; ++n) {
    const int left = t.keys - n * kLanes;
    if (left > 0) store_some<S>(t.score + t.first_key + n * kLanes, total[n], left < kLanes ? left : kLanes);
  }
}

template <class S, Statistic kStatistic, class T> void column_tile_of(const ColumnTile& t) {
  constexpr int R = S::kTileRows;
  const std::int64_t dim = whole_vectors(t.head_dim);
  float* keys = t.scratch;
  float* q = keys + kKeyColumns * dim;
  float* logits = q + 8 * dim;
  const SplitRows<T> k{static_cast<const T*>(t.prefix_k), static_cast<const T*>(t.k), t.k_stride, t.prefix};
  pack_keys<S>(k, t.first_key, t.keys, t.head_dim, keys);
  set_to<S>(q, R * dim, 0.0f);
  sum_columns<S, kStatistic>(t, [&](int head, int first, int count, typename S::V* sum) {
    for (int row = first; row < first + count; row += R) {
      const int some = std::min(first + count - row, R);
      pack_rows<S>(queries_of<S>(t, head), row, some, t.head_dim, t.scale, q);
      multiply<S>(q, dim, keys, kKeyColumns, t.head_dim, logits, kKeyColumns, nullptr);
      gather_columns<S, kStatistic>(t, head, row, some, logits, sum);
    }
  });
}

template <class S, Statistic kStatistic> void column_tile_by(const ColumnTile& t) {
  if (t.dtype == DType::f32) column_tile_of<S, kStatistic, float>(t);
  else if (t.dtype == DType::f16) column_tile_of<S, kStatistic, f16>(t);
  else column_tile_of<S, kStatistic, bf16>(t);
}

template <class S> void column_tile(const ColumnTile& t) {
  if (t.statistic == Statistic::largest) column_tile_by<S, Statistic::largest>(t);
  else column_tile_by<S, Statistic::sum>(t);
}

}  // namespace weft::kernels
