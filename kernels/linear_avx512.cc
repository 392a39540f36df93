// kernels/linear_avx512.cc: 16 floats as one register. Compiled with -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma
// -mf16c -ffp-contract=off.
#include "kernels/linear_kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12's own intrinsics trip these two
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "kernels/linear_avx512.h"

namespace weft::kernels {
namespace {

struct Fma {
  static __m512 add(__m512 a, __m512 w, __m512 sum) { return _mm512_fmadd_ps(a, w, sum); }
};

/// Rows i and i + 8 as the halves of v[i], to columns l and l + 8 as the halves of v[l].
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

/// Of 16-bit numbers, as such: half the shuffles. Widened from memory, which spares the shuffle that a register costs.
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

template <bool Four> void unpack(const Unpack& u) {
  constexpr std::int64_t line = 64, columns = Four ? 8 : 4;
  const std::byte* from = u.from;
  const __m512i mask = _mm512_set1_epi32(Four ? 15 : 255);
  for (std::int64_t first = 0; first < u.steps * kPartialSums; first += u.group) {
    const __m512 scale = Avx512::load(reinterpret_cast<const f16*>(from));
    const __m512 minimum = Avx512::load(reinterpret_cast<const f16*>(from + line / 2));
    from += line;
    for (std::int64_t k = first; k < first + u.group; k += columns, from += line) {
      if (k >= u.steps * kPartialSums) return;  // what pads the last group
      const __m512i levels = _mm512_loadu_si512(from);
      float* const to = u.to + k / kPartialSums * u.step + k % kPartialSums * u.lane_step;
      WEFT_UNROLLED (int i = 0; i < columns; ++i) {
        const int shift = i % 4 * 8 + i / 4 * 4;
        const __m512 level = _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(levels, shift), mask));
        _mm512_storeu_ps(to + i * u.lane_step, _mm512_fmadd_ps(level, scale, minimum));
      }
    }
  }
}

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
  kernels.finish_sums = linear_finish<Avx512, SumsForm::whole>;
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
