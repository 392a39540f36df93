// kernels/attention/cpu/prefill.h: prefill attention and column sums, a tile at a time, over a vector type S
// (cpu/math.h).
//
// A tile multiplies kTileRows query rows at a time with kKeyColumns keys, so that logits and probabilities never leave
// the first-level cache. Keys come in blocks that start at multiples of kKeyColumns within their sequence, and each sum
// runs along one lane in the order of its index. So the choice of rows that share a tile cannot change a bit.
#pragma once

#include <math.h>

#include "kernels/attention/cpu/tile.h"

namespace weft::kernels {

/// The online softmax of one row's logits over one block of keys. Turns them into exp(logit - max) and returns the
/// factor by which earlier sums shrink. Only the first `visible` keys count.
template <class S> float softmax_block(float* logits, int visible, float& max, float& sum) {
  constexpr int vectors = kKeyColumns / kLanes;
  const float nothing = -__builtin_inff();
  typename S::V x[vectors], most = S::all(nothing);
  WEFT_UNROLLED (int n = 0; n < vectors; ++n) {
    const int count = visible - n * kLanes;
    x[n] = S::load(logits + n * kLanes);
    if (count < kLanes) x[n] = S::first(x[n], count > 0 ? count : 0, nothing);
    most = S::max(most, x[n]);
  }
  const float block_max = S::largest(most), new_max = block_max > max ? block_max : max;
  typename S::V total = S::zero();
  WEFT_UNROLLED (int n = 0; n < vectors; ++n) {
    x[n] = exp_of<S>(S::sub(x[n], S::all(new_max)));
    total = S::add(total, x[n]);
    S::store(logits + n * kLanes, x[n]);
  }
  const float factor = max == new_max ? 1.0f : exp_of_one<S>(max - new_max);
  sum = sum * factor + S::sum(total);
  max = new_max;
  return factor;
}

/// Writes row r of the result, of which `out` has the sum of its values.
template <class S> void finish_row(const PrefillTile& t, int r, const float* out, float max, float sum) {
  float* const row = t.out + r * t.out_stride;
  const typename S::V inverse = S::all(1.0f / sum);
  for (int d = 0; d < t.head_dim; d += kLanes) {
    const int lanes = t.head_dim - d < kLanes ? t.head_dim - d : kLanes;
    store_some<S>(row + d, S::mul(S::load(out + d), inverse), lanes);
  }
  if (t.lse) t.lse[r] = max + logf(sum);
}

template <class S, class T> void prefill_tile_of(const PrefillTile& t) {
  constexpr int R = S::kTileRows;
  static_assert(kQueryRows % R == 0);
  const std::int64_t dim = whole_vectors(t.head_dim);
  float* q = t.scratch;
  float* out = q + kQueryRows * dim;
  float* keys = out + kQueryRows * dim;
  float* values = keys + kKeyColumns * dim;
  float* logits = values + kKeyColumns * dim;  // [R, kKeyColumns]
  float* max = logits + 8 * kKeyColumns;
  float* sum = max + kQueryRows;

  const int tile_rows = (t.rows + R - 1) / R * R;  // the last rows may be zeros, whose results are not used
  set_to<S>(q, tile_rows * dim, 0.0f);
  set_to<S>(out, tile_rows * dim, 0.0f);
  pack_rows<S>(SplitRows<float>{t.q, t.q, t.q_stride}, 0, t.rows, t.head_dim, t.scale, q);
  for (int r = 0; r < tile_rows; ++r) {  // a sink logit is one more key, which comes first
    max[r] = t.sink_logit ? *t.sink_logit : -__builtin_inff();
    sum[r] = t.sink_logit ? 1.0f : 0.0f;
  }

  const int end = t.first_row + t.rows;
  const int hidden = t.window > 0 ? t.window : end;  // a row does not see keys that lie so many before it, or more
  const int begin = t.first_row >= hidden ? (t.first_row - hidden + 1) / kKeyColumns * kKeyColumns : 0;
  for (int first_key = begin; first_key < end; first_key += kKeyColumns) {
    const int count = end - first_key < kKeyColumns ? end - first_key : kKeyColumns;
    const SplitRows<T> k{static_cast<const T*>(t.prefix_k), static_cast<const T*>(t.k), t.k_stride, t.prefix};
    const SplitRows<T> v{static_cast<const T*>(t.prefix_v), static_cast<const T*>(t.v), t.v_stride, t.prefix};
    pack_keys<S>(k, first_key, count, t.head_dim, keys);
    pack_rows<S>(v, first_key, count, t.head_dim, 1.0f, values);
    for (int r = 0; r < tile_rows; r += R) {
      const int last = t.first_row + r + R - 1 - first_key;  // the key that the last of these rows sees last
      if (last < 0) continue;
      multiply<S>(q + r * dim, dim, keys, kKeyColumns, t.head_dim, logits, kKeyColumns, nullptr);
      if (t.cap > 0) cap_logits<S>(logits, R * kKeyColumns, t.cap);
      float factor[R];
      for (int i = 0; i < R; ++i) {
        const int seen = last - (R - 1) + i + 1, unseen = seen - hidden;  // of the block's first keys
        float* const row = logits + i * kKeyColumns;
        if (unseen >= kKeyColumns) {
          set_to<S>(row, kKeyColumns, 0.0f), factor[i] = 1;
          continue;
        }
        for (int n = 0; n < unseen; ++n) row[n] = -__builtin_inff();
        factor[i] = softmax_block<S>(row, seen < count ? seen : count, max[r + i], sum[r + i]);
      }
      multiply<S>(logits, kKeyColumns, values, dim, last + 1 < count ? last + 1 : count, out + r * dim, dim, factor);
    }
  }
  for (int r = 0; r < t.rows; ++r) finish_row<S>(t, r, out + r * dim, max[r], sum[r]);
}

template <class S> void prefill_tile(const PrefillTile& t) {
  if (t.dtype == DType::f32) prefill_tile_of<S, float>(t);
  else if (t.dtype == DType::f16) prefill_tile_of<S, f16>(t);
  else prefill_tile_of<S, bf16>(t);
}

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
