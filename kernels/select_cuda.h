// kernels/select_cuda.h: selection without sorting, by the threads of one block.
#pragma once

#include "kernels/device_cuda.h"

namespace weft::kernels::cuda {

constexpr int kDigits = 256;

struct SelectShared {
  unsigned long long mass[kDigits];
  unsigned long long prefix, left;
};

/// Orders as the floats do, -0 and 0 alike; what is no number comes first, with -inf.
__device__ inline std::uint32_t order_of(float x) {
  if (x != x) x = -INFINITY;
  const std::uint32_t bits = __float_as_uint(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/// The key at which the running weight of `count` items, the highest key first, passes `target`: the items of higher
/// keys weigh at most `target` together, those of this key and higher ones more. By the digits of the keys from the top
/// on (radix selection), exact and in integers, so that the order of the threads changes nothing. Where all weigh
/// `target` or less: the lowest key. All threads of the block get the key.
///   key(i), weight(i) -> std::uint64_t for i in [0, count)
template <class Key, class Weight>
__device__ std::uint64_t select_key(int count, const Key& key, const Weight& weight, std::uint64_t target,
                                    SelectShared& shared) {
  std::uint64_t prefix = 0, left = target;
  for (int shift = 56; shift >= 0; shift -= 8) {
    __syncthreads();
    for (int d = threadIdx.x; d < kDigits; d += blockDim.x) shared.mass[d] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
      const std::uint64_t k = key(i);
      if (shift == 56 || k >> (shift + 8) == prefix)
        atomicAdd(&shared.mass[k >> shift & (kDigits - 1)], static_cast<unsigned long long>(weight(i)));
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int digit = -1, last = 0;  // last: the lowest digit that weighs anything
      for (int d = kDigits - 1; d >= 0 && digit < 0; --d) {
        if (shared.mass[d] == 0) continue;
        last = d;
        if (shared.mass[d] > left) digit = d;
        else left -= shared.mass[d];
      }
      if (digit < 0) left = ~0ull;  // all weigh too little: the lowest key from here on
      shared.prefix = prefix << 8 | static_cast<std::uint64_t>(digit < 0 ? last : digit);
      shared.left = left;
    }
    __syncthreads();
    prefix = shared.prefix, left = shared.left;
  }
  return prefix;
}

}  // namespace weft::kernels::cuda
