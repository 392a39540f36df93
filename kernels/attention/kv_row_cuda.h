// kernels/attention/kv_row_cuda.h: rows of KV slots of int8 and int4 (kv_row.h), as the threads of a warp write and
// read them.
#pragma once

#include "kernels/attention_ops.h"
#include "kernels/kv_row.h"
#include "kernels/machine/device_cuda.h"

namespace weft::kernels::cuda {

/// Calls f.operator()<T>() with the type of the slots' elements: float, __half, __nv_bfloat16, a Level or MixedLevels.
template <class F> void with_slot_type(const KvSlots& slots, F&& f) {
  if (slots.int8_keys) f.template operator()<MixedLevels>();
  else if (slots.dtype == DType::i8) f.template operator()<Level<DType::i8>>();
  else if (slots.dtype == DType::i4) f.template operator()<Level<DType::i4>>();
  else with_float_type(slots.dtype, f);
}

struct Smallest {
  __device__ float operator()(float a, float b) const { return fminf(a, b); }
};

/// The levels of a group: those of a lane's numbers, which are a warp apart, and the scale and minimum.
struct GroupLevels {
  static constexpr int kEach = kKvGroup / kWarp;
  unsigned level[kEach];
  std::uint32_t both;
};

/// Quantises group `group` of x [dim], less `mean` [dim] unless that is null. All threads of a warp call it. The bits
/// are the same as on the CPU.
template <DType kType>
__device__ __forceinline__ GroupLevels levels_of_group(const float* x, int dim, int group,
                                                       const float* mean = nullptr) {
  constexpr float top = kType == DType::i8 ? 255.0f : 15.0f;
  constexpr int each = GroupLevels::kEach;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, first = group * kKvGroup, count = min(dim - first, kKvGroup);
  GroupLevels levels;
  float number[each], least = INFINITY, most = -INFINITY;
  bool finite = true;
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int d = i * kWarp + lane;
    number[i] = d < count ? x[first + d] : 0.0f;
    if (mean && d < count) number[i] -= mean[first + d];
    if (d >= count) continue;
    finite = finite && fabsf(number[i]) < INFINITY;
    least = fminf(least, number[i]);
    most = fmaxf(most, number[i]);
  }
  finite = __ballot_sync(kWholeWarp, finite) == kWholeWarp;
  least = warp_reduce(least, Smallest{});
  most = warp_reduce(most, Largest{});
  const __half half_minimum = __float2half_rn(least + 0.0f);
  const float minimum = __half2float(half_minimum), range = most - minimum;
  const __half half_scale = __float2half_rn(range > 0 ? range / top : 0.0f);
  const float scale = __half2float(half_scale);
  finite = finite && fabsf(minimum) < INFINITY && fabsf(scale) < INFINITY;
  const float inverse = finite && scale > 0 ? 1.0f / scale : 0.0f;
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const float steps = rintf((number[i] - minimum) * inverse);
    levels.level[i] = finite && i * kWarp + lane < count ? static_cast<unsigned>(fminf(fmaxf(steps, 0.0f), top)) : 0u;
  }
  std::uint16_t low = 0x7E00, high = 0x7E00;  // NaN
  if (finite) memcpy(&low, &half_scale, sizeof low), memcpy(&high, &half_minimum, sizeof high);
  levels.both = low | static_cast<unsigned>(high) << 16;
  return levels;
}

/// Writes group `group` of x [dim], less `mean` [dim] unless that is null, into a row, and into `home` too unless that
/// is null. All threads of a warp call it.
template <DType kType>
__device__ void quantise_group(const float* x, int dim, int group, Level<kType>* row, Level<kType>* home,
                               const float* mean = nullptr) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, first = group * kKvGroup, count = min(dim - first, kKvGroup);
  const GroupLevels levels = levels_of_group<kType>(x, dim, group, mean);
  const auto write = [&](int at, unsigned byte) {
    row[at].byte = static_cast<std::uint8_t>(byte);
    if (home) home[at].byte = static_cast<std::uint8_t>(byte);
  };
#pragma unroll
  for (int i = 0; i < GroupLevels::kEach; ++i) {
    const int d = i * kWarp + lane;
    const unsigned level = levels.level[i];
    if constexpr (kType == DType::i8) {
      if (d < count) write(first + d, level);
    } else {  // a lane's numbers lie in different blocks
      const int numbers = min(max(count - i * kWarp, 0), kKvBlock), half = (numbers + 1) / 2;
      const unsigned high = __shfl_sync(kWholeWarp, level, (lane + half) % kWarp);
      const int at = (first + i * kWarp) / kKvBlock * (kKvBlock / 2) + lane;
      if (lane < half) write(at, level | (lane + half < numbers ? high << 4 : 0u));
    }
  }
  const int level_bytes = static_cast<int>(kv_level_bytes(kType, dim));
  if (first + count == dim) {
    const int used = kType == DType::i8 ? dim : dim / kKvBlock * (kKvBlock / 2) + (dim % kKvBlock + 1) / 2;
    if (used + lane < level_bytes) write(used + lane, 0);
  }
  if (lane < 4) write(level_bytes + group * 4 + lane, levels.both >> 8 * lane & 0xFFu);
}

/// A group's scale and minimum, which lie side by side.
__device__ inline float scale_of(std::uint32_t both) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(both)));
}
__device__ inline float minimum_of(std::uint32_t both) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(both >> 16)));
}

/// 8 numbers of a row, or one: the part that a lane of a team holds (decode_tile_cuda.h).
template <DType kType, int kVector>
__device__ void load_levels(const Level<kType>* row, int dim, int column, float (&at)[kVector]) {
  const auto word = [&](int byte) { return *reinterpret_cast<const std::uint32_t*>(row + byte); };
  const std::uint32_t both = word(static_cast<int>(kv_level_bytes(kType, dim)) + column / kKvGroup * 4);
  const float scale = scale_of(both), minimum = minimum_of(both);
  if constexpr (kVector == 1) {
    const KvLevel place = kv_level(kType, dim, column);
    at[0] = scale * static_cast<float>(row[place.byte].byte >> place.shift & (kType == DType::i8 ? 255 : 15)) + minimum;
  } else {
    static_assert(kVector == 8);
    const int byte = kType == DType::i8 ? column : column / kKvBlock * (kKvBlock / 2) + column % kKvBlock;
    const std::uint32_t first = word(byte), second = kType == DType::i8 ? word(byte + 4) : first >> 4;
    constexpr std::uint32_t mask = kType == DType::i8 ? 255 : 15;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      at[i] = scale * static_cast<float>(first >> 8 * i & mask) + minimum;
      at[i + 4] = scale * static_cast<float>(second >> 8 * i & mask) + minimum;
    }
  }
}

}  // namespace weft::kernels::cuda
