// tests/cuda_sim/ptx_kernels.h: kernels with planted faults, and sound ones next to them, for ptx_test.cc.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace weft::test {

/// Results in bits; the host's compiler and nvcc must agree on the first kExact of each thread's kNumbers.
constexpr int kExact = 28, kNumbers = 36;
__global__ void numbers(const std::uint32_t* in, std::uint64_t* out);

/// c[16, 8] = a[16, 16] * b[16, 8] on one warp, by ldmatrix and mma. Rows of a lie `stride` apart in shared memory and
/// are read as if they lay `read_stride` apart.
__global__ void multiply_halves(const __half* a, const __half* b, float* c, int stride, int read_stride);
/// c[16, 8] = a[16, 32] * b[32, 8], b by columns: m16n8k32.
__global__ void multiply_bytes(const std::int8_t* a, const std::int8_t* b, std::int32_t* c);
/// c[8, 8] = a[8, 16] * b[16, 8], b by columns: m8n8k16; c[16, 8] = a[16, 8] * b[8, 8], b by columns: m16n8k8.
__global__ void multiply_small_bytes(const std::int8_t* a, const std::int8_t* b, std::int32_t* c);
__global__ void multiply_small_halves(const __half* a, const __half* b, float* c);

__global__ void neighbours(const float* in, float* out, int distance, bool barrier);  ///< over a block
__global__ void neighbours_in_warp(const float* in, float* out, bool barrier);        ///< over a warp
__global__ void neighbours_by_copy(const float* in, float* out, bool wait);           ///< by cp.async
__global__ void read_vector(const float* in, float* out);                             ///< 16 bytes
__global__ void write_at(float* out, int index);
__global__ void write_shared_at(float* out, int index);
__global__ void read_unwritten(float* out, int written);
__global__ void shuffle_with_mask(int* out, unsigned mask);
__global__ void shuffle_lanes_below(int* out, int lanes);
__global__ void barrier_below(int* out, int threads);
__global__ void uneven_loops(const int* turns, int* out);
__global__ void __launch_bounds__(64) bounded(int* out);
__global__ void sleeps(int* out);
__global__ void columns(const float* in, float* out,
                        int stride);  ///< lane by lane, `stride` apart, through shared memory

}  // namespace weft::test
