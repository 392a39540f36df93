// kernels/linear/linear_math.h: activations over a vector type S of 16 floats, which linear_avx512.cc and
// linear_avx2.cc define in an unnamed namespace, so that code for one processor is never linked into another's.
#pragma once

#include "kernels/linear/linear_kernels.h"

namespace weft::kernels {

/// exp(x) to 2 units in the last place; infinity above 88.73, 0 below -104.
template <class S> typename S::V linear_exp(typename S::V x) {
  const auto clamped = S::min(S::all(89.0f), S::max(S::all(-104.0f), x));
  const auto n = S::round(S::mul(clamped, S::all(1.44269504f)));
  auto r = S::fma(n, S::all(-0.693359375f), clamped);  // ln 2 in two parts: n * ln 2 would lose r's last bits
  r = S::fma(n, S::all(2.12194440e-4f), r);
  auto p = S::all(1.9875691500e-4f);  // the Cephes library's polynomial for expf
  p = S::fma(p, r, S::all(1.3981999507e-3f));
  p = S::fma(p, r, S::all(8.3334519073e-3f));
  p = S::fma(p, r, S::all(4.1665795894e-2f));
  p = S::fma(p, r, S::all(1.6666665459e-1f));
  p = S::fma(p, r, S::all(5.0000001201e-1f));
  return S::times_power_of_two(S::add(S::fma(p, S::mul(r, r), r), S::all(1.0f)), n);
}

/// x / (1 + exp(-scale x)).
template <class S> typename S::V linear_sigmoid_times(typename S::V x, float scale) {
  return S::div(x, S::add(S::all(1.0f), linear_exp<S>(S::mul(x, S::all(-scale)))));
}

template <class S> typename S::V linear_tanh(typename S::V x) {
  const auto size = S::abs(x), z = S::mul(x, x);
  auto p = S::all(-5.70498872745e-3f);  // the Cephes library's tanhf: a polynomial near 0, where 1 - 2 / ... cancels
  p = S::fma(p, z, S::all(2.06390887954e-2f));
  p = S::fma(p, z, S::all(-5.37397155531e-2f));
  p = S::fma(p, z, S::all(1.33314422036e-1f));
  p = S::fma(p, z, S::all(-3.33332819422e-1f));
  const auto small = S::fma(S::mul(p, z), x, x);
  const auto e = linear_exp<S>(S::add(size, size));
  const auto large = S::sub(S::all(1.0f), S::div(S::all(2.0f), S::add(e, S::all(1.0f))));
  return S::choose_below(size, 0.625f, small, S::copy_sign(large, x));
}

/// After N. Juffa's erff, within 1 unit in the last place.
template <class S> typename S::V linear_erf(typename S::V x) {
  const auto t = S::abs(x), s = S::mul(x, x);
  auto r = S::fma(S::all(-1.72853470e-5f), t, S::all(3.83197126e-4f));
  const auto u = S::fma(S::all(-3.88396438e-3f), t, S::all(2.42546219e-2f));
  r = S::fma(r, s, u);
  r = S::fma(r, t, S::all(-1.06777877e-1f));
  r = S::fma(r, t, S::all(-6.34846687e-1f));
  r = S::fma(r, t, S::all(-1.28717512e-1f));
  r = S::fma(r, t, S::sub(S::all(0.0f), t));
  const auto large = S::copy_sign(S::sub(S::all(1.0f), linear_exp<S>(r)), x);
  auto p = S::all(-5.96761703e-4f);
  p = S::fma(p, s, S::all(4.99119423e-3f));
  p = S::fma(p, s, S::all(-2.67681349e-2f));
  p = S::fma(p, s, S::all(1.12819925e-1f));
  p = S::fma(p, s, S::all(-3.76125336e-1f));
  p = S::fma(p, s, S::all(1.28379166e-1f));
  return S::choose_below(t, 0.927734375f, S::fma(p, x, x), large);
}

template <class S> typename S::V linear_activate(typename S::V x, Activation activation) {
  const auto half = S::mul(S::all(0.5f), x);
  switch (activation) {
    case Activation::none: return x;
    case Activation::relu: return S::max(S::all(0.0f), x);
    case Activation::relu_squared: {
      const auto positive = S::max(S::all(0.0f), x);
      return S::mul(positive, positive);
    }
    case Activation::gelu: return S::fma(half, linear_erf<S>(S::mul(x, S::all(0.707106781f))), half);
    case Activation::gelu_tanh: {
      const auto inner = S::fma(S::mul(S::mul(x, x), x), S::all(0.044715f), x);
      return S::fma(half, linear_tanh<S>(S::mul(inner, S::all(0.797884561f))), half);
    }
    case Activation::quick_gelu: return linear_sigmoid_times<S>(x, 1.702f);
    case Activation::silu: return linear_sigmoid_times<S>(x, 1.0f);
    case Activation::tanh: return linear_tanh<S>(x);
  }
  return x;
}

template <class S> typename S::V linear_bias(const Finish& f, std::int64_t n, int count) {
  if (f.bias_type == DType::f16) return S::load_first(static_cast<const f16*>(f.bias) + n, count);
  if (f.bias_type == DType::bf16) return S::load_first(static_cast<const bf16*>(f.bias) + n, count);
  return S::load_first(static_cast<const float*>(f.bias) + n, count);
}

/// Adds up the 16 partial sums in their fixed order (linear_kernels.h). Vectors of them are lane_step apart.
template <class S> typename S::V linear_tree(const float* sums, std::int64_t lane_step) {
  const auto two = [&](int l) { return S::add(S::load(sums + l * lane_step), S::load(sums + (l + 8) * lane_step)); };
  const auto four = [&](int l) { return S::add(two(l), two(l + 4)); };
  const auto eight = [&](int l) { return S::add(four(l), four(l + 2)); };
  return S::add(eight(0), eight(1));
}

/// Rows of whole vectors of sums that are outputs, or are added to them.
template <class S> void linear_store_rows(const Finish& f) {
  for (std::int64_t row = 0; row < f.rows; ++row)
    for (std::int64_t n = 0; n < f.columns; n += kPartialSums) {
      const auto y = S::load(f.sums + row * f.sums_stride + n);
      float* const out = f.out + row * f.out_stride + n;
      S::store(out, f.accumulate ? S::add(S::load(out), y) : y);
    }
}

enum class SumsForm { direct, panel, whole };
template <class S, SumsForm form> void linear_finish_row(const Finish& f) {
  for (std::int64_t n = 0; n < f.columns; n += kPartialSums) {
    const int count = f.columns - n < kPartialSums ? static_cast<int>(f.columns - n) : kPartialSums;
    typename S::V y;
    if constexpr (form == SumsForm::whole) y = S::load_first(f.sums + n, count);
    else if constexpr (form == SumsForm::panel) y = linear_tree<S>(f.sums + n, f.lane_step);
    else y = S::reduce(f.sums + n * kPartialSums);
    if (f.bias != nullptr) y = S::add(y, linear_bias<S>(f, n, count));
    y = linear_activate<S>(y, f.activation);
    if (f.accumulate) y = S::add(S::load_first(f.out + n, count), y);
    S::store_first(f.out + n, y, count);
  }
}

template <class S, SumsForm form> void linear_finish(const Finish& f) {
  if constexpr (form == SumsForm::whole) {
    if (f.columns % kPartialSums == 0 && f.bias == nullptr && f.activation == Activation::none)
      return linear_store_rows<S>(f);
    Finish row = f;
    for (std::int64_t i = 0; i < f.rows; ++i, row.sums += f.sums_stride, row.out += f.out_stride)
      linear_finish_row<S, form>(row);
  } else {
    linear_finish_row<S, form>(f);
  }
}

}  // namespace weft::kernels
