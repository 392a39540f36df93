// kernels/quantised.h: numbers of 4 or 8 bits. A group of neighbours shares a scale and a minimum in fp16: a number is
// scale * level + minimum, by one fused multiply-add in fp32, with its level from 0 to 15 or 255.
//
// The scale itself is stored, not its inverse, which would overflow fp16 where a group's numbers are nearly equal.
#pragma once

#include <cstdint>

#include "kernels/tensor.h"

namespace weft {

struct GroupScale {
  f16 scale, minimum;
};

constexpr int levels_of(DType dtype) { return dtype == DType::i4 ? 15 : 255; }  ///< the highest level

namespace kernels {

/// Writes the `count` levels of a group, one per byte, and their scale. False where a number is not finite or the
/// group's scale or minimum would overflow fp16; then the outputs hold anything. A group of equal numbers has scale 0.
bool quantise_group(const float* numbers, std::int64_t count, DType dtype, std::uint8_t* levels, GroupScale& scale);

}  // namespace kernels
}  // namespace weft
