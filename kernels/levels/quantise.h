// kernels/levels/quantise.h: the part of quantise_tile() (kernels/quantised.h) that an instruction set contributes.
// Internal to kernels/ and the tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/quantised.h"

namespace weft::kernels {

constexpr int kMostGroup = 128;  ///< numbers

/// The arguments of quantise_tile().
struct QuantiseTile {
  const void* numbers;
  DType type;                             // of the numbers: f32, f16 or bf16
  std::int64_t rows, stride;              // of the numbers
  std::int64_t cols, group, group_bytes;  // of the layout
  bool four;                              // 4 bits, else 8
  std::byte* to;
};
QuantiseTile arguments_of(const QuantisedLayout& layout, const ConstView& numbers, std::byte* to);

using QuantiseTileFunction = std::int64_t (*)(const QuantiseTile&);
struct QuantiseKernel {
  const char* name;  ///< "AVX-512", "AVX2", "plain C++"
  QuantiseTileFunction quantise;
};

/// The kernels that this processor can run, the fastest first; the last is plain C++. All give the same bits.
const std::vector<QuantiseKernel>& quantise_kernels();

QuantiseTileFunction quantise_avx512();  ///< null if the file was compiled without the instructions
QuantiseTileFunction quantise_avx2();

}  // namespace weft::kernels
