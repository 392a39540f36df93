// kernels/levels/quantise_avx2.cc: 8 rows of a tile as one register of floats, or two of doubles. Compiled with
// -mavx2 -mfma -mf16c -ffp-contract=off.
#include "kernels/levels/quantise.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>

#include "kernels/levels/quantise_tile.h"

namespace weft::kernels {
namespace {

struct Rows8 {
  static constexpr int kLanes = 8;
  using F = __m256;
  struct D {
    __m256d low, high;
  };
  using M = __m256;  // all bits of a lane, or none

  template <class T>
  static void transpose(const T* from, std::int64_t rows, int count, std::int64_t stride, float* to) {
    for (int row = 0; row < kLanes; ++row)
      for (int i = 0; i < count; ++i) to[i * kLanes + row] = row < rows ? number(from[row * stride + i]) : 0.0f;
  }

  static F all(float x) { return _mm256_set1_ps(x); }
  static F load(const float* p) { return _mm256_load_ps(p); }
  static void store(float* p, F a) { _mm256_store_ps(p, a); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }  // b where they are equal, or either is not a number
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F size(F a) { return _mm256_andnot_ps(all(-0.0f), a); }
  static F power_below(F a) { return _mm256_and_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(0x7F800000))); }  // of two
  static F half(F a) { return _mm256_cvtph_ps(to_half(a)); }
  static void store_half(std::byte* p, F a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_half(a)); }

  static D all_wide(double x) { return {_mm256_set1_pd(x), _mm256_set1_pd(x)}; }
  static D widen(F a) {
    return {_mm256_cvtps_pd(_mm256_castps256_ps128(a)), _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1))};
  }
  static F narrow(D a) { return _mm256_set_m128(_mm256_cvtpd_ps(a.high), _mm256_cvtpd_ps(a.low)); }
  static D add(D a, D b) { return {_mm256_add_pd(a.low, b.low), _mm256_add_pd(a.high, b.high)}; }
  static D sub(D a, D b) { return {_mm256_sub_pd(a.low, b.low), _mm256_sub_pd(a.high, b.high)}; }
  static D mul(D a, D b) { return {_mm256_mul_pd(a.low, b.low), _mm256_mul_pd(a.high, b.high)}; }
  static D div(D a, D b) { return {_mm256_div_pd(a.low, b.low), _mm256_div_pd(a.high, b.high)}; }
  static D fma(D a, D b, D c) {
    return {_mm256_fmadd_pd(a.low, b.low, c.low), _mm256_fmadd_pd(a.high, b.high, c.high)};
  }

  static M less(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  static M less(D a, D b) {
    const __m256 low = _mm256_castpd_ps(_mm256_cmp_pd(a.low, b.low, _CMP_LT_OQ));
    const __m256 high = _mm256_castpd_ps(_mm256_cmp_pd(a.high, b.high, _CMP_LT_OQ));
    const __m256d halves = _mm256_castps_pd(_mm256_shuffle_ps(low, high, 0x88));  // 0 1, 4 5, 2 3, 6 7
    return _mm256_castpd_ps(_mm256_permute4x64_pd(halves, 0xD8));
  }
  static M same(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
  static M not_finite(F a) { return _mm256_cmp_ps(size(a), all(3.402823466e38f), _CMP_NLE_UQ); }
  static M both(M a, M b) { return _mm256_and_ps(a, b); }
  static M either(M a, M b) { return _mm256_or_ps(a, b); }
  static M unless(M a, M b) { return _mm256_andnot_ps(b, a); }
  static bool any(M a) { return _mm256_movemask_ps(a) != 0; }
  static int first(M a) { return __builtin_ctz(static_cast<unsigned>(_mm256_movemask_ps(a))); }
  static F choose(M m, F yes, F no) { return _mm256_blendv_ps(no, yes, m); }

  using Levels = __m256i;
  static Levels no_levels() { return _mm256_setzero_si256(); }
  static Levels add_level(Levels line, F level, int shift) {
    return _mm256_or_si256(line, _mm256_sllv_epi32(_mm256_cvtps_epi32(level), _mm256_set1_epi32(shift)));
  }
  static void store_levels(std::byte* p, Levels line) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), line); }

 private:
  static float number(float x) { return x; }
  static float number(f16 x) { return _cvtsh_ss(x.bits); }
  static float number(bf16 x) {
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(std::uint32_t{x.bits} << 16))));
  }
  static __m128i to_half(F a) { return _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
};

}  // namespace

QuantiseTileFunction quantise_avx2() { return quantise<Rows8>; }

}  // namespace weft::kernels

#else
namespace weft::kernels {
QuantiseTileFunction quantise_avx2() { return nullptr; }
}  // namespace weft::kernels
#endif
