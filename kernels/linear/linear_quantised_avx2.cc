// kernels/linear/linear_quantised_avx2.cc: integer products in 256 bits, 8 columns of a tile at a time. Compiled with
// -mavx2 -mfma -mf16c -ffp-contract=off; like linear_avx512.cc it calls no shared inline function.
//
// Products of two bytes are added up in 16 bits first, which 8 pairs of 15 * 127 cannot overflow. So levels of 8 bits
// are taken as two halves of 4.
#include "kernels/linear/linear_quantised.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>

#include "kernels/unrolled.h"

namespace weft::kernels {
namespace {

constexpr std::int64_t kLine = 64, kAhead = 40 * kLine;  // kAhead: distance of prefetches from memory
constexpr int kMostRows = 6;
constexpr std::int64_t kSafeLines = 4;  // lines whose products fit 16 bits

__m256i quad_of(const std::int8_t* x) {
  int quad;
  __builtin_memcpy(&quad, x, sizeof quad);
  return _mm256_set1_epi32(quad);
}
__m256 halves_to_floats(const char* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

/// sum += product, at this place in the order: the compiler would add products to each other first and run out of
/// registers for them.
[[gnu::always_inline]] inline void add_here(__m256i& sum, __m256i product) {
  sum = _mm256_add_epi16(sum, product);
  asm("" : "+x"(sum));
}

/// dot[i] += the products of `lines` lines, at most kSafeLines, with row i.
template <int Rows, bool Four>
[[gnu::always_inline]] inline void add_lines(__m256i (&dot)[Rows], const char* weight, const std::int8_t* x,
                                             std::int64_t lines) {
  const __m256i low_halves = _mm256_set1_epi8(15);
  __m256i low[Rows], high[Rows];
  WEFT_UNROLLED (int i = 0; i < Rows; ++i) low[i] = high[i] = _mm256_setzero_si256();
  for (std::int64_t line = 0; line < lines; ++line, weight += kLine) {
    const __m256i levels = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weight));
    const __m256i first = _mm256_and_si256(levels, low_halves);
    const __m256i second = _mm256_and_si256(_mm256_srli_epi16(levels, 4), low_halves);
    WEFT_UNROLLED (int i = 0; i < Rows; ++i) {
      const __m256i a = quad_of(x + i * kQuad), b = Four ? quad_of(x + (Rows + i) * kQuad) : a;
      add_here(low[i], _mm256_maddubs_epi16(first, a));
      add_here(Four ? low[i] : high[i], _mm256_maddubs_epi16(second, b));
    }
    x += (Four ? 2 : 1) * Rows * kQuad;
  }
  WEFT_UNROLLED (int i = 0; i < Rows; ++i) {
    dot[i] = _mm256_add_epi32(dot[i], _mm256_madd_epi16(low[i], _mm256_set1_epi16(1)));
    if constexpr (!Four) dot[i] = _mm256_add_epi32(dot[i], _mm256_madd_epi16(high[i], _mm256_set1_epi16(16)));
  }
}

template <int Rows, bool Four> void tile(const IntegerTile& t) {
  const std::int64_t lines = Four ? t.quads / 2 : t.quads;
  for (int half = 0; half < 2; ++half) {
    const char* weight = reinterpret_cast<const char*>(t.weight);
    const std::int8_t* x = t.x;
    __m256 sum[Rows];
    WEFT_UNROLLED (int i = 0; i < Rows; ++i) sum[i] = _mm256_setzero_ps();
    for (std::int64_t g = 0; g < t.groups; ++g, weight += (lines + 1) * kLine) {
      if (t.prefetch && half == 0)
        for (std::int64_t line = 0; line <= lines; ++line) _mm_prefetch(weight + kAhead + line * kLine, _MM_HINT_T0);
      const __m256 scale = halves_to_floats(weight + half * 16), minimum = halves_to_floats(weight + 32 + half * 16);
      __m256i dot[Rows];
      WEFT_UNROLLED (int i = 0; i < Rows; ++i) dot[i] = _mm256_setzero_si256();
      for (std::int64_t line = 0; line < lines; line += kSafeLines, x += (Four ? 2 : 1) * kSafeLines * Rows * kQuad)
        add_lines<Rows, Four>(dot, weight + (line + 1) * kLine + half * 32, x, kSafeLines);
      WEFT_UNROLLED (int i = 0; i < Rows; ++i) {
        const __m256 both = _mm256_mul_ps(scale, _mm256_set1_ps(t.x_scale[g * Rows + i]));
        sum[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[i]), both, sum[i]);
        sum[i] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(t.x_sum[g * Rows + i]), sum[i]);
      }
    }
    WEFT_UNROLLED (int i = 0; i < Rows; ++i) _mm256_storeu_ps(t.sums + i * 16 + half * 8, sum[i]);
  }
}

/// Up to 8 numbers, zeros after them.
__m256 load_some(const float* from, std::int64_t count) {
  if (count >= 8) return _mm256_loadu_ps(from);
  alignas(32) float numbers[8] = {};
  for (std::int64_t i = 0; i < count; ++i) numbers[i] = from[i];
  return _mm256_load_ps(numbers);
}

void quantise(const QuantiseRow& q) {
  constexpr int kInfinity = 0x7F800000;
  const __m256i no_sign = _mm256_set1_epi32(0x7FFFFFFF);
  std::int8_t* to = q.to;
  for (std::int64_t g = 0; g < q.groups; ++g) {
    const std::int64_t first = g * q.group;
    const std::int64_t count = q.columns - first < q.group ? q.columns - first : q.group;
    __m256i most = _mm256_setzero_si256();  // as integers, so that NaN is the largest
    for (std::int64_t i = 0; i < count; i += 8)
      most = _mm256_max_epi32(most,
                              _mm256_and_si256(no_sign, _mm256_castps_si256(load_some(q.from + first + i, count - i))));
    alignas(32) int lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), most);
    int bits = 0, sum = 0;
    for (const int lane : lanes) bits = lane > bits ? lane : bits;
    const RowScale scale = row_scale(bits);
    for (std::int64_t i = 0; i < q.group; i += 8) {
      const __m256 x = i < count ? load_some(q.from + first + i, count - i) : _mm256_setzero_ps();
      const __m256i level = bits >= kInfinity ? _mm256_setzero_si256()
                                              : _mm256_cvtps_epi32(_mm256_mul_ps(x, _mm256_set1_ps(scale.inverse)));
      _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), level);
      for (int half = 0; half < 8; half += 4, to += q.rows * kQuad)
        for (int j = 0; j < 4; ++j) sum += lanes[half + j], to[j] = static_cast<std::int8_t>(lanes[half + j]);
    }
    q.scale[g * q.rows] = scale.scale;
    q.sum[g * q.rows] = scale.scale * static_cast<float>(sum);
  }
}

constexpr IntegerKernels make_kernels() {
  IntegerKernels kernels = {};
  kernels.name = "AVX2";
  kernels.rows = kMostRows;
  kernels.tile4[0] = tile<1, true>, kernels.tile8[0] = tile<1, false>;
  kernels.tile4[1] = tile<2, true>, kernels.tile8[1] = tile<2, false>;
  kernels.tile4[2] = tile<3, true>, kernels.tile8[2] = tile<3, false>;
  kernels.tile4[3] = tile<4, true>, kernels.tile8[3] = tile<4, false>;
  kernels.tile4[4] = tile<5, true>, kernels.tile8[4] = tile<5, false>;
  kernels.tile4[5] = tile<6, true>, kernels.tile8[5] = tile<6, false>;
  kernels.quantise = quantise;
  return kernels;
}
constexpr IntegerKernels kKernels = make_kernels();

}  // namespace

const IntegerKernels* integer_kernels_avx2() { return &kKernels; }

}  // namespace weft::kernels
#else
namespace weft::kernels {

const IntegerKernels* integer_kernels_avx2() { return nullptr; }

}  // namespace weft::kernels
#endif
