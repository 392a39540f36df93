// kernels/attention/cpu/level_logits.h: products of queries with the keys of int8 and int4 slots (kv_row.h), and with
// cold ones (coarse_row.h), as integers, over a vector type S (cpu/math.h) and a kind of rows (cpu/level_rows.h).
//
// A query is rounded to 16 bits per group of numbers, and multiplied with the levels of a key as they are. The sums are
// exact integers, so that their order is free.
#pragma once

#include "kernels/attention/cpu/level_rows.h"
#include "kernels/attention/cpu/quantise.h"

namespace weft::kernels {

constexpr float kTopWeight = 32767.0f;  ///< the largest level of a query, and the largest weight
constexpr float kLeastWeight = 1e-30f;  ///< smaller ones count as 0: their inverses may not be finite

/// Rounds one group of a query to 16 bits. `words` gets them by query_place(), `scale` what 1 means, and `sum` their
/// sum.
template <class S, DType kType>
void quantise_query(const float* q, int head_dim, int first, std::int16_t* words, float* scale, float* sum) {
  const int count = head_dim - first < kKvGroup ? head_dim - first : kKvGroup;
  typename S::V most = S::zero(), trouble = S::zero();
  for (int d = 0; d < count; d += kLanes) {
    const typename S::V x = S::load(q + first + d);
    most = S::max(S::max(x, S::sub(S::zero(), x)), most);
    trouble = S::fma(x, S::zero(), trouble);
  }
  const float top = S::largest(most), inverse = top > kLeastWeight ? kTopWeight / top : 0.0f;
  *scale = (inverse > 0 ? top / kTopWeight : 0.0f) + S::sum(trouble);
  std::int16_t level[kKvGroup] = {};
  for (int d = 0; d < count; d += kLanes) S::store_rounded(level + d, S::mul(S::load(q + first + d), S::all(inverse)));
  int total = 0;
  for (int d = 0; d < kKvGroup; ++d) total += level[d];
  *sum = *scale * static_cast<float>(total);
  if (count == kKvGroup) {
    for (int d = 0; d < kKvGroup; ++d) words[kQueryPlaces<kType>[static_cast<std::size_t>(d)]] = level[d];
    return;
  }
  for (int i = 0; i < kKvGroup; ++i) words[i] = 0;
  for (int d = 0; d < count; ++d) words[query_place(kType, head_dim, first + d)] = level[d];
}

/// dot[h] = the products of H queries with group g of 16 keys, a lane for each.
template <class S, int H, class Rows, bool kWhole>
void multiply_group(const LevelRows& k, LevelPrefetch& ahead, const std::int32_t* at, int g, const std::int16_t* q,
                    std::int64_t q_stride, typename S::I (&dot)[H]) {
  typename S::Quarter quarter[H][4];
  for (int u = 0; u < 4; ++u) {
    ahead.go_on();
    typename S::I part[H][4];
    WEFT_UNROLLED (int i = 0; i < 4; ++i) {
      const typename S::I x = Rows::template words<S, kWhole>(k.rows + at[4 * u + i], k, g);
      const typename S::I low = Rows::template low<S>(x), high = Rows::template high<S>(x);
      WEFT_UNROLLED (int h = 0; h < H; ++h)
        part[h][i] = S::multiply_add(high, S::load_words(q + h * q_stride + kGroupWords),
                                     S::multiply_pairs(low, S::load_words(q + h * q_stride)));
    }
    WEFT_UNROLLED (int h = 0; h < H; ++h) quarter[h][u] = S::quarter(part[h]);
  }
  WEFT_UNROLLED (int h = 0; h < H; ++h) dot[h] = S::join(quarter[h]);
}

/// Logits of H query heads. q_words [H, groups, 64], q_scale and q_sum [H, groups], p [H] rows of `stride` numbers.
template <class S, int H, class Rows>
void level_logits(const LevelRows& k, const std::int16_t* q_words, const float* q_scale, const float* q_sum, float* p,
                  std::int64_t stride) {
  const int groups = kv_groups(k.head_dim), whole = k.head_dim / kKvGroup;
  for (int first = 0; first < k.count; first += kLanes) {
    const int count = k.count - first < kLanes ? k.count - first : kLanes;
    alignas(64) std::int32_t at[kLanes];
    k.find_rows(first, at);
    LevelPrefetch ahead(k, first);
    typename S::V logit[H];
    WEFT_UNROLLED (int h = 0; h < H; ++h) logit[h] = S::zero();
    for (int g = 0; g < groups; ++g) {
      typename S::V scale, minimum;
      S::scales(k.rows + k.level_bytes + 4 * g, at, count, scale, minimum);
      Rows::template read_as<S>(scale, minimum);
      typename S::I dot[H];
      const std::int16_t* const q = q_words + g * kKvGroup;
      if (g < whole) multiply_group<S, H, Rows, true>(k, ahead, at, g, q, groups * kKvGroup, dot);
      else multiply_group<S, H, Rows, false>(k, ahead, at, g, q, groups * kKvGroup, dot);
      WEFT_UNROLLED (int h = 0; h < H; ++h) {
        logit[h] = S::fma(S::to_floats(dot[h]), S::mul(scale, S::all(q_scale[h * groups + g])), logit[h]);
        logit[h] = S::fma(minimum, S::all(q_sum[h * groups + g]), logit[h]);
      }
    }
    WEFT_UNROLLED (int h = 0; h < H; ++h) S::store(p + h * stride + first, logit[h]);
  }
  for (int h = 0; h < H; ++h)
    for (std::int64_t i = k.count; i < whole_vectors(k.count); ++i) p[h * stride + i] = -__builtin_inff();
}

/// logits() of cpu/attend.h, of the rows that are not cold.
template <class S, int H, class T>
requires is_level<T>
void logits(const DecodeState<T>& s, int head) {
  constexpr DType kType = KeyOf<T>::kType;
  const int groups = kv_groups(s.tile.head_dim), first = head * groups;
  const std::uintptr_t next = s.count > s.fine ? reinterpret_cast<std::uintptr_t>(s.tile.cold_k)
                                               : reinterpret_cast<std::uintptr_t>(&s.v->byte + s.slot[0] * s.v_row);
  const LevelRows k(&s.k->byte, kType, s.tile.head_dim, s.slot, s.fine, next);
  level_logits<S, H, WholeRows<kType>>(k, s.q_words + first * kKvGroup, s.q_scale + first, s.q_sum + first,
                                       s.p + head * s.stride, s.stride);
}

/// The cold rows from `rows` on; `next` is read after them.
template <class S, int kBits> LevelRows cold_rows(const DecodeEntries& s, const std::byte* rows, std::uintptr_t next) {
  const DecodeTile& t = s.tile;
  return {reinterpret_cast<const std::uint8_t*>(rows),
          coarse_row_bytes(kBits, t.head_dim),
          coarse_level_bytes(kBits, t.head_dim),
          t.head_dim,
          cold_slots<S>(s),
          s.count - s.fine,
          next,
          t.hot};
}

/// The logits of the cold rows, after those of the others.
template <class S> void cold_logits(const DecodeEntries& s) {
  const DecodeTile& t = s.tile;
  const int groups = kv_groups(t.head_dim);
  with_bits<S>(t.coarse.keys, [&]<int kBits>() {
    const LevelRows k = cold_rows<S, kBits>(s, t.cold_k, reinterpret_cast<std::uintptr_t>(t.slot_v));
    by_heads<S>(t.group, [&]<int H>(int head) {
      const int first = head * groups;
      level_logits<S, H, CoarseRows<kBits>>(k, s.q_words + first * kKvGroup, s.q_scale + first, s.q_sum + first,
                                            s.p + head * s.stride + s.fine, s.stride);
    });
  });
  for (int head = 0; head < t.group; ++head)
    for (std::int64_t i = s.count; i < whole_vectors(s.count); ++i) s.p[head * s.stride + i] = -__builtin_inff();
}

}  // namespace weft::kernels
