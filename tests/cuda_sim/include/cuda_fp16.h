// tests/cuda_sim/include/cuda_fp16.h: __half by way of fp32, which rounds + - * / as the device does: once, to nearest.
#pragma once

#include <cmath>
#include <limits>

#include "cuda_runtime.h"

namespace cusim {

inline std::uint16_t half_bits(float f) {  // to nearest, ties to even
  const std::uint32_t word = std::bit_cast<std::uint32_t>(f), sign = word >> 16 & 0x8000, magnitude = word & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7fff;  // as the device's conversion: one NaN, without a sign
  if (magnitude >= 0x477ff000) return static_cast<std::uint16_t>(sign | 0x7c00);
  if (magnitude < 0x38800000) {  // subnormal: adding 0.5 lets the FPU round at 2^-24 per unit
    const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(rounded) - 0x3f000000));
  }
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13));
}
inline float from_half_bits(std::uint16_t bits) {
  const std::uint32_t sign = (std::uint32_t{bits} & 0x8000) << 16, magnitude = bits & 0x7fff;
  if (magnitude >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  const float value = std::bit_cast<float>(magnitude << 13) * 0x1p112f;  // exact, of subnormals too
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
}

/// A 16-bit float of the conversions kTo and kFrom.
template <float (*kTo)(std::uint16_t), std::uint16_t (*kFrom)(float)> struct alignas(2) SmallFloat {
  std::uint16_t bits;

  SmallFloat() = default;
  template <class T>
  requires std::is_arithmetic_v<T> SmallFloat(T value) : bits(kFrom(static_cast<float>(value))) {}
  operator float() const { return kTo(bits); }
  SmallFloat& operator+=(SmallFloat o) { return *this = *this + o; }
  SmallFloat& operator-=(SmallFloat o) { return *this = *this - o; }
  SmallFloat& operator*=(SmallFloat o) { return *this = *this * o; }
  friend SmallFloat operator+(SmallFloat a, SmallFloat b) { return kTo(a.bits) + kTo(b.bits); }
  friend SmallFloat operator-(SmallFloat a, SmallFloat b) { return kTo(a.bits) - kTo(b.bits); }
  friend SmallFloat operator*(SmallFloat a, SmallFloat b) { return kTo(a.bits) * kTo(b.bits); }
  friend SmallFloat operator/(SmallFloat a, SmallFloat b) { return kTo(a.bits) / kTo(b.bits); }
  friend bool operator==(SmallFloat a, SmallFloat b) { return kTo(a.bits) == kTo(b.bits); }
  friend bool operator<(SmallFloat a, SmallFloat b) { return kTo(a.bits) < kTo(b.bits); }
  friend bool operator>(SmallFloat a, SmallFloat b) { return kTo(a.bits) > kTo(b.bits); }
};
template <class T> struct alignas(4) SmallFloat2 { T x, y; };

/// A double as a float that rounds to the same half: to odd.
inline float to_odd(double exact) {
  const float near = static_cast<float>(exact);
  if (near == exact || !std::isfinite(near) || (std::bit_cast<std::uint32_t>(near) & 1)) return near;
  const float infinity = std::numeric_limits<float>::infinity();
  return std::nextafterf(near, exact > near ? infinity : -infinity);
}
/// a b + c of halves, rounded once.
inline std::uint16_t half_fma(std::uint16_t a, std::uint16_t b, std::uint16_t c) {
  return half_bits(to_odd(std::fma(double{from_half_bits(a)}, from_half_bits(b), from_half_bits(c))));
}

}  // namespace cusim

using __half = cusim::SmallFloat<cusim::from_half_bits, cusim::half_bits>;
using __half2 = cusim::SmallFloat2<__half>;
using half = __half;
using half2 = __half2;
template <> inline constexpr bool cusim::kShuffles<__half> = true;
template <> inline constexpr bool cusim::kShuffles<__half2> = true;

inline __half __float2half(float f) { return f; }
inline __half __float2half_rn(float f) { return f; }
inline float __half2float(__half h) { return h; }
inline __half __ushort_as_half(unsigned short u) { return std::bit_cast<__half>(u); }
inline unsigned short __half_as_ushort(__half h) { return h.bits; }
inline __half2 __halves2half2(__half a, __half b) { return {a, b}; }
inline __half2 __floats2half2_rn(float a, float b) { return {__half(a), __half(b)}; }
inline __half2 __float22half2_rn(float2 a) { return {__half(a.x), __half(a.y)}; }
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  return {std::bit_cast<__half>(cusim::half_fma(a.x.bits, b.x.bits, c.x.bits)),
          std::bit_cast<__half>(cusim::half_fma(a.y.bits, b.y.bits, c.y.bits))};
}
inline float2 __half22float2(__half2 a) { return {a.x, a.y}; }
inline float __low2float(__half2 a) { return a.x; }
inline float __high2float(__half2 a) { return a.y; }
