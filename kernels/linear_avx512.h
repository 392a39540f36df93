// kernels/linear_avx512.h: what products with 16 sums in a register have in common, whatever a product is. For
// linear_avx512*.cc, which define Product: add(a, w, sum) is the sum with the products of a and w. Everything is in an
// unnamed namespace, so that code for one processor is never linked into another's.
#pragma once

#include <immintrin.h>

#include "kernels/linear_math.h"
#include "kernels/unrolled.h"

namespace weft::kernels {
namespace {

__mmask16 first_lanes(std::int64_t count) { return static_cast<__mmask16>((1u << count) - 1u); }

struct Avx512 {
  using V = __m512;
  static V all(float x) { return _mm512_set1_ps(x); }
  static V load(const float* p) { return _mm512_loadu_ps(p); }
  static V load(const f16* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static V load(const bf16* p) { return from_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static V load_first(const float* p, std::int64_t n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
  static V load_first(const f16* p, std::int64_t n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p));
  }
  static V load_first(const bf16* p, std::int64_t n) { return from_bf16(_mm256_maskz_loadu_epi16(first_lanes(n), p)); }
  static void store_first(float* p, V v, std::int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), v); }

  static V add(V a, V b) { return _mm512_add_ps(a, b); }
  static V sub(V a, V b) { return _mm512_sub_ps(a, b); }
  static V mul(V a, V b) { return _mm512_mul_ps(a, b); }
  static V div(V a, V b) { return _mm512_div_ps(a, b); }
  static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static V max(V a, V b) { return _mm512_max_ps(a, b); }  // b where either is not a number
  static V min(V a, V b) { return _mm512_min_ps(a, b); }
  static V abs(V a) { return _mm512_abs_ps(a); }
  static V copy_sign(V size, V sign) { return _mm512_or_ps(_mm512_abs_ps(size), _mm512_and_ps(all(-0.0f), sign)); }
  static V round(V a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static V times_power_of_two(V a, V n) { return _mm512_scalef_ps(a, n); }
  /// `below` where x < limit, else `other`.
  static V choose_below(V x, float limit, V below, V other) {
    return _mm512_mask_mov_ps(other, _mm512_cmp_ps_mask(x, all(limit), _CMP_LT_OQ), below);
  }

  /// The fixed tree, for sixteen outputs at once; taken in bit-reversed order, so that they come out in natural order.
  static V reduce(const float* sums) {
    constexpr int reversed[4] = {0, 2, 1, 3};
    V v[16], t[8];
    WEFT_UNROLLED (int i = 0; i < 16; ++i) v[i] = _mm512_load_ps(sums + (4 * reversed[i >> 2] + reversed[i & 3]) * 16);
    WEFT_UNROLLED (int i = 0; i < 8; ++i)
      t[i] = add(_mm512_shuffle_f32x4(v[i], v[i + 8], 0x44), _mm512_shuffle_f32x4(v[i], v[i + 8], 0xEE));
    WEFT_UNROLLED (int i = 0; i < 4; ++i)
      v[i] = add(_mm512_shuffle_f32x4(t[i], t[i + 4], 0x88), _mm512_shuffle_f32x4(t[i], t[i + 4], 0xDD));
    WEFT_UNROLLED (int i = 0; i < 2; ++i)
      t[i] = add(_mm512_shuffle_ps(v[i], v[i + 2], 0x44), _mm512_shuffle_ps(v[i], v[i + 2], 0xEE));
    return add(_mm512_shuffle_ps(t[0], t[1], 0x88), _mm512_shuffle_ps(t[0], t[1], 0xDD));
  }

 private:
  static V from_bf16(__m256i bits) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16)); }
};

/// Numbers along k that share a cache line.
template <class T> constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(T));

template <int Rows, int Columns>
void load_sums(__m512 (&sum)[Rows][Columns], const float* from, std::int64_t stride, bool first) {
  WEFT_UNROLLED (int i = 0; i < Rows; ++i) {
    WEFT_UNROLLED (int j = 0; j < Columns; ++j)
      sum[i][j] = first ? _mm512_setzero_ps() : _mm512_load_ps(from + i * stride + j * kPartialSums);
  }
}
template <int Rows, int Columns> void store_sums(const __m512 (&sum)[Rows][Columns], float* to, std::int64_t stride) {
  WEFT_UNROLLED (int i = 0; i < Rows; ++i) {
    WEFT_UNROLLED (int j = 0; j < Columns; ++j) _mm512_store_ps(to + i * stride + j * kPartialSums, sum[i][j]);
  }
}
template <class Product, int Rows, int Columns>
[[gnu::always_inline]] inline void multiply(__m512 (&sum)[Rows][Columns], const float* x, const __m512 (&w)[Columns]) {
  WEFT_UNROLLED (int i = 0; i < Rows; ++i) {
    __m512 a = _mm512_load_ps(x + i * kPartialSums);
    asm("" : "+v"(a));  // one load per vector: GCC would repeat it inside each FMA and run out of load ports
    WEFT_UNROLLED (int j = 0; j < Columns; ++j) sum[i][j] = Product::add(a, w[j], sum[i][j]);
  }
}

template <class Product, int Rows, int Columns, class T> void direct_tile(const DirectTile& t) {
  const T* const weight = static_cast<const T*>(t.weight);
  const T* const prefetch = static_cast<const T*>(t.prefetch);
  const std::int64_t stride = t.weight_stride, k = t.k;
  const float* x = t.x;
  __m512 sum[Rows][Columns], w[Columns];
  load_sums(sum, t.sums, t.sums_stride, t.first);
  std::int64_t at = 0;
  for (; at + kLine<T> <= k; at += kLine<T>) {
    WEFT_UNROLLED (int j = 0; j < Columns; ++j)
      _mm_prefetch(reinterpret_cast<const char*>(prefetch + j * stride + at), _MM_HINT_T1);
    WEFT_UNROLLED (int part = 0; part < kLine<T>; part += kPartialSums) {
      WEFT_UNROLLED (int j = 0; j < Columns; ++j) w[j] = Avx512::load(weight + j * stride + at + part);
      multiply<Product>(sum, x, w);
      x += Rows * kPartialSums;
    }
  }
  for (; at < k; at += kPartialSums) {
    const std::int64_t count = k - at < kPartialSums ? k - at : kPartialSums;
    WEFT_UNROLLED (int j = 0; j < Columns; ++j) w[j] = Avx512::load_first(weight + j * stride + at, count);
    multiply<Product>(sum, x, w);
    x += Rows * kPartialSums;
  }
  store_sums(sum, t.sums, t.sums_stride);
}

constexpr int kPanelRows = 8, kPanelVectors = 3;
constexpr std::int64_t kPanelStride = kPanelVectors * kPartialSums;

template <class Product, int Rows>
[[gnu::always_inline]] inline void panel_step(__m512 (&sum)[Rows][kPanelVectors], const float* x, const float* panel) {
  __m512 w[kPanelVectors];
  WEFT_UNROLLED (int j = 0; j < kPanelVectors; ++j) w[j] = _mm512_load_ps(panel + j * kPartialSums);
  WEFT_UNROLLED (int i = 0; i < Rows; ++i) {
    __m512 a = _mm512_set1_ps(x[i]);
    asm volatile(
        ""
        : "+v"(a));  // keeps the compiler from starting later loads early, because it would run out of registers
    WEFT_UNROLLED (int j = 0; j < kPanelVectors; ++j) sum[i][j] = Product::add(a, w[j], sum[i][j]);
  }
}

template <class Product, int Rows> void panel_tile(const PanelTile& t) {
  constexpr std::int64_t tile = Rows * kPanelStride;
  __m512 sum[Rows][kPanelVectors];
  load_sums(sum, t.sums, kPanelStride, t.first);
  const float *x = t.x, *panel = t.panel, *next = t.sums + tile;
  const char *weights = static_cast<const char*>(t.prefetch), *const weights_end = weights + t.prefetch_lines * 64;
  // By fours, because at most 4 instructions start in a cycle, and a step's 24 products alone take 12.
  std::int64_t s = 0;
  for (; s + 4 <= t.steps; s += 4, x += 4 * Rows, panel += 4 * kPanelStride) {
    // The second-level cache is 14 cycles away; prefetches here bring x and the next tile's sums in time.
    WEFT_UNROLLED (int line = 0; line < 2; ++line)
      _mm_prefetch(reinterpret_cast<const char*>(x + (64 + line) * kPartialSums), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T0);
    next += kPartialSums;
    if (weights < weights_end) {
      _mm_prefetch(weights, _MM_HINT_T1);
      _mm_prefetch(weights + 64, _MM_HINT_T1);
      weights += 128;
    }
    WEFT_UNROLLED (int part = 0; part < 4; ++part)
      panel_step<Product>(sum, x + part * Rows, panel + part * kPanelStride);
  }
  for (; s < t.steps; ++s, x += Rows, panel += kPanelStride) panel_step<Product>(sum, x, panel);
  store_sums(sum, t.sums, kPanelStride);
}

/// [i][j] to [j][i].
[[gnu::always_inline]] inline void transpose_16x16(__m512 (&v)[16]) {
  __m512 t[16];
  WEFT_UNROLLED (int i = 0; i < 16; i += 4) {  // 4x4 blocks inside each 128 bits
    const __m512 a = _mm512_unpacklo_ps(v[i], v[i + 1]), b = _mm512_unpackhi_ps(v[i], v[i + 1]);
    const __m512 c = _mm512_unpacklo_ps(v[i + 2], v[i + 3]), d = _mm512_unpackhi_ps(v[i + 2], v[i + 3]);
    t[i] = _mm512_shuffle_ps(a, c, 0x44), t[i + 1] = _mm512_shuffle_ps(a, c, 0xEE);
    t[i + 2] = _mm512_shuffle_ps(b, d, 0x44), t[i + 3] = _mm512_shuffle_ps(b, d, 0xEE);
  }
  WEFT_UNROLLED (int i = 0; i < 4; ++i) {  // then the blocks themselves
    const __m512 a = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x88), b = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xDD);
    const __m512 c = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0x88),
                 d = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0xDD);
    v[i] = _mm512_shuffle_f32x4(a, c, 0x88), v[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
    v[i + 8] = _mm512_shuffle_f32x4(a, c, 0xDD), v[i + 12] = _mm512_shuffle_f32x4(b, d, 0xDD);
  }
}

void transpose_floats(const Transpose& t) {
  const float* const from = static_cast<const float*>(t.from);
  const __mmask16 width = first_lanes(t.width);
  float* to = t.to;
  for (std::int64_t at = 0; at < t.k; at += kPartialSums, to += t.step) {
    const std::int64_t count = t.k - at < kPartialSums ? t.k - at : kPartialSums;
    __m512 v[16];
    for (int i = 0; i < 16; ++i)
      v[i] = i < t.rows ? Avx512::load_first(from + i * t.stride + at, count) : _mm512_setzero_ps();
    transpose_16x16(v);
    WEFT_UNROLLED (int l = 0; l < 16; ++l) _mm512_mask_storeu_ps(to + l * t.lane_step, width, v[l]);
  }
}

void spread(const float* from, std::int64_t k, float* to, std::int64_t step) {
  for (std::int64_t at = 0; at < k; at += kPartialSums, to += step)
    _mm512_store_ps(to, Avx512::load_first(from + at, k - at < kPartialSums ? k - at : kPartialSums));
}

constexpr int columns_for(int rows) {  // at most 24 sums in 32 registers
  return rows <= 2 ? 8 : rows <= 4 ? 6 : rows <= 6 ? 4 : rows <= 8 ? 3 : 2;
}
template <class Product, int... Rows> constexpr void fill_panels(LinearKernels& kernels) {
  void (*const panel[])(const PanelTile&) = {panel_tile<Product, Rows>...};
  for (int i = 0; i < static_cast<int>(sizeof...(Rows)); ++i) kernels.panel[i] = panel[i];
}
template <class Product, class T, int... Rows> constexpr void fill(LinearKernels& kernels, DType type) {
  const DirectKernel direct[] = {direct_tile<Product, Rows, columns_for(Rows), T>...},
                     single[] = {direct_tile<Product, Rows, 1, T>...};
  for (int i = 0; i < static_cast<int>(sizeof...(Rows)); ++i) {
    kernels.direct[static_cast<int>(type)][i] = direct[i];
    kernels.single[static_cast<int>(type)][i] = single[i];
    kernels.direct_columns[i] = columns_for(i + 1);
  }
}
/// Of f32 numbers, or of whatever else 32 bits are for Product.
template <class Product> constexpr LinearKernels make_kernels(const char* name) {
  LinearKernels kernels = {};
  kernels.name = name;
  kernels.direct_rows = 12;
  kernels.panel_rows = kPanelRows;
  kernels.panel_columns = kPanelVectors * kPartialSums;
  fill_panels<Product, 1, 2, 3, 4, 5, 6, 7, 8>(kernels);
  fill<Product, float, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12>(kernels, DType::f32);
  kernels.transpose[static_cast<int>(DType::f32)] = transpose_floats;
  kernels.spread = spread;
  kernels.finish_direct = linear_finish<Avx512, SumsForm::direct>;
  kernels.finish_panel = linear_finish<Avx512, SumsForm::panel>;
  return kernels;
}

}  // namespace
}  // namespace weft::kernels
