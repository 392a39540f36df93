// kernels/linear/linear_amx.cc: products of bf16 numbers by AMX. Compiled with -mamx-tile -mamx-bf16 and the flags of
// linear_avx512_bf16.cc; like linear_avx512.cc it calls no shared inline function.
#include "kernels/linear/linear_tiles.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__AVX512BW__)
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12's own intrinsics trip these two
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "kernels/linear/linear_amx.h"
#include "kernels/linear/linear_math.h"
#include "kernels/linear/linear_pairs_avx512.h"
#include "kernels/linear/linear_transpose_avx512.h"

namespace weft::kernels {
namespace {

/// Tiles 4 and 5 have rows of weights or of x. The rows of all others run along x's rows, or along 16 columns.
void begin(std::int64_t x_rows) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.bytes_of_row[tile] = tile == 4 || tile == 5 ? kLine : static_cast<std::uint16_t>(x_rows * 4);
    config.rows[tile] = kRows;
  }
  load_config(config);
}

void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}
__mmask32 first_of_32(std::int64_t count) { return count >= 32 ? ~__mmask32{0} : (__mmask32{1} << count) - 1; }

/// The first `count` of 32 floats, rounded, zeros after them.
[[gnu::always_inline]] inline __m512 rounded(const float* from, std::int64_t count) {
  const __m512 low = count >= 16 ? _mm512_loadu_ps(from) : Avx512::load_first(from, count);
  const __m512 high = count >= 32  ? _mm512_loadu_ps(from + 16)
                      : count > 16 ? Avx512::load_first(from + 16, count - 16)
                                   : _mm512_setzero_ps();
  return reinterpret_cast<__m512>(_mm512_cvtne2ps_pbh(high, low));
}

void round_rows(const ToTiles& t) {
  for (std::int64_t row = 0; row < kRows; ++row) {
    const float* const from = static_cast<const float*>(t.from) + row * t.stride;
    std::byte* to = t.to + row * kLine;
    for (std::int64_t at = 0; at < t.k; at += kAmxStep, to += kAmxTile)
      _mm512_store_ps(to, row < t.rows ? rounded(from + at, t.k - at) : _mm512_setzero_ps());
  }
}

template <class Load> [[gnu::always_inline]] inline void pair_tiles(const ToTiles& t, const Load& load) {
  const std::int64_t row = t.tile / kRows;
  const __mmask16 some = static_cast<__mmask16>((1u << row / 4) - 1u);
  std::byte* to = t.to;
  for (std::int64_t at = 0; at < t.k; at += kAmxStep) {
    __m512 v[16];
    for (int i = 0; i < 16; ++i) v[i] = i < t.rows ? load(i * t.stride + at, t.k - at) : _mm512_setzero_ps();
    transpose_16x16(v);
    WEFT_UNROLLED (int i = 0; i < 16; ++i) _mm512_mask_storeu_ps(to + i * row, some, v[i]);
    to += t.tile;
  }
}
void round_pairs(const ToTiles& t) {
  const float* const from = static_cast<const float*>(t.from);
  pair_tiles(t, [&](std::int64_t at, std::int64_t count) { return rounded(from + at, count); });
}
void pair_weights(const ToTiles& t) {
  const bf16* const from = static_cast<const bf16*>(t.from);
  pair_tiles(t, [&](std::int64_t at, std::int64_t count) {
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(first_of_32(count), from + at));
  });
}

template <bool Four> void expand(const ExpandLevels& t) {
  const std::int64_t pairs = t.steps * kAmxStep / 2;
  const auto store = [&](std::int64_t pair, __m512i numbers) { _mm512_store_si512(t.to + pair * kLine, numbers); };
  expand_levels<Four>(t.from, t.group, t.k, t.table, t.prefetch, store);
  for (std::int64_t pair = t.k / 2; pair < pairs; ++pair) store(pair, _mm512_setzero_si512());
}

void pair_rows(const ToTiles& t) {
  const bf16* const from = static_cast<const bf16*>(t.from);
  const __m512i order = pair_order();
  for (std::int64_t row = 0; row < kAmxStep; row += 2)
    for (std::int64_t column = 0; column < (t.k + kAmxStep - 1) / kAmxStep * kAmxStep; column += 16) {
      const std::int64_t left = t.k - column;
      const __mmask16 some = left >= 16 ? __mmask16{0xFFFF} : left <= 0 ? __mmask16{0} : first_lanes(left);
      const auto load = [&](std::int64_t i) {
        return _mm256_maskz_loadu_epi16(i < t.rows ? some : __mmask16{0}, from + i * t.stride + column);
      };
      const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(load(row)), load(row + 1), 1);
      _mm512_store_si512(t.to + column / 16 * t.tile + row / 2 * kLine, _mm512_permutexvar_epi16(order, both));
    }
}

/// Tiles 0 to 3 have sums, 4 and 5 weights, 6 and 7 x.
template <int XTiles, int WTiles>
[[gnu::always_inline]] inline void few_step(const std::byte* x, std::int64_t x_tile, const bf16* w, std::int64_t x_row,
                                            std::int64_t stride) {
  const std::int64_t bytes = stride * 2, tile = stride * kRows;
  _tile_loadd(6, x, x_row);
  if constexpr (XTiles == 2) _tile_loadd(7, x + x_tile, x_row);
  _tile_loadd(4, w, bytes);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (XTiles == 2) _tile_dpbf16ps(1, 4, 7);
  if constexpr (WTiles == 2) {
    _tile_loadd(5, w + tile, bytes);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (XTiles == 2) _tile_dpbf16ps(3, 5, 7);
  }
}

/// Stores a tile of sums, whose rows are columns of the result, as rows.
void store_transposed(const char* tile, std::int64_t rows, float* sums, std::int64_t stride) {
  __m512 v[16];
  WEFT_UNROLLED (int i = 0; i < 16; ++i) v[i] = _mm512_load_ps(tile + i * kLine);
  transpose_16x16(v);
  WEFT_UNROLLED (int i = 0; i < 16; ++i)
    if (i < rows) _mm512_store_ps(sums + i * stride, v[i]);
}

template <int XTiles, int WTiles> void few(const FewRows& t) {
  const std::int64_t steps = (t.k + kAmxStep - 1) / kAmxStep, x_row = t.x_rows * 4, x_step = x_row * kRows;
  const std::int64_t x_tile = steps * x_step;
  zero_sums();
  // Rows of weights end where others may not be read: the last step, and a tile of fewer than 16 rows, are copied.
  const std::int64_t whole = WTiles == 1 && t.columns < kRows ? 0 : t.k / kAmxStep;
  for (std::int64_t step = 0; step < whole; ++step) {
    for (std::int64_t row = 0; row < WTiles * kRows; ++row)
      _mm_prefetch(reinterpret_cast<const char*>(t.prefetch + row * t.weight_stride + step * kAmxStep), _MM_HINT_T1);
    few_step<XTiles, WTiles>(t.x + step * x_step, x_tile, t.weight + step * kAmxStep, x_row, t.weight_stride);
  }
  for (std::int64_t step = whole; step < steps; ++step) {
    alignas(64) bf16 copy[WTiles * kRows * kAmxStep];
    const __mmask32 some = first_of_32(t.k - step * kAmxStep);
    for (int row = 0; row < WTiles * kRows; ++row)
      _mm512_store_si512(copy + row * kAmxStep,
                         _mm512_maskz_loadu_epi16(row < t.columns ? some : __mmask32{0},
                                                  t.weight + row * t.weight_stride + step * kAmxStep));
    stored(copy);
    few_step<XTiles, WTiles>(t.x + step * x_step, x_tile, copy, x_row, kAmxStep);
  }
  alignas(64) char tile[2][2][kAmxTile];
  _tile_stored(0, tile[0][0], kLine);
  if constexpr (XTiles == 2) _tile_stored(1, tile[0][1], kLine);
  if constexpr (WTiles == 2) _tile_stored(2, tile[1][0], kLine);
  if constexpr (XTiles == 2 && WTiles == 2) _tile_stored(3, tile[1][1], kLine);
  for (int w = 0; w < WTiles; ++w)
    for (int i = 0; i < XTiles; ++i)
      store_transposed(tile[w][i], t.rows - i * kRows, t.sums + i * kRows * t.sums_stride + w * kRows, t.sums_stride);
}

template <int XTiles> void many(const ManyRows& t) {
  const std::int64_t stride = t.sums_stride * 4;
  float *const top = t.sums, *const bottom = t.sums + kRows * t.sums_stride;
  if (t.first) {
    zero_sums();
  } else {
    _tile_loadd(0, top, stride);
    _tile_loadd(1, top + 16, stride);
    if constexpr (XTiles == 2) {
      _tile_loadd(2, bottom, stride);
      _tile_loadd(3, bottom + 16, stride);
    }
  }
  const std::byte *x = t.x, *w = t.panel, *prefetch = t.prefetch;
  const float* soon = t.soon;
  const std::int64_t soon_rows = soon == nullptr ? 0 : (2 * kRows + t.steps - 1) / t.steps;  // a step
  std::int64_t soon_left = 2 * kRows;
  for (std::int64_t step = 0; step < t.steps; ++step, x += kAmxTile, w += kAmxTile, prefetch += kLine) {
    _tile_loadd(4, x, kLine);
    _tile_loadd(6, w, kLine);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w + t.panel_tile, kLine);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (XTiles == 2) {
      _tile_loadd(5, x + t.x_tile, kLine);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    for (std::int64_t row = 0; row < t.prefetch_rows; ++row)
      _mm_prefetch(reinterpret_cast<const char*>(prefetch + row * t.prefetch_stride), _MM_HINT_T1);
    // Stores of tiles do not wait for lines as other stores do: a line that is far away stops the tiles.
    for (std::int64_t row = 0; row < soon_rows && soon_left > 0; ++row, --soon_left, soon += t.soon_stride) {
      __builtin_prefetch(soon, 1, 3);
      __builtin_prefetch(soon + 16, 1, 3);
    }
  }
  _tile_stored(0, top, stride);
  _tile_stored(1, top + 16, stride);
  if constexpr (XTiles == 2) {
    _tile_stored(2, bottom, stride);
    _tile_stored(3, bottom + 16, stride);
  }
}

constexpr TileKernels kKernels = {.begin = begin,
                                  .end = end,
                                  .round_rows = round_rows,
                                  .round_pairs = round_pairs,
                                  .pair_weights = pair_weights,
                                  .expand4 = expand<true>,
                                  .expand8 = expand<false>,
                                  .pair_rows = pair_rows,
                                  .few = {{few<1, 1>, few<1, 2>}, {few<2, 1>, few<2, 2>}},
                                  .many = {many<1>, many<2>},
                                  .finish = linear_finish<Avx512, SumsForm::whole>};

}  // namespace

const TileKernels* tile_kernels_amx() { return &kKernels; }

}  // namespace weft::kernels
#else
namespace weft::kernels {

const TileKernels* tile_kernels_amx() { return nullptr; }

}  // namespace weft::kernels
#endif
