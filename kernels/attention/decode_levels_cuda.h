// kernels/attention/decode_levels_cuda.h: decode attention over rows of int8 and int4 (kv_row.h), and over coarse rows
// (coarse_row.h), on tensor cores.
//
// A level in the low bits of an fp16 number is that level times 2^-24, exactly, and tensor cores multiply such numbers
// exactly. So a mask and a shift make fragments (tensor_core_cuda.h) of a row's words. Scales and minima follow once
// for a row of keys; for values the weights carry them. Queries and weights are fp32: a power of two brings them into
// fp16's range, and each is the sum of two fp16 numbers, so nothing is lost to rounding.
#pragma once

#include "kernels/attention/decode_level_words_cuda.h"
#include "kernels/attention/decode_team_cuda.h"
#include "kernels/attention/decode_tensor_cuda.h"

namespace weft::kernels::cuda::decode {

template <class Layout> inline constexpr bool of_levels = false;
template <class T, int kDim> inline constexpr bool of_levels<LevelTiles<T, kDim>> = true;
template <int kDim> inline constexpr bool of_levels<CoarseTiles<kDim>> = true;
template <int kDim> inline constexpr bool of_levels<SplitTiles<kDim>> = true;
template <class T, int kDim, int kHeads>
constexpr int kBlocks<LevelTiles<T, kDim>, kHeads> = kHeads == 1          ? (kDim == 64 ? 6 : 5)
                                                     : kHeads* kDim > 256 ? 3
                                                                          : 4;

constexpr float kOfLevel = 16777216.0f;  // 2^24: a level over the fp16 number with its bits

/// The greatest power of two that is not above x, a normal number; and `to` over that.
__device__ inline float power_of(float x) { return __uint_as_float(__float_as_uint(x) & 0x7F800000u); }
__device__ inline float over_power(float to, float x) {
  return __uint_as_float(0x7F000000u - __float_as_uint(power_of(x))) * to;
}

/// See decode_team_cuda.h. A warp takes 16 slots, and four lanes have the words of two of them.
template <class Layout, int kHeads, class Rows>
requires of_levels<Layout> __device__ void find_logits(const DecodeArgs& a, const Rows& t, int head, int first,
                                                       int last, const std::int32_t* position, float* p,
                                                       std::int64_t stride) {
  const auto of = Layout::key_words(a);
  using Words = std::remove_const_t<decltype(of)>;
  constexpr int kOwn = Words::kWords / 4, kGroups = Words::kGroups;  // words of a lane
  const int lane = static_cast<int>(threadIdx.x) % kWarp, group = lane / 4, part = lane % 4;
  // Columns 2 h and 2 h + 1 of a product are the first and the second number of head h's query.
  const float* const from =
      a.q + t.index * a.q_stride + (t.head * a.group + head + min(group / 2, kHeads - 1)) * std::int64_t{Layout::kDim};
  float most = 0x1p-60f, sums[kGroups] = {};
#pragma unroll
  for (int i = 0; i < kOwn; ++i)
#pragma unroll
    for (int n = 0; n < 4 * Words::kHalves; ++n) {
      const int word = Words::template word<4>(part, i);
      const float x = from[Words::column(word, n % 4, n / 4)];
      most = fmaxf(most, fabsf(x));
      sums[i * kGroups / kOwn] += x;
    }
  most = warp_reduce<4>(most, Largest{});
  const float unit = group / 2 < kHeads ? over_power(0x1p13f, most) : 0.0f;  // queries are below 2^14
  std::uint32_t q[kOwn][Words::kHalves][2];
#pragma unroll
  for (int i = 0; i < kOwn; ++i)
#pragma unroll
    for (int half = 0; half < Words::kHalves; ++half)
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int word = Words::template word<4>(part, i);
        const float by = half == 0 ? unit : unit / 16;
        q[i][half][odd] = split_pair<__half>(by * from[Words::column(word, odd, half)],
                                             by * from[Words::column(word, odd + 2, half)], group % 2 != 0);
      }
  // Lane `part` of each four finishes head `part`: what it needs is in the lanes whose group is 2 part.
  const float factor = __shfl_sync(kWholeWarp, a.scale * kOfLevel * 0x1p-13f * power_of(most), part * 8);
#pragma unroll
  for (int g = 0; g < kGroups; ++g)
    sums[g] = a.scale * __shfl_sync(kWholeWarp, warp_reduce<4>(sums[g], Sum{}), part * 8);
  for (int base = first + static_cast<int>(threadIdx.x) / kWarp * kWarpSlots; base < last;
       base += kWarps * kWarpSlots) {
    std::uint32_t words[2][kOwn], scales[2][kGroups];
    bool visible[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int slot = base + group + 8 * r;
      visible[r] = slot < last && position[slot] >= 0;
#pragma unroll
      for (std::uint32_t& word : words[r]) word = 0;
#pragma unroll
      for (std::uint32_t& both : scales[r]) both = 0;
      if (!visible[r]) continue;
      const auto row = t.key(a, slot);
      of.template load<4>(row, part, words[r]);
      const auto both = of.scales(row);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) scales[r][g] = both.at[g];
    }
    float sum[kGroups][4] = {};
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
#pragma unroll
      for (int half = 0; half < Words::kHalves; ++half)
        multiply_tiles<__half>(sum[i * kGroups / kOwn],
                               {Words::even(words[0][i], half), Words::even(words[1][i], half),
                                Words::odd(words[0][i], half), Words::odd(words[1][i], half)},
                               q[i][half][0], q[i][half][1]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float levels = 0, minima = 0;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        levels += of.scale(scales[r][g]) * (sum[g][2 * r] + sum[g][2 * r + 1]);
        minima += of.minimum(scales[r][g]) * sums[g];
      }
      const int slot = base + group + 8 * r;
      if (part < kHeads && slot < last) p[part * stride + slot] = visible[r] ? factor * levels + minima : -INFINITY;
    }
  }
}

/// See decode_team_cuda.h. `shared` holds kWarps * kHeads * kDim floats and begins at a multiple of 16 bytes. A warp
/// takes 16 slots, eight in a product: row g of it are the numbers of bytes 0 and 2 of word g, row g + 8 those of bytes
/// 1 and 3. Its columns are, for each group of numbers, the first and the second number of the weight for the one byte,
/// then those for the other.
template <class Layout, int kHeads, bool kAdds = false, class Rows>
requires of_levels<Layout> __device__ void weigh_values(const DecodeArgs& a, const Rows& t, int first, int last,
                                                        const std::int32_t* position, const float* p,
                                                        std::int64_t stride, float* shared, float* out,
                                                        std::int64_t out_stride) {
  const auto values = Layout::value_words(a);
  using Words = std::remove_const_t<decltype(values)>;
  constexpr int kSets = Words::kWords / 8, kGroups = Words::kGroups, kSlots = 4;  // words and slots of a lane
  constexpr float kMost = 0x1p15f, kBegin = 0x1p100f, kRoom = 0x1p6f;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, group = lane / 4, part = lane % 4;
  const int numbers = kGroups == 1 ? 0 : group / 4;  // the group of numbers that the lane's weights are for
  float sum[kHeads][kSets][Words::kHalves][4] = {}, minima[kHeads] = {}, unit[kHeads];
#pragma unroll
  for (float& of : unit) of = kBegin;
  for (int base = first + static_cast<int>(threadIdx.x) / kWarp * kWarpSlots; base < last;
       base += kWarps * kWarpSlots) {
    std::uint32_t words[kSlots][kSets];
    float weight[kHeads][kSlots];
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      const int slot = base + part + 4 * s;
      const bool visible = slot < last && position[slot] >= 0;
      std::uint32_t both = 0;
#pragma unroll
      for (std::uint32_t& word : words[s]) word = 0;
      if (visible) {
        const auto row = t.value(a, slot);
        values.template load<8>(row, group, words[s]);
        both = values.scales(row, numbers);
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float of = visible ? p[h * stride + slot] : 0.0f;
        weight[h][s] = of * values.scale(both);
        minima[h] += of * values.minimum(both);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float most = fmaxf(fmaxf(weight[h][0], weight[h][1]), fmaxf(weight[h][2], weight[h][3]));
      if (__any_sync(kWholeWarp, most * unit[h] >= kMost)) {  // a few times at most: the unit only falls
        most = warp_reduce(most, Largest{});
        const float next = over_power(kRoom, most), change = over_power(next, unit[h]);
#pragma unroll
        for (int w = 0; w < kSets; ++w)
#pragma unroll
          for (int half = 0; half < Words::kHalves; ++half)
#pragma unroll
            for (float& of : sum[h][w][half]) of *= change;
        unit[h] = next;
      }
      std::uint32_t columns[kSlots];
#pragma unroll
      for (int s = 0; s < kSlots; ++s) {
        const float of = weight[h][s] * unit[h], before = group % 2 == 0 ? 0.0f : to_float(from_float<__half>(of));
        const std::uint32_t bits = __half_as_ushort(from_float<__half>(of - before));
        columns[s] = group % 4 < 2 ? bits : bits << 16;
      }
#pragma unroll
      for (int s = 0; s < kSlots; s += 2)
#pragma unroll
        for (int w = 0; w < kSets; ++w)
#pragma unroll
          for (int half = 0; half < Words::kHalves; ++half)
            multiply_tiles<__half>(sum[h][w][half],
                                   {Words::even(words[s][w], half), Words::odd(words[s][w], half),
                                    Words::even(words[s + 1][w], half), Words::odd(words[s + 1][w], half)},
                                   columns[s], columns[s + 1]);
    }
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const float factor = over_power(kOfLevel, unit[h]);
    float least[kGroups];  // the sums of minima, of each group of numbers
    minima[h] = warp_reduce<4>(minima[h], Sum{});
#pragma unroll
    for (int g = 0; g < kGroups; ++g) least[g] = __shfl_sync(kWholeWarp, minima[h], g * 16);
    float* const row = shared + (static_cast<int>(threadIdx.x) / kWarp * kHeads + h) * Layout::kDim;
#pragma unroll
    for (int w = 0; w < kSets; ++w)
#pragma unroll
      for (int half = 0; half < Words::kHalves; ++half) {
        const int word = Words::template word<8>(group, w), of = Words::group_of(word);
        const float by = half == 0 ? factor : factor / 16,
                    minimum = kGroups == 1 || of == 0 ? least[0] : least[kGroups - 1];
        if (part / 2 != of) continue;
        const float(&own)[4] = sum[h][w][half];
        *reinterpret_cast<float2*>(row + Words::column(word, part % 2 * 2, half)) = {by * (own[0] + own[1]) + minimum,
                                                                                     by * (own[2] + own[3]) + minimum};
      }
  }
  add_parts<kWarps, kAdds>(shared, kHeads, Layout::kDim, out, out_stride);
}

}  // namespace weft::kernels::cuda::decode
