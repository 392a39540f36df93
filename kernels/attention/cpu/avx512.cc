// kernels/attention/cpu/avx512.cc: 16 floats as one register. Compiled with -mavx512f -mavx512bw -mavx512vl -mavx512dq
// -mavx512vnni -mfma -mf16c -ffp-contract=off.
#include "kernels/attention/cpu/kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && \
    defined(__AVX512VNNI__)
#pragma GCC diagnostic push  // GCC 12's own intrinsics trip these two
#pragma GCC diagnostic ignored "-Wuninitialized"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "kernels/attention/cpu/decode.h"
#include "kernels/attention/cpu/keys.h"
#include "kernels/attention/cpu/math.h"
#include "kernels/attention/cpu/prefill_tiles.h"

namespace weft::kernels {
namespace {

__mmask16 first_lanes(int count) { return static_cast<__mmask16>((1u << count) - 1u); }

struct Avx512 {
  using V = __m512;
  static constexpr int kTileRows = 6, kTileVectors = 4;  // 24 sums, 4 columns and a row in 32 registers
  static constexpr int kHeads = 4;                       // query heads that share one read of a key
  static constexpr int kShortKeys = 4;                   // short keys that are read side by side
  static constexpr int kValueVectors = 8;                // of a value's columns at once, for up to two heads
  static constexpr bool kUnrollsKeys = true;             // of 16, so that the sums of one head stay in registers

  static V zero() { return _mm512_setzero_ps(); }
  static V all(float x) { return _mm512_set1_ps(x); }

  static V load(const float* p) { return _mm512_loadu_ps(p); }
  static V load(const f16* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static V load(const bf16* p) { return from_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static V load_first(const float* p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
  static V load_first(const f16* p, int n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p)); }
  static V load_first(const bf16* p, int n) { return from_bf16(_mm256_maskz_loadu_epi16(first_lanes(n), p)); }

  static void store(float* p, V v) { _mm512_storeu_ps(p, v); }
  static void store(f16* p, V v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_f16(v)); }
  static void store(bf16* p, V v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16(v)); }
  static void store_first(float* p, V v, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), v); }
  static void store_first(f16* p, V v, int n) { _mm256_mask_storeu_epi16(p, first_lanes(n), to_f16(v)); }
  static void store_first(bf16* p, V v, int n) { _mm256_mask_storeu_epi16(p, first_lanes(n), to_bf16(v)); }

  /// 32 words of 16 bits, or 16 integers: see cpu/levels.h.
  using I = __m512i;
  using Quarter = __m512i;
  template <DType kType> static I words(const std::uint8_t* p) {
    if constexpr (kType == DType::i8) return _mm512_loadu_si512(p);
    else return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  template <DType kType> static I words_first(const std::uint8_t* p, int bytes) {
    const __mmask64 mask = ~std::uint64_t{0} >> (64 - bytes);
    if constexpr (kType == DType::i8) return _mm512_maskz_loadu_epi8(mask, p);
    else return _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(static_cast<__mmask32>(mask), p));
  }
  template <DType kType> static I low(I words) {
    return _mm512_and_si512(words, _mm512_set1_epi16(kType == DType::i8 ? 255 : 15));
  }
  template <DType kType> static I high(I words) { return _mm512_srli_epi16(words, kType == DType::i8 ? 8 : 4); }
  /// In part p of word i, from its lowest bit on, number 2 i + p of a plane (coarse_row.h); what stands above is not
  /// masked.
  static I two_bits(const std::uint8_t* p) {
    const __m128i plane = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm512_srlv_epi64(_mm512_broadcast_i32x4(plane), _mm512_setr_epi64(0, 0, 2, 2, 4, 4, 6, 6));
  }
  static I one_bit(const std::uint8_t* p) {
    std::int64_t plane;
    __builtin_memcpy(&plane, p, sizeof plane);
    return _mm512_srlv_epi64(_mm512_set1_epi64(plane), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static I masked(I x, int mask) { return _mm512_and_si512(x, _mm512_set1_epi32(mask)); }
  /// The bits of a where mask has ones, of b elsewhere.
  static I joined(int mask, I a, I b) { return _mm512_ternarylogic_epi32(_mm512_set1_epi32(mask), a, b, 0xCA); }
  template <int kBits> static I shifted(I x) { return _mm512_srli_epi16(x, kBits); }
  template <int kBits> static I raised(I x) { return _mm512_slli_epi16(x, kBits); }
  static void store_levels(std::uint8_t* p, I x) { _mm512_storeu_si512(p, x); }  // of words as those of int8
  static I low_words(I a, I b) { return _mm512_unpacklo_epi16(a, b); }
  static I high_words(I a, I b) { return _mm512_unpackhi_epi16(a, b); }
  /// Byte 4 j + r is byte j of row r. With kBytes = 8 byte 8 + j of a row is its byte j, one bit lower.
  template <int kBytes> static I quads(const std::uint8_t* p, const std::int32_t* at) {
    I x = _mm512_castsi128_si512(sixteen<kBytes>(p + at[0]));
    x = _mm512_inserti32x4(x, sixteen<kBytes>(p + at[1]), 1);
    x = _mm512_inserti32x4(x, sixteen<kBytes>(p + at[2]), 2);
    x = _mm512_inserti32x4(x, sixteen<kBytes>(p + at[3]), 3);
    x = _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), x);
    return _mm512_shuffle_epi8(
        x, _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)));
  }
  /// quads<16>() of group g of four rows one after the other, each of kGroups groups of 16 bytes.
  template <int kGroups> static I quads_in_order(const std::uint8_t* p, int g) {
    static_assert(kGroups == 1 || kGroups == 2);
    I x = _mm512_loadu_si512(p);
    if constexpr (kGroups == 1)
      x = _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), x);
    else
      x = _mm512_permutex2var_epi32(
          x, add(_mm512_set1_epi32(4 * g), _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27)),
          _mm512_loadu_si512(p + 64));
    return _mm512_shuffle_epi8(
        x, _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)));
  }
  /// a[i] + the products of four bytes each, of which those of b are not negative.
  static I multiply_bytes(I b, I c, I a) { return _mm512_dpbusd_epi32(a, b, c); }
  static I load_bytes(const void* p) { return _mm512_loadu_si512(p); }
  static I all_quads(const std::uint8_t* p) {
    int four;
    __builtin_memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
  }
  /// Stores 16 whole numbers from 0 to 255.
  static void store_bytes(std::uint8_t* p, V v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
  }
  /// Stores the low bytes of 16 words, and the high ones.
  static void store_planes(std::uint8_t* low, std::uint8_t* high, const std::int16_t* words) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(low), _mm256_cvtepi16_epi8(x));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(high), _mm256_cvtepi16_epi8(_mm256_srli_epi16(x, 8)));
  }
  static I times_256(I a) { return _mm512_slli_epi32(a, 8); }
  static I no_words() { return _mm512_setzero_si512(); }
  static I load_words(const std::int16_t* p) { return _mm512_loadu_si512(p); }
  static I all_pairs(const std::int16_t* p) {
    int pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return _mm512_set1_epi32(pair);
  }
  static I multiply_pairs(I a, I b) { return _mm512_madd_epi16(a, b); }
  static I multiply_add(I a, I b, I c) { return _mm512_dpwssd_epi32(c, a, b); }
  static I add(I a, I b) { return _mm512_add_epi32(a, b); }
  static V to_floats(I a) { return _mm512_cvtepi32_ps(a); }
  /// Rounds 16 numbers from -32767 to 32767 to the nearest integer, even ones in the middle.
  static void store_rounded(std::int16_t* p, V v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(v)));
  }
  /// Lane i of join() is the sum of row i % 4 of quarter i / 4.
  static Quarter quarter(const I (&row)[4]) {
    const I ab = add(_mm512_unpacklo_epi32(row[0], row[1]), _mm512_unpackhi_epi32(row[0], row[1]));
    const I cd = add(_mm512_unpacklo_epi32(row[2], row[3]), _mm512_unpackhi_epi32(row[2], row[3]));
    return add(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  }
  static I join(const Quarter (&q)[4]) {
    const I low = add(_mm512_shuffle_i32x4(q[0], q[1], 0x88), _mm512_shuffle_i32x4(q[0], q[1], 0xDD));
    const I high = add(_mm512_shuffle_i32x4(q[2], q[3], 0x88), _mm512_shuffle_i32x4(q[2], q[3], 0xDD));
    return add(_mm512_shuffle_i32x4(low, high, 0x88), _mm512_shuffle_i32x4(low, high, 0xDD));
  }
  /// The same for the halves of rows: lane i of `first` is the sum of the lower half of row i, of `second` of the
  /// other.
  using Halves = __m512i;
  static Halves quarter_halves(const I (&row)[4]) { return quarter(row); }
  static void join_halves(const Halves (&q)[4], I& first, I& second) {
    const I low = add(_mm512_shuffle_i32x4(q[0], q[1], 0x88), _mm512_shuffle_i32x4(q[0], q[1], 0xDD));
    const I high = add(_mm512_shuffle_i32x4(q[2], q[3], 0x88), _mm512_shuffle_i32x4(q[2], q[3], 0xDD));
    first = _mm512_shuffle_i32x4(low, high, 0x88), second = _mm512_shuffle_i32x4(low, high, 0xDD);
  }
  /// Lane i is the sum of the lower half of row i, and lane 8 + i that of the other half.
  static I join_rows(const Halves& a, const Halves& b) {
    const I both = add(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xDD));
    return _mm512_shuffle_i32x4(both, both, 0xD8);
  }
  /// 32 bytes of each, and the same twice.
  static I two_halves(const std::uint8_t* p, const std::uint8_t* q) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q)), 1);
  }
  static I twice(const std::uint8_t* p) {
    return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  /// Lane i gets the scale and the minimum that lie at[i] bytes after p, for i < count; the others get 0.
  static void scales(const std::uint8_t* p, const std::int32_t* at, int count, V& scale, V& minimum) {
    const I both = _mm512_mask_i32gather_epi32(no_words(), first_lanes(count), _mm512_loadu_si512(at), p, 1);
    scale = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(both));
    minimum = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(both, 16)));
  }
  /// The same of 16 rows one after the other, whose scales and minima are kGroups pairs, those of the first at p.
  template <int kGroups> static void scales_in_order(const std::uint8_t* p, V& scale, V& minimum) {
    static_assert(kGroups == 1 || kGroups == 2);
    I both = _mm512_loadu_si512(p);
    if constexpr (kGroups == 2)
      both =
          _mm512_permutex2var_epi32(both, _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 17, 19, 21, 23, 25, 27, 29, 31),
                                    _mm512_loadu_si512(p + 60));
    scale = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(both));
    minimum = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(both, 16)));
  }
  /// Lane i of the result is lane i ^ kDistance.
  template <int kDistance> static V swapped(V v) {
    if constexpr (kDistance == 1) return _mm512_permute_ps(v, 0xB1);
    else if constexpr (kDistance == 2) return _mm512_permute_ps(v, 0x4E);
    else if constexpr (kDistance == 4) return _mm512_shuffle_f32x4(v, v, 0xB1);
    else return _mm512_shuffle_f32x4(v, v, 0x4E);
  }

  static V add(V a, V b) { return _mm512_add_ps(a, b); }
  static V sub(V a, V b) { return _mm512_sub_ps(a, b); }
  static V mul(V a, V b) { return _mm512_mul_ps(a, b); }
  static V div(V a, V b) { return _mm512_div_ps(a, b); }
  static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static V max(V a, V b) { return _mm512_max_ps(a, b); }  // b where either is not a number
  static V min(V a, V b) { return _mm512_min_ps(a, b); }
  static V round(V a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static V times_power_of_two(V a, V n) { return _mm512_scalef_ps(a, n); }
  /// v where x >= limit or x is not a number, else 0.
  static V zero_below(V x, float limit, V v) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, all(limit), _CMP_NLT_UQ), v);
  }
  /// The first n lanes of v, `other` in the rest.
  static V first(V v, int n, float other) { return _mm512_mask_mov_ps(all(other), first_lanes(n), v); }
  /// v where low <= number <= high, else `other`.
  static V between(V v, const std::int32_t* number, std::int32_t low, std::int32_t high, float other) {
    const __m512i x = _mm512_loadu_si512(number);
    const __mmask16 inside =
        _mm512_cmpge_epi32_mask(x, _mm512_set1_epi32(low)) & _mm512_cmple_epi32_mask(x, _mm512_set1_epi32(high));
    return _mm512_mask_mov_ps(all(other), inside, v);
  }
  static bool any_negative(const std::int32_t* number) { return _mm512_movepi32_mask(_mm512_loadu_si512(number)) != 0; }
  /// A bit for each lane that is at least `least`.
  static unsigned lanes_from(V v, float least) { return _mm512_cmp_ps_mask(v, all(least), _CMP_GE_OQ); }
  /// Stores first + i for each lane i of `lanes`, one after the other, and something behind them up to 16 numbers.
  static void store_lanes(std::int32_t* p, int first, unsigned lanes) {
    const I all =
        add(_mm512_set1_epi32(first), _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    _mm512_storeu_si512(p, _mm512_maskz_compress_epi32(static_cast<__mmask16>(lanes), all));
  }
  static bool any_equal(V v, float x) { return _mm512_cmp_ps_mask(v, all(x), _CMP_EQ_OQ) != 0; }

  static float sum(V v) {  // the tree of sums(), for one row
    v = add(v, _mm512_permute_ps(v, 0x4E));
    v = add(v, _mm512_permute_ps(v, 0xB1));
    v = add(v, _mm512_shuffle_f32x4(v, v, 0xB1));
    return _mm512_cvtss_f32(add(v, _mm512_shuffle_f32x4(v, v, 0x4E)));
  }
  static float largest(V v) {
    v = max(v, _mm512_shuffle_f32x4(v, v, 0x4E));
    v = max(v, _mm512_shuffle_f32x4(v, v, 0xB1));
    v = max(v, _mm512_permute_ps(v, 0x4E));
    return _mm512_cvtss_f32(max(v, _mm512_permute_ps(v, 0xB1)));
  }
  static float smallest(V v) { return -largest(sub(zero(), v)); }
  /// Lane i is the sum of the lanes of row i.
  static V sums(const V rows[16]) {
    V four[4];
    WEFT_UNROLLED (int i = 0; i < 4; ++i) {
      const V *r = rows + 4 * i, ab = add(_mm512_unpacklo_ps(r[0], r[1]), _mm512_unpackhi_ps(r[0], r[1])),
              cd = add(_mm512_unpacklo_ps(r[2], r[3]), _mm512_unpackhi_ps(r[2], r[3]));
      four[i] = add(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xEE));
    }
    const V low = add(_mm512_shuffle_f32x4(four[0], four[1], 0x88), _mm512_shuffle_f32x4(four[0], four[1], 0xDD));
    const V high = add(_mm512_shuffle_f32x4(four[2], four[3], 0x88), _mm512_shuffle_f32x4(four[2], four[3], 0xDD));
    return add(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xDD));
  }
  static void transpose(V rows[16]) {
    V pairs[16];
    WEFT_UNROLLED (int i = 0; i < 16; i += 4) {  // 4x4 blocks inside each 128-bit lane
      const V a = _mm512_unpacklo_ps(rows[i], rows[i + 1]), b = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
      const V c = _mm512_unpacklo_ps(rows[i + 2], rows[i + 3]), d = _mm512_unpackhi_ps(rows[i + 2], rows[i + 3]);
      pairs[i] = _mm512_shuffle_ps(a, c, 0x44), pairs[i + 1] = _mm512_shuffle_ps(a, c, 0xEE);
      pairs[i + 2] = _mm512_shuffle_ps(b, d, 0x44), pairs[i + 3] = _mm512_shuffle_ps(b, d, 0xEE);
    }
    WEFT_UNROLLED (int i = 0; i < 4; ++i) {  // then the lanes themselves
      const V a = _mm512_shuffle_f32x4(pairs[i], pairs[i + 4], 0x88),
              b = _mm512_shuffle_f32x4(pairs[i], pairs[i + 4], 0xDD);
      const V c = _mm512_shuffle_f32x4(pairs[i + 8], pairs[i + 12], 0x88),
              d = _mm512_shuffle_f32x4(pairs[i + 8], pairs[i + 12], 0xDD);
      rows[i] = _mm512_shuffle_f32x4(a, c, 0x88), rows[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
      rows[i + 8] = _mm512_shuffle_f32x4(a, c, 0xDD), rows[i + 12] = _mm512_shuffle_f32x4(b, d, 0xDD);
    }
  }

 private:
  template <int kBytes> static __m128i sixteen(const std::uint8_t* p) {
    if constexpr (kBytes == 16) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return _mm_unpacklo_epi64(x, _mm_srli_epi16(x, 1));
  }
  static V from_bf16(__m256i bits) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16)); }
  static __m256i to_f16(V v) { return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static __m256i to_bf16(V v) {
    const __m512i word = _mm512_castps_si512(v), one = _mm512_set1_epi32(1);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(word, 16), one);
    const __m512i rounded = _mm512_add_epi32(word, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    const __m512i quiet = _mm512_or_si512(word, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
  }
};

constexpr VectorKernels kKernels = {
    "AVX-512",       prefill_tile<Avx512>,  column_tile<Avx512>, decode_tile<Avx512>,  convert<Avx512>,
    sum_exp<Avx512>, quantise_row<Avx512>,  hadamard<Avx512>,    add_unit_row<Avx512>, key_score_row<Avx512>,
    weigh<Avx512>,   prefill_tiles<Avx512>, column_tiles<Avx512>};

}  // namespace

const VectorKernels* vector_kernels_avx512() { return &kKernels; }

}  // namespace weft::kernels
#pragma GCC diagnostic pop

#else
namespace weft::kernels {
const VectorKernels* vector_kernels_avx512() { return nullptr; }
}  // namespace weft::kernels
#endif
