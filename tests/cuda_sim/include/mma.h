// tests/cuda_sim/include/mma.h: nvcuda::wmma, 16x16x16, half or bfloat16 factors and float sums.
#pragma once

#include "cuda_bf16.h"
#include "cuda_fp16.h"

namespace cusim {

/// A lane's share of a 16x16 tile between its fragment and memory; elements of `element` bytes.
struct TileMove {
  void* fragment;
  void* memory;
  unsigned stride;  // elements
  bool by_columns, store, twice;
  std::size_t element;
};
void tile_move(const TileMove& move, Location at);
void tile_multiply(float* d, const void* a, const void* b, const float* c, bool bfloat, Location at);

}  // namespace cusim

namespace nvcuda::wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment {
  static_assert(M == 16 && N == 16 && K == 16);
  static constexpr int num_elements = std::is_same_v<Use, accumulator> ? 8 : 16;  // the device holds factors twice
  T x[num_elements];
};
template <class Use, class T, class Layout> using Fragment16 = fragment<Use, 16, 16, 16, T, Layout>;
using Sums16 = Fragment16<accumulator, float, void>;

template <class Use, class T, class Layout> void fill_fragment(Fragment16<Use, T, Layout>& f, cusim::Same<T> value) {
  for (T& x : f.x) x = value;
}
template <class Use, class T, class Layout>
void load_matrix_sync(Fragment16<Use, T, Layout>& f, const T* p, unsigned stride, cusim::Location at = {}) {
  cusim::tile_move({f.x, const_cast<T*>(p), stride, std::is_same_v<Layout, col_major>, false, true, sizeof(T)}, at);
}
inline void load_matrix_sync(Sums16& f, const float* p, unsigned stride, layout_t layout, cusim::Location at = {}) {
  cusim::tile_move({f.x, const_cast<float*>(p), stride, layout == mem_col_major, false, false, sizeof(float)}, at);
}
inline void store_matrix_sync(float* p, const Sums16& f, unsigned stride, layout_t layout, cusim::Location at = {}) {
  cusim::tile_move({const_cast<float*>(f.x), p, stride, layout == mem_col_major, true, false, sizeof(float)}, at);
}
template <class T, class LayoutA, class LayoutB>
void mma_sync(Sums16& d, const Fragment16<matrix_a, T, LayoutA>& a, const Fragment16<matrix_b, T, LayoutB>& b,
              const Sums16& c, cusim::Location at = {}) {
  static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);
  cusim::tile_multiply(d.x, a.x, b.x, c.x, std::is_same_v<T, __nv_bfloat16>, at);
}

}  // namespace nvcuda::wmma
