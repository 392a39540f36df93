// kernels/linear/activation_cuda.h: activations of a product's results on a GPU.
#pragma once

#include "kernels/machine/device_cuda.h"
#include "kernels/ops.h"

namespace weft::kernels::cuda {

__device__ inline float activated(float x, Activation activation) {
  switch (activation) {
    case Activation::none: return x;
    case Activation::relu: return fmaxf(x, 0.0f);
    case Activation::relu_squared: return fmaxf(x, 0.0f) * fmaxf(x, 0.0f);
    case Activation::gelu: return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    case Activation::gelu_tanh: return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    case Activation::quick_gelu: return x / (1.0f + expf(-1.702f * x));
    case Activation::silu: return x / (1.0f + expf(-x));
    case Activation::tanh: return tanhf(x);
  }
  return x;
}

}  // namespace weft::kernels::cuda
