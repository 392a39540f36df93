// kernels/attention/cpu/levels.h: the reading part of a decode step over slots of int8 and int4 (kv_row.h), and over
// cold ones (coarse_row.h), by integer products, over a vector type S (cpu/math.h) and a kind of rows
// (cpu/level_rows.h). It does what cpu/attend.h does for float types.
//
// A query is rounded to 16 bits per group of numbers, and multiplied with the levels of a key as they are. The weights
// of values, p * scale, are rounded to 16 bits per block of 64 entries. Both sums are exact integers, so that their
// order is free; entries, not slots, make a block, so that empty slots between them change nothing.
#pragma once

#include "kernels/attention/cpu/fields.h"
#include "kernels/attention/cpu/level_logits.h"

namespace weft::kernels {

constexpr int kBlockEntries = 64;  ///< 64 * 255 * kTopWeight fits an int
constexpr int kLevelSums = kKvGroup / kLanes;

/// Rounds p * scale of up to 64 entries to 16 bits, and adds p * minimum to minima [16]. Returns what a weight of 1
/// means.
template <class S>
float quantise_weights(const float* p, const float* scale, const float* minimum, int count, std::int16_t* weight,
                       float* minima) {
  typename S::V most = S::zero(), trouble = S::zero(), of_minima = S::load(minima);
  for (int i = 0; i < count; i += kLanes) {
    const typename S::V x = S::mul(S::load(p + i), S::load(scale + i));
    most = S::max(S::max(x, S::sub(S::zero(), x)), most);
    trouble = S::fma(x, S::zero(), trouble);
    of_minima = S::fma(S::load(p + i), S::load(minimum + i), of_minima);
  }
  S::store(minima, of_minima);
  const float top = S::largest(most), inverse = top > kLeastWeight ? kTopWeight / top : 0.0f;
  for (int i = 0; i < count; i += kLanes)
    S::store_rounded(weight + i, S::mul(S::mul(S::load(p + i), S::load(scale + i)), S::all(inverse)));
  return (inverse > 0 ? top / kTopWeight : 0.0f) + S::sum(trouble);
}

/// sum[H, 64] += factor * (the weights of `count` entries times group g of their values), by sum_place().
template <class S, int H, class Rows, bool kWhole>
void weigh_group(const LevelRows& v, const std::int32_t* at, int count, int g,
                 const std::int16_t (*weight)[kBlockEntries], const float* factor, float* sum,
                 std::int64_t sum_stride) {
  typename S::I part[H][kLevelSums];
  WEFT_UNROLLED (int h = 0; h < H; ++h)
    WEFT_UNROLLED (int n = 0; n < kLevelSums; ++n) part[h][n] = S::no_words();
  for (int i = 0; i < count; i += 2) {  // an odd last entry comes twice, once with the weight 0
    if (i % 4 == 0) v.go_on();
    const typename S::I a = Rows::template words<S, kWhole>(v.rows + at[i], v, g);
    const typename S::I b = Rows::template words<S, kWhole>(v.rows + at[i + 1], v, g);
    const typename S::I low = S::low_words(a, b), high = S::high_words(a, b);
    const typename S::I x[kLevelSums] = {Rows::template low<S>(low), Rows::template high<S>(low),
                                         Rows::template low<S>(high), Rows::template high<S>(high)};
    WEFT_UNROLLED (int h = 0; h < H; ++h) {
      const typename S::I both = S::all_pairs(weight[h] + i);
      WEFT_UNROLLED (int n = 0; n < kLevelSums; ++n) part[h][n] = S::multiply_add(x[n], both, part[h][n]);
    }
  }
  WEFT_UNROLLED (int h = 0; h < H; ++h)
    WEFT_UNROLLED (int n = 0; n < kLevelSums; ++n) {
      float* const to = sum + h * sum_stride + n * kLanes;
      S::store(to, S::fma(S::to_floats(part[h][n]), S::all(factor[h]), S::load(to)));
    }
}

/// The same for rows of kBits bits, by field_place(): weights are two bytes here, so that four products are one
/// instruction's lane. The sums are the same integers.
template <class S, int H, int kBits>
void weigh_coarse_group(const LevelRows& v, const std::int32_t* at, int count, int g,
                        const std::int16_t (*weight)[kBlockEntries], const float* factor, float* sum,
                        std::int64_t sum_stride) {
  const std::uint8_t* const rows = v.rows + g * (kBits * kKvGroup / 8);
  std::uint8_t low[H][kBlockEntries], high[H][kBlockEntries];
  for (int h = 0; h < H; ++h)
    for (int i = 0; i < count; i += kLanes) S::store_planes(low[h] + i, high[h] + i, weight[h] + i);
  typename S::I of_low[H][4], of_high[H][4];
  WEFT_UNROLLED (int h = 0; h < H; ++h)
    WEFT_UNROLLED (int n = 0; n < 4; ++n) of_low[h][n] = of_high[h][n] = S::no_words();
  for (int i = 0; i < count; i += 4) {  // those past the last come with the weight 0
    v.go_on();
    typename S::I field[4];
    four_fields<S, kBits>(rows, at + i, field);
    WEFT_UNROLLED (int h = 0; h < H; ++h) {
      const typename S::I lows = S::all_quads(low[h] + i), highs = S::all_quads(high[h] + i);
      WEFT_UNROLLED (int n = 0; n < 4; ++n) {
        of_low[h][n] = S::multiply_bytes(lows, field[n], of_low[h][n]);
        of_high[h][n] = S::multiply_bytes(field[n], highs, of_high[h][n]);
      }
    }
  }
  WEFT_UNROLLED (int h = 0; h < H; ++h)
    WEFT_UNROLLED (int n = 0; n < 4; ++n) {
      float* const to = sum + h * sum_stride + n * kLanes;
      const typename S::V both = S::to_floats(S::add(S::times_256(of_high[h][n]), of_low[h][n]));
      S::store(to, S::fma(both, S::all(factor[h] / field_unit(kBits, n)), S::load(to)));
    }
}

/// Adds the values of `v`, whose weights begin with that of entry `begin`, to the sums of all query heads.
template <class S, class Rows> void add_values(const DecodeEntries& s, const LevelRows& v, int begin) {
  const DecodeTile& t = s.tile;
  const int groups = kv_groups(t.head_dim), whole = t.head_dim / kKvGroup;
  const LevelRows again = v.again();
  for (int first = 0; first < v.count; first += kBlockEntries) {
    const int count = v.count - first < kBlockEntries ? v.count - first : kBlockEntries;
    alignas(64) std::int32_t at[kBlockEntries];
    for (int i = 0; i < count; i += kLanes) v.find_rows(first + i, at + i);
    for (int g = 0; g < groups; ++g) {
      float scale[kBlockEntries], minimum[kBlockEntries];
      for (int i = 0; i < count; i += kLanes) {
        typename S::V scales, minima;
        S::scales(v.rows + v.level_bytes + 4 * g, at + i, count - i < kLanes ? count - i : kLanes, scales, minima);
        Rows::template read_as<S>(scales, minima);
        S::store(scale + i, scales);
        S::store(minimum + i, minima);
      }
      by_heads<S>(t.group, [&]<int H>(int head) {
        std::int16_t weight[H][kBlockEntries];
        float factor[H];
        const std::int64_t part = std::int64_t{head} * groups + g;
        for (int h = 0; h < H; ++h)
          factor[h] = quantise_weights<S>(s.p + (head + h) * s.stride + begin + first, scale, minimum, count, weight[h],
                                          s.minima + (part + h * groups) * kLanes);
        float* const sum = s.sum + part * kKvGroup;
        const LevelRows& rows = head == 0 ? v : again;
        if constexpr (Rows::kCoarseBits > 0) {
          constexpr int at_once = H < 2 ? H : 2;  // as many as registers hold the sums of
          for (int h = 0; h < H; h += at_once)
            weigh_coarse_group<S, at_once, Rows::kCoarseBits>(h == 0 ? rows : again, at, count, g, weight + h,
                                                              factor + h, sum + h * groups * kKvGroup,
                                                              groups * kKvGroup);
        } else if (g < whole) weigh_group<S, H, Rows, true>(rows, at, count, g, weight, factor, sum, groups * kKvGroup);
        else weigh_group<S, H, Rows, false>(rows, at, count, g, weight, factor, sum, groups * kKvGroup);
      });
    }
  }
}

/// Sets the sums of all query heads to 0.
template <class S> void clear_sums(const DecodeEntries& s) {
  const std::int64_t parts = std::int64_t{s.tile.group} * kv_groups(s.tile.head_dim);
  for (std::int64_t i = 0; i < parts * kKvGroup; i += kLanes) S::store(s.sum + i, S::zero());
  for (std::int64_t i = 0; i < parts; ++i) S::store(s.minima + i * kLanes, S::zero());
}

/// Moves the sums of all query heads from the places of int8 to those of field_place().
template <class S> void move_to_fields(const DecodeEntries& s, const Places& to) {
  const std::int64_t parts = std::int64_t{s.tile.group} * kv_groups(s.tile.head_dim);
  for (float* sum = s.sum; sum < s.sum + parts * kKvGroup; sum += kKvGroup) {
    float moved[kKvGroup];
    for (std::size_t d = 0; d < kKvGroup; ++d) moved[to[d]] = sum[kSumPlaces<DType::i8>[d]];
    __builtin_memcpy(sum, moved, sizeof moved);
  }
}

/// Writes the outputs, which the sums of all query heads hold. `place`: of the numbers of a whole group, or of int8.
template <class S, DType kType> void write_outputs(const DecodeEntries& s, const Places& place = kSumPlaces<kType>) {
  const DecodeTile& t = s.tile;
  const int groups = kv_groups(t.head_dim);
  for (int head = 0; head < t.group; ++head)
    for (int g = 0; g < groups; ++g) {
      const std::int64_t at = std::int64_t{head} * groups + g;
      const float of_minima = S::sum(S::load(s.minima + at * kLanes));
      const float* const sum = s.sum + at * kKvGroup;
      float* const out = t.out + std::int64_t{head} * t.head_dim + g * kKvGroup;
      const int left = t.head_dim - g * kKvGroup;
      if (left >= kKvGroup || kType == DType::i8)
        for (int d = 0; d < (left < kKvGroup ? left : kKvGroup); ++d)
          out[d] = sum[place[static_cast<std::size_t>(d)]] + of_minima;
      else
        for (int d = 0; d < left; ++d) out[d] = sum[sum_place(kType, t.head_dim, g * kKvGroup + d)] + of_minima;
      if (t.mean)
        for (int d = 0; d < (left < kKvGroup ? left : kKvGroup); ++d) out[d] += t.mean[t.head_dim + g * kKvGroup + d];
    }
}

/// The outputs of all query heads, of values from `values` on and of the cold ones.
template <class S, DType kType> void level_outputs(const DecodeEntries& s, const std::uint8_t* values) {
  const DecodeTile& t = s.tile;
  const bool cold = s.count > s.fine;
  clear_sums<S>(s);
  add_values<S, WholeRows<kType>>(s, LevelRows(values, kType, t.head_dim, s.slot, s.fine, s.coming), 0);
  if constexpr (kType == DType::i8)
    if (cold) {
      const Places& fields = t.coarse.values == 4 ? kFieldPlaces<4> : kFieldPlaces<2>;
      move_to_fields<S>(s, fields);
      for (int head = 0; head < t.group; ++head)  // the last cold entries are read as a whole vector
        S::store(s.p + head * s.stride + whole_vectors(s.count), S::zero());
      with_bits<S>(t.coarse.values,
                   [&]<int kBits>() { add_values<S, CoarseRows<kBits>>(s, cold_rows<S, kBits>(s, t.cold_v), s.fine); });
      return write_outputs<S, kType>(s, fields);
    }
  write_outputs<S, kType>(s);
}

/// outputs() of cpu/attend.h.
template <class S, class T>
requires is_level<T>
void outputs(const DecodeState<T>& s) { level_outputs<S, ValueOf<T>::kType>(s, &s.v->byte); }

}  // namespace weft::kernels
