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
void multiply_group(const LevelRows& k, const std::int32_t* at, int g, const std::int16_t* q, std::int64_t q_stride,
                    typename S::I (&dot)[H]) {
  typename S::Quarter quarter[H][4];
  for (int u = 0; u < 4; ++u) {
    k.go_on();
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

/// The same for rows of 4 bits, two at a time. The query is two bytes here, of which the low ones are not negative, so
/// that four products are one instruction's lane. q [H] times `q_stride` bytes: the 64 low bytes of group g, then the
/// high ones. The sums are the same integers.
template <class S, int H>
void multiply_fours(const LevelRows& k, const std::int32_t* at, int g, const std::uint8_t* q, std::int64_t q_stride,
                    typename S::I (&dot)[H]) {
  constexpr int half = kKvGroup / 2;
  const std::uint8_t* const rows = k.rows + g * half;
  typename S::Halves quarter[H][2];
  WEFT_UNROLLED (int u = 0; u < 2; ++u) {
    k.go_on();
    k.go_on();
    typename S::I part[H][4];
    WEFT_UNROLLED (int i = 0; i < 4; ++i) {
      const typename S::I x = S::two_halves(rows + at[4 * u + i], rows + at[4 * u + i + 8]),
                          even = S::masked(x, 0x0F0F0F0F), odd = S::masked(S::template shifted<4>(x), 0x0F0F0F0F);
      WEFT_UNROLLED (int h = 0; h < H; ++h) {
        const std::uint8_t *const low = q + h * q_stride, *const high = low + kKvGroup;
        const typename S::I of_high =
            S::multiply_bytes(odd, S::twice(high + half), S::multiply_bytes(even, S::twice(high), S::no_words()));
        part[h][i] =
            S::multiply_bytes(S::twice(low + half), odd, S::multiply_bytes(S::twice(low), even, S::times_256(of_high)));
      }
    }
    WEFT_UNROLLED (int h = 0; h < H; ++h) quarter[h][u] = S::quarter_halves(part[h]);
  }
  WEFT_UNROLLED (int h = 0; h < H; ++h) dot[h] = S::join_rows(quarter[h][0], quarter[h][1]);
}

/// Logits of H query heads. q_words [H, groups, 64], q_scale and q_sum [H, groups], p [H] rows of `stride` numbers.
/// `q_bytes` [H, groups, 128]: as multiply_fours() takes them.
template <class S, int H, class Rows>
void level_logits(const LevelRows& k, const std::int16_t* q_words, const float* q_scale, const float* q_sum, float* p,
                  std::int64_t stride, const std::uint8_t* q_bytes = nullptr) {
  const int groups = kv_groups(k.head_dim), whole = k.head_dim / kKvGroup;
  for (int first = 0; first < k.count; first += kLanes) {
    const int count = k.count - first < kLanes ? k.count - first : kLanes;
    alignas(64) std::int32_t at[kLanes];
    k.find_rows(first, at);
    typename S::V logit[H];
    WEFT_UNROLLED (int h = 0; h < H; ++h) logit[h] = S::zero();
    for (int g = 0; g < groups; ++g) {
      typename S::V scale, minimum;
      S::scales(k.rows + k.level_bytes + 4 * g, at, count, scale, minimum);
      Rows::template read_as<S>(scale, minimum);
      typename S::I dot[H];
      const std::int16_t* const q = q_words + g * kKvGroup;
      if constexpr (Rows::kCoarseBits == 4)
        multiply_fours<S, H>(k, at, g, q_bytes + g * 2 * kKvGroup, groups * 2 * kKvGroup, dot);
      else if (g < whole || Rows::kCoarseBits > 0)
        multiply_group<S, H, Rows, true>(k, at, g, q, groups * kKvGroup, dot);
      else if constexpr (Rows::kCoarseBits == 0) multiply_group<S, H, Rows, false>(k, at, g, q, groups * kKvGroup, dot);
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
  const LevelRows k(&s.k->byte, kType, s.tile.head_dim, s.slot, s.fine, head == 0 ? s.coming : nullptr);
  level_logits<S, H, WholeRows<kType>>(k, s.q_words + first * kKvGroup, s.q_scale + first, s.q_sum + first,
                                       s.p + head * s.stride, s.stride);
}

/// The cold rows from `rows` on.
template <class S, int kBits> LevelRows cold_rows(const DecodeEntries& s, const std::byte* rows) {
  const DecodeTile& t = s.tile;
  return {reinterpret_cast<const std::uint8_t*>(rows),
          coarse_row_bytes(kBits, t.head_dim),
          coarse_level_bytes(kBits, t.head_dim),
          t.head_dim,
          cold_slots<S>(s),
          s.count - s.fine,
          s.coming,
          t.hot};
}

/// The logits of the cold rows, after those of the others.
template <class S> void cold_logits(const DecodeEntries& s) {
  const DecodeTile& t = s.tile;
  const int groups = kv_groups(t.head_dim);
  const std::int64_t words = std::int64_t{t.group} * groups * kKvGroup;  // as rows of 4 bits have their numbers
  for (std::int64_t i = 0; t.coarse.keys == 4 && i < words; i += kLanes) {
    std::uint8_t* const bytes = s.q_bytes + i / kKvGroup * 2 * kKvGroup + i % kKvGroup;
    S::store_planes(bytes, bytes + kKvGroup, s.q_words + i);
  }
  with_bits<S>(t.coarse.keys, [&]<int kBits>() {
    const LevelRows k = cold_rows<S, kBits>(s, t.cold_k);
    by_heads<S>(t.group, [&]<int H>(int head) {
      const int first = head * groups;
      level_logits<S, H, CoarseRows<kBits>>(head == 0 ? k : k.again(), s.q_words + first * kKvGroup, s.q_scale + first,
                                            s.q_sum + first, s.p + head * s.stride + s.fine, s.stride,
                                            s.q_bytes + first * 2 * kKvGroup);
    });
  });
  for (int head = 0; head < t.group; ++head)
    for (std::int64_t i = s.count; i < whole_vectors(s.count); ++i) s.p[head * s.stride + i] = -__builtin_inff();
}

}  // namespace weft::kernels
