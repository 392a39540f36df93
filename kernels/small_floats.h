// kernels/small_floats.h: floats of 4 and 8 bits, in which files store weights and scales: E2M1 and E8M0 after the OCP
// Microscaling Formats (MX) specification 1.0, E4M3 after OCP's 8-bit Floating Point specification (OFP8) 1.0.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace weft {

/// Twice the numbers of E2M1, by their 4 bits: whole numbers.
inline constexpr std::array<std::int8_t, 16> kTwiceE2M1{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

inline constexpr std::uint8_t kNanE8M0 = 255;
/// Half of 2 ^ (bits - 127), which E8M0's 8 bits stand for, as kTwiceE2M1 needs it: from 2 ^ -128 on.
constexpr float half_of_e8m0(std::uint8_t bits) {
  const std::uint32_t exponent = bits;
  return std::bit_cast<float>(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
}

/// The number of 8 bits as E4M3 has it: no infinities, and NaN if the last 7 bits are 1.
inline float e4m3(std::uint8_t bits) {
  static const std::array<float, 256> all = [] {
    std::array<float, 256> numbers{};
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const int exponent = static_cast<int>(i >> 3 & 15), mantissa = static_cast<int>(i & 7);
      const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                       : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
      numbers[i] = (i & 127) == 127 ? std::numeric_limits<float>::quiet_NaN() : i & 128 ? -size : size;
    }
    return numbers;
  }();
  return all[bits];
}

}  // namespace weft
