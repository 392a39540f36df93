// kernels/attention/decode_tensor_cuda.h: decode attention of query heads that share a KV head, on tensor cores.
//
// Keys and values go from memory into fragments (tensor_core_cuda.h) in words of 16 bytes. The order of a row's numbers
// in a fragment is free, as long as both factors agree. Queries and weights are fp32: each is the sum of two 16-bit
// numbers. In a fragment 4 of the 8 columns hold the first of these for 4 heads, and the other 4 hold the second, so
// nothing is lost to rounding.
#pragma once

#include "kernels/attention/decode_choice_cuda.h"
#include "kernels/machine/ops_cuda.h"
#include "kernels/machine/tensor_core_cuda.h"

namespace weft::kernels::cuda::decode {

/// multiply_tiles(), where the code at hand can do that. Where it cannot, nothing runs it: see multiplies().
template <class T>
__device__ inline void multiply_numbers(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                        std::uint32_t b1) {
  if constexpr (kMultiplies<T>) multiply_tiles<T>(sums, a, b0, b1);
}

constexpr int kQuad = 4;        // heads in a fragment
constexpr int kWarpSlots = 16;  // slots in a fragment
constexpr int kWarps = kThreads / kWarp;

/// The first or the second of the two 16-bit numbers that make up x, and that of y.
template <class T> __device__ inline std::uint32_t split_pair(float x, float y, bool second) {
  const float x_first = to_float(from_float<T>(x)), y_first = to_float(from_float<T>(y));
  return second ? pack_pair<T>(x - x_first, y - y_first) : pack_pair<T>(x, y);
}

/// A row's 16 bytes at `column`; zeros unless visible.
template <class T>
__device__ inline uint4 load_word(const T* rows, std::int64_t row, int slot, int column, bool visible) {
  return visible ? *reinterpret_cast<const uint4*>(rows + slot * row + column) : uint4{};
}

/// The layout of rows of `kRowDim` fp16 or bf16 numbers, 64 or 128, in fragments.
template <class Number, int kRowDim> struct GroupTiles {
  using T = Number;
  static constexpr int kDim = kRowDim, kTeams = kWarps;
};
template <class Layout> inline constexpr bool of_groups = false;
template <class T, int kDim> inline constexpr bool of_groups<GroupTiles<T, kDim>> = true;

/// See decode_team_cuda.h. kHeads is 4 or 8.
template <class Layout, int kHeads>
requires of_groups<Layout> __device__ void find_logits(const DecodeArgs& a, const Tile<typename Layout::T>& t, int head,
                                                       int first, int last, const std::int32_t* position, float* p,
                                                       std::int64_t stride) {
  using T = typename Layout::T;
  constexpr int kDim = Layout::kDim, kQuads = kHeads / kQuad;
  constexpr int kSegments = kDim / 32;  // per row: 16 bytes for each of four lanes
  const int lane = static_cast<int>(threadIdx.x) % kWarp, group = lane / 4, part = lane % 4;
  std::uint32_t q[kQuads][kSegments][4];
#pragma unroll
  for (int quad = 0; quad < kQuads; ++quad)
#pragma unroll
    for (int s = 0; s < kSegments; ++s) {
      const int row = t.head * a.group + head + quad * kQuad + group % kQuad;
      const float* const from = a.q + t.index * a.q_stride + row * kDim + s * 32 + part * 8;
#pragma unroll
      for (int i = 0; i < 4; ++i) q[quad][s][i] = split_pair<T>(from[2 * i], from[2 * i + 1], group >= kQuad);
    }
  for (int base = first + static_cast<int>(threadIdx.x) / kWarp * kWarpSlots; base < last;
       base += kWarps * kWarpSlots) {
    uint4 key[2][kSegments];
    bool visible[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int slot = base + group + 8 * r;
      visible[r] = slot < last && position[slot] >= 0;
#pragma unroll
      for (int s = 0; s < kSegments; ++s) key[r][s] = load_word(t.k, a.k_row, slot, s * 32 + part * 8, visible[r]);
    }
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      float sum[4] = {};
#pragma unroll
      for (int s = 0; s < kSegments; ++s) {
        multiply_numbers<T>(sum, {key[0][s].x, key[1][s].x, key[0][s].y, key[1][s].y}, q[quad][s][0], q[quad][s][1]);
        multiply_numbers<T>(sum, {key[0][s].z, key[1][s].z, key[0][s].w, key[1][s].w}, q[quad][s][2], q[quad][s][3]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float logit = a.scale * (sum[i] + __shfl_xor_sync(kWholeWarp, sum[i], 2));
        const int slot = base + group + i / 2 * 8;
        if (part < 2 && slot < last)
          p[(quad * kQuad + part * 2 + i % 2) * stride + slot] = visible[i / 2] ? logit : -INFINITY;
      }
    }
  }
}

/// See decode_team_cuda.h. kHeads is 4 or 8; `shared` holds kWarps * kHeads * kDim floats.
template <class Layout, int kHeads>
requires of_groups<Layout> __device__ void weigh_values(const DecodeArgs& a, const Tile<typename Layout::T>& t,
                                                        int first, int last, const std::int32_t* position,
                                                        const float* p, std::int64_t stride, float* shared, float* out,
                                                        std::int64_t out_stride) {
  using T = typename Layout::T;
  constexpr int kDim = Layout::kDim, kQuads = kHeads / kQuad;
  constexpr int kColumns = kDim / 64;  // per row: 16 bytes for each of eight lanes
  const int lane = static_cast<int>(threadIdx.x) % kWarp, group = lane / 4, part = lane % 4;
  float sum[kQuads][kColumns][4][4] = {};
  for (int base = first + static_cast<int>(threadIdx.x) / kWarp * kWarpSlots; base < last;
       base += kWarps * kWarpSlots) {
    uint4 value[4][kColumns];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int slot = base + 2 * part + r % 2 + r / 2 * 8;
      const bool visible = slot < last && position[slot] >= 0;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) value[r][c] = load_word(t.v, a.v_row, slot, c * 64 + group * 8, visible);
    }
    std::uint32_t weight[kQuads][2];
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int slot = base + 2 * part + 8 * r;
        const float* const row = p + (quad * kQuad + group % kQuad) * stride;
        weight[quad][r] =
            split_pair<T>(slot < last ? row[slot] : 0.0f, slot + 1 < last ? row[slot + 1] : 0.0f, group >= kQuad);
      }
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const auto word = [&](int r) {
          return w == 0 ? value[r][c].x : w == 1 ? value[r][c].y : w == 2 ? value[r][c].z : value[r][c].w;
        };
        // The low halves of two slots' words are one column of values, the high halves the next.
        const std::uint32_t columns[4] = {__byte_perm(word(0), word(1), 0x5410), __byte_perm(word(0), word(1), 0x7632),
                                          __byte_perm(word(2), word(3), 0x5410), __byte_perm(word(2), word(3), 0x7632)};
#pragma unroll
        for (int quad = 0; quad < kQuads; ++quad)
          multiply_numbers<T>(sum[quad][c][w], columns, weight[quad][0], weight[quad][1]);
      }
  }
#pragma unroll
  for (int quad = 0; quad < kQuads; ++quad)
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        float whole[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) whole[i] = sum[quad][c][w][i] + __shfl_xor_sync(kWholeWarp, sum[quad][c][w][i], 2);
#pragma unroll
        for (int h = 0; h < 2; ++h)
          if (part < 2) {
            float* const row = shared + (threadIdx.x / kWarp * kHeads + quad * kQuad + part * 2 + h) * kDim;
            *reinterpret_cast<float2*>(row + c * 64 + group * 8 + w * 2) = {whole[h], whole[2 + h]};
          }
      }
  add_parts<kWarps>(shared, kHeads, kDim, out, out_stride);
}

/// Runs the step if tensor cores can: 16-bit slots, heads of 64 or 128 numbers, and a multiple of 4 query heads
/// for each KV head. Returns whether it did.
bool run_grouped(const DecodeArgs& args, DType dtype, int rows, CudaStream& stream);

}  // namespace weft::kernels::cuda::decode
