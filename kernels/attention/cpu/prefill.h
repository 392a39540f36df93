// kernels/attention/cpu/prefill.h: prefill attention, a tile at a time, over a vector type S (cpu/math.h).
//
// A tile multiplies kTileRows query rows at a time with kKeyColumns keys, so that logits and probabilities never leave
// the first-level cache. Keys come in blocks that start at multiples of kKeyColumns within their sequence, and each sum
// runs along one lane in the order of its index. So the choice of rows that share a tile cannot change a bit, and a
// tile may have rows of several prompts that share a prefix.
#pragma once

#include <math.h>

#include <algorithm>

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

/// A row does not see keys that lie so many before it, or more.
inline int hidden_from(const PrefillTile& t) { return t.window > 0 ? t.window : 1 << 30; }
/// The start of the block in which a prompt's row sees its first key.
inline int first_block(const PrefillTile& t, int row) {
  const int hidden = hidden_from(t);
  return row >= hidden ? (row - hidden + 1) / kKeyColumns * kKeyColumns : 0;
}

/// Lets all rows of a tile go through whole blocks of the prefix together, and then those of each prompt through what
/// is left: calls attend(first place, last place, row of K and V of the token t.prefix, first key, last key). A
/// prompt's `rows` rows have places_of(rows) places; ends are exclusive.
template <class PlacesOf, class Attend>
void attend_prompts(const PrefillTile& t, const PlacesOf& places_of, const Attend& attend) {
  const int together = t.prefix / kKeyColumns * kKeyColumns;
  int begin = together, places = 0;
  for (const PromptRows& prompt : t.prompts) {
    begin = std::min(begin, first_block(t, prompt.first_row));
    places += places_of(prompt.rows);
  }
  attend(0, places, 0, begin, together);
  int place = 0;
  for (const PromptRows& prompt : t.prompts) {
    attend(place, place + places_of(prompt.rows), prompt.own, std::max(first_block(t, prompt.first_row), together),
           prompt.first_row + prompt.rows);
    place += places_of(prompt.rows);
  }
}

template <class S, class T> void prefill_tile_of(const PrefillTile& t) {
  constexpr int R = S::kTileRows;
  static_assert(kPromptPlaces % R == 0 && kQueryRows % kPromptPlaces == 0);
  const std::int64_t dim = whole_vectors(t.head_dim);
  float* q = t.scratch;
  float* out = q + kQueryRows * dim;
  float* keys = out + kQueryRows * dim;
  float* values = keys + kKeyColumns * dim;
  float* logits = values + kKeyColumns * dim;  // [R, kKeyColumns]
  float* max = logits + 8 * kKeyColumns;
  float* sum = max + kQueryRows;
  int token[kQueryRows];  // of each place's row, in its prompt

  // Each prompt's rows have places of their own; the last may be zeros, whose results are not used.
  const auto places_of = [](int rows) { return (rows + kPromptPlaces - 1) / kPromptPlaces * kPromptPlaces; };
  int places = 0, row = 0;
  for (const PromptRows& prompt : t.prompts) {
    const int end = places + places_of(prompt.rows);
    set_to<S>(q + places * dim, (end - places) * dim, 0.0f);
    pack_rows<S>(SplitRows<float>{t.q, t.q, t.q_stride}, row, prompt.rows, t.head_dim, t.scale, q + places * dim);
    for (int r = 0; places < end; ++places, ++r) token[places] = prompt.first_row + r;
    row += prompt.rows;
  }
  set_to<S>(out, places * dim, 0.0f);
  for (int place = 0; place < places; ++place) {  // a sink logit is one more key, which comes first
    max[place] = t.sink_logit ? *t.sink_logit : -__builtin_inff();
    sum[place] = t.sink_logit ? 1.0f : 0.0f;
  }

  const int hidden = hidden_from(t);
  attend_prompts(t, places_of, [&](int from, int to, std::int64_t own, int first_key, int last_key) {
    const auto rows_of = [&](const void* first, std::int64_t stride) {
      const T* const rows = static_cast<const T*>(first);
      return SplitRows<T>{rows, rows + own * stride, stride, t.prefix};
    };
    const SplitRows<T> k = rows_of(t.k, t.k_stride), v = rows_of(t.v, t.v_stride);
    for (; first_key < last_key; first_key += kKeyColumns) {
      const int count = last_key - first_key < kKeyColumns ? last_key - first_key : kKeyColumns;
      pack_keys<S>(k, first_key, count, t.head_dim, keys);
      pack_rows<S>(v, first_key, count, t.head_dim, 1.0f, values);
      for (int place = from; place < to; place += R) {
        const int most = token[place + R - 1] - first_key + 1;  // keys that the last of these rows sees
        if (most <= 0) continue;
        multiply<S>(q + place * dim, dim, keys, kKeyColumns, t.head_dim, logits, kKeyColumns, nullptr);
        if (t.cap > 0) cap_logits<S>(logits, R * kKeyColumns, t.cap);
        float factor[R];
        for (int i = 0; i < R; ++i) {
          const int seen = token[place + i] - first_key + 1, unseen = seen - hidden;  // of the block's first keys
          float* const of_row = logits + i * kKeyColumns;
          if (unseen >= kKeyColumns) {
            set_to<S>(of_row, kKeyColumns, 0.0f), factor[i] = 1;
            continue;
          }
          for (int n = 0; n < unseen; ++n) of_row[n] = -__builtin_inff();
          factor[i] = softmax_block<S>(of_row, seen < count ? seen : count, max[place + i], sum[place + i]);
        }
        multiply<S>(logits, kKeyColumns, values, dim, most < count ? most : count, out + place * dim, dim, factor);
      }
    }
  });
  int place = 0;
  row = 0;
  for (const PromptRows& prompt : t.prompts) {
    for (int r = 0; r < prompt.rows; ++r)
      finish_row<S>(t, row + r, out + (place + r) * dim, max[place + r], sum[place + r]);
    row += prompt.rows, place += places_of(prompt.rows);
  }
}

template <class S> void prefill_tile(const PrefillTile& t) {
  if (t.dtype == DType::f32) prefill_tile_of<S, float>(t);
  else if (t.dtype == DType::f16) prefill_tile_of<S, f16>(t);
  else prefill_tile_of<S, bf16>(t);
}

}  // namespace weft::kernels
