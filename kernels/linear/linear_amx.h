// kernels/linear/linear_amx.h: AMX's tile registers. The files linear*_amx.cc include it. It is in an unnamed
// namespace, as linear_avx512.h is.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace weft::kernels {
namespace {

constexpr int kRows = 16, kLine = 64;  // of a tile register: rows, bytes of a row

struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t bytes_of_row[16] = {};
  std::uint8_t rows[16] = {};
};

/// Keeps stores to `p` before loads of tiles, which the compiler does not see to read memory.
[[gnu::always_inline]] inline void stored(const void* p) { asm volatile("" ::"r"(p) : "memory"); }

inline void load_config(const TileConfig& config) {
  stored(&config);
  _tile_loadconfig(&config);
}
/// Gives the registers back, so that the system has none to save where threads change.
inline void end() { _tile_release(); }

}  // namespace
}  // namespace weft::kernels
