// kernels/attention/cpu/keys.h: the worth of a token's key alone (Scoring::keys), over a vector type S (cpu/math.h).
#pragma once

#include "kernels/attention/cpu/math.h"

namespace weft::kernels {

/// 1 / the length of x [n]; 0 if it has no direction.
template <class S, class T> float inverse_length(const T* x, int n) {
  typename S::V sum = S::zero();
  for (int d = 0; d < n; d += kLanes) {
    const typename S::V v = load_some<S>(x + d, n - d < kLanes ? n - d : kLanes);
    sum = S::fma(v, v, sum);
  }
  const float square = S::sum(sum);
  return square > 0 && square < __builtin_inff() ? 1.0f / __builtin_sqrtf(square) : 0.0f;
}

/// sum[n] += key / its length.
template <class S, class T> void add_unit(const T* key, int n, float* sum) {
  const float inverse = inverse_length<S>(key, n);
  if (inverse == 0) return;
  for (int d = 0; d < n; d += kLanes) {
    const int lanes = n - d < kLanes ? n - d : kLanes;
    const typename S::V unit = S::mul(load_some<S>(key + d, lanes), S::all(inverse));
    store_some<S>(sum + d, S::add(load_some<S>(sum + d, lanes), unit), lanes);
  }
}

/// Scoring::keys of a key that is in the sum.
template <class S, class T> float key_score(const T* key, int n, const float* sum) {
  const float inverse = inverse_length<S>(key, n), of_sum = inverse_length<S>(sum, n);
  if (inverse == 0 || of_sum == 0) return 0;
  typename S::V dot = S::zero();
  for (int d = 0; d < n; d += kLanes) {
    const int lanes = n - d < kLanes ? n - d : kLanes;
    dot = S::fma(load_some<S>(key + d, lanes), load_some<S>(sum + d, lanes), dot);
  }
  return -S::sum(dot) * inverse * of_sum;
}

/// Calls f(x) with the numbers at `row` in their type.
template <class F> auto with_numbers(const void* row, DType type, const F& f) {
  if (type == DType::f32) return f(static_cast<const float*>(row));
  if (type == DType::f16) return f(static_cast<const f16*>(row));
  return f(static_cast<const bf16*>(row));
}
template <class S> void add_unit_row(const void* key, DType type, int n, float* sum) {
  with_numbers(key, type, [&](const auto* x) { add_unit<S>(x, n, sum); });
}
template <class S> float key_score_row(const void* key, DType type, int n, const float* sum) {
  return with_numbers(key, type, [&](const auto* x) { return key_score<S>(x, n, sum); });
}

}  // namespace weft::kernels
