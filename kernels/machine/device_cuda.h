// kernels/machine/device_cuda.h: device code that the kernels share: numbers of three types, sums over warps and thread
// blocks, shared memory.
#pragma once

#include <type_traits>

#include "kernels/machine/cuda.h"

// WEFT_SHARED(float, partial, [32]);  WEFT_SHARED(int, victim);  WEFT_DYNAMIC_SHARED(float, tile);
#if defined(CUSIM)
#define WEFT_SHARED(type, name, ...) auto& name = cusim::shared_static<type __VA_ARGS__>([] {}, #name)
#define WEFT_DYNAMIC_SHARED(type, name) type* const name = static_cast<type*>(cusim::shared_dynamic())
#else
#define WEFT_SHARED(type, name, ...) __shared__ __align__(32) type name __VA_ARGS__
#define WEFT_DYNAMIC_SHARED(type, name)                                \
  extern __shared__ __align__(32) unsigned char weft_dynamic_shared[]; \
  type* const name = reinterpret_cast<type*>(weft_dynamic_shared)
#endif

namespace weft::kernels::cuda {

constexpr int kWarp = 32;
constexpr unsigned kWholeWarp = 0xFFFFFFFFu;

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
template <class T> __device__ inline T from_float(float x) {
  if constexpr (std::is_same_v<T, __half>) return __float2half_rn(x);
  else if constexpr (std::is_same_v<T, __nv_bfloat16>) return __float2bfloat16_rn(x);
  else return x;
}

/// Numbers next to each other, moved in words of 16 bytes, or in one smaller word if they are fewer bytes.
template <class T, int kCount> struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Pack { T at[kCount]; };
template <int kCount, class T> __device__ inline Pack<T, kCount> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, kCount>*>(from);
}
template <int kCount, class T> __device__ inline void store_pack(T* to, const Pack<T, kCount>& pack) {
  *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
}
constexpr int kWide = 8;  ///< numbers in a pack: two words of fp32, one of 16 bits

/// Whether rows of `cols` elements, `stride` apart, can be taken in packs of kWide.
inline bool in_packs(const void* data, std::int64_t stride, std::int64_t cols, std::size_t element) {
  return (reinterpret_cast<std::uintptr_t>(data) | static_cast<std::uintptr_t>(stride) * element) % 16 == 0 &&
         cols % kWide == 0;
}

/// Numbers of any float type next to each other; the branch is the same for all threads.
struct Numbers {
  const void* data;
  DType dtype;
  template <int kPack> __device__ Pack<float, kPack> at(std::int64_t i) const {
    if (dtype == DType::f16) return widened<kPack>(static_cast<const __half*>(data) + i);
    if (dtype == DType::bf16) return widened<kPack>(static_cast<const __nv_bfloat16*>(data) + i);
    return load_pack<kPack>(static_cast<const float*>(data) + i);
  }

 private:
  template <int kPack, class T> static __device__ Pack<float, kPack> widened(const T* from) {
    const auto pack = load_pack<kPack>(from);
    Pack<float, kPack> wide = {};
    for (int j = 0; j < kPack; ++j) wide.at[j] = to_float(pack.at[j]);
    return wide;
  }
};

struct Sum {
  template <class T> __device__ T operator()(T a, T b) const { return a + b; }
};
struct Largest {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/// Every lane gets the result over its `kLanes` neighbours.
template <int kLanes = kWarp, class T, class Op> __device__ T warp_reduce(T x, Op op) {
  for (int step = kLanes / 2; step > 0; step /= 2) x = op(x, __shfl_xor_sync(kWholeWarp, x, step, kLanes));
  return x;
}

/// 1 / the length of a vector, from its square; 0 if it has no direction.
__device__ inline float inverse_length(float square) {
  return square > 0 && square < INFINITY ? 1.0f / sqrtf(square) : 0.0f;
}

/// tanh(x), right to 1e-7.
__device__ inline float fast_tanh(float x) { return 1.0f - __fdividef(2.0f, __expf(2.0f * x) + 1.0f); }

/// Every thread of a block of whole warps gets the result. `shared` holds one T per warp and may be reused afterwards.
template <class T, class Op> __device__ T block_reduce(T x, Op op, T* shared) {
  const int warps = static_cast<int>(blockDim.x) / kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  x = warp_reduce(x, op);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) shared[warp] = x;
  __syncthreads();
  x = shared[0];
  for (int w = 1; w < warps; ++w) x = op(x, shared[w]);
  return x;
}

}  // namespace weft::kernels::cuda
