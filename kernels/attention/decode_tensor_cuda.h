// kernels/attention/decode_tensor_cuda.h: decode attention of query heads that share a KV head, on tensor cores.
//
// Keys and values go from memory into fragments (tensor_core_cuda.h) in words of 16 bytes. The order of a row's numbers
// in a fragment is free, as long as both factors agree. Queries and weights are fp32: each is the sum of two 16-bit
// numbers. In a fragment 4 of the 8 columns hold the first of these for 4 heads, and the other 4 hold the second, so
// nothing is lost to rounding.
#pragma once

#include "kernels/attention/decode_choice_cuda.h"
#include "kernels/attention/tensor_core_cuda.h"

namespace weft::kernels::cuda::decode {

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

/// p [kQuads * kQuad, slots] = the logits of all query heads of the tile; -inf where empty. Rows of kDim numbers.
template <class T, int kDim, int kQuads>
__device__ void find_group_logits(const DecodeArgs& a, const Tile<T>& t, const std::int32_t* position, float* p) {
  constexpr int kSegments = kDim / 32;  // per row: 16 bytes for each of four lanes
  const int lane = static_cast<int>(threadIdx.x) % kWarp, group = lane / 4, part = lane % 4, slots = a.slots.slots;
  std::uint32_t q[kQuads][kSegments][4];
#pragma unroll
  for (int quad = 0; quad < kQuads; ++quad)
#pragma unroll
    for (int s = 0; s < kSegments; ++s) {
      const int row = t.head * a.group + quad * kQuad + group % kQuad;
      const float* const from = a.q + t.index * a.q_stride + row * kDim + s * 32 + part * 8;
#pragma unroll
      for (int i = 0; i < 4; ++i) q[quad][s][i] = split_pair<T>(from[2 * i], from[2 * i + 1], group >= kQuad);
    }
  for (int base = static_cast<int>(threadIdx.x) / kWarp * kWarpSlots; base < slots; base += kWarps * kWarpSlots) {
    uint4 key[2][kSegments];
    bool visible[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int slot = base + group + 8 * r;
      visible[r] = slot < slots && position[slot] >= 0;
#pragma unroll
      for (int s = 0; s < kSegments; ++s) key[r][s] = load_word(t.k, a.k_row, slot, s * 32 + part * 8, visible[r]);
    }
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      float sum[4] = {};
#pragma unroll
      for (int s = 0; s < kSegments; ++s) {
        multiply_tiles<T>(sum, {key[0][s].x, key[1][s].x, key[0][s].y, key[1][s].y}, q[quad][s][0], q[quad][s][1]);
        multiply_tiles<T>(sum, {key[0][s].z, key[1][s].z, key[0][s].w, key[1][s].w}, q[quad][s][2], q[quad][s][3]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float logit = a.scale * (sum[i] + __shfl_xor_sync(kWholeWarp, sum[i], 2));
        const int slot = base + group + i / 2 * 8;
        if (part < 2 && slot < slots)
          p[(quad * kQuad + part * 2 + i % 2) * slots + slot] = visible[i / 2] ? logit : -INFINITY;
      }
    }
  }
}

/// out [kQuads * kQuad, kDim] = p v. `shared` holds kWarps * kQuads * kQuad * kDim floats.
template <class T, int kDim, int kQuads>
__device__ void weigh_group_values(const DecodeArgs& a, const Tile<T>& t, const std::int32_t* position, const float* p,
                                   float* shared, float* out) {
  constexpr int kHeads = kQuads * kQuad, kColumns = kDim / 64;  // per row: 16 bytes for each of eight lanes
  const int lane = static_cast<int>(threadIdx.x) % kWarp, group = lane / 4, part = lane % 4, slots = a.slots.slots;
  float sum[kQuads][kColumns][4][4] = {};
  for (int base = static_cast<int>(threadIdx.x) / kWarp * kWarpSlots; base < slots; base += kWarps * kWarpSlots) {
    uint4 value[4][kColumns];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int slot = base + 2 * part + r % 2 + r / 2 * 8;
      const bool visible = slot < slots && position[slot] >= 0;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) value[r][c] = load_word(t.v, a.v_row, slot, c * 64 + group * 8, visible);
    }
    std::uint32_t weight[kQuads][2];
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int slot = base + 2 * part + 8 * r;
        const float* const row = p + (quad * kQuad + group % kQuad) * slots;
        weight[quad][r] =
            split_pair<T>(slot < slots ? row[slot] : 0.0f, slot + 1 < slots ? row[slot + 1] : 0.0f, group >= kQuad);
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
          multiply_tiles<T>(sum[quad][c][w], columns, weight[quad][0], weight[quad][1]);
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
  __syncthreads();
  for (int i = threadIdx.x; i < kHeads * kDim; i += kThreads) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += shared[w * kHeads * kDim + i];
    out[i] = total;
  }
  __syncthreads();
}

}  // namespace weft::kernels::cuda::decode
