// kernels/linear/linear_levels_avx512.h: rows of x to levels. The files linear_quantised_{avx512,amx}.cc include it. It
// is in an unnamed namespace, as linear_avx512.h is.
#pragma once

#include <immintrin.h>

#include "kernels/linear/linear_quantised.h"

namespace weft::kernels {
namespace {

inline __m512 load_some(const float* from, std::int64_t count) {
  return _mm512_maskz_loadu_ps(count >= 16 ? __mmask16{0xFFFF} : static_cast<__mmask16>((1u << count) - 1u), from);
}

/// A place for 16 levels of a group: quads of all rows of a block lie one after another.
struct QuadsOfRows {
  static void store(const QuantiseRow& q, std::int64_t column, __m128i levels) {
    alignas(16) int quads[4];
    _mm_store_si128(reinterpret_cast<__m128i*>(quads), levels);
    std::int8_t* to = q.to + column * q.rows;
    for (int j = 0; j < 4; ++j, to += q.rows * kQuad) __builtin_memcpy(to, quads + j, sizeof(int));
  }
};

template <class Place> void quantise_levels(const QuantiseRow& q) {
  constexpr int kInfinity = 0x7F800000;
  for (std::int64_t g = 0; g < q.groups; ++g) {
    const std::int64_t first = g * q.group;
    const std::int64_t count = q.columns - first < q.group ? q.columns - first : q.group;
    __m512i most = _mm512_setzero_si512();  // as integers, so that NaN is the largest
    for (std::int64_t i = 0; i < count; i += 16)
      most = _mm512_max_epi32(most, _mm512_castps_si512(_mm512_abs_ps(load_some(q.from + first + i, count - i))));
    const int bits = _mm512_reduce_max_epi32(most);
    const RowScale scale = row_scale(bits);
    __m512i sum = _mm512_setzero_si512();
    for (std::int64_t i = 0; i < q.group; i += 16) {
      const __m512 x = i < count ? load_some(q.from + first + i, count - i) : _mm512_setzero_ps();
      const __m512i level = bits >= kInfinity ? _mm512_setzero_si512()
                                              : _mm512_cvtps_epi32(_mm512_mul_ps(x, _mm512_set1_ps(scale.inverse)));
      sum = _mm512_add_epi32(sum, level);
      Place::store(q, first + i, _mm512_cvtsepi32_epi8(level));
    }
    q.scale[g * q.rows] = scale.scale;
    q.sum[g * q.rows] = scale.scale * static_cast<float>(_mm512_reduce_add_epi32(sum));
  }
}

}  // namespace
}  // namespace weft::kernels
