// kernels/linear/linear_avx512.cc: 16 floats as one register. Compiled with -mavx512f -mavx512bw -mavx512vl -mavx512dq
// -mfma -mf16c -ffp-contract=off.
#include "kernels/linear/linear_kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12's own intrinsics trip these two
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "kernels/linear/float8_tile.h"
#include "kernels/linear/linear_avx512.h"

namespace weft::kernels {
namespace {

struct Fma {
  static __m512 add(__m512 a, __m512 w, __m512 sum) { return _mm512_fmadd_ps(a, w, sum); }
};

template <bool Four, bool kTable = false> void unpack(const Unpack& u) {
  constexpr std::int64_t line = 64, columns = Four ? 8 : 4;
  const std::byte* from = u.from;
  const __m512i mask = _mm512_set1_epi32(Four && !kTable ? 15 : 255), low_halves = _mm512_set1_epi8(15);
  __m512i table = mask;
  if constexpr (kTable) table = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(u.table)));
  for (std::int64_t first = 0; first < u.steps * kPartialSums; first += u.group) {
    const __m512 scale = Avx512::load(reinterpret_cast<const f16*>(from));
    const __m512 minimum = Avx512::load(reinterpret_cast<const f16*>(from + line / 2));
    from += line;
    for (std::int64_t k = first; k < first + u.group; k += columns, from += line) {
      if (k >= u.steps * kPartialSums) return;  // padding of the last group
      const __m512i levels = _mm512_loadu_si512(from);
      __m512i quads[2] = {levels, levels};  // of four columns each
      if constexpr (kTable) {
        quads[0] = _mm512_shuffle_epi8(table, _mm512_and_si512(levels, low_halves));
        quads[1] = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(levels, 4), low_halves));
      }
      float* const to = u.to + k / kPartialSums * u.step + k % kPartialSums * u.lane_step;
      WEFT_UNROLLED (int i = 0; i < columns; ++i) {
        const int shift = i % 4 * 8 + (kTable ? 0 : i / 4 * 4);
        const __m512 level = _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(quads[i / 4], shift), mask));
        _mm512_storeu_ps(to + i * u.lane_step, _mm512_fmadd_ps(level, scale, minimum));
      }
    }
  }
}

struct Float8 : Avx512 {
  static constexpr int kWidth = 16;
  [[gnu::always_inline]] static void expand(const std::byte* line, int, V (&columns)[4]) {
    constexpr int kAndOr = 0xEA;  // a & b | c
    const __m512i all = _mm512_loadu_si512(line), kept = _mm512_set1_epi32(static_cast<int>(0x87F00000u));
    WEFT_UNROLLED (int j = 0; j < 4; ++j)
      columns[j] = _mm512_castsi512_ps(_mm512_ternarylogic_epi32(
          _mm512_srai_epi32(_mm512_slli_epi32(all, 24 - 8 * j), 4), kept, _mm512_set1_epi32(0x38000000), kAndOr));
    if (_mm512_testn_epi8_mask(all, _mm512_set1_epi8(0x78)) != 0) [[unlikely]] {
      WEFT_UNROLLED (int j = 0; j < 4; ++j) small(columns[j]);
    }
  }
  /// Corrects numbers with exponent 0: 2^-15 (1 + m/8) becomes 2^-14 m/8.
  [[gnu::always_inline]] static void small(V& numbers) {
    constexpr int kAndOr = 0xEA, kOrAnd = 0xF8;  // a | b & c
    const __m512i bits = _mm512_castps_si512(numbers), sign = _mm512_set1_epi32(static_cast<int>(0x80000000u));
    const __mmask16 mask = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x07800000));
    const __m512 one =
        _mm512_castsi512_ps(_mm512_ternarylogic_epi32(bits, sign, _mm512_set1_epi32(0x38800000), kAndOr));
    const __m512 corrected = _mm512_mask_fmsub_ps(numbers, mask, _mm512_set1_ps(2), one);
    numbers = _mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_castps_si512(corrected), bits, sign, kOrAnd));
  }
};

int read(const void* from, std::int64_t bytes, std::int64_t prefetch) {
  const char* const p = static_cast<const char*>(from);
  __m512i any[4] = {};
  for (std::int64_t at = 0; at < bytes; at += 256) {
    WEFT_UNROLLED (int i = 0; i < 4; ++i) {
      if (prefetch > 0) _mm_prefetch(p + at + prefetch + i * 64, _MM_HINT_T1);
      any[i] = _mm512_or_si512(any[i], _mm512_loadu_si512(p + at + i * 64));
    }
  }
  return _mm512_reduce_or_epi32(_mm512_or_si512(_mm512_or_si512(any[0], any[1]), _mm512_or_si512(any[2], any[3])));
}

constexpr LinearKernels make_kernels() {
  LinearKernels kernels = make_kernels<Fma>("AVX-512");
  fill<Fma, f16, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12>(kernels, DType::f16);
  fill<Fma, bf16, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12>(kernels, DType::bf16);
  kernels.transpose[static_cast<int>(DType::f16)] = transpose_halves<f16>;
  kernels.transpose[static_cast<int>(DType::bf16)] = transpose_halves<bf16>;
  kernels.unpack4 = unpack<true>;
  kernels.unpack8 = unpack<false>;
  kernels.unpack_table = unpack<true, true>;
  kernels.unpack_f8 = unpack_float8<Float8>;
  kernels.float8_few = 12;
  kernels.float8_rows = 6;
  void (*const float8[])(const Float8Tile&) = {float8_tile<Float8, 1, 16>, float8_tile<Float8, 2, 8>,
                                               float8_tile<Float8, 3, 8>,  float8_tile<Float8, 4, 4>,
                                               float8_tile<Float8, 5, 4>,  float8_tile<Float8, 6, 4>};
  for (int i = 0; i < kernels.float8_rows; ++i) kernels.float8[i] = float8[i];
  kernels.read = read;
  return kernels;
}
constexpr LinearKernels kKernels = make_kernels();

}  // namespace

const LinearKernels* linear_kernels_avx512() { return &kKernels; }

}  // namespace weft::kernels
#else
namespace weft::kernels {

const LinearKernels* linear_kernels_avx512() { return nullptr; }

}  // namespace weft::kernels
#endif
