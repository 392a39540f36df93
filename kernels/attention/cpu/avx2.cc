// kernels/attention/cpu/avx2.cc: 16 floats as two registers. Compiled with -mavx2 -mfma -mf16c -ffp-contract=off.
#include "kernels/attention/cpu/kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>

#include "kernels/attention/cpu/columns.h"
#include "kernels/attention/cpu/decode.h"
#include "kernels/attention/cpu/keys.h"
#include "kernels/attention/cpu/math.h"

namespace weft::kernels {
namespace {

struct Avx2 {
  struct V {
    __m256 low, high;
  };
  static constexpr int kTileRows = 6, kTileVectors = 1;                // 12 sums, 2 columns and a row in 16 registers
  static constexpr int kHeads = 1, kShortKeys = 4, kValueVectors = 8;  // as avx512.cc has them
  static constexpr bool kUnrollsKeys = true;

  static V zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static V all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }

  static V load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static V load(const f16* p) { return {_mm256_cvtph_ps(half(p)), _mm256_cvtph_ps(half(p + 8))}; }
  static V load(const bf16* p) { return {from_bf16(half(p)), from_bf16(half(p + 8))}; }
  template <class T> static V load_first(const T* p, int n) {
    alignas(32) T lanes[16] = {};
    for (int i = 0; i < n; ++i) lanes[i] = p[i];
    return load(lanes);
  }

  static void store(float* p, V v) { _mm256_storeu_ps(p, v.low), _mm256_storeu_ps(p + 8, v.high); }
  static void store(f16* p, V v) {
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v.low, nearest));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(v.high, nearest));
  }
  static void store(bf16* p, V v) {
    const __m256i packed = _mm256_packus_epi32(to_bf16(v.low), to_bf16(v.high));  // interleaves the 128-bit lanes
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xD8));
  }
  template <class T> static void store_first(T* p, V v, int n) {
    alignas(32) T lanes[16];
    store(lanes, v);
    for (int i = 0; i < n; ++i) p[i] = lanes[i];
  }

  struct I {
    __m256i low, high;
  };
  using Quarter = __m128i;
  template <DType kType> static I words(const std::uint8_t* p) {
    if constexpr (kType == DType::i8) return {wide(p), wide(p + 32)};
    else return {_mm256_cvtepu8_epi16(half(p)), _mm256_cvtepu8_epi16(half(p + 16))};
  }
  template <DType kType> static I words_first(const std::uint8_t* p, int bytes) {
    alignas(32) std::uint8_t all[64] = {};
    for (int i = 0; i < bytes; ++i) all[i] = p[i];
    return words<kType>(all);
  }
  template <DType kType> static I low(I x) {
    const __m256i mask = _mm256_set1_epi16(kType == DType::i8 ? 255 : 15);
    return {_mm256_and_si256(x.low, mask), _mm256_and_si256(x.high, mask)};
  }
  template <DType kType> static I high(I x) {
    constexpr int bits = kType == DType::i8 ? 8 : 4;
    return {_mm256_srli_epi16(x.low, bits), _mm256_srli_epi16(x.high, bits)};
  }
  /// A plane of coarse_row.h, as avx512.cc has it.
  static I two_bits(const std::uint8_t* p) {
    const __m256i plane = _mm256_broadcastsi128_si256(half(p));
    return {_mm256_srlv_epi64(plane, shifts(0, 0, 2, 2)), _mm256_srlv_epi64(plane, shifts(4, 4, 6, 6))};
  }
  static I one_bit(const std::uint8_t* p) {
    std::int64_t bits;
    __builtin_memcpy(&bits, p, sizeof bits);
    const __m256i plane = _mm256_set1_epi64x(bits);
    return {_mm256_srlv_epi64(plane, shifts(0, 1, 2, 3)), _mm256_srlv_epi64(plane, shifts(4, 5, 6, 7))};
  }
  static I masked(I x, int mask) {
    return {_mm256_and_si256(x.low, _mm256_set1_epi32(mask)), _mm256_and_si256(x.high, _mm256_set1_epi32(mask))};
  }
  static I joined(int mask, I a, I b) {
    const __m256i ones = _mm256_set1_epi32(mask);
    return {_mm256_or_si256(_mm256_and_si256(ones, a.low), _mm256_andnot_si256(ones, b.low)),
            _mm256_or_si256(_mm256_and_si256(ones, a.high), _mm256_andnot_si256(ones, b.high))};
  }
  template <int kBits> static I shifted(I x) {
    return {_mm256_srli_epi16(x.low, kBits), _mm256_srli_epi16(x.high, kBits)};
  }
  template <int kBits> static I raised(I x) {
    return {_mm256_slli_epi16(x.low, kBits), _mm256_slli_epi16(x.high, kBits)};
  }
  static void store_levels(std::uint8_t* p, I x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), x.high);
  }
  static I low_words(I a, I b) { return {_mm256_unpacklo_epi16(a.low, b.low), _mm256_unpacklo_epi16(a.high, b.high)}; }
  static I high_words(I a, I b) { return {_mm256_unpackhi_epi16(a.low, b.low), _mm256_unpackhi_epi16(a.high, b.high)}; }
  template <int kBytes> static I quads(const std::uint8_t* p, const std::int32_t* at) {
    const __m128i a = sixteen<kBytes>(p + at[0]), b = sixteen<kBytes>(p + at[1]), c = sixteen<kBytes>(p + at[2]),
                  d = sixteen<kBytes>(p + at[3]);
    const __m128i ab = _mm_unpacklo_epi8(a, b), cd = _mm_unpacklo_epi8(c, d);
    const __m128i ab_high = _mm_unpackhi_epi8(a, b), cd_high = _mm_unpackhi_epi8(c, d);
    return {_mm256_set_m128i(_mm_unpackhi_epi16(ab, cd), _mm_unpacklo_epi16(ab, cd)),
            _mm256_set_m128i(_mm_unpackhi_epi16(ab_high, cd_high), _mm_unpacklo_epi16(ab_high, cd_high))};
  }
  template <int kGroups> static I quads_in_order(const std::uint8_t* p, int g) {
    const std::int32_t at[4] = {0, 16 * kGroups, 32 * kGroups, 48 * kGroups};
    return quads<16>(p + 16 * g, at);
  }
  static I multiply_bytes(I b, I c, I a) {  // no pair of products is as large as 32767, because levels have 4 bits
    const __m256i one = _mm256_set1_epi16(1);
    return add(a, {_mm256_madd_epi16(_mm256_maddubs_epi16(b.low, c.low), one),
                   _mm256_madd_epi16(_mm256_maddubs_epi16(b.high, c.high), one)});
  }
  static I load_bytes(const void* p) { return {wide(p), wide(static_cast<const char*>(p) + 32)}; }
  static I all_quads(const std::uint8_t* p) {
    int four;
    __builtin_memcpy(&four, p, sizeof four);
    return {_mm256_set1_epi32(four), _mm256_set1_epi32(four)};
  }
  static void store_bytes(std::uint8_t* p, V v) {
    const __m256i words =
        _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_cvtps_epi32(v.low), _mm256_cvtps_epi32(v.high)), 0xD8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }
  static void store_planes(std::uint8_t* low, std::uint8_t* high, const std::int16_t* words) {
    const __m128i a = half(words), b = half(words + 8), mask = _mm_set1_epi16(255);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(low), _mm_packus_epi16(_mm_and_si128(a, mask), _mm_and_si128(b, mask)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(high), _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8)));
  }
  static I times_256(I a) { return {_mm256_slli_epi32(a.low, 8), _mm256_slli_epi32(a.high, 8)}; }
  static I no_words() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static I load_words(const std::int16_t* p) { return {wide(p), wide(p + 16)}; }
  static I all_pairs(const std::int16_t* p) {
    int pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return {_mm256_set1_epi32(pair), _mm256_set1_epi32(pair)};
  }
  static I multiply_pairs(I a, I b) { return {_mm256_madd_epi16(a.low, b.low), _mm256_madd_epi16(a.high, b.high)}; }
  static I multiply_add(I a, I b, I c) { return add(c, multiply_pairs(a, b)); }
  static I add(I a, I b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
  static V to_floats(I a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
  static void store_rounded(std::int16_t* p, V v) {
    const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(v.low), _mm256_cvtps_epi32(v.high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xD8));
  }
  static Quarter quarter(const I (&row)[4]) {
    __m256i r[4];
    WEFT_UNROLLED (int i = 0; i < 4; ++i) r[i] = _mm256_add_epi32(row[i].low, row[i].high);
    const __m256i all = _mm256_hadd_epi32(_mm256_hadd_epi32(r[0], r[1]), _mm256_hadd_epi32(r[2], r[3]));
    return _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  }
  static I join(const Quarter (&q)[4]) { return {_mm256_set_m128i(q[1], q[0]), _mm256_set_m128i(q[3], q[2])}; }
  struct Halves {
    Quarter first, second;
  };
  static Halves quarter_halves(const I (&row)[4]) {
    const __m256i low =
        _mm256_hadd_epi32(_mm256_hadd_epi32(row[0].low, row[1].low), _mm256_hadd_epi32(row[2].low, row[3].low));
    const __m256i high =
        _mm256_hadd_epi32(_mm256_hadd_epi32(row[0].high, row[1].high), _mm256_hadd_epi32(row[2].high, row[3].high));
    return {_mm_add_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)),
            _mm_add_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1))};
  }
  static void join_halves(const Halves (&q)[4], I& first, I& second) {
    first = join({q[0].first, q[1].first, q[2].first, q[3].first});
    second = join({q[0].second, q[1].second, q[2].second, q[3].second});
  }
  static I join_rows(const Halves& a, const Halves& b) {
    return {_mm256_set_m128i(b.first, a.first), _mm256_set_m128i(b.second, a.second)};
  }
  static I two_halves(const std::uint8_t* p, const std::uint8_t* q) { return {wide(p), wide(q)}; }
  static I twice(const std::uint8_t* p) { return {wide(p), wide(p)}; }
  static void scales(const std::uint8_t* p, const std::int32_t* at, int count, V& scale, V& minimum) {
    alignas(32) std::int32_t both[16] = {};
    for (int i = 0; i < count; ++i) __builtin_memcpy(both + i, p + at[i], 4);
    const __m256i low = integers(both), high = integers(both + 8), mask = _mm256_set1_epi32(0xFFFF);
    scale = halves(_mm256_and_si256(low, mask), _mm256_and_si256(high, mask));
    minimum = halves(_mm256_srli_epi32(low, 16), _mm256_srli_epi32(high, 16));
  }
  template <int kGroups> static void scales_in_order(const std::uint8_t* p, V& scale, V& minimum) {
    static_assert(kGroups == 1 || kGroups == 2);
    __m256i both[2];
    WEFT_UNROLLED (int i = 0; i < 2; ++i) {
      both[i] = wide(p + 32 * kGroups * i);
      if constexpr (kGroups == 2) {  // every second pair of sixteen
        const __m256i even = _mm256_shuffle_epi32(both[i], 0x88),
                      rest = _mm256_shuffle_epi32(wide(p + 64 * i + 28), 0xDD);
        both[i] = _mm256_permute4x64_epi64(_mm256_unpacklo_epi64(even, rest), 0xD8);
      }
    }
    const __m256i mask = _mm256_set1_epi32(0xFFFF);
    scale = halves(_mm256_and_si256(both[0], mask), _mm256_and_si256(both[1], mask));
    minimum = halves(_mm256_srli_epi32(both[0], 16), _mm256_srli_epi32(both[1], 16));
  }
  template <int kDistance> static V swapped(V v) {
    if constexpr (kDistance == 1) return {_mm256_permute_ps(v.low, 0xB1), _mm256_permute_ps(v.high, 0xB1)};
    else if constexpr (kDistance == 2) return {_mm256_permute_ps(v.low, 0x4E), _mm256_permute_ps(v.high, 0x4E)};
    else if constexpr (kDistance == 4)
      return {_mm256_permute2f128_ps(v.low, v.low, 1), _mm256_permute2f128_ps(v.high, v.high, 1)};
    else return {v.high, v.low};
  }

  static V add(V a, V b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
  static V sub(V a, V b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
  static V mul(V a, V b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
  static V div(V a, V b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
  static V fma(V a, V b, V c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  static V max(V a, V b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
  static V min(V a, V b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
  static V round(V a) {
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.low, nearest), _mm256_round_ps(a.high, nearest)};
  }
  static V times_power_of_two(V a, V n) { return mul(a, {power_of_two(n.low), power_of_two(n.high)}); }
  static V zero_below(V x, float limit, V v) {
    const __m256 bound = _mm256_set1_ps(limit);
    return {_mm256_and_ps(_mm256_cmp_ps(x.low, bound, _CMP_NLT_UQ), v.low),
            _mm256_and_ps(_mm256_cmp_ps(x.high, bound, _CMP_NLT_UQ), v.high)};
  }
  static V first(V v, int n, float other) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), count = _mm256_set1_epi32(n);
    const __m256i above = _mm256_add_epi32(lane, _mm256_set1_epi32(8));
    return select(_mm256_cmpgt_epi32(count, lane), _mm256_cmpgt_epi32(count, above), v, other);
  }
  static V between(V v, const std::int32_t* number, std::int32_t low, std::int32_t high, float other) {
    return select(inside(number, low, high), inside(number + 8, low, high), v, other);
  }
  static bool any_negative(const std::int32_t* number) {
    return _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_or_si256(integers(number), integers(number + 8)))) != 0;
  }
  static unsigned lanes_from(V v, float least) {
    const __m256 bound = _mm256_set1_ps(least);
    const int low = _mm256_movemask_ps(_mm256_cmp_ps(v.low, bound, _CMP_GE_OQ)),
              high = _mm256_movemask_ps(_mm256_cmp_ps(v.high, bound, _CMP_GE_OQ));
    return static_cast<unsigned>(low | high << 8);
  }
  static void store_lanes(std::int32_t* p, int first, unsigned lanes) {
    for (; lanes != 0; lanes &= lanes - 1) *p++ = first + __builtin_ctz(lanes);
  }
  static bool any_equal(V v, float x) {
    const __m256 wanted = _mm256_set1_ps(x);
    return _mm256_movemask_ps(
               _mm256_or_ps(_mm256_cmp_ps(v.low, wanted, _CMP_EQ_OQ), _mm256_cmp_ps(v.high, wanted, _CMP_EQ_OQ))) != 0;
  }

  static float sum(V v) {  // the tree of sums(), for one row
    const __m256 a = _mm256_add_ps(v.low, _mm256_permute_ps(v.low, 0x4E));
    const __m256 b = _mm256_add_ps(v.high, _mm256_permute_ps(v.high, 0x4E));
    const __m256 low = _mm256_add_ps(a, _mm256_permute_ps(a, 0xB1)),
                 high = _mm256_add_ps(b, _mm256_permute_ps(b, 0xB1));
    const __m128 first = _mm_add_ss(_mm256_castps256_ps128(low), _mm256_extractf128_ps(low, 1));
    return _mm_cvtss_f32(_mm_add_ss(first, _mm_add_ss(_mm256_castps256_ps128(high), _mm256_extractf128_ps(high, 1))));
  }
  static float largest(V v) {
    __m256 m = _mm256_max_ps(v.low, v.high);
    m = _mm256_max_ps(m, _mm256_permute2f128_ps(m, m, 1));
    m = _mm256_max_ps(m, _mm256_permute_ps(m, 0x4E));
    return _mm256_cvtss_f32(_mm256_max_ps(m, _mm256_permute_ps(m, 0xB1)));
  }
  static float smallest(V v) { return -largest(sub(zero(), v)); }
  static V sums(const V rows[16]) {
    __m256 four[4][2];
    WEFT_UNROLLED (int i = 0; i < 4; ++i) {
      const V* r = rows + 4 * i;
      four[i][0] = quarter_sums(r[0].low, r[1].low, r[2].low, r[3].low);
      four[i][1] = quarter_sums(r[0].high, r[1].high, r[2].high, r[3].high);
    }
    return {_mm256_add_ps(lane_sums(four[0][0], four[1][0]), lane_sums(four[0][1], four[1][1])),
            _mm256_add_ps(lane_sums(four[2][0], four[3][0]), lane_sums(four[2][1], four[3][1]))};
  }
  static void transpose(V rows[16]) {
    __m256 quarter[4][8];
    WEFT_UNROLLED (int i = 0; i < 8; ++i) {
      quarter[0][i] = rows[i].low, quarter[1][i] = rows[i].high;
      quarter[2][i] = rows[i + 8].low, quarter[3][i] = rows[i + 8].high;
    }
    WEFT_UNROLLED (int i = 0; i < 4; ++i) transpose8(quarter[i]);
    WEFT_UNROLLED (int i = 0; i < 8; ++i)
      rows[i] = {quarter[0][i], quarter[2][i]}, rows[i + 8] = {quarter[1][i], quarter[3][i]};
  }

 private:
  template <int kBytes> static __m128i sixteen(const std::uint8_t* p) {
    if constexpr (kBytes == 16) return half(p);
    const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return _mm_unpacklo_epi64(x, _mm_srli_epi16(x, 1));
  }
  static __m256i shifts(int a, int b, int c, int d) { return _mm256_setr_epi64x(a, b, c, d); }
  /// Converts the fp16 in the low 16 bits of each lane; the high bits must be 0.
  static V halves(__m256i low, __m256i high) {
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xD8);
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(packed)), _mm256_cvtph_ps(_mm256_extracti128_si256(packed, 1))};
  }
  static __m256i wide(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static __m128i half(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
  static __m256i integers(const std::int32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static __m256 from_bf16(__m128i bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static __m256i to_bf16(__m256 v) {
    const __m256i word = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(word, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(word, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    const __m256i quiet = _mm256_or_si256(word, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  }
  static __m256 power_of_two(__m256 n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
  }
  static __m256i inside(const std::int32_t* number, std::int32_t low, std::int32_t high) {
    const __m256i x = integers(number);
    const __m256i outside =
        _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(low), x), _mm256_cmpgt_epi32(x, _mm256_set1_epi32(high)));
    return _mm256_xor_si256(outside, _mm256_set1_epi32(-1));
  }
  static V select(__m256i low, __m256i high, V v, float other) {
    return {_mm256_blendv_ps(_mm256_set1_ps(other), v.low, _mm256_castsi256_ps(low)),
            _mm256_blendv_ps(_mm256_set1_ps(other), v.high, _mm256_castsi256_ps(high))};
  }
  /// In each 128-bit lane, the sums of that lane of a, b, c and d.
  static __m256 quarter_sums(__m256 a, __m256 b, __m256 c, __m256 d) {
    const __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    const __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    return _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE));
  }
  static __m256 lane_sums(__m256 p, __m256 q) {
    return _mm256_add_ps(_mm256_permute2f128_ps(p, q, 0x20), _mm256_permute2f128_ps(p, q, 0x31));
  }
  static void transpose8(__m256 r[8]) {
    __m256 pairs[8];
    WEFT_UNROLLED (int i = 0; i < 8; i += 4) {
      const __m256 a = _mm256_unpacklo_ps(r[i], r[i + 1]), b = _mm256_unpackhi_ps(r[i], r[i + 1]);
      const __m256 c = _mm256_unpacklo_ps(r[i + 2], r[i + 3]), d = _mm256_unpackhi_ps(r[i + 2], r[i + 3]);
      pairs[i] = _mm256_shuffle_ps(a, c, 0x44), pairs[i + 1] = _mm256_shuffle_ps(a, c, 0xEE);
      pairs[i + 2] = _mm256_shuffle_ps(b, d, 0x44), pairs[i + 3] = _mm256_shuffle_ps(b, d, 0xEE);
    }
    WEFT_UNROLLED (int i = 0; i < 4; ++i) {
      r[i] = _mm256_permute2f128_ps(pairs[i], pairs[i + 4], 0x20);
      r[i + 4] = _mm256_permute2f128_ps(pairs[i], pairs[i + 4], 0x31);
    }
  }
};

constexpr VectorKernels kKernels = {
    "AVX2",        prefill_tile<Avx2>, column_tile<Avx2>, decode_tile<Avx2>,  convert<Avx2>,
    sum_exp<Avx2>, quantise_row<Avx2>, hadamard<Avx2>,    add_unit_row<Avx2>, key_score_row<Avx2>,
    weigh<Avx2>};

}  // namespace

const VectorKernels* vector_kernels_avx2() { return &kKernels; }

}  // namespace weft::kernels

#else
namespace weft::kernels {
const VectorKernels* vector_kernels_avx2() { return nullptr; }
}  // namespace weft::kernels
#endif
