// kernels/attention/cpu/row_pieces.h: rows of split slots (KvSlots::split) with all their bits: joined to rows of int8,
// or, keys of 4 bits, multiplied as they are. Over a vector type S (cpu/math.h).
#pragma once

#include "kernels/attention/cpu/high_products.h"
#include "kernels/attention/cpu/levels.h"

namespace weft::kernels {

/// The numbers of planes of kBits bits in all (coarse_row.h), as words of int8, from bit kFrom of each number on.
template <class S, int kBits, int kFrom> typename S::I of_planes(const std::uint8_t* plane) {
  if constexpr (kBits >= 4) {
    const typename S::I x = S::template words<DType::i4>(plane);
    const typename S::I both = S::add(S::template raised<kFrom + kBits - 4>(S::masked(x, 0x000F000F)),
                                      S::template raised<kFrom + kBits>(S::masked(x, 0x00F000F0)));
    if constexpr (kBits == 4) return both;
    else return S::add(both, of_planes<S, kBits - 4, kFrom>(plane + kKvGroup / 2));
  } else if constexpr (kBits >= 2) {
    const typename S::I x = S::template raised<kFrom + kBits - 2>(S::masked(S::two_bits(plane), 0x03030303));
    if constexpr (kBits == 2) return x;
    else return S::add(x, of_planes<S, kBits - 2, kFrom>(plane + kKvGroup / 4));
  } else {
    return S::template raised<kFrom>(S::masked(S::one_bit(plane), 0x01010101));
  }
}

namespace {

/// The keys or the values of a tile's split slots.
struct RowPieces {
  const std::uint8_t *high, *low, *scales;
  std::size_t high_bytes, low_bytes, level_bytes, fine_bytes, groups;
  int bits, head_dim;

  RowPieces(const void* high_rows, const std::byte* low_rows, const std::byte* of_scales, int row_bits, int dim)
      : high(static_cast<const std::uint8_t*>(high_rows)), low(reinterpret_cast<const std::uint8_t*>(low_rows)),
        scales(reinterpret_cast<const std::uint8_t*>(of_scales)), high_bytes(high_row_bytes(row_bits, dim)),
        low_bytes(low_row_bytes(row_bits, dim)), level_bytes(kv_level_bytes(DType::i8, dim)),
        fine_bytes(kv_row_bytes(DType::i8, dim)), groups(static_cast<std::size_t>(kv_groups(dim))), bits(row_bits),
        head_dim(dim) {}
  /// Prefetches a slot's low row.
  [[gnu::always_inline]] void prefetch_low(int slot) const {
    const std::uint8_t* const row = low + static_cast<std::size_t>(slot) * low_bytes;
    for (std::size_t i = 0; i < low_bytes; i += kLine) __builtin_prefetch(row + i, 0, 2);
    __builtin_prefetch(row + low_bytes - 1, 0, 2);
  }
};
RowPieces key_pieces(const DecodeTile& t) { return {t.slot_k, t.low_k, t.scale_k, t.coarse.keys, t.head_dim}; }
RowPieces value_pieces(const DecodeTile& t) { return {t.slot_v, t.low_v, t.scale_v, t.coarse.values, t.head_dim}; }

}  // namespace

/// Writes the row of int8 of a slot, and something up to a whole group behind its levels, before the scales.
template <class S, int kBits> void join_row(const RowPieces& of, int slot, std::uint8_t* row) {
  const auto place = static_cast<std::size_t>(slot);
  const std::uint8_t *high = of.high + place * of.high_bytes, *low = of.low + place * of.low_bytes;
  for (std::size_t g = 0; g < of.groups; ++g, high += kBits * kKvGroup / 8, low += (8 - kBits) * kKvGroup / 8)
    S::store_levels(row + g * kKvGroup, S::add(of_planes<S, kBits, 8 - kBits>(high), of_planes<S, 8 - kBits, 0>(low)));
  for (std::size_t g = 0; g < of.groups; ++g)
    __builtin_memcpy(row + of.level_bytes + 4 * g, of.scales + (place * of.groups + g) * 4, 4);
}

constexpr int kJoinedWords = kKvGroup / 4;  // of a group that are multiplied at once: every fourth number

/// ordered [groups, 64] = the words of a query [groups, 64] as multiply_joined() takes them: of each pair of groups, or
/// of each group, numbers 4 i of both, then 4 i + 2, 4 i + 1 and 4 i + 3.
template <class S> void order_words(const std::int16_t* words, int groups, std::int16_t* ordered) {
  const int together = in_pairs(4, groups) ? 2 : 1, stride = together * kJoinedWords;
  for (int g = 0; g < groups; ++g) {
    const std::int16_t *const even = words + g * kKvGroup, *const odd = even + kGroupWords;  // by query_place()
    std::int16_t* const to = ordered + (g & -together) * kKvGroup + (g & (together - 1)) * kJoinedWords;
    for (int i = 0; i < kJoinedWords; ++i) {
      to[i] = even[2 * i], to[stride + i] = even[2 * i + 1];
      to[2 * stride + i] = odd[2 * i], to[3 * stride + i] = odd[2 * i + 1];
    }
  }
}

/// dot[2][H] = the products of H queries with groups g and g + 1, if kPairs, or dot[0][H] with group g alone, of 16
/// keys whose high rows have 4 bits. q [H] times `q_stride` words, those of group g first. `at`: places of high and low
/// rows.
template <class S, int H, bool kPairs>
void multiply_joined(const RowPieces& of, const std::int32_t* at, int g, const std::int16_t* q, std::int64_t q_stride,
                     typename S::I (&dot)[2][H]) {
  constexpr int fours = kPairs ? 4 : 2, half = kKvGroup / 2;
  const auto load = [&](const std::uint8_t* rows, int i) __attribute__((always_inline)) {
    if constexpr (kPairs) return S::load_bytes(rows + at[i] + g * half);
    else return S::two_halves(rows + at[i] + g * half, rows + at[i + kLanes / 2] + g * half);
  };
  const auto query = [&](int h, int part) __attribute__((always_inline)) {
    const std::int16_t* const words = q + h * q_stride + part * kJoinedWords * (kPairs ? 2 : 1);
    if constexpr (kPairs) return S::load_words(words);
    else return S::twice(reinterpret_cast<const std::uint8_t*>(words));
  };
  typename S::Halves quarter[H][fours];
  WEFT_UNROLLED (int u = 0; u < fours; ++u) {
    typename S::I part[H][4];
    WEFT_UNROLLED (int i = 0; i < 4; ++i) {
      const typename S::I high = load(of.high, 4 * u + i), low = load(of.low, 4 * u + i),
                          even = S::joined(0x0F0F0F0F, low, S::template raised<4>(high)),
                          odd = S::joined(0x0F0F0F0F, S::template shifted<4>(low), high);
      const typename S::I level[4] = {S::template low<DType::i8>(even), S::template high<DType::i8>(even),
                                      S::template low<DType::i8>(odd), S::template high<DType::i8>(odd)};
      WEFT_UNROLLED (int h = 0; h < H; ++h) {
        part[h][i] = S::multiply_pairs(level[0], query(h, 0));
        WEFT_UNROLLED (int n = 1; n < 4; ++n) part[h][i] = S::multiply_add(level[n], query(h, n), part[h][i]);
      }
    }
    WEFT_UNROLLED (int h = 0; h < H; ++h) quarter[h][u] = S::quarter_halves(part[h]);
  }
  WEFT_UNROLLED (int h = 0; h < H; ++h) {
    if constexpr (kPairs) S::join_halves(quarter[h], dot[0][h], dot[1][h]);
    else dot[0][h] = S::join_rows(quarter[h][0], quarter[h][1]);
  }
}

}  // namespace weft::kernels
