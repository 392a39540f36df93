// kernels/attention/cpu/high_products.h: products of queries of 8 bits with the high rows of split slots
// (coarse_row.h), 16 rows at a time, over a vector type S (cpu/math.h). All sums are exact integers.
#pragma once

#include "kernels/attention/cpu/coming.h"
#include "kernels/attention/cpu/math.h"

namespace weft::kernels {

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

namespace {  // compiled for each instruction set, and never shared between them

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

}  // namespace weft::kernels
