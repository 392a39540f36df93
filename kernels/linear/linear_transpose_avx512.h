// kernels/linear/linear_transpose_avx512.h: 16 floats as one register, and transposes of 16 x 16 numbers. The files
// linear_avx512*.cc and quantise_avx512.cc include it. It is in an unnamed namespace, as linear_avx512.h is.
#pragma once

#include <immintrin.h>

#include "kernels/linear/linear_kernels.h"
#include "kernels/unrolled.h"

namespace weft::kernels {
namespace {

inline __mmask16 first_lanes(std::int64_t count) { return static_cast<__mmask16>((1u << count) - 1u); }

struct Avx512 {
  using V = __m512;
  static V all(float x) { return _mm512_set1_ps(x); }
  static V load(const float* p) { return _mm512_loadu_ps(p); }
  static V load(const f16* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static V load(const bf16* p) { return from_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static V load_first(const float* p, std::int64_t n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
  static V load_first(const f16* p, std::int64_t n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p));
  }
  static V load_first(const bf16* p, std::int64_t n) { return from_bf16(_mm256_maskz_loadu_epi16(first_lanes(n), p)); }
  static void store(float* p, V v) { _mm512_storeu_ps(p, v); }
  static void store_first(float* p, V v, std::int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), v); }

  static V add(V a, V b) { return _mm512_add_ps(a, b); }
  static V sub(V a, V b) { return _mm512_sub_ps(a, b); }
  static V mul(V a, V b) { return _mm512_mul_ps(a, b); }
  static V div(V a, V b) { return _mm512_div_ps(a, b); }
  static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static V max(V a, V b) { return _mm512_max_ps(a, b); }  // b where either is not a number
  static V min(V a, V b) { return _mm512_min_ps(a, b); }
  static V abs(V a) { return _mm512_abs_ps(a); }
  static V copy_sign(V size, V sign) { return _mm512_or_ps(_mm512_abs_ps(size), _mm512_and_ps(all(-0.0f), sign)); }
  static V round(V a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static V times_power_of_two(V a, V n) { return _mm512_scalef_ps(a, n); }
  /// `below` where x < limit, else `other`.
  static V choose_below(V x, float limit, V below, V other) {
    return _mm512_mask_mov_ps(other, _mm512_cmp_ps_mask(x, all(limit), _CMP_LT_OQ), below);
  }

  /// Adds up the 16 partial sums of sixteen outputs in their fixed order (linear_kernels.h). It takes the outputs in
  /// bit-reversed order, so that the results come out in natural order.
  static V reduce(const float* sums) {
    constexpr int reversed[4] = {0, 2, 1, 3};
    V v[16], t[8];
    WEFT_UNROLLED (int i = 0; i < 16; ++i) v[i] = _mm512_load_ps(sums + (4 * reversed[i >> 2] + reversed[i & 3]) * 16);
    WEFT_UNROLLED (int i = 0; i < 8; ++i)
      t[i] = add(_mm512_shuffle_f32x4(v[i], v[i + 8], 0x44), _mm512_shuffle_f32x4(v[i], v[i + 8], 0xEE));
    WEFT_UNROLLED (int i = 0; i < 4; ++i)
      v[i] = add(_mm512_shuffle_f32x4(t[i], t[i + 4], 0x88), _mm512_shuffle_f32x4(t[i], t[i + 4], 0xDD));
    WEFT_UNROLLED (int i = 0; i < 2; ++i)
      t[i] = add(_mm512_shuffle_ps(v[i], v[i + 2], 0x44), _mm512_shuffle_ps(v[i], v[i + 2], 0xEE));
    return add(_mm512_shuffle_ps(t[0], t[1], 0x88), _mm512_shuffle_ps(t[0], t[1], 0xDD));
  }

 private:
  static V from_bf16(__m256i bits) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16)); }
};

/// Turns [i][j] into [j][i].
[[gnu::always_inline]] inline void transpose_16x16(__m512 (&v)[16]) {
  __m512 t[16];
  WEFT_UNROLLED (int i = 0; i < 16; i += 4) {  // 4x4 blocks inside each 128 bits
    const __m512 a = _mm512_unpacklo_ps(v[i], v[i + 1]), b = _mm512_unpackhi_ps(v[i], v[i + 1]);
    const __m512 c = _mm512_unpacklo_ps(v[i + 2], v[i + 3]), d = _mm512_unpackhi_ps(v[i + 2], v[i + 3]);
    t[i] = _mm512_shuffle_ps(a, c, 0x44), t[i + 1] = _mm512_shuffle_ps(a, c, 0xEE);
    t[i + 2] = _mm512_shuffle_ps(b, d, 0x44), t[i + 3] = _mm512_shuffle_ps(b, d, 0xEE);
  }
  WEFT_UNROLLED (int i = 0; i < 4; ++i) {  // then the blocks themselves
    const __m512 a = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x88), b = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xDD);
    const __m512 c = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0x88),
                 d = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0xDD);
    v[i] = _mm512_shuffle_f32x4(a, c, 0x88), v[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
    v[i + 8] = _mm512_shuffle_f32x4(a, c, 0xDD), v[i + 12] = _mm512_shuffle_f32x4(b, d, 0xDD);
  }
}

inline void transpose_floats(const Transpose& t) {
  const float* const from = static_cast<const float*>(t.from);
  const __mmask16 width = first_lanes(t.width);
  float* to = t.to;
  for (std::int64_t at = 0; at < t.k; at += kPartialSums, to += t.step) {
    const std::int64_t count = t.k - at < kPartialSums ? t.k - at : kPartialSums;
    __m512 v[16];
    for (int i = 0; i < 16; ++i)
      v[i] = i < t.rows ? Avx512::load_first(from + i * t.stride + at, count) : _mm512_setzero_ps();
    transpose_16x16(v);
    WEFT_UNROLLED (int l = 0; l < 16; ++l) _mm512_mask_storeu_ps(to + l * t.lane_step, width, v[l]);
  }
}

/// Transposes rows i and i + 8, the halves of v[i], to columns l and l + 8, the halves of v[l].
[[gnu::always_inline]] inline void transpose_16x16(__m512i (&v)[8]) {
  __m512i t[8], u[8];
  WEFT_UNROLLED (int i = 0; i < 4; ++i) {
    t[i] = _mm512_unpacklo_epi16(v[2 * i], v[2 * i + 1]);
    t[i + 4] = _mm512_unpackhi_epi16(v[2 * i], v[2 * i + 1]);
  }
  WEFT_UNROLLED (int i = 0; i < 8; i += 4) {
    u[i] = _mm512_unpacklo_epi32(t[i], t[i + 1]), u[i + 1] = _mm512_unpackhi_epi32(t[i], t[i + 1]);
    u[i + 2] = _mm512_unpacklo_epi32(t[i + 2], t[i + 3]), u[i + 3] = _mm512_unpackhi_epi32(t[i + 2], t[i + 3]);
  }
  WEFT_UNROLLED (int i = 0; i < 4; ++i) {
    const int low = i / 2 * 4 + i % 2;
    v[2 * i] = _mm512_unpacklo_epi64(u[low], u[low + 2]);
    v[2 * i + 1] = _mm512_unpackhi_epi64(u[low], u[low + 2]);
  }
  WEFT_UNROLLED (int l = 0; l < 8; ++l) v[l] = _mm512_shuffle_i64x2(v[l], v[l], 0xD8);
}

/// Transposes 16-bit numbers as such, with half the shuffles. They are widened from memory, which saves the shuffle
/// that a register costs.
template <class T> void transpose_halves(const Transpose& t) {
  const T* const from = static_cast<const T*>(t.from);
  float* to = t.to;
  for (std::int64_t at = 0; at < t.k; at += kPartialSums, to += t.step) {
    __m512i v[8];
    if (t.rows == 16 && t.k - at >= kPartialSums) {
      WEFT_UNROLLED (int i = 0; i < 8; ++i) {
        const T *const low = from + i * t.stride + at, *const high = low + 8 * t.stride;
        _mm_prefetch(reinterpret_cast<const char*>(low + 4 * kPartialSums), _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(high + 4 * kPartialSums), _MM_HINT_T0);
        v[i] = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(low))),
                                  _mm256_loadu_si256(reinterpret_cast<const __m256i*>(high)), 1);
      }
    } else {
      const __mmask16 some = first_lanes(t.k - at < kPartialSums ? t.k - at : kPartialSums);
      for (int i = 0; i < 8; ++i) {
        const T* const row = from + i * t.stride + at;
        const __m256i low = _mm256_maskz_loadu_epi16(i < t.rows ? some : __mmask16{0}, row);
        const __m256i high = _mm256_maskz_loadu_epi16(i + 8 < t.rows ? some : __mmask16{0}, row + 8 * t.stride);
        v[i] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
      }
    }
    transpose_16x16(v);
    alignas(64) char columns[8][64];
    WEFT_UNROLLED (int l = 0; l < 8; ++l) _mm512_store_si512(columns[l], v[l]);
    WEFT_UNROLLED (int l = 0; l < 16; ++l)
      _mm512_storeu_ps(to + l * t.lane_step, Avx512::load(reinterpret_cast<const T*>(columns[l % 8] + l / 8 * 32)));
  }
}

}  // namespace
}  // namespace weft::kernels
