// kernels/machine/tensor_core_cuda.h: products of small tiles on tensor cores, and the copies that bring tiles to
// them.
//
// A warp holds tiles in fragments, whose layout NVIDIA documents (PTX ISA, mma.m16n8k16 and ldmatrix). With
// g = lane / 4 and t = lane % 4 a lane has, in registers of two 16-bit numbers each:
//   a [16 rows, 16]: rows g and g + 8 at columns 2t and 2t + 1, then the same rows at columns 2t + 8 and 2t + 9
//   b [16, 8 columns]: column g at rows 2t and 2t + 1, then at rows 2t + 8 and 2t + 9
//   sums [16 rows, 8 columns]: row g at columns 2t and 2t + 1, then row g + 8
// So the sums of one product, rounded in pairs, are the `a` of the next.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/machine/device_cuda.h"
#if defined(CUSIM)
#include <cusim_tensor.h>
#endif

namespace weft::kernels::cuda {

/// Whether the code being compiled may multiply T on tensor cores. Turing's cannot multiply bfloat16.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
template <class T> constexpr bool kMultiplies = std::is_same_v<T, __half>;
#else
template <class T> constexpr bool kMultiplies = std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>;
#endif

/// The same for the code of a kernel as it is loaded. It may have been compiled for an older device than this one.
template <class T, class Kernel> bool multiplies(Kernel* kernel) {
  if constexpr (std::is_same_v<T, __half>) return true;
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
  return attributes.ptxVersion >= 80;
}

/// Two numbers, rounded, in one register; the first in the low half.
template <class T> __device__ inline std::uint32_t pack_pair(float low, float high) {
  std::uint32_t bits;
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    memcpy(&bits, &pair, sizeof bits);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    memcpy(&bits, &pair, sizeof bits);
  }
  return bits;
}

/// 2^x; 0 if that is subnormal.
__device__ inline float fast_exp2(float x) {
#if defined(CUSIM)
  return std::exp2(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

#if !defined(CUSIM)
__device__ inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }
#endif

/// sums += a b. The whole warp calls it.
template <class T>
__device__ inline void multiply_tiles(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                      std::uint32_t b1) {
#if defined(CUSIM)
  const std::uint32_t b[2] = {b0, b1};
  cusim::multiply_fragments(sums, a, b, std::is_same_v<T, __nv_bfloat16>);
#elif __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, __half>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  static_assert(std::is_same_v<T, __half>);
  const std::uint32_t b[2] = {b0, b1};
#pragma unroll
  for (int half = 0; half < 2; ++half)
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
#endif
}

/// sums = a b. The whole warp calls it.
template <class T>
__device__ inline void begin_tiles(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
#if defined(CUSIM) || __CUDA_ARCH__ < 800
  for (float& sum : sums) sum = 0;
  multiply_tiles<T>(sums, a, b0, b1);
#else
  if constexpr (std::is_same_v<T, __half>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %10, %10};"
        : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %10, %10};"
        : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
#endif
}

/// Loads four tiles [8 rows, 8] of 16-bit numbers from shared memory: lanes 8i to 8i + 7 pass the rows of tile i, each
/// at a multiple of 16 bytes. From each tile a lane gets row g at columns 2t and 2t + 1; if transposed, column g at
/// rows 2t and 2t + 1. The whole warp calls it.
template <bool kTransposed> __device__ inline void load_tiles(std::uint32_t (&to)[4], const void* row) {
#if defined(CUSIM)
  cusim::load_fragments(to, row, kTransposed);
#else
  if constexpr (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
#endif
}

/// Begins to copy 16 aligned bytes into shared memory. Unless `present`, it writes zeros and does not read `from`.
/// Turing copies at once.
__device__ inline void begin_copy(void* to, const void* from, bool present) {
#if defined(CUSIM)
  cusim::start_copy(to, from, present);
#elif __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(present ? 16 : 0)
               : "memory");
#else
  *static_cast<uint4*>(to) = present ? *static_cast<const uint4*>(from) : uint4{};
#endif
}

/// Waits for the copies that the calling thread has begun. The other threads see them after the next barrier.
__device__ inline void end_copies() {
#if defined(CUSIM)
  cusim::finish_copies();
#elif __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

}  // namespace weft::kernels::cuda
