// kernels/attention/cpu/high_values.h: sums of values by the high rows of split slots, whose weights have 8 bits
// (high_rows.h), over a vector type S (cpu/math.h).
#pragma once

#include "kernels/attention/cpu/fields.h"
#include "kernels/attention/cpu/high_rows.h"

namespace weft::kernels {

constexpr float kTopWeightByte = 255.0f;
constexpr int kMostSummed = 4096;  ///< entries whose weights times levels fit an int

/// Rounds p * scale of all entries to bytes, and adds what a rounded weight does not multiply to `minima` [16]. Returns
/// what a weight of 1 means.
template <class S>
float round_weights(const SplitEntries& split, const float* p, int count, float half_top, std::uint8_t* weight,
                    float* minima) {
  typename S::V most = S::zero(), trouble = S::zero(), of_minima = S::load(minima), total = S::zero();
  for (int i = 0; i < count; i += kLanes) {
    const typename S::V x = S::mul(S::load(p + i), S::load(split.scale + i));
    most = S::max(x, most);
    trouble = S::fma(x, S::zero(), trouble);
    of_minima = S::fma(S::load(p + i), S::load(split.middle + i), of_minima);
  }
  const float top = S::largest(most), inverse = top > kLeastWeight ? kTopWeightByte / top : 0.0f;
  for (int i = 0; i < count; i += kLanes) {
    const typename S::V x = S::mul(S::load(p + i), S::load(split.scale + i)),
                        level = S::round(S::mul(x, S::all(inverse)));
    total = S::add(total, level);
    S::store_bytes(weight + i, level);
  }
  const float factor = (inverse > 0 ? top / kTopWeightByte : 0.0f) + S::sum(trouble);
  S::store(minima, of_minima);
  minima[0] -= factor * half_top * S::sum(total);
  return factor;
}

/// Adds the values of group g of all entries, for H query heads from `head` on.
template <class S, int H, int kBits>
void add_high_group(const DecodeEntries& s, const SplitEntries& split, int head, int g) {
  constexpr float half_top = ((1 << kBits) - 1) / 2.0f;
  const DecodeTile& t = s.tile;
  const int groups = kv_groups(t.head_dim);
  const std::int64_t part = std::int64_t{head} * groups + g;
  float factor[H];
  for (int h = 0; h < H; ++h)
    factor[h] = round_weights<S>(split, s.p + (head + h) * s.stride, s.count, half_top,
                                 split.weight_bytes + h * s.stride, s.minima + (part + h * groups) * kLanes);
  const auto row_bytes = static_cast<std::int32_t>(high_row_bytes(kBits, t.head_dim));
  const int of_group = g * (kBits * kKvGroup / 8);  // bytes of a row before the group
  const auto* const rows = static_cast<const std::uint8_t*>(t.slot_v);
  const std::uintptr_t soon = s.share_of_tile(kInHighValues, 4, s.count * groups);
  const std::int32_t side_by_side[4] = {0, row_bytes, 2 * row_bytes, 3 * row_bytes};
  for (int first = 0; first < s.count; first += kMostSummed) {
    const int end = s.count - first < kMostSummed ? s.count : first + kMostSummed;
    typename S::I sum[H][4];
    WEFT_UNROLLED (int h = 0; h < H; ++h)
      WEFT_UNROLLED (int n = 0; n < 4; ++n) sum[h][n] = S::no_words();
    const auto add = [&](const typename S::I(&field)[4], int i) __attribute__((always_inline)) {
      WEFT_UNROLLED (int h = 0; h < H; ++h) {
        const typename S::I weights = S::all_quads(split.weight_bytes + h * s.stride + i);
        WEFT_UNROLLED (int n = 0; n < 4; ++n) sum[h][n] = S::multiply_bytes(weights, field[n], sum[h][n]);
      }
    };
    int i = first;
    const auto add_in_order = [&](const auto& find_fields) __attribute__((always_inline)) {
      const std::uint8_t* from = rows + std::int64_t{s.slot[first]} * row_bytes;
      for (; i + 4 <= end; i += 4, from += 4 * row_bytes) {
        if (head == 0) s.coming->go_on(soon);
        typename S::I field[4];
        find_fields(from, field);
        add(field, i);
      }
    };
    const auto in_groups = [&]<int kGroups>() __attribute__((always_inline)) {
      add_in_order([&](const std::uint8_t* from, typename S::I(&field)[4]) __attribute__((always_inline)) {
        masked_fields<S, kBits>(S::template quads_in_order<kGroups>(from, g), field);
      });
    };
    if (s.runs == 1) {  // all side by side
      if (kBits == 2 && groups == 1) in_groups.template operator()<1>();
      else if (kBits == 2 && groups == 2) in_groups.template operator()<2>();
      else
        add_in_order([&](const std::uint8_t* from, typename S::I(&field)[4]) __attribute__((always_inline)) {
          four_fields<S, kBits>(from + of_group, side_by_side, field);
        });
    }
    for (; i < end; i += 4) {  // those past the last come once more, with the weight 0
      const std::int32_t* const slot = s.slot + i;
      std::int32_t at[4];
      for (int r = 0; r < 4; ++r) at[r] = (slot[r] - slot[0]) * row_bytes;
      typename S::I field[4];
      four_fields<S, kBits>(rows + std::int64_t{slot[0]} * row_bytes + of_group, at, field);
      add(field, i);
    }
    WEFT_UNROLLED (int h = 0; h < H; ++h)
      WEFT_UNROLLED (int n = 0; n < 4; ++n) {
        float* const to = split.sum + (part + h * groups) * kKvGroup + n * kLanes;
        S::store(to, S::fma(S::to_floats(sum[h][n]), S::all(factor[h] / field_unit(kBits, n)), S::load(to)));
      }
  }
}

/// Adds the values of all entries by their high rows: levels to split.sum by field_place(), the rest to s.minima.
template <class S, int kBits> void add_high_values(const DecodeEntries& s, const SplitEntries& split) {
  const DecodeTile& t = s.tile;
  const int groups = kv_groups(t.head_dim);
  const std::uintptr_t soon = s.share_of_tile(kInHighScales, kLanes, s.count * groups);
  for (int g = 0; g < groups; ++g) {
    for (int i = 0; i < s.count; i += kLanes) {
      typename S::V scales, minima;
      high_scales<S>(t.scale_v, groups, g, s.slot + i, s.count - i < kLanes ? s.count - i : kLanes, scales, minima);
      s.coming->go_on(soon);
      S::store(split.middle + i, S::fma(scales, S::all(127.5f), minima));
      S::store(split.scale + i, S::mul(scales, S::all(coarse_reading(kBits).step)));
    }
    by_heads<S>(t.group, [&]<int H>(int head) { add_high_group<S, H, kBits>(s, split, head, g); });
  }
}

/// Adds split.sum to the outputs.
template <class S> void add_high_outputs(const DecodeEntries& s, const SplitEntries& split) {
  const DecodeTile& t = s.tile;
  const int groups = kv_groups(t.head_dim);
  for (int head = 0; head < t.group; ++head)
    for (int d = 0; d < t.head_dim; ++d)
      t.out[head * t.head_dim + d] +=
          split.sum[(head * groups + d / kKvGroup) * kKvGroup + field_place(t.coarse.values, d % kKvGroup)];
}

}  // namespace weft::kernels
