// kernels/attention/cpu/fields.h: values of few bits (coarse_row.h), four rows at a time, so that four levels of a
// number lie side by side as one product of bytes takes them. Over a vector type S (cpu/math.h).
#pragma once

#include <array>

#include "kernels/attention/cpu/math.h"

namespace weft::kernels {

namespace {  // compiled for each instruction set, and never shared between them

/// The place of number d of a group in the sums of four_fields().
constexpr int field_place(int bits, int d) { return bits == 4 ? (d / 32 * 2 + d % 2) * kLanes + d % 32 / 2 : d; }
template <int kBits>
inline constexpr auto kFieldPlaces = [] {
  std::array<std::uint8_t, kKvGroup> places{};
  for (int d = 0; d < kKvGroup; ++d)
    places[static_cast<std::size_t>(d)] = static_cast<std::uint8_t>(field_place(kBits, d));
  return places;
}();
/// The factor of a field's levels, which may stand in the middle of bytes.
constexpr float field_unit(int bits, int field) {
  return bits > 2 ? 1.0f : field == 1 ? 4.0f : field == 2 ? 16.0f : 1.0f;
}

}  // namespace

template <class S, int kBits>
[[gnu::always_inline]] inline void masked_fields(typename S::I x, typename S::I (&field)[4]) {
  constexpr int mask = kBits == 1 ? 0x01010101 : 0x03030303;
  field[0] = S::masked(x, mask), field[1] = S::masked(x, mask << 2), field[2] = S::masked(x, mask << 4);
  field[3] = S::masked(S::template shifted<6>(x), mask);
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
    masked_fields<S, kBits>(S::template quads < kBits == 1 ? 8 : 16 > (rows, at), field);
  }
}

}  // namespace weft::kernels
