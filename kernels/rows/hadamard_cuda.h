// kernels/rows/hadamard_cuda.h: a warp multiplies a head by Hadamard's matrix.
#pragma once

#include "kernels/machine/device_cuda.h"

namespace weft::kernels::cuda {

/// Hadamard (ops.h) of a head in shared memory, in place. All threads of a warp call it and see the result.
__device__ inline void turn_head(float* mine, int head_dim) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int first = 0, n = 1; first < head_dim; first += n) {
    for (n = 1; 2 * n <= head_dim - first; n *= 2) {}
    for (int distance = 1; distance < n; distance *= 2) {
      for (int i = lane; i < n / 2; i += kWarp) {
        float* const pair = mine + first + i / distance * 2 * distance + i % distance;
        const float a = pair[0], b = pair[distance];
        pair[0] = a + b, pair[distance] = a - b;
      }
      __syncwarp();
    }
    const float root = sqrtf(1.0f / static_cast<float>(n));
    for (int d = lane; d < n; d += kWarp) mine[first + d] *= root;
  }
  __syncwarp();
}

}  // namespace weft::kernels::cuda
