// kernels/linear/linear_quantised_avx2.cc: integer products in 256 bits, 8 or 16 columns of a tile at a time. Compiled
// with -mavx2 -mfma -mf16c -ffp-contract=off; like linear_avx512.cc it calls no shared inline function.
//
// Products of two bytes are added up in 16 bits first, which 8 pairs of 15 * 127 cannot overflow. So levels of 8 bits
// are taken as two halves of 4, unless all of a tile are below 64, as those of GGUF's formats of 5 and 6 bits are: two
// pairs of 63 * 127 fit, which makes such products 1.5 times as fast. Levels below 32 by a table fill 16 bits after 4
// pairs of 28 * 127, two lines.
#include "kernels/linear/linear_quantised.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>

#include "kernels/unrolled.h"

namespace weft::kernels {
namespace {

constexpr std::int64_t kLine = 64, kAhead = 40 * kLine;  // kAhead: distance of prefetches from memory
constexpr int kMostRows = 4;

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
/// Whether products are added up in one sum of 16 bits and not in two. Then there are registers for all 16 columns.
constexpr bool in_one_sum(Levels levels) { return levels != Levels::any_table && levels != Levels::eight; }
/// The lines whose products fit 16 bits. A group has a multiple of them, or half as many.
constexpr int safe_lines(Levels levels) {
  switch (levels) {
    case Levels::below_32:
    case Levels::below_64: return 2;
    case Levels::eight: return 8;
    default: return 4;
  }
}

/// The low and high halves of 16 levels, each twice.
struct Table {
  __m256i low, high;
};

/// sum = product if it is the first, else sum += product.
[[gnu::always_inline]] inline void begin_or_add(__m256i& sum, __m256i product, bool is_first) {
  if (is_first) sum = product;
  else add_here(sum, product);
}

/// dot[c][i] += the products of kLines lines with row i, in columns 8 c to 8 c + 7.
template <int Rows, int Parts, Levels kLevels, int kLines>
[[gnu::always_inline]] inline void add_lines(__m256i (&dot)[Parts][Rows], const char* weight, const std::int8_t* x,
                                             const Table& table) {
  const __m256i low_halves = _mm256_set1_epi8(15);
  __m256i low[Parts][Rows], high[Parts][Rows];
  WEFT_UNROLLED (int line = 0; line < kLines; ++line) {
    __m256i first[Parts], second[Parts], first_high[Parts], second_high[Parts];  // .._high: of any_table
    WEFT_UNROLLED (int c = 0; c < Parts; ++c) {
      const __m256i levels = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weight + c * 32));
      first[c] = _mm256_and_si256(levels, low_halves);
      second[c] = _mm256_and_si256(_mm256_srli_epi16(levels, 4), low_halves);
      first_high[c] = _mm256_shuffle_epi8(table.high, first[c]);
      second_high[c] = _mm256_shuffle_epi8(table.high, second[c]);
      if constexpr (kLevels == Levels::below_32 || kLevels == Levels::any_table)
        first[c] = _mm256_shuffle_epi8(table.low, first[c]), second[c] = _mm256_shuffle_epi8(table.low, second[c]);
    }
    WEFT_UNROLLED (int i = 0; i < Rows; ++i) {
      const __m256i a = quad_of(x + i * kQuad), b = of_four(kLevels) ? quad_of(x + (Rows + i) * kQuad) : a;
      WEFT_UNROLLED (int c = 0; c < Parts; ++c) {
        begin_or_add(low[c][i], _mm256_maddubs_epi16(first[c], a), line == 0);
        if constexpr (kLevels == Levels::eight) begin_or_add(high[c][i], _mm256_maddubs_epi16(second[c], b), line == 0);
        else add_here(low[c][i], _mm256_maddubs_epi16(second[c], b));
        if constexpr (kLevels == Levels::any_table) {
          begin_or_add(high[c][i], _mm256_maddubs_epi16(first_high[c], a), line == 0);
          add_here(high[c][i], _mm256_maddubs_epi16(second_high[c], b));
        }
      }
    }
    weight += kLine, x += (of_four(kLevels) ? 2 : 1) * Rows * kQuad;
  }
  WEFT_UNROLLED (int c = 0; c < Parts; ++c)
    WEFT_UNROLLED (int i = 0; i < Rows; ++i) {
      dot[c][i] = _mm256_add_epi32(dot[c][i], _mm256_madd_epi16(low[c][i], _mm256_set1_epi16(1)));
      if constexpr (!in_one_sum(kLevels))
        dot[c][i] = _mm256_add_epi32(dot[c][i], _mm256_madd_epi16(high[c][i], _mm256_set1_epi16(16)));
    }
}

/// The same of two lines of levels of 8 bits that are below 64.
template <int Rows, int Parts>
[[gnu::always_inline]] inline void add_two_low_lines(__m256i (&dot)[Parts][Rows], const char* weight,
                                                     const std::int8_t* x) {
  __m256i first[Parts], second[Parts];
  WEFT_UNROLLED (int c = 0; c < Parts; ++c) {
    first[c] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weight + c * 32));
    second[c] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weight + kLine + c * 32));
  }
  WEFT_UNROLLED (int i = 0; i < Rows; ++i) {
    const __m256i a = quad_of(x + i * kQuad), b = quad_of(x + (Rows + i) * kQuad);
    WEFT_UNROLLED (int c = 0; c < Parts; ++c) {
      const __m256i both = _mm256_add_epi16(_mm256_maddubs_epi16(first[c], a), _mm256_maddubs_epi16(second[c], b));
      dot[c][i] = _mm256_add_epi32(dot[c][i], _mm256_madd_epi16(both, _mm256_set1_epi16(1)));
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
  constexpr int kQuads = of_four(kLevels) ? 2 : 1;     // of a line
  constexpr int kParts = in_one_sum(kLevels) ? 2 : 1;  // of 8 columns, at once
  constexpr int kLines = safe_lines(kLevels);
  const std::int64_t lines = t.quads / kQuads;
  Table table = {};
  if constexpr (by_table) table = load_table(t.table, kLevels == Levels::below_32);
  for (int part = 0; part < 2; part += kParts) {
    const char* weight = reinterpret_cast<const char*>(t.weight);
    const std::int8_t* x = t.x;
    __m256 sum[kParts][Rows];
    WEFT_UNROLLED (int c = 0; c < kParts; ++c)
      WEFT_UNROLLED (int i = 0; i < Rows; ++i) sum[c][i] = _mm256_setzero_ps();
    for (std::int64_t g = 0; g < t.groups; ++g, weight += (lines + 1) * kLine) {
      if (t.prefetch && part == 0)
        for (std::int64_t line = 0; line <= lines; ++line) _mm_prefetch(weight + kAhead + line * kLine, _MM_HINT_T0);
      __m256i dot[kParts][Rows];
      WEFT_UNROLLED (int c = 0; c < kParts; ++c)
        WEFT_UNROLLED (int i = 0; i < Rows; ++i) dot[c][i] = _mm256_setzero_si256();
      const char* const first = weight + kLine + part * 32;
      const auto levels_at = [&](std::int64_t line) { return x + line * kQuads * Rows * kQuad; };
      if constexpr (kLevels == Levels::below_64)
        for (std::int64_t line = 0; line < lines; line += kLines)
          add_two_low_lines<Rows, kParts>(dot, first + line * kLine, levels_at(line));
      else if (lines < kLines) add_lines<Rows, kParts, kLevels, kLines / 2>(dot, first, x, table);
      else
        for (std::int64_t line = 0; line < lines; line += kLines)
          add_lines<Rows, kParts, kLevels, kLines>(dot, first + line * kLine, levels_at(line), table);
      x = levels_at(lines);
      WEFT_UNROLLED (int c = 0; c < kParts; ++c) {
        const __m256 scale = halves_to_floats(weight + (part + c) * 16),
                     minimum = halves_to_floats(weight + 32 + (part + c) * 16);
        WEFT_UNROLLED (int i = 0; i < Rows; ++i) {
          const __m256 both = _mm256_mul_ps(scale, _mm256_set1_ps(t.x_scale[g * Rows + i]));
          sum[c][i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[c][i]), both, sum[c][i]);
          sum[c][i] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(t.x_sum[g * Rows + i]), sum[c][i]);
        }
      }
    }
    WEFT_UNROLLED (int c = 0; c < kParts; ++c)
      WEFT_UNROLLED (int i = 0; i < Rows; ++i) _mm256_storeu_ps(t.sums + i * 16 + (part + c) * 8, sum[c][i]);
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

/// The largest of 8 integers.
int largest(__m256i a) {
  __m128i most = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(most, _mm_shuffle_epi32(most, 0xB1)));
}
/// The sum of 8 integers.
int sum_of(__m256i a) {
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1)));
}
void store_quad(std::int8_t* to, __m128i bytes) {
  const int quad = _mm_cvtsi128_si32(bytes);
  __builtin_memcpy(to, &quad, sizeof quad);
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
    const int bits = largest(most);
    const RowScale scale = row_scale(bits);
    __m256i sum = _mm256_setzero_si256();
    for (std::int64_t i = 0; i < q.group; i += 8) {
      const __m256 x = i < count ? load_some(q.from + first + i, count - i) : _mm256_setzero_ps();
      const __m256i level = bits >= kInfinity ? _mm256_setzero_si256()
                                              : _mm256_cvtps_epi32(_mm256_mul_ps(x, _mm256_set1_ps(scale.inverse)));
      sum = _mm256_add_epi32(sum, level);
      const __m256i words = _mm256_packs_epi32(level, level), bytes = _mm256_packs_epi16(words, words);
      store_quad(to, _mm256_castsi256_si128(bytes));
      store_quad(to + q.rows * kQuad, _mm256_extracti128_si256(bytes, 1));
      to += 2 * q.rows * kQuad;
    }
    q.scale[g * q.rows] = scale.scale;
    q.sum[g * q.rows] = scale.scale * static_cast<float>(sum_of(sum));
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
  fill<Levels::four, 1, 2, 3, 4>(kernels.tile4);
  fill<Levels::eight, 1, 2, 3, 4>(kernels.tile8);
  fill<Levels::below_64, 1, 2, 3, 4>(kernels.tile8_below_64);
  kernels.all_below_64 = all_below_64;
  fill<Levels::below_32, 1, 2, 3, 4>(kernels.tile_table[0]);
  fill<Levels::any_table, 1, 2, 3, 4>(kernels.tile_table[1]);
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
