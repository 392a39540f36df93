// kernels/levels/quantise_avx512.cc: the 16 rows of a tile as one register of floats, or two of doubles. Compiled with
// -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -ffp-contract=off.
#include "kernels/levels/quantise.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#pragma GCC diagnostic push  // GCC 12's own intrinsics trip these two
#pragma GCC diagnostic ignored "-Wuninitialized"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "kernels/levels/quantise_tile.h"
#include "kernels/linear/linear_transpose_avx512.h"

namespace weft::kernels {
namespace {

struct Rows16 {
  static constexpr int kLanes = 16;
  using F = __m512;
  struct D {
    __m512d low, high;
  };
  using M = __mmask16;

  template <class T>
  static void transpose(const T* from, std::int64_t rows, int count, std::int64_t stride, float* to) {
    const Transpose t{.from = from,
                      .rows = rows,
                      .k = count,
                      .stride = stride,
                      .to = to,
                      .step = kPartialSums * kLanes,
                      .lane_step = kLanes,
                      .width = kLanes};
    if constexpr (sizeof(T) == 2) transpose_halves<T>(t);
    else transpose_floats(t);
  }

  static F all(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_load_ps(p); }
  static void store(float* p, F a) { _mm512_store_ps(p, a); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }  // b where they are equal, or either is not a number
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F size(F a) { return _mm512_abs_ps(a); }
  static F power_below(F a) { return _mm512_and_ps(a, _mm512_castsi512_ps(_mm512_set1_epi32(0x7F800000))); }  // of two
  static F half(F a) { return _mm512_cvtph_ps(to_half(a)); }
  static void store_half(std::byte* p, F a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_half(a)); }

  static D all_wide(double x) { return {_mm512_set1_pd(x), _mm512_set1_pd(x)}; }
  static D widen(F a) {
    return {_mm512_cvtps_pd(_mm512_castps512_ps256(a)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1))};
  }
  static F narrow(D a) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(a.low)), _mm512_cvtpd_ps(a.high), 1);
  }
  static D add(D a, D b) { return {_mm512_add_pd(a.low, b.low), _mm512_add_pd(a.high, b.high)}; }
  static D sub(D a, D b) { return {_mm512_sub_pd(a.low, b.low), _mm512_sub_pd(a.high, b.high)}; }
  static D mul(D a, D b) { return {_mm512_mul_pd(a.low, b.low), _mm512_mul_pd(a.high, b.high)}; }
  static D div(D a, D b) { return {_mm512_div_pd(a.low, b.low), _mm512_div_pd(a.high, b.high)}; }
  static D fma(D a, D b, D c) {
    return {_mm512_fmadd_pd(a.low, b.low, c.low), _mm512_fmadd_pd(a.high, b.high, c.high)};
  }

  static M less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static M less(D a, D b) {
    return static_cast<M>(_mm512_cmp_pd_mask(a.low, b.low, _CMP_LT_OQ) | _mm512_cmp_pd_mask(a.high, b.high, _CMP_LT_OQ)
                                                                             << 8);
  }
  static M same(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
  static M not_finite(F a) { return _mm512_fpclass_ps_mask(a, 0x99); }  // either infinity, either kind of NaN
  static M both(M a, M b) { return a & b; }
  static M either(M a, M b) { return a | b; }
  static M unless(M a, M b) { return static_cast<M>(a & ~b); }
  static bool any(M a) { return a != 0; }
  static int first(M a) { return __builtin_ctz(a); }
  static F choose(M m, F yes, F no) { return _mm512_mask_mov_ps(no, m, yes); }

  using Levels = __m512i;
  static Levels no_levels() { return _mm512_setzero_si512(); }
  static Levels add_level(Levels line, F level, int shift) {
    return _mm512_or_si512(line, _mm512_sllv_epi32(_mm512_cvtps_epi32(level), _mm512_set1_epi32(shift)));
  }
  static void store_levels(std::byte* p, Levels line) { _mm512_storeu_si512(p, line); }

 private:
  static __m256i to_half(F a) { return _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
};

}  // namespace

QuantiseTileFunction quantise_avx512() { return quantise<Rows16>; }

}  // namespace weft::kernels
#pragma GCC diagnostic pop

#else
namespace weft::kernels {
QuantiseTileFunction quantise_avx512() { return nullptr; }
}  // namespace weft::kernels
#endif
