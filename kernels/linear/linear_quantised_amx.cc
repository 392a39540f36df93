// kernels/linear/linear_quantised_amx.cc: integer products by AMX. Compiled with -mamx-tile -mamx-int8 and the flags of
// linear_quantised_avx512.cc; like linear_avx512.cc it calls no shared inline function.
//
// A tile register of x has 16 rows of 64 levels, one of weights 64 levels of 16 columns, as they lie in memory. The
// integers of a group are stored, and joined to the sums as vectors.
#include "kernels/linear/linear_quantised.h"

#if defined(__AMX_TILE__) && defined(__AMX_INT8__) && defined(__AVX512F__) && defined(__AVX512BW__)
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12's own intrinsics trip these two
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "kernels/linear/linear_amx.h"
#include "kernels/linear/linear_levels_avx512.h"
#include "kernels/unrolled.h"

namespace weft::kernels {
namespace {

constexpr std::int64_t kAhead = 40 * kLine;  // distance of prefetches from memory

/// Registers 0 and 1 have integers, 4 and 5 x, 6 and 7 weights.
void begin(int group) {
  const int columns = group < 64 ? group : 64;
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    const bool x = tile == 4 || tile == 5, weights = tile >= 6;
    config.bytes_of_row[tile] = static_cast<std::uint16_t>(x ? columns : kLine);
    config.rows[tile] = static_cast<std::uint8_t>(weights ? columns / kQuad : kRows);
  }
  load_config(config);
}

/// A place for 16 levels of a group: those of a row lie together.
struct RowsOfGroups {
  static void store(const QuantiseRow& q, std::int64_t column, __m128i levels) {
    const std::int64_t group = column / q.group * q.group;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q.to + group * q.rows + column - group), levels);
  }
};

/// Register 0 [16][16] = the levels of 16 rows of a group times those of its weights.
[[gnu::always_inline]] inline void multiply(const std::int8_t* x, const char* weight, std::int64_t group) {
  _tile_zero(0);
  _tile_loadd(4, x, group);
  _tile_loadd(6, weight, kLine);
  _tile_dpbsud(0, 4, 6);
  if (group == 128) {
    _tile_loadd(5, x + kLine, group);
    _tile_loadd(7, weight + kRows * kLine, kLine);
    _tile_dpbsud(0, 5, 7);
  }
}

void tile(const IntegerTile& t) {
  const char* weight = reinterpret_cast<const char*>(t.weight);
  const std::int8_t* x = t.x;
  const std::int64_t group = t.quads * kQuad;
  // The next group's integers are begun before a group's are scaled. Those of small groups are stored before that too,
  // others after it: whichever was faster.
  const bool early = group <= 32;
  alignas(64) int dots[2][kRows * 16];
  if (t.soon != nullptr)
    for (std::int64_t row = 0; row < kRows; ++row) __builtin_prefetch(t.soon + row * t.soon_stride, 1, 3);
  multiply(x, weight + kLine, group);
  _tile_stored(0, dots[0], kLine);
  __m512 sum[kRows];
  WEFT_UNROLLED (int i = 0; i < kRows; ++i) sum[i] = _mm512_setzero_ps();
  for (std::int64_t g = 0; g < t.groups; ++g, x += kRows * group, weight += (t.quads + 1) * kLine) {
    const __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(weight)));
    const __m512 minimum = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(weight + kLine / 2)));
    if (t.prefetch)
      for (std::int64_t line = 0; line <= t.quads; ++line) _mm_prefetch(weight + kAhead + line * kLine, _MM_HINT_T0);
    const bool more = g + 1 < t.groups;
    const int* const dot = dots[g % 2];
    if (more) multiply(x + kRows * group, weight + (t.quads + 2) * kLine, group);
    if (more && early) _tile_stored(0, dots[(g + 1) % 2], kLine);
    stored(dot);
    WEFT_UNROLLED (int i = 0; i < kRows; ++i) {
      const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(t.x_scale[g * kRows + i]));
      sum[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(dot + i * 16)), both, sum[i]);
      sum[i] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(t.x_sum[g * kRows + i]), sum[i]);
    }
    if (more && !early) _tile_stored(0, dots[(g + 1) % 2], kLine);
  }
  WEFT_UNROLLED (int i = 0; i < kRows; ++i) _mm512_storeu_ps(t.sums + i * 16, sum[i]);
}

void widen(const WidenTile& t) {
  const char* from = reinterpret_cast<const char*>(t.from);
  char* to = reinterpret_cast<char*>(t.to);
  const __m512i low_halves = _mm512_set1_epi8(15);
  const __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(t.table)));
  for (std::int64_t g = 0; g < t.groups; ++g) {
    _mm512_store_si512(to, _mm512_loadu_si512(from));
    from += kLine, to += kLine;
    for (std::int64_t line = 0; line < t.quads / 2; ++line, from += kLine, to += 2 * kLine) {
      _mm_prefetch(from + kAhead, _MM_HINT_T0);
      const __m512i levels = _mm512_loadu_si512(from), high = _mm512_srli_epi16(levels, 4);
      _mm512_store_si512(to, _mm512_shuffle_epi8(table, _mm512_and_si512(levels, low_halves)));
      _mm512_store_si512(to + kLine, _mm512_shuffle_epi8(table, _mm512_and_si512(high, low_halves)));
    }
  }
}

constexpr IntegerKernels make_kernels() {
  IntegerKernels kernels = {};
  kernels.name = "AMX";
  kernels.rows = kRows;
  kernels.begin = begin;
  kernels.end = end;
  kernels.tile8[kRows - 1] = tile;
  kernels.widen = widen;
  kernels.quantise = quantise_levels<RowsOfGroups>;
  return kernels;
}
constexpr IntegerKernels kKernels = make_kernels();

}  // namespace

const IntegerKernels* integer_kernels_amx() { return &kKernels; }

}  // namespace weft::kernels
#else
namespace weft::kernels {

const IntegerKernels* integer_kernels_amx() { return nullptr; }

}  // namespace weft::kernels
#endif
