// tests/cuda_sim/include/cuda_bf16.h: __nv_bfloat16 by way of fp32.
#pragma once

#include "cuda_fp16.h"

namespace cusim {

inline std::uint16_t bfloat_bits(float f) {  // to nearest, ties to even
  const std::uint32_t word = std::bit_cast<std::uint32_t>(f);
  if ((word & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return static_cast<std::uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16);
}
inline float from_bfloat_bits(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

}  // namespace cusim

using __nv_bfloat16 = cusim::SmallFloat<cusim::from_bfloat_bits, cusim::bfloat_bits>;
using __nv_bfloat162 = cusim::SmallFloat2<__nv_bfloat16>;
template <> inline constexpr bool cusim::kShuffles<__nv_bfloat16> = true;
template <> inline constexpr bool cusim::kShuffles<__nv_bfloat162> = true;

inline __nv_bfloat16 __float2bfloat16(float f) { return f; }
inline __nv_bfloat16 __float2bfloat16_rn(float f) { return f; }
inline float __bfloat162float(__nv_bfloat16 h) { return h; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short u) { return std::bit_cast<__nv_bfloat16>(u); }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h) { return h.bits; }
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {__nv_bfloat16(a), __nv_bfloat16(b)}; }
inline float2 __bfloat1622float2(__nv_bfloat162 a) { return {a.x, a.y}; }
