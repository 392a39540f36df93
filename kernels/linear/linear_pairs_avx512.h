// kernels/linear/linear_pairs_avx512.h: levels as pairs of bf16 numbers. The files linear_{avx512_bf16,amx}.cc include
// it. It is in an unnamed namespace, as linear_avx512.h is.
#pragma once

#include "kernels/linear/linear_transpose_avx512.h"

namespace weft::kernels {
namespace {

/// The places of 32 numbers of bf16, so that each of the first 16 lies beside one of the others.
inline __m512i pair_order() {
  return _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,  //
                          23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
}

/// Turns levels of 16 rows into numbers, rounded to bf16, and calls store(i, pairs) with those of columns 2i and 2i +
/// 1, in ascending order, for at least `columns` columns and at most a line more. Those past the last are of any value.
template <bool Four, class Store>
[[gnu::always_inline]] inline void expand_levels(const std::byte* from, std::int64_t group, std::int64_t columns,
                                                 const std::uint8_t* table, const std::byte* prefetch,
                                                 const Store& store) {
  constexpr std::int64_t line = 64, of_line = Four ? 8 : 4;  // bytes, columns
  const __m512i order = pair_order();
  const __m512 numbers =
      _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table))));
  for (std::int64_t first = 0; first < columns; first += group) {
    const __m512 scale = Avx512::load(reinterpret_cast<const f16*>(from));
    const __m512 minimum = Avx512::load(reinterpret_cast<const f16*>(from + line / 2));
    _mm_prefetch(reinterpret_cast<const char*>(prefetch), _MM_HINT_T1);
    from += line, prefetch += line;
    const std::int64_t end = first + group < columns ? first + group : columns;
    for (std::int64_t k = first; k < end; k += of_line, from += line, prefetch += line) {
      _mm_prefetch(reinterpret_cast<const char*>(prefetch), _MM_HINT_T1);
      const __m512i levels = _mm512_loadu_si512(from);
      const auto number = [&](int shift) {
        const __m512i moved = _mm512_srli_epi32(levels, shift);
        __m512 level;
        if constexpr (Four) level = _mm512_permutexvar_ps(moved, numbers);  // which takes 4 bits of a lane
        else level = _mm512_cvtepi32_ps(shift == 24 ? moved : _mm512_and_si512(moved, _mm512_set1_epi32(255)));
        return _mm512_fmadd_ps(level, scale, minimum);
      };
      const auto pair = [&](int even, int odd) {
        const auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(number(odd), number(even)));
        return _mm512_permutexvar_epi16(order, both);
      };
      store(k / 2, pair(0, 8));
      store(k / 2 + 1, pair(16, 24));
      if constexpr (Four) {
        store(k / 2 + 2, pair(4, 12));
        store(k / 2 + 3, pair(20, 28));
      }
    }
  }
}

}  // namespace
}  // namespace weft::kernels
