// kernels/machine/cuda.h: the only access to CUDA and cuBLASLt: error checks, owning handles, launch().
//
// The same sources are compiled by nvcc and, against tests/cuda_sim, by a host compiler. Hence launch() in place of
// <<<>>>, two macros for shared memory (device_cuda.h), and C++ next to each piece of PTX (tensor_core_cuda.h).
#pragma once

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "kernels/tensor.h"

namespace weft::kernels::cuda {

/// Throws DeviceError, which names the call and CUDA's error, or CapacityError if memory is short.
void check(cudaError_t error, const char* call);
void check(cublasStatus_t status, const char* call);

inline std::string mebibytes(std::size_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }  ///< in messages

/// Owns one CUDA object. It can be moved.
template <class Handle, auto kDestroy> class Owner {
 public:
  Owner() = default;
  explicit Owner(Handle handle) : handle_(handle) {}
  Owner(Owner&& other) noexcept : handle_(std::exchange(other.handle_, Handle{})) {}
  Owner& operator=(Owner&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owner() {
    if (handle_ != Handle{}) kDestroy(handle_);
  }
  Handle get() const { return handle_; }

 private:
  Handle handle_{};
};
using StreamHandle = Owner<cudaStream_t, cudaStreamDestroy>;
using EventHandle = Owner<cudaEvent_t, cudaEventDestroy>;
using GraphHandle = Owner<cudaGraphExec_t, cudaGraphExecDestroy>;
using BlasHandle = Owner<cublasLtHandle_t, cublasLtDestroy>;
using PreferenceHandle = Owner<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;
using DeviceMemory = Owner<void*, cudaFree>;
using HostMemory = Owner<void*, cudaFreeHost>;

/// An event without timing. A thread that waits for it sleeps, because the host's attention needs the cores.
EventHandle make_event();

/// Bytes of dynamic shared memory that need no request: 48 KiB less what a kernel has statically.
constexpr std::size_t kSharedWithoutAsking = 40 << 10;

/// Queues a kernel; does nothing if the grid is empty. Throws DeviceError.
template <class... P, class... A>
void launch(void (*kernel)(P...), dim3 grid, unsigned threads, std::size_t shared_bytes, cudaStream_t stream,
            A&&... args) {
  static_assert(sizeof...(P) == sizeof...(A));
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  if (shared_bytes > kSharedWithoutAsking)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)),
          "cudaFuncSetAttribute");
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<P>(std::forward<A>(args))...), "cudaLaunchKernelEx");
}

/// Calls f.operator()<T>() with the device's type of `dtype`: float, __half or __nv_bfloat16.
template <class F> void with_float_type(DType dtype, F&& f) {
  if (dtype == DType::f16) f.template operator()<__half>();
  else if (dtype == DType::bf16) f.template operator()<__nv_bfloat16>();
  else f.template operator()<float>();
}

inline unsigned blocks_for(std::int64_t items, std::int64_t per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

}  // namespace weft::kernels::cuda
