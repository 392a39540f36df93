// kernels/attention/cpu/high_rows.h: attention over the high rows of split slots (KvSlots::split), by products of
// bytes, over a vector type S (cpu/math.h).
//
// High rows are coarse, so a query and the weights of values have 8 bits here: what that rounds is small beside what
// the levels of high rows round. A level c of `bits` bits is read as
//
//   number = scale * step * (c - middle) + (minimum + scale * 127.5)     step = 2^(8 - bits), middle = (2^bits - 1) / 2
//
// so that a weight that is rounded to 0 moves the sum by little. All sums of products are exact integers.
#pragma once

#include "kernels/attention/cpu/choice.h"
#include "kernels/attention/cpu/level_logits.h"

namespace weft::kernels {

constexpr float kTopQueryByte = 127.0f, kTopWeightByte = 255.0f;
constexpr int kMostSummed = 4096;              ///< entries whose weights times levels fit an int
constexpr std::uintptr_t kHighAhead = 8192;    ///< distance of prefetches in bytes
constexpr std::uintptr_t kScalesAhead = 1024;  ///< that of scales, which are read as fast in rows

namespace {  // compiled for each instruction set, and never shared between them

/// Whether the bytes of two groups are multiplied together, as rows of 4 bits have them: those of even numbers of both,
/// then the others.
constexpr bool in_pairs(int bits, int groups) { return bits == 4 && groups % 2 == 0; }
/// The place of number d in the bytes of a row's query.
constexpr int query_byte(int bits, int groups, int d) {
  if (bits != 4) return d;
  const int g = d / kKvGroup, in_group = d % kKvGroup, half = kKvGroup / 2;
  if (in_pairs(bits, groups)) return g / 2 * 2 * kKvGroup + in_group % 2 * kKvGroup + g % 2 * half + in_group / 2;
  return g * kKvGroup + in_group % 2 * half + in_group / 2;
}
/// The place of number d of a group in the sums of four_fields().
constexpr int field_place(int bits, int d) { return bits == 4 ? (d / 32 * 2 + d % 2) * kLanes + d % 32 / 2 : d; }
/// The factor of a field's levels, which may stand in the middle of bytes.
constexpr float field_unit(int bits, int field) {
  return bits > 2 ? 1.0f : field == 1 ? 4.0f : field == 2 ? 16.0f : 1.0f;
}

}  // namespace

/// The levels of a group as bytes.
template <class S, int kBits> typename S::I high_levels(const std::uint8_t* row) {
  if constexpr (kBits == 4) return S::nibbles(row);
  else if constexpr (kBits == 2) return S::masked(S::two_bits(row), 0x03030303);
  else if constexpr (kBits == 1) return S::masked(S::one_bit(row), 0x01010101);
  else {
    const typename S::I two = high_levels<S, 2>(row);
    return S::add(S::add(two, two), high_levels<S, 1>(row + kKvGroup / 4));
  }
}

/// Rounds the queries of a tile to 8 bits per group of numbers.
template <class S> void query_bytes(const DecodeEntries& s, const SplitEntries& split, int bits) {
  const int dim = s.tile.head_dim, groups = kv_groups(dim);
  for (int part = 0; part < s.tile.group * groups; ++part) {
    const int first = part % groups * kKvGroup, count = dim - first < kKvGroup ? dim - first : kKvGroup;
    const float* const q = s.q + part / groups * s.dim + first;
    typename S::V most = S::zero(), trouble = S::zero();
    for (int d = 0; d < count; d += kLanes) {
      most = S::max(S::max(S::load(q + d), S::sub(S::zero(), S::load(q + d))), most);
      trouble = S::fma(S::load(q + d), S::zero(), trouble);
    }
    const float top = S::largest(most), inverse = top > kLeastWeight ? kTopQueryByte / top : 0.0f;
    std::int16_t level[kKvGroup] = {};
    for (int d = 0; d < count; d += kLanes) S::store_rounded(level + d, S::mul(S::load(q + d), S::all(inverse)));
    int total = 0;
    std::uint8_t* const bytes = split.q_bytes + part / groups * groups * kKvGroup;
    for (int d = 0; d < kKvGroup; ++d) {
      total += level[d];
      bytes[query_byte(bits, groups, first + d)] = static_cast<std::uint8_t>(level[d]);
    }
    const float scale = (inverse > 0 ? top / kTopQueryByte : 0.0f) + S::sum(trouble);
    split.q_scale[part] = scale, split.q_sum[part] = scale * static_cast<float>(total);
  }
}

/// The scales and minima of a group of 16 entries, a lane for each; `slot`: those of the entries. Lanes from `count` on
/// are of no use.
template <class S>
[[gnu::always_inline]] inline void high_scales(const std::byte* scales, int groups, int g, const std::int32_t* slot,
                                               int count, typename S::V& scale, typename S::V& minimum) {
  const auto* const first = reinterpret_cast<const std::uint8_t*>(scales) + 4 * g;
  const std::uint8_t* const run = first + std::int64_t{slot[0]} * groups * 4;
  const bool in_order = count == kLanes && slot[kLanes - 1] - slot[0] == kLanes - 1;
  if (in_order && groups == 1) return S::template scales_in_order<1>(run, scale, minimum);
  if (in_order && groups == 2) return S::template scales_in_order<2>(run, scale, minimum);
  alignas(64) std::int32_t at[kLanes];
  for (int i = 0; i < kLanes; ++i) at[i] = slot[i] * groups * 4;
  S::scales(first, at, count, scale, minimum);
}

/// dot[2][H] = the products of H queries with groups g and g + 1 of 16 keys of 4 bits, a lane for each; row_at(i): row
/// i.
template <class S, int H, class RowAt>
[[gnu::always_inline]] inline void multiply_pair(const RowAt& row_at, int g, const std::uint8_t* q,
                                                 std::int64_t q_stride, typename S::I (&dot)[2][H]) {
  typename S::Halves quarter[H][4];
  WEFT_UNROLLED (int u = 0; u < 4; ++u) {
    typename S::I part[H][4];
    WEFT_UNROLLED (int i = 0; i < 4; ++i) {
      const std::uint8_t* const row = row_at(4 * u + i) + g * (kKvGroup / 2);
      __builtin_prefetch(row + kHighAhead, 0, 2);
      const typename S::I x = S::load_bytes(row), even = S::masked(x, 0x0F0F0F0F),
                          odd = S::masked(S::template shifted<4>(x), 0x0F0F0F0F);
      WEFT_UNROLLED (int h = 0; h < H; ++h)
        part[h][i] = S::multiply_bytes(odd, S::load_bytes(q + h * q_stride + kKvGroup),
                                       S::multiply_bytes(even, S::load_bytes(q + h * q_stride), S::no_words()));
    }
    WEFT_UNROLLED (int h = 0; h < H; ++h) quarter[h][u] = S::quarter_halves(part[h]);
  }
  WEFT_UNROLLED (int h = 0; h < H; ++h) S::join_halves(quarter[h], dot[0][h], dot[1][h]);
}

/// dot[H] = those with group g.
template <class S, int H, int kBits, class RowAt>
[[gnu::always_inline]] inline void multiply_one(const RowAt& row_at, int g, const std::uint8_t* q,
                                                std::int64_t q_stride, typename S::I (&dot)[H]) {
  typename S::Quarter quarter[H][4];
  WEFT_UNROLLED (int u = 0; u < 4; ++u) {
    typename S::I part[H][4];
    WEFT_UNROLLED (int i = 0; i < 4; ++i) {
      const std::uint8_t* const row = row_at(4 * u + i) + g * (kBits * kKvGroup / 8);
      __builtin_prefetch(row + kHighAhead, 0, 2);
      const typename S::I x = high_levels<S, kBits>(row);
      WEFT_UNROLLED (int h = 0; h < H; ++h)
        part[h][i] = S::multiply_bytes(x, S::load_bytes(q + h * q_stride), S::no_words());
    }
    WEFT_UNROLLED (int h = 0; h < H; ++h) quarter[h][u] = S::quarter(part[h]);
  }
  WEFT_UNROLLED (int h = 0; h < H; ++h) dot[h] = S::join(quarter[h]);
}

/// Prefetches the scales and minima of 16 slots, the first of which are at `from`.
[[gnu::always_inline]] inline void prefetch_scales(const std::byte* from, int groups) {
  for (std::uintptr_t i = 0; i < static_cast<std::uintptr_t>(groups) * kLanes * 4; i += kLine)
    __builtin_prefetch(from + i, 0, 2);
}

/// Logits of H query heads from `head` on for all entries, by their high rows.
template <class S, int H, int kBits> void high_logits(const DecodeEntries& s, const SplitEntries& split, int head) {
  constexpr auto step = static_cast<float>(coarse_step(kBits));
  const DecodeTile& t = s.tile;
  const int groups = kv_groups(t.head_dim);
  const std::int64_t row_bytes = static_cast<std::int64_t>(high_row_bytes(kBits, t.head_dim)),
                     q_stride = std::int64_t{groups} * kKvGroup;
  const auto* const rows = static_cast<const std::uint8_t*>(t.slot_k);
  const float *const q_scale = split.q_scale + head * groups, *const q_sum = split.q_sum + head * groups;
  const std::uint8_t* const q = split.q_bytes + head * q_stride;
  for (int first = 0; first < s.count; first += kLanes) {
    const std::int32_t* const slot = s.slot + first;
    const int count = s.count - first < kLanes ? s.count - first : kLanes;
    typename S::V logit[H];
    WEFT_UNROLLED (int h = 0; h < H; ++h) logit[h] = S::zero();
    const auto add = [&](int g, const typename S::I(&dot)[H]) __attribute__((always_inline)) {
      typename S::V scale, minimum;
      high_scales<S>(t.scale_k, groups, g, slot, count, scale, minimum);
      minimum = S::fma(scale, S::all((step - 1) / 2), minimum);
      scale = S::mul(scale, S::all(step));
      WEFT_UNROLLED (int h = 0; h < H; ++h) {
        logit[h] = S::fma(S::to_floats(dot[h]), S::mul(scale, S::all(q_scale[h * groups + g])), logit[h]);
        logit[h] = S::fma(minimum, S::all(q_sum[h * groups + g]), logit[h]);
      }
    };
    if (head == 0) {
      const std::int64_t at = std::int64_t{slot[0]} * groups * 4;
      prefetch_scales(t.scale_k + at + kScalesAhead, groups);
      prefetch_scales(t.scale_v + at, groups);
    }
    const auto add_rows = [&](const auto& row_at) __attribute__((always_inline)) {
      for (int g = 0; g < groups; ++g) {
        const std::uint8_t* const of_group = q + g * kKvGroup;
        if constexpr (kBits == 4)
          if (in_pairs(kBits, groups)) {
            typename S::I dot[2][H];
            multiply_pair<S, H>(row_at, g, of_group, q_stride, dot);
            add(g, dot[0]);
            add(++g, dot[1]);
            continue;
          }
        typename S::I dot[H];
        multiply_one<S, H, kBits>(row_at, g, of_group, q_stride, dot);
        add(g, dot);
      }
    };
    const std::uint8_t* const from = rows + slot[0] * row_bytes;
    if (slot[kLanes - 1] - slot[0] == kLanes - 1) add_rows([&](int i) { return from + i * row_bytes; });
    else add_rows([&](int i) { return rows + slot[i] * row_bytes; });
    WEFT_UNROLLED (int h = 0; h < H; ++h) S::store(s.p + (head + h) * s.stride + first, logit[h]);
  }
}

/// Those of all query heads.
template <class S> void all_high_logits(const DecodeEntries& s, const SplitEntries& split) {
  query_bytes<S>(s, split, s.tile.coarse.keys);
  with_bits<S>(s.tile.coarse.keys, [&]<int kBits>() {
    by_heads<S>(s.tile.group, [&]<int H>(int head) { high_logits<S, H, kBits>(s, split, head); });
  });
}

/// Byte 4 j + r of field n is a level of row at[r] of a group, times field_unit(): that of number 16 n + j, or with 4
/// bits as field_place() says.
template <class S, int kBits>
[[gnu::always_inline]] inline void four_fields(const std::uint8_t* rows, const std::int32_t* at,
                                               typename S::I (&field)[4]) {
  if constexpr (kBits == 4) {
    WEFT_UNROLLED (int half = 0; half < 2; ++half) {
      const typename S::I x = S::template quads<16>(rows + 16 * half, at);
      field[2 * half] = S::masked(x, 0x0F0F0F0F);
      field[2 * half + 1] = S::masked(S::template shifted<4>(x), 0x0F0F0F0F);
    }
  } else if constexpr (kBits == 3) {
    const typename S::I high = S::template quads<16>(rows, at), low = S::template quads<8>(rows + kKvGroup / 4, at);
    const auto both = [](typename S::I two, typename S::I one) {
      const typename S::I x = S::masked(two, 0x03030303);
      return S::add(S::add(x, x), S::masked(one, 0x01010101));
    };
    field[0] = both(high, low), field[1] = both(S::template shifted<2>(high), S::template shifted<2>(low));
    field[2] = both(S::template shifted<4>(high), S::template shifted<4>(low));
    field[3] = both(S::template shifted<6>(high), S::template shifted<6>(low));
  } else {
    constexpr int mask = kBits == 1 ? 0x01010101 : 0x03030303;
    const typename S::I x = S::template quads < kBits == 1 ? 8 : 16 > (rows, at);
    field[0] = S::masked(x, mask), field[1] = S::masked(x, mask << 2), field[2] = S::masked(x, mask << 4);
    field[3] = S::masked(S::template shifted<6>(x), mask);
  }
}

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
  const auto* const rows = static_cast<const std::uint8_t*>(t.slot_v) + g * (kBits * kKvGroup / 8);
  const std::int32_t side_by_side[4] = {0, row_bytes, 2 * row_bytes, 3 * row_bytes};
  for (int first = 0; first < s.count; first += kMostSummed) {
    const int end = s.count - first < kMostSummed ? s.count : first + kMostSummed;
    typename S::I sum[H][4];
    WEFT_UNROLLED (int h = 0; h < H; ++h)
      WEFT_UNROLLED (int n = 0; n < 4; ++n) sum[h][n] = S::no_words();
    const auto add = [&](const std::uint8_t* from, const std::int32_t* at, int i) __attribute__((always_inline)) {
      typename S::I field[4];
      four_fields<S, kBits>(from, at, field);
      WEFT_UNROLLED (int h = 0; h < H; ++h) {
        const typename S::I weights = S::all_quads(split.weight_bytes + h * s.stride + i);
        WEFT_UNROLLED (int n = 0; n < 4; ++n) sum[h][n] = S::multiply_bytes(weights, field[n], sum[h][n]);
      }
    };
    int i = first;
    if (s.runs == 1) {  // all side by side
      const std::uint8_t* from = rows + std::int64_t{s.slot[first]} * row_bytes;
      for (; i + 4 <= end; i += 4, from += 4 * row_bytes) {
        if (g == 0 && head == 0) {
          __builtin_prefetch(from + kHighAhead, 0, 2);
          __builtin_prefetch(from + kHighAhead + 2 * row_bytes, 0, 2);
        }
        add(from, side_by_side, i);
      }
    }
    for (; i < end; i += 4) {  // those past the last come once more, with the weight 0
      const std::int32_t* const slot = s.slot + i;
      std::int32_t at[4];
      for (int r = 0; r < 4; ++r) at[r] = (slot[r] - slot[0]) * row_bytes;
      add(rows + std::int64_t{slot[0]} * row_bytes, at, i);
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
  for (int g = 0; g < groups; ++g) {
    for (int i = 0; i < s.count; i += kLanes) {
      typename S::V scales, minima;
      high_scales<S>(t.scale_v, groups, g, s.slot + i, s.count - i < kLanes ? s.count - i : kLanes, scales, minima);
      S::store(split.middle + i, S::fma(scales, S::all(127.5f), minima));
      S::store(split.scale + i, S::mul(scales, S::all(static_cast<float>(coarse_step(kBits)))));
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
