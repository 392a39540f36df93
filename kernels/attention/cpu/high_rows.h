// kernels/attention/cpu/high_rows.h: logits by the high rows of split slots (KvSlots::split), by products of bytes,
// over a vector type S (cpu/math.h). The sums of values are in high_values.h.
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

constexpr float kTopQueryByte = 127.0f;

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

}  // namespace

/// The levels of a group, of fewer than 4 bits, as bytes.
template <class S, int kBits> typename S::I high_levels(const std::uint8_t* row) {
  if constexpr (kBits == 2) return S::masked(S::two_bits(row), 0x03030303);
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

namespace {

/// High rows one after the other, of slots side by side or of those in a list.
struct RowsInOrder {
  const std::uint8_t* at;
  std::int64_t row_bytes;
  const std::uint8_t* next() {
    const std::uint8_t* const row = at;
    at += row_bytes;
    return row;
  }
  RowsInOrder after(int rows) const { return {at + rows * row_bytes, row_bytes}; }
};
struct RowsOfList {
  const std::uint8_t* rows;
  std::int64_t row_bytes;
  const std::int32_t* slot;
  const std::uint8_t* next() { return rows + *slot++ * row_bytes; }
  RowsOfList after(int count) const { return {rows, row_bytes, slot + count}; }
};

}  // namespace

/// dot[2][H] = the products of H queries with groups g and g + 1 of 16 keys of 4 bits, a lane for each.
template <class S, int H, class Rows>
[[gnu::always_inline]] inline void multiply_pair(Rows rows, int g, const std::uint8_t* q, std::int64_t q_stride,
                                                 Coming* coming, std::uintptr_t soon, typename S::I (&dot)[2][H]) {
  typename S::Halves quarter[H][4];
  WEFT_UNROLLED (int u = 0; u < 4; ++u) {
    if (coming) coming->go_on(soon);
    typename S::I part[H][4];
    WEFT_UNROLLED (int i = 0; i < 4; ++i) {
      const std::uint8_t* const row = rows.next() + g * (kKvGroup / 2);
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

/// dot[H] = those with group g, two rows at a time.
template <class S, int H, class Rows>
[[gnu::always_inline]] inline void multiply_halves(Rows rows, int g, const std::uint8_t* q, std::int64_t q_stride,
                                                   Coming* coming, std::uintptr_t soon, typename S::I (&dot)[H]) {
  constexpr int half = kKvGroup / 2;
  Rows others = rows.after(kLanes / 2);
  typename S::Halves quarter[H][2];
  WEFT_UNROLLED (int u = 0; u < 2; ++u) {
    if (coming) coming->go_on(2 * soon);
    typename S::I part[H][4];
    WEFT_UNROLLED (int i = 0; i < 4; ++i) {
      const std::uint8_t *const row = rows.next() + g * half, *const other = others.next() + g * half;
      const typename S::I x = S::two_halves(row, other), even = S::masked(x, 0x0F0F0F0F),
                          odd = S::masked(S::template shifted<4>(x), 0x0F0F0F0F);
      WEFT_UNROLLED (int h = 0; h < H; ++h)
        part[h][i] = S::multiply_bytes(odd, S::twice(q + h * q_stride + half),
                                       S::multiply_bytes(even, S::twice(q + h * q_stride), S::no_words()));
    }
    WEFT_UNROLLED (int h = 0; h < H; ++h) quarter[h][u] = S::quarter_halves(part[h]);
  }
  WEFT_UNROLLED (int h = 0; h < H; ++h) dot[h] = S::join_rows(quarter[h][0], quarter[h][1]);
}

/// dot[H] = those with group g of fewer bits.
template <class S, int H, int kBits, class Rows>
[[gnu::always_inline]] inline void multiply_one(Rows rows, int g, const std::uint8_t* q, std::int64_t q_stride,
                                                Coming* coming, std::uintptr_t soon, typename S::I (&dot)[H]) {
  typename S::Quarter quarter[H][4];
  WEFT_UNROLLED (int u = 0; u < 4; ++u) {
    if (coming) coming->go_on(soon);
    typename S::I part[H][4];
    WEFT_UNROLLED (int i = 0; i < 4; ++i) {
      const std::uint8_t* const row = rows.next() + g * (kBits * kKvGroup / 8);
      const typename S::I x = high_levels<S, kBits>(row);
      WEFT_UNROLLED (int h = 0; h < H; ++h)
        part[h][i] = S::multiply_bytes(x, S::load_bytes(q + h * q_stride), S::no_words());
    }
    WEFT_UNROLLED (int h = 0; h < H; ++h) quarter[h][u] = S::quarter(part[h]);
  }
  WEFT_UNROLLED (int h = 0; h < H; ++h) dot[h] = S::join(quarter[h]);
}

/// Logits of H query heads from `head` on for all entries, by their high rows.
template <class S, int H, int kBits> void high_logits(const DecodeEntries& s, const SplitEntries& split, int head) {
  constexpr CoarseReading read = coarse_reading(kBits);
  const DecodeTile& t = s.tile;
  const int groups = kv_groups(t.head_dim);
  const std::int64_t row_bytes = static_cast<std::int64_t>(high_row_bytes(kBits, t.head_dim)),
                     q_stride = std::int64_t{groups} * kKvGroup;
  const auto* const rows = static_cast<const std::uint8_t*>(t.slot_k);
  const float *const q_scale = split.q_scale + head * groups, *const q_sum = split.q_sum + head * groups;
  const std::uint8_t* const q = split.q_bytes + head * q_stride;
  Coming* const coming = head == 0 ? s.coming : nullptr;
  const std::uintptr_t soon = s.share_of_tile(4, 3 * (in_pairs(kBits, groups) ? groups / 2 : groups));
  for (int first = 0; first < s.count; first += kLanes) {
    const std::int32_t* const slot = s.slot + first;
    const int count = s.count - first < kLanes ? s.count - first : kLanes;
    typename S::V logit[H];
    WEFT_UNROLLED (int h = 0; h < H; ++h) logit[h] = S::zero();
    const auto add = [&](int g, const typename S::I(&dot)[H]) __attribute__((always_inline)) {
      typename S::V scale, minimum;
      high_scales<S>(t.scale_k, groups, g, slot, count, scale, minimum);
      minimum = S::fma(scale, S::all(read.offset), minimum);
      scale = S::mul(scale, S::all(read.step));
      WEFT_UNROLLED (int h = 0; h < H; ++h) {
        logit[h] = S::fma(S::to_floats(dot[h]), S::mul(scale, S::all(q_scale[h * groups + g])), logit[h]);
        logit[h] = S::fma(minimum, S::all(q_sum[h * groups + g]), logit[h]);
      }
    };
    const auto add_rows = [&](const auto& of) __attribute__((always_inline)) {
      for (int g = 0; g < groups; ++g) {
        const std::uint8_t* const of_group = q + g * kKvGroup;
        if constexpr (kBits == 4)
          if (in_pairs(kBits, groups)) {
            typename S::I dot[2][H];
            multiply_pair<S, H>(of, g, of_group, q_stride, coming, soon, dot);
            add(g, dot[0]);
            add(++g, dot[1]);
            continue;
          }
        typename S::I dot[H];
        if constexpr (kBits == 4) multiply_halves<S, H>(of, g, of_group, q_stride, coming, soon, dot);
        else multiply_one<S, H, kBits>(of, g, of_group, q_stride, coming, soon, dot);
        add(g, dot);
      }
    };
    const std::uint8_t* const from = rows + slot[0] * row_bytes;
    if (slot[kLanes - 1] - slot[0] == kLanes - 1) add_rows(RowsInOrder{from, row_bytes});
    else add_rows(RowsOfList{rows, row_bytes, slot});
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

}  // namespace weft::kernels
