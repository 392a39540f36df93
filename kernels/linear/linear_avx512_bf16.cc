// kernels/linear/linear_avx512_bf16.cc: 16 pairs of bf16 numbers as one register, whose products are added to 16
// floats. Compiled with -mavx512bf16 and the flags of linear_avx512.cc.
#include "kernels/linear/linear_kernels.h"

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12's own intrinsics trip these two
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "kernels/linear/linear_avx512.h"
#include "kernels/linear/linear_pairs_avx512.h"

namespace weft::kernels {
namespace {

struct Pairs {
  static __m512 add(__m512 a, __m512 w, __m512 sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(w));
  }
};

void round_pairs(const float* from, std::int64_t pairs, float* to) {
  for (std::int64_t at = 0; at < pairs; at += 8) {
    const std::int64_t count = pairs - at < 8 ? pairs - at : 8;
    const __m256bh rounded = _mm512_cvtneps_pbh(Avx512::load_first(from + 2 * at, 2 * count));
    _mm256_mask_storeu_ps(to + at, static_cast<__mmask8>((1u << count) - 1u), reinterpret_cast<__m256>(rounded));
  }
}

template <bool Four> void unpack(const Unpack& u) {
  const std::int64_t pairs = kPartialSums * u.steps;
  const auto store = [&](std::int64_t pair, __m512i numbers) {
    _mm512_storeu_si512(u.to + pair / kPartialSums * u.step + pair % kPartialSums * u.lane_step, numbers);
  };
  expand_levels<Four>(u.from, u.group, u.k, u.table, u.from, store);
  for (std::int64_t pair = u.k / 2; pair < pairs; ++pair) store(pair, _mm512_setzero_si512());
}

constexpr LinearKernels with_rounding() {
  LinearKernels kernels = make_kernels<Pairs>("AVX-512 BF16");
  kernels.round_pairs = round_pairs;
  kernels.unpack4 = kernels.unpack_table = unpack<true>;
  kernels.unpack8 = unpack<false>;
  return kernels;
}
constexpr LinearKernels kKernels = with_rounding();

}  // namespace

const LinearKernels* pair_kernels_avx512() { return &kKernels; }

}  // namespace weft::kernels
#else
namespace weft::kernels {

const LinearKernels* pair_kernels_avx512() { return nullptr; }

}  // namespace weft::kernels
#endif
