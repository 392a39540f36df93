// kernels/attention/cpu/math.h: arithmetic written once over a vector type S of 16 floats. The files avx512.cc,
// avx2.cc and plain.cc define S in an unnamed namespace, so that code for one processor is never linked into another's.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/attention/cpu/kernels.h"
#include "kernels/unrolled.h"

namespace weft::kernels {

/// exp(x) as power * (1 + rest), with a whole power of two; x lies between -88 and 88.
template <class S> struct ExpParts {
  typename S::V exponent, rest;  // the power is 2^exponent
  explicit ExpParts(typename S::V x) : exponent(S::round(S::mul(x, S::all(1.44269504f)))) {
    // ln 2 in two parts: exponent * ln 2 would lose the last bits
    typename S::V r = S::fma(exponent, S::all(-0.693359375f), x);
    r = S::fma(exponent, S::all(2.12194440e-4f), r);
    typename S::V p = S::all(1.9875691500e-4f);  // the Cephes library's polynomial for expf
    p = S::fma(p, r, S::all(1.3981999507e-3f));
    p = S::fma(p, r, S::all(8.3334519073e-3f));
    p = S::fma(p, r, S::all(4.1665795894e-2f));
    p = S::fma(p, r, S::all(1.6666665459e-1f));
    p = S::fma(p, r, S::all(5.0000001201e-1f));
    rest = S::fma(p, S::mul(r, r), r);
  }
};

/// exp(x), relative error below 2e-7; 0 below exp's normal range (so masked logits of -inf vanish), constant above 88.
template <class S> [[gnu::always_inline]] inline typename S::V exp_of(typename S::V x) {
  const float lowest = -87.33654f;  // rounds to 2^-126, the smallest normal float
  const ExpParts<S> parts(S::min(S::all(88.0f), S::max(S::all(lowest), x)));
  return S::zero_below(x, lowest, S::times_power_of_two(S::add(parts.rest, S::all(1.0f)), parts.exponent));
}

/// cap * tanh(x / cap). tanh(y) is e / (e + 2) with e = exp(2 y) - 1, which is as precise near 0 as far from it.
template <class S> typename S::V capped(typename S::V x, float cap) {
  const typename S::V twice = S::mul(x, S::all(2.0f / cap));
  const ExpParts<S> parts(S::min(S::all(80.0f), S::max(S::all(-80.0f), twice)));
  const typename S::V one = S::all(1.0f), power = S::times_power_of_two(one, parts.exponent);
  const typename S::V e = S::fma(parts.rest, power, S::sub(power, one));
  return S::mul(S::all(cap), S::div(e, S::add(e, S::all(2.0f))));
}

template <class S> float exp_of_one(float x) {
  float lanes[kLanes];
  S::store(lanes, exp_of<S>(S::all(x)));
  return lanes[0];
}

/// The first `count` <= 16 numbers at p, zeros after them.
template <class S, class T> typename S::V load_some(const T* p, int count) {
  return count == kLanes ? S::load(p) : S::load_first(p, count);
}
template <class S, class T> void store_some(T* p, typename S::V v, int count) {
  if (count == kLanes) S::store(p, v);
  else S::store_first(p, v, count);
}

/// Caps n logits.
template <class S> void cap_logits(float* x, std::int64_t n, float cap) {
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const int lanes = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
    store_some<S>(x + i, capped<S>(load_some<S>(x + i, lanes), cap), lanes);
  }
}

template <class S, class From, class To> void convert_row(const From* in, To* out, std::int64_t n, bool add) {
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const int count = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
    typename S::V v = load_some<S>(in + i, count);
    if (add) v = S::add(load_some<S>(out + i, count), v);
    store_some<S>(out + i, v, count);
  }
}

template <class S, class From> void convert_from(const From* in, void* out, DType to, std::int64_t n, bool add) {
  if (to == DType::f32) convert_row<S>(in, static_cast<float*>(out), n, add);
  else if (to == DType::f16) convert_row<S>(in, static_cast<f16*>(out), n, add);
  else convert_row<S>(in, static_cast<bf16*>(out), n, add);
}

template <class S> void convert(const void* in, DType from, void* out, DType to, std::int64_t n, bool add) {
  if (from == DType::f32) convert_from<S>(static_cast<const float*>(in), out, to, n, add);
  else if (from == DType::f16) convert_from<S>(static_cast<const f16*>(in), out, to, n, add);
  else convert_from<S>(static_cast<const bf16*>(in), out, to, n, add);
}

/// Weights of logits in the compiler's own vectors of 8 doubles, which give the same bits for every instruction set. S
/// only keeps the code of each apart.
template <class S> struct Weights {
  static constexpr int kCount = 8;
  using V = double __attribute__((vector_size(kCount * sizeof(double))));
  using Bits = std::int64_t __attribute__((vector_size(kCount * sizeof(double))));
  using Floats = float __attribute__((vector_size(kCount * sizeof(float))));

  /// Weights of kCount logits, which are added to the sums. exp() has a relative error below 1e-15, and is 0 below its
  /// normal range.
  static void make(const float* x, const Weighing& by, double* out, V& sums) {
    constexpr double lowest = -708, to_whole = 0x1.8p52;  // numbers near it have no fraction
    // ln 2 in two parts, of which the first times a whole number is exact
    constexpr double ln2 = 0x1.62e42feep-1, rest_of_ln2 = 0x1.a39ef35793c76p-33;
    Floats logits;
    std::memcpy(&logits, x, sizeof logits);
    const V below = __builtin_convertvector(logits, V) - by.max, wanted = below * by.inverse_temperature;
    const Bits counts = (below >= by.least) & (below <= 0.0) & (wanted >= lowest);  // no NaN, no infinity
    const V from = counts ? wanted : V{};
    const V shifted = from * 0x1.71547652b82fep0 + to_whole, exponent = shifted - to_whole;
    const V r = (from - exponent * ln2) - exponent * rest_of_ln2;
    V p = r * (1.0 / 6227020800) + 1.0 / 479001600;  // Taylor's series, to r^13
    for (const double factor : {1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
                                1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0})
      p = p * r + factor;
    const Bits power = (Bits(shifted) + 1023) << 52;
    const V weight = counts ? p * V(power) : V{};
    std::memcpy(out, &weight, sizeof weight);
    sums += weight;
  }
};

template <class S> double weigh(const float* x, std::int64_t n, const Weighing& by, double* out) {
  constexpr int count = Weights<S>::kCount;
  typename Weights<S>::V sums{};
  std::int64_t i = 0;
  for (; i + count <= n; i += count) Weights<S>::make(x + i, by, out + i, sums);
  if (i < n) {
    float some[count];
    double weights[count];
    std::fill(std::copy(x + i, x + n, some), some + count, -std::numeric_limits<float>::infinity());
    Weights<S>::make(some, by, weights, sums);
    std::copy_n(weights, n - i, out + i);
  }
  double sum = 0;
  for (int lane = 0; lane < count; ++lane) sum += sums[lane];
  return sum;
}

template <class S> double sum_exp(const float* x, std::int64_t n, float shift) {
  constexpr std::int64_t block = 16 * kLanes;  // short fp32 sums, added up in fp64
  double total = 0;
  for (std::int64_t first = 0; first < n; first += block) {
    typename S::V sum = S::zero();
    for (std::int64_t i = first; i < n && i < first + block; i += kLanes) {
      const int count = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
      const typename S::V term = exp_of<S>(S::sub(load_some<S>(x + i, count), S::all(shift)));
      sum = S::add(sum, count == kLanes ? term : S::first(term, count, 0.0f));
    }
    total += static_cast<double>(S::sum(sum));
  }
  return total;
}

}  // namespace weft::kernels
