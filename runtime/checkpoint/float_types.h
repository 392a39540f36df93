// runtime/checkpoint/float_types.h: code for a float type that is known at run time.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include "kernels/tensor.h"

namespace weft::runtime {

/// Calls body with a float, f16 or bf16 value for `dtype`.
template <class Body> void with_type(DType dtype, Body&& body) {
  if (dtype == DType::f32) body(float{});
  else if (dtype == DType::f16) body(f16{});
  else body(bf16{});
}

/// Widens numbers of a float type, which may lie at any byte.
inline std::vector<float> widened(DType dtype, const std::vector<std::byte>& bytes) {
  std::vector<float> numbers;
  with_type(dtype, [&]<class T>(T) {
    numbers.resize(bytes.size() / sizeof(T));
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      T number;
      std::memcpy(&number, bytes.data() + i * sizeof(T), sizeof(T));
      numbers[i] = static_cast<float>(number);
    }
  });
  return numbers;
}

}  // namespace weft::runtime
