// kernels/linear/linear_quantised_avx512.cc: integer products by VNNI. Compiled with -mavx512f -mavx512bw -mavx512vl
// -mavx512dq -mavx512vnni -mfma -mf16c -ffp-contract=off; like linear_avx512.cc it calls no shared inline function.
#include "kernels/linear/linear_quantised.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12's own intrinsics trip these two
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "kernels/linear/linear_levels_avx512.h"
#include "kernels/unrolled.h"

namespace weft::kernels {
namespace {

constexpr std::int64_t kLine = 64, kAhead = 40 * kLine;  // kAhead: distance of prefetches from memory

__m512i quad_of(const std::int8_t* x) {
  int quad;
  __builtin_memcpy(&quad, x, sizeof quad);
  return _mm512_set1_epi32(quad);
}

/// dot[i] += the 4 levels of each lane of `weight` times the 4 levels of row i.
template <int Rows>
[[gnu::always_inline]] inline void multiply(__m512i (&dot)[Rows], __m512i weight, const std::int8_t* x) {
  WEFT_UNROLLED (int i = 0; i < Rows; ++i) dot[i] = _mm512_dpbusd_epi32(dot[i], weight, quad_of(x + i * kQuad));
}

/// What weights lie as: levels of 4 bits, as themselves or by a table, or levels of 8 bits.
enum class Levels { four, table, eight };

template <int Rows, Levels kLevels> void tile(const IntegerTile& t) {
  constexpr bool of_four = kLevels != Levels::eight;
  const char* weight = reinterpret_cast<const char*>(t.weight);
  const std::int8_t* x = t.x;
  const std::int64_t lines = of_four ? t.quads / 2 : t.quads;
  const __m512i low_halves = _mm512_set1_epi8(15);
  __m512i table = low_halves;
  if constexpr (kLevels == Levels::table)
    table = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(t.table)));
  const auto of_halves = [&](__m512i halves) {
    return kLevels == Levels::table ? _mm512_shuffle_epi8(table, halves) : halves;
  };
  __m512 sum[Rows];
  WEFT_UNROLLED (int i = 0; i < Rows; ++i) sum[i] = _mm512_setzero_ps();
  for (std::int64_t g = 0; g < t.groups; ++g) {
    const __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(weight)));
    const __m512 minimum = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(weight + kLine / 2)));
    if (t.prefetch) _mm_prefetch(weight + kAhead, _MM_HINT_T0);
    weight += kLine;
    __m512i dot[Rows];
    WEFT_UNROLLED (int i = 0; i < Rows; ++i) dot[i] = _mm512_setzero_si512();
    for (std::int64_t line = 0; line < lines; ++line, weight += kLine) {
      if (t.prefetch) _mm_prefetch(weight + kAhead, _MM_HINT_T0);
      const __m512i levels = _mm512_loadu_si512(weight);
      if constexpr (of_four) {
        multiply(dot, of_halves(_mm512_and_si512(levels, low_halves)), x);
        multiply(dot, of_halves(_mm512_and_si512(_mm512_srli_epi16(levels, 4), low_halves)), x + Rows * kQuad);
        x += 2 * Rows * kQuad;
      } else {
        multiply(dot, levels, x);
        x += Rows * kQuad;
      }
    }
    WEFT_UNROLLED (int i = 0; i < Rows; ++i) {
      const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(t.x_scale[g * Rows + i]));
      sum[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[i]), both, sum[i]);
      sum[i] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(t.x_sum[g * Rows + i]), sum[i]);
    }
  }
  WEFT_UNROLLED (int i = 0; i < Rows; ++i) _mm512_storeu_ps(t.sums + i * 16, sum[i]);
}

template <Levels kLevels, int... Rows> constexpr void fill(void (*(&tiles)[kMostIntegerRows])(const IntegerTile&)) {
  void (*const all[])(const IntegerTile&) = {tile<Rows, kLevels>...};
  for (int i = 0; i < static_cast<int>(sizeof...(Rows)); ++i) tiles[i] = all[i];
}
constexpr IntegerKernels make_kernels() {
  IntegerKernels kernels = {};
  kernels.name = "AVX-512 VNNI";
  kernels.rows = 12;  // 12 integer and 12 float sums in 32 registers
  fill<Levels::four, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12>(kernels.tile4);
  fill<Levels::eight, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12>(kernels.tile8);
  for (auto& tiles : kernels.tile_table) fill<Levels::table, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12>(tiles);
  kernels.quantise = quantise_levels<QuadsOfRows>;
  return kernels;
}
constexpr IntegerKernels kKernels = make_kernels();

}  // namespace

const IntegerKernels* integer_kernels_avx512() { return &kKernels; }

}  // namespace weft::kernels
#else
namespace weft::kernels {

const IntegerKernels* integer_kernels_avx512() { return nullptr; }

}  // namespace weft::kernels
#endif
