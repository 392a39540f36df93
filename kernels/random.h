// kernels/random.h: random numbers as a function of their purpose, so that order and threads cannot matter.
#pragma once

#include <cstdint>

namespace weft::kernels {

/// A bijection of 64 bits whose output bits each depend on all input bits (the finaliser of splitmix64).
constexpr std::uint64_t mix_bits(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/// 64 random bits for number `counter` of stream `key`. Streams whose keys differ in one bit are unrelated.
constexpr std::uint64_t random_bits(std::uint64_t key, std::uint64_t counter) {
  constexpr std::uint64_t step = 0x9E3779B97F4A7C15u;
  return mix_bits(mix_bits(key + step) + (counter + 1) * step);
}

/// Uniform in [0, 1): multiples of 2^-53.
constexpr double unit_double(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1.0p-53; }
/// Uniform in [0, 1): multiples of 2^-24, so exact in fp32.
constexpr float unit_float(std::uint64_t bits) { return static_cast<float>(bits >> 40) * 0x1.0p-24f; }

}  // namespace weft::kernels
