// tests/cuda_sim/ptx/ops_float.cc: numbers with a point. What a GPU only approximates is computed exactly and rounded.
#include <cmath>
#include <limits>

#include "cuda_bf16.h"
#include "warp.h"

namespace cusim::ptx {
namespace {

using u16 = std::uint16_t;
using u32 = std::uint32_t;

template <class T> T add(T a, T b) { return a + b; }
template <class T> T sub(T a, T b) { return a - b; }
template <class T> T mul(T a, T b) { return a * b; }
template <class T> T divide(T a, T b) { return a / b; }
template <class T> T reciprocal(T a) { return 1 / a; }
template <class T> T root(T a) { return std::sqrt(a); }
template <class T> T negative(T a) { return -a; }
template <class T> T absolute(T a) { return std::abs(a); }
template <class T> T with_sign_of(T sign, T a) { return std::copysign(a, sign); }
// Of a number and a NaN the number; -0 is less than 0.
template <class T> T smaller(T a, T b) {
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  return a < b || (a == b && std::signbit(a)) ? a : b;
}
template <class T> T larger(T a, T b) {
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  return a > b || (a == b && !std::signbit(a)) ? a : b;
}
float smaller_or_nan(float a, float b) { return std::isnan(a) || std::isnan(b) ? NAN : smaller(a, b); }
float larger_or_nan(float a, float b) { return std::isnan(a) || std::isnan(b) ? NAN : larger(a, b); }

// The processor's own instruction where it has one: the library's function takes far longer.
__attribute__((target_clones("arch=haswell", "default"))) void fused_floats(float* d, const float* a, const float* b,
                                                                            const float* c) {
  for (int lane = 0; lane < 32; ++lane) d[lane] = std::fma(a[lane], b[lane], c[lane]);
}
void fma_float(Warp& w, const Instruction& i, unsigned lanes) {
  alignas(64) float results[32];
  fused_floats(results, w.values<float>(i.operands[1]), w.values<float>(i.operands[2]), w.values<float>(i.operands[3]));
  float* const d = w.lanes<float>(i.operands[0]);
  if (lanes == ~0u) std::memcpy(d, results, sizeof results);
  else each_lane(lanes, [&](int lane) { d[lane] = results[lane]; });
}
double fma_double(double a, double b, double c) { return std::fma(a, b, c); }

/// Towards minus infinity.
float fma_down(float a, float b, float c) {
  const float nearest = std::fma(a, b, c);
  if (!std::isfinite(nearest)) return nearest;
  const double product = double{a} * b, sum = product + c;                                  // the product is exact
  const double part = sum - product, rest = (product - (sum - part)) + (double{c} - part);  // sum + rest is exact
  const double above = double{nearest} - sum;
  return above > rest ? std::nextafterf(nearest, -std::numeric_limits<float>::infinity()) : nearest;
}

float flushed(float a) { return std::fpclassify(a) == FP_SUBNORMAL ? std::copysign(0.0f, a) : a; }
float exponential(float a) { return static_cast<float>(std::exp2(double{a})); }
float exponential_ftz(float a) { return flushed(exponential(flushed(a))); }
float logarithm(float a) { return static_cast<float>(std::log2(double{a})); }
float logarithm_ftz(float a) { return logarithm(flushed(a)); }
float inverse_root(float a) { return static_cast<float>(1 / std::sqrt(double{a})); }
float inverse_root_ftz(float a) { return inverse_root(flushed(a)); }
double inverse_root_double(double a) { return 1 / std::sqrt(a); }
float reciprocal_ftz(float a) { return flushed(1 / flushed(a)); }
float root_ftz(float a) { return std::sqrt(flushed(a)); }
float sine(float a) { return static_cast<float>(std::sin(double{a})); }
float cosine(float a) { return static_cast<float>(std::cos(double{a})); }
float tangent_h(float a) { return static_cast<float>(std::tanh(double{a})); }
double reciprocal_upper(double a) {  // of the upper half alone; the lower half of the result is 0
  constexpr std::uint64_t kUpper = ~std::uint64_t{0} << 32;
  const double from = std::bit_cast<double>(std::bit_cast<std::uint64_t>(a) & kUpper);
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(1 / from) & kUpper);
}

// Halves: computed in fp32 and rounded once, which is exact for these.
u16 half_add(u16 a, u16 b) { return half_bits(from_half_bits(a) + from_half_bits(b)); }
u16 half_sub(u16 a, u16 b) { return half_bits(from_half_bits(a) - from_half_bits(b)); }
u16 half_mul(u16 a, u16 b) { return half_bits(from_half_bits(a) * from_half_bits(b)); }
u16 bfloat_add(u16 a, u16 b) { return bfloat_bits(from_bfloat_bits(a) + from_bfloat_bits(b)); }
u16 bfloat_sub(u16 a, u16 b) { return bfloat_bits(from_bfloat_bits(a) - from_bfloat_bits(b)); }
u16 bfloat_mul(u16 a, u16 b) { return bfloat_bits(from_bfloat_bits(a) * from_bfloat_bits(b)); }
u16 bfloat_fma(u16 a, u16 b, u16 c) {
  return bfloat_bits(to_odd(std::fma(double{from_bfloat_bits(a)}, from_bfloat_bits(b), from_bfloat_bits(c))));
}
template <u16 (*kFunction)(u16, u16)> u32 two(u32 a, u32 b) {
  const u16 low = kFunction(static_cast<u16>(a), static_cast<u16>(b));
  return u32{kFunction(static_cast<u16>(a >> 16), static_cast<u16>(b >> 16))} << 16 | low;
}
template <u16 (*kFunction)(u16, u16, u16)> u32 two_fused(u32 a, u32 b, u32 c) {
  const u16 low = kFunction(static_cast<u16>(a), static_cast<u16>(b), static_cast<u16>(c));
  return u32{kFunction(static_cast<u16>(a >> 16), static_cast<u16>(b >> 16), static_cast<u16>(c >> 16))} << 16 | low;
}

Table make_table() {
  return {
      {"add.f32", each<add<float>>()},
      {"add.rn.f32", each<add<float>>()},
      {"add.f64", each<add<double>>()},
      {"add.rn.f64", each<add<double>>()},
      {"sub.f32", each<sub<float>>()},
      {"sub.rn.f32", each<sub<float>>()},
      {"sub.f64", each<sub<double>>()},
      {"sub.rn.f64", each<sub<double>>()},
      {"mul.f32", each<mul<float>>()},
      {"mul.rn.f32", each<mul<float>>()},
      {"mul.f64", each<mul<double>>()},
      {"mul.rn.f64", each<mul<double>>()},
      {"div.rn.f32", each<divide<float>>()},
      {"div.full.f32", each<divide<float>>()},
      {"div.approx.f32", each<divide<float>>()},
      {"div.approx.ftz.f32", each<divide<float>>()},
      {"div.rn.f64", each<divide<double>>()},
      {"fma.rn.f32", {fma_float, {4, 4, 4, 4}}},
      {"fma.rm.f32", each<fma_down>()},
      {"fma.rn.f64", each<fma_double>()},
      {"rcp.rn.f32", each<reciprocal<float>>()},
      {"rcp.approx.f32", each<reciprocal<float>>()},
      {"rcp.approx.ftz.f32", each<reciprocal_ftz>()},
      {"rcp.rn.f64", each<reciprocal<double>>()},
      {"rcp.approx.ftz.f64", each<reciprocal_upper>()},
      {"sqrt.rn.f32", each<root<float>>()},
      {"sqrt.approx.f32", each<root<float>>()},
      {"sqrt.approx.ftz.f32", each<root_ftz>()},
      {"sqrt.rn.f64", each<root<double>>()},
      {"rsqrt.approx.f32", each<inverse_root>()},
      {"rsqrt.approx.ftz.f32", each<inverse_root_ftz>()},
      {"rsqrt.approx.f64", each<inverse_root_double>()},
      {"ex2.approx.f32", each<exponential>()},
      {"ex2.approx.ftz.f32", each<exponential_ftz>()},
      {"lg2.approx.f32", each<logarithm>()},
      {"lg2.approx.ftz.f32", each<logarithm_ftz>()},
      {"sin.approx.f32", each<sine>()},
      {"sin.approx.ftz.f32", each<sine>()},
      {"cos.approx.f32", each<cosine>()},
      {"cos.approx.ftz.f32", each<cosine>()},
      {"tanh.approx.f32", each<tangent_h>()},
      {"neg.f32", each<negative<float>>()},
      {"neg.f64", each<negative<double>>()},
      {"abs.f32", each<absolute<float>>()},
      {"abs.f64", each<absolute<double>>()},
      {"copysign.f32", each<with_sign_of<float>>()},
      {"copysign.f64", each<with_sign_of<double>>()},
      {"min.f32", each<smaller<float>>()},
      {"min.f64", each<smaller<double>>()},
      {"max.f32", each<larger<float>>()},
      {"max.f64", each<larger<double>>()},
      {"min.NaN.f32", each<smaller_or_nan>()},
      {"max.NaN.f32", each<larger_or_nan>()},
      {"add.f16", each<half_add>()},
      {"add.rn.f16", each<half_add>()},
      {"sub.f16", each<half_sub>()},
      {"sub.rn.f16", each<half_sub>()},
      {"mul.f16", each<half_mul>()},
      {"mul.rn.f16", each<half_mul>()},
      {"fma.rn.f16", each<half_fma>()},
      {"add.rn.bf16", each<bfloat_add>()},
      {"sub.rn.bf16", each<bfloat_sub>()},
      {"mul.rn.bf16", each<bfloat_mul>()},
      {"fma.rn.bf16", each<bfloat_fma>()},
      {"add.f16x2", each<two<half_add>>()},
      {"add.rn.f16x2", each<two<half_add>>()},
      {"sub.f16x2", each<two<half_sub>>()},
      {"mul.f16x2", each<two<half_mul>>()},
      {"fma.rn.f16x2", each<two_fused<half_fma>>()},
      {"fma.rn.bf16x2", each<two_fused<bfloat_fma>>()},
  };
}

}  // namespace

bool decode_float(Decoder& decoder) {
  static const Table& table = *new Table(make_table());
  return decode_by(table, decoder);
}

}  // namespace cusim::ptx
