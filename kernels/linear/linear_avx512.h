// kernels/linear/linear_avx512.h: matrix products with 16 sums in a register, for any kind of product. The files
// linear_avx512*.cc include it and define Product: add(a, w, sum) returns the sum plus the products of a and w.
// Everything is in an unnamed namespace, so that code for one processor is never linked into another's.
#pragma once

#include "kernels/linear/linear_math.h"
#include "kernels/linear/linear_transpose_avx512.h"

namespace weft::kernels {
namespace {

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
template <int Rows, int Columns> void add_sums(__m512 (&sum)[Rows][Columns], const float* to, std::int64_t stride) {
  WEFT_UNROLLED (int i = 0; i < Rows; ++i) {
    WEFT_UNROLLED (int j = 0; j < Columns; ++j)
      sum[i][j] = _mm512_add_ps(_mm512_load_ps(to + i * stride + j * kPartialSums), sum[i][j]);
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

inline constexpr int kPanelRows = 8, kPanelVectors = 3;
inline constexpr std::int64_t kPanelStride = kPanelVectors * kPartialSums;

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
  const float* x = t.x;
  const char *weights = static_cast<const char*>(t.prefetch), *const weights_end = weights + t.prefetch_lines * 64;
  for (std::int64_t at = 0; at < t.tiles * tile; at += tile) {
    __m512 sum[Rows][kPanelVectors];
    load_sums(sum, t.sums + at, kPanelStride, t.first);
    const float *panel = t.panel, *next = t.sums + at + tile;
    // Steps go in fours, because at most 4 instructions start in a cycle, and a step's 24 products alone take 12.
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
    for (int list = 0; list < t.joins; ++list) add_sums(sum, t.join[list] + at, kPanelStride);
    store_sums(sum, t.to + at, kPanelStride);
  }
}

inline void spread(const float* from, std::int64_t k, float* to, std::int64_t step) {
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
/// The kernels for f32 numbers, or for whatever Product takes 32 bits to be.
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
  kernels.finish_sums = linear_finish<Avx512, SumsForm::whole>;
  return kernels;
}

}  // namespace
}  // namespace weft::kernels
