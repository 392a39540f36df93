// kernels/rows/select_cuda.h: selection without sorting, by the threads of one block.
#pragma once

#include "kernels/machine/device_cuda.h"

namespace weft::kernels::cuda {

constexpr int kDigits = 256;

struct SelectShared {
  unsigned long long mass[kDigits], running[kDigits / kWarp];
  unsigned items[kDigits];  // items that weigh anything
  unsigned long long prefix, left;
  unsigned alone;  // items of the chosen digit
  int last;        // the lowest digit that weighs anything, or -1
};

/// A key whose order is that of the floats. -0 equals 0, and NaN equals -inf.
__device__ inline std::uint32_t order_of(float x) {
  if (x != x) x = -INFINITY;
  const std::uint32_t bits = __float_as_uint(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/// Adds the weights of a warp's lanes to their digits, and skips weights of 0. A 64-bit atomic in shared memory is a
/// loop that lanes with the same address leave one at a time. So the lanes of the most common digits first add up among
/// themselves.
__device__ inline void add_to_digits(unsigned digit, std::uint64_t weight, SelectShared& shared) {
  constexpr int kRounds = 2;
  const unsigned lane = threadIdx.x % kWarp;
  unsigned todo = __ballot_sync(kWholeWarp, weight > 0);
  for (int round = 0; round < kRounds && todo != 0; ++round) {
    const int leader = __ffs(static_cast<int>(todo)) - 1;
    const unsigned common = __shfl_sync(kWholeWarp, digit, leader);
    const bool same = digit == common && (todo >> lane & 1) != 0;
    const unsigned together = __ballot_sync(kWholeWarp, same);
    const std::uint64_t sum = warp_reduce(same ? weight : std::uint64_t{0}, Sum{});
    if (lane == static_cast<unsigned>(leader)) {
      atomicAdd(&shared.mass[digit], static_cast<unsigned long long>(sum));
      atomicAdd(&shared.items[digit], static_cast<unsigned>(__popc(together)));
    }
    todo &= ~together;
  }
  if ((todo >> lane & 1) == 0) return;
  atomicAdd(&shared.mass[digit], static_cast<unsigned long long>(weight));
  atomicAdd(&shared.items[digit], 1u);
}

/// The sum of `x` over this thread and those before it. `shared` holds a number per warp.
__device__ inline unsigned long long running_sum(unsigned long long x, unsigned long long* shared) {
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (unsigned step = 1; step < kWarp; step *= 2) {
    const unsigned long long before = __shfl_up_sync(kWholeWarp, x, step);
    if (lane >= step) x += before;
  }
  if (lane == kWarp - 1) shared[warp] = x;
  __syncthreads();
  for (unsigned w = 0; w < warp; ++w) x += shared[w];
  return x;
}

/// Chooses the digit, from the highest on, at which the running mass passes `left`. All masses must be summed.
__device__ inline void choose_digit(std::uint64_t prefix, std::uint64_t left, SelectShared& shared) {
  const int digit = kDigits - 1 - static_cast<int>(threadIdx.x);
  const unsigned long long mass = shared.mass[digit], running = running_sum(mass, shared.running);
  if (mass > 0) atomicMin(&shared.last, digit);
  const auto choose = [&](int chosen, std::uint64_t rest) {
    shared.prefix = prefix << 8 | static_cast<std::uint64_t>(chosen);
    shared.left = rest;
    shared.alone = shared.items[chosen];
  };
  if (running > left && running - mass <= left) choose(digit, left - (running - mass));
  __syncthreads();
  // If all weigh too little, choose the lowest key from here on.
  if (digit == 0 && running <= left) choose(shared.last < kDigits ? shared.last : 0, ~std::uint64_t{0});
}

/// The key at which the running weight of `count` items, the highest key first, passes `target`: the items of higher
/// keys weigh at most `target` together, those of this key and higher ones more. It selects by the digits of the keys
/// from the top on (radix selection), exactly and in integers, so that the order of the threads changes nothing. If all
/// weigh `target` or less, it returns the lowest key that weighs anything. All threads of the block, kDigits of them,
/// get the key.
///   key(i), weight(i) -> std::uint64_t for i in [0, count)
template <class Key, class Weight>
__device__ std::uint64_t select_key(int count, const Key& key, const Weight& weight, std::uint64_t target,
                                    SelectShared& shared) {
  std::uint64_t prefix = 0, left = target;
  for (int shift = 56; shift >= 0; shift -= 8) {
    const auto chosen = [&](std::uint64_t k) { return shift == 56 || k >> (shift + 8) == prefix; };
    __syncthreads();
    shared.mass[threadIdx.x] = 0, shared.items[threadIdx.x] = 0;
    if (threadIdx.x == 0) shared.last = kDigits;
    __syncthreads();
    for (int first = 0; first < count; first += kDigits) {
      const int i = first + static_cast<int>(threadIdx.x);
      const std::uint64_t k = i < count ? key(i) : 0;
      const bool takes_part = i < count && chosen(k);
      add_to_digits(static_cast<unsigned>(k >> shift & (kDigits - 1)), takes_part ? weight(i) : 0, shared);
    }
    __syncthreads();
    choose_digit(prefix, left, shared);
    __syncthreads();
    prefix = shared.prefix, left = shared.left;
    if (shared.alone != 1 || shift == 0) continue;
    // Only one of the keys with this beginning weighs anything, so its other digits need no passes.
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kDigits) {
      const std::uint64_t k = key(i);
      if (k >> shift == prefix && weight(i) > 0) shared.prefix = k;
    }
    __syncthreads();
    return shared.prefix;
  }
  return prefix;
}

}  // namespace weft::kernels::cuda
