// kernels/attention/cpu/tile.h: products of small matrices in the cache, over a vector type S (cpu/math.h). Each sum
// runs along one lane in the order of its index, so that the shape of a tile cannot change a bit.
#pragma once

#include "kernels/attention/cpu/math.h"

namespace weft::kernels {

/// c[R, 16 * N] = (factor ? c * factor[row] : 0) + a[R, depth] b[depth, 16 * N]
template <class S, int R, int N>
void multiply_tile(const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride, int depth, float* c,
                   std::int64_t c_stride, const float* factor) {
  typename S::V sum[R][N];
  WEFT_UNROLLED (int r = 0; r < R; ++r)
    WEFT_UNROLLED (int n = 0; n < N; ++n)
      sum[r][n] = factor ? S::mul(S::load(c + r * c_stride + n * kLanes), S::all(factor[r])) : S::zero();
  for (int d = 0; d < depth; ++d) {
    typename S::V column[N];
    WEFT_UNROLLED (int n = 0; n < N; ++n) column[n] = S::load(b + d * b_stride + n * kLanes);
    WEFT_UNROLLED (int r = 0; r < R; ++r) {
      const typename S::V x = S::all(a[r * a_stride + d]);
      WEFT_UNROLLED (int n = 0; n < N; ++n) sum[r][n] = S::fma(x, column[n], sum[r][n]);
    }
  }
  WEFT_UNROLLED (int r = 0; r < R; ++r)
    WEFT_UNROLLED (int n = 0; n < N; ++n) S::store(c + r * c_stride + n * kLanes, sum[r][n]);
}

/// The same for any whole number of vectors.
template <class S>
void multiply(const float* a, std::int64_t a_stride, const float* b, std::int64_t columns, int depth, float* c,
              std::int64_t c_stride, const float* factor) {
  constexpr int R = S::kTileRows, N = S::kTileVectors;
  std::int64_t first = 0;
  for (; first + N * kLanes <= columns; first += N * kLanes)
    multiply_tile<S, R, N>(a, a_stride, b + first, columns, depth, c + first, c_stride, factor);
  for (; first < columns; first += kLanes)
    multiply_tile<S, R, 1>(a, a_stride, b + first, columns, depth, c + first, c_stride, factor);
}

/// Rows of a matrix. Those before row `split` may lie elsewhere: `before` points at row `begin`, `from` at row `split`.
template <class T> struct SplitRows {
  const T *before, *from;
  std::int64_t stride;
  std::int64_t split = 0, begin = 0;
  const T* row(std::int64_t r) const { return r < split ? before + (r - begin) * stride : from + (r - split) * stride; }
};

/// out[dim, kKeyColumns] = the transpose of rows `begin` .. begin + keys, with zeros for the keys that are missing.
template <class S, class T> void pack_keys(const SplitRows<T>& k, int begin, int keys, int head_dim, float* out) {
  for (int first = 0; first < kKeyColumns; first += kLanes)
    for (int d = 0; d < head_dim; d += kLanes) {
      const int count = head_dim - d < kLanes ? head_dim - d : kLanes;
      typename S::V rows[kLanes];
      WEFT_UNROLLED (int i = 0; i < kLanes; ++i)
        rows[i] = first + i < keys ? load_some<S>(k.row(begin + first + i) + d, count) : S::zero();
      S::transpose(rows);
      WEFT_UNROLLED (int i = 0; i < kLanes; ++i) S::store(out + (d + i) * kKeyColumns + first, rows[i]);
    }
}

/// out[rows, dim] = scale * rows of x from `begin` on, with zeros up to whole vectors.
template <class S, class T>
void pack_rows(const SplitRows<T>& x, std::int64_t begin, std::int64_t rows, int head_dim, float scale, float* out) {
  const std::int64_t dim = whole_vectors(head_dim);
  for (std::int64_t r = 0; r < rows; ++r)
    for (int d = 0; d < head_dim; d += kLanes) {
      const int count = head_dim - d < kLanes ? head_dim - d : kLanes;
      S::store(out + r * dim + d, S::mul(load_some<S>(x.row(begin + r) + d, count), S::all(scale)));
    }
}

template <class S> void set_to(float* out, std::int64_t n, float value) {
  for (std::int64_t i = 0; i < n; i += kLanes) S::store(out + i, S::all(value));
}

}  // namespace weft::kernels
