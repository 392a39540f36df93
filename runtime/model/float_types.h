// runtime/model/float_types.h: code for a float type that is known at run time.
#pragma once

#include "kernels/tensor.h"

namespace weft::runtime {

/// Calls body with a float, f16 or bf16 value for `dtype`.
template <class Body> void with_type(DType dtype, Body&& body) {
  if (dtype == DType::f32) body(float{});
  else if (dtype == DType::f16) body(f16{});
  else body(bf16{});
}

}  // namespace weft::runtime
