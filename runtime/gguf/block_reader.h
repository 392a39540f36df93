// runtime/gguf/block_reader.h: reads fields of blocks. Internal to runtime/gguf.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/tensor.h"
#include "runtime/gguf/block_format.h"

namespace weft::runtime {

inline float fp16_at(const std::byte* from) {
  f16 number;
  std::memcpy(&number, from, sizeof number);
  return static_cast<float>(number);
}

inline std::uint8_t byte_at(const std::byte* from, int place) { return static_cast<std::uint8_t>(from[place]); }

/// Splits `bytes` bytes: the levels of the low halves first, then those of the high halves.
inline void split_halves(const std::byte* from, int bytes, std::uint8_t* levels) {
  for (int i = 0; i < bytes; ++i) {
    levels[i] = byte_at(from, i) & 15;
    levels[bytes + i] = byte_at(from, i) >> 4;
  }
}

/// Group `g` of a block of groups of 32.
inline BlockParts group_of(const BlockParts& block, int g) {
  return {block.levels + g * 32, block.scales + g, block.minima + g};
}

/// Gives a block of one group the scale of levels whose zero is `zero`.
inline void around(float scale, int zero, const BlockParts& to) {
  to.scales[0] = scale;
  to.minima[0] = static_cast<float>(-zero) * scale;
}

}  // namespace weft::runtime
