// kernels/linear/linear_quantised_avx2.cc: integer products in 256 bits, 8 columns of a tile at a time. Compiled with
// -mavx2 -mfma -mf16c -ffp-contract=off; like linear_avx512.cc it calls no shared inline function.
//
// Products of two bytes are added up in 16 bits first, which 8 pairs of 15 * 127 cannot overflow. So levels of 8 bits
// are taken as two halves of 4, unless all of a tile are below 64, as those of GGUF's formats of 5 and 6 bits are: two
// pairs of 63 * 127 fit, which makes such products 1.5 times as fast. Levels below 32 by a table fill 16 bits after 4
// pairs of 28 * 127.
#include "kernels/linear/linear_quantised.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>

#include "kernels/unrolled.h"

namespace weft::kernels {
namespace {

constexpr std::int64_t kLine = 64, kAhead = 40 * kLine;  // kAhead: distance of prefetches from memory
constexpr int kMostRows = 6;
constexpr std::int64_t kSafeLines = 4;  // lines whose products fit 16 bits
constexpr std::int64_t kFewLines = 2;   // of a group of 16 levels of 4 bits

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

/// What weights lie as: levels of 4 bits, as themselves or by a table of levels below 32 or of any, or levels of 8
/// bits, below 64 or any.
enum class Levels { four, below_32, any_table, below_64, eight };
constexpr bool of_four(Levels levels) { return levels != Levels::below_64 && levels != Levels::eight; }

/// The low and high halves of 16 levels, each twice.
struct Table {
  __m256i low, high;
};

/// dot[i] += the products of `lines` lines, at most kSafeLines, with row i.
template <int Rows, Levels kLevels>
[[gnu::always_inline]] inline void add_lines(__m256i (&dot)[Rows], const char* weight, const std::int8_t* x,
                                             std::int64_t lines, const Table& table) {
  constexpr bool halves = of_four(kLevels);
  const __m256i low_halves = _mm256_set1_epi8(15);
  __m256i low[Rows], high[Rows];
  WEFT_UNROLLED (int i = 0; i < Rows; ++i) low[i] = high[i] = _mm256_setzero_si256();
  for (std::int64_t line = 0; line < lines; ++line, weight += kLine) {
    const __m256i levels = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weight));
    __m256i first = _mm256_and_si256(levels, low_halves);
    __m256i second = _mm256_and_si256(_mm256_srli_epi16(levels, 4), low_halves);
    const __m256i first_high = _mm256_shuffle_epi8(table.high, first),
                  second_high = _mm256_shuffle_epi8(table.high, second);  // of any_table
    if constexpr (kLevels == Levels::below_32 || kLevels == Levels::any_table)
      first = _mm256_shuffle_epi8(table.low, first), second = _mm256_shuffle_epi8(table.low, second);
    WEFT_UNROLLED (int i = 0; i < Rows; ++i) {
      const __m256i a = quad_of(x + i * kQuad), b = halves ? quad_of(x + (Rows + i) * kQuad) : a;
      constexpr bool apart = kLevels == Levels::below_32 || kLevels == Levels::eight;
      add_here(low[i], _mm256_maddubs_epi16(first, a));
      add_here(apart ? high[i] : low[i], _mm256_maddubs_epi16(second, b));
      if constexpr (kLevels == Levels::any_table) {
        add_here(high[i], _mm256_maddubs_epi16(first_high, a));
        add_here(high[i], _mm256_maddubs_epi16(second_high, b));
      }
    }
    x += (halves ? 2 : 1) * Rows * kQuad;
  }
  constexpr short high_step = kLevels == Levels::below_32 ? 1 : 16;
  WEFT_UNROLLED (int i = 0; i < Rows; ++i) {
    dot[i] = _mm256_add_epi32(dot[i], _mm256_madd_epi16(low[i], _mm256_set1_epi16(1)));
    if constexpr (kLevels != Levels::four)
      dot[i] = _mm256_add_epi32(dot[i], _mm256_madd_epi16(high[i], _mm256_set1_epi16(high_step)));
  }
}

/// The same of levels of 8 bits that are below 64, any even number of lines.
template <int Rows>
[[gnu::always_inline]] inline void add_low_lines(__m256i (&dot)[Rows], const char* weight, const std::int8_t* x,
                                                 std::int64_t lines) {
  for (std::int64_t line = 0; line < lines; line += 2, weight += 2 * kLine, x += 2 * Rows * kQuad) {
    const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weight));
    const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weight + kLine));
    WEFT_UNROLLED (int i = 0; i < Rows; ++i) {
      const __m256i both = _mm256_add_epi16(_mm256_maddubs_epi16(first, quad_of(x + i * kQuad)),
                                            _mm256_maddubs_epi16(second, quad_of(x + (Rows + i) * kQuad)));
      dot[i] = _mm256_add_epi32(dot[i], _mm256_madd_epi16(both, _mm256_set1_epi16(1)));
    }
  }
}

/// Its levels whole if they are below 32, else in halves.
Table load_table(const std::uint8_t* from, bool whole) {
  const __m128i levels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)), low_halves = _mm_set1_epi8(15);
  const __m128i high = _mm_and_si128(_mm_srli_epi16(levels, 4), low_halves);
  return {_mm256_broadcastsi128_si256(whole ? levels : _mm_and_si128(levels, low_halves)),
          _mm256_broadcastsi128_si256(high)};
}

template <int Rows, Levels kLevels> void tile(const IntegerTile& t) {
  constexpr bool by_table = of_four(kLevels) && kLevels != Levels::four;
  constexpr std::int64_t kQuads = of_four(kLevels) ? 2 : 1;  // of a line
  const std::int64_t lines = t.quads / kQuads;
  Table table = {};
  if constexpr (by_table) table = load_table(t.table, kLevels == Levels::below_32);
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
      const char* const first = weight + kLine + half * 32;
      if constexpr (kLevels == Levels::below_64) add_low_lines<Rows>(dot, first, x, lines);
      else if (lines < kSafeLines) add_lines<Rows, kLevels>(dot, first, x, kFewLines, table);
      else
        for (std::int64_t line = 0; line < lines; line += kSafeLines)
          add_lines<Rows, kLevels>(dot, first + line * kLine, x + line * kQuads * Rows * kQuad, kSafeLines, table);
      x += lines * kQuads * Rows * kQuad;
      WEFT_UNROLLED (int i = 0; i < Rows; ++i) {
        const __m256 both = _mm256_mul_ps(scale, _mm256_set1_ps(t.x_scale[g * Rows + i]));
        sum[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[i]), both, sum[i]);
        sum[i] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(t.x_sum[g * Rows + i]), sum[i]);
      }
    }
    WEFT_UNROLLED (int i = 0; i < Rows; ++i) _mm256_storeu_ps(t.sums + i * 16 + half * 8, sum[i]);
  }
}

/// Whether all levels of a tile of i8 are below 64.
bool all_below_64(const std::byte* tile, std::int64_t groups, std::int64_t quads) {
  const __m256i high_bits = _mm256_set1_epi8(static_cast<char>(0xC0));
  const char* line = reinterpret_cast<const char*>(tile);
  for (std::int64_t g = 0; g < groups; ++g, line += (quads + 1) * kLine) {
    __m256i any = _mm256_setzero_si256();
    for (std::int64_t at = kLine; at < (quads + 1) * kLine; at += 32)
      any = _mm256_or_si256(any, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(line + at)));
    if (!_mm256_testz_si256(any, high_bits)) return false;
  }
  return true;
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

template <Levels kLevels, int... Rows> constexpr void fill(void (*(&tiles)[kMostIntegerRows])(const IntegerTile&)) {
  void (*const all[])(const IntegerTile&) = {tile<Rows, kLevels>...};
  for (int i = 0; i < static_cast<int>(sizeof...(Rows)); ++i) tiles[i] = all[i];
}
constexpr IntegerKernels make_kernels() {
  IntegerKernels kernels = {};
  kernels.name = "AVX2";
  kernels.rows = kMostRows;
  fill<Levels::four, 1, 2, 3, 4, 5, 6>(kernels.tile4);
  fill<Levels::eight, 1, 2, 3, 4, 5, 6>(kernels.tile8);
  fill<Levels::below_64, 1, 2, 3, 4, 5, 6>(kernels.tile8_below_64);
  kernels.all_below_64 = all_below_64;
  fill<Levels::below_32, 1, 2, 3, 4, 5, 6>(kernels.tile_table[0]);
  fill<Levels::any_table, 1, 2, 3, 4, 5, 6>(kernels.tile_table[1]);
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
