// runtime/base/hash.h: small hashes that are the same in every build and on every machine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/random.h"

namespace weft::runtime {

/// splitmix64: every bit of the result depends on every bit of x.
constexpr std::uint64_t mix(std::uint64_t x) { return kernels::mix_bits(x + 0x9E3779B97F4A7C15u); }

/// FNV-1a.
constexpr std::uint64_t hash(std::string_view text) {
  std::uint64_t h = 0xCBF29CE484222325u;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return h;
}

/// The value in sixteen hexadecimal digits.
inline std::string to_hex(std::uint64_t value) {
  std::string text(16, '0');
  for (auto digit = text.rbegin(); digit != text.rend(); ++digit, value >>= 4) *digit = "0123456789abcdef"[value & 15];
  return text;
}

}  // namespace weft::runtime
