// kernels/attention/decode_rest_cuda.h: the tokens that a head has evicted, as one more token of a decode step
// (KvSlots::rest), by the threads of one block.
#pragma once

#include "kernels/attention/decode_tile_cuda.h"

namespace weft::kernels::cuda::decode {

/// logit[g] = the logit of the rest for head g of the group, -inf if nothing was evicted. One warp per head.
template <class T> __device__ void find_rest_logits(const DecodeArgs& a, const Tile<T>& t, float* logit) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, dim = a.slots.head_dim;
  const float count = t.rest[0];
  for (int g = static_cast<int>(threadIdx.x) / kWarp; g < a.group; g += kThreads / kWarp) {
    const float* const q = a.q + t.index * a.q_stride + (t.head * a.group + g) * dim;
    float dot = 0;
    for (int d = lane; d < dim; d += kWarp) dot += a.scale * q[d] * t.rest[1 + d];
    dot = warp_reduce(dot, Sum{});
    float mean = dot / count;
    if (a.cap > 0) mean = a.cap * fast_tanh(mean / a.cap);
    if (lane == 0) logit[g] = count > 0 ? mean + logf(count) : -INFINITY;
  }
}

/// Adds the rest's values, weighted by the probabilities p [group], to out [group, head_dim].
template <class T> __device__ void add_rest_values(const DecodeArgs& a, const Tile<T>& t, const float* p, float* out) {
  const int dim = a.slots.head_dim;
  if (!(t.rest[0] > 0)) return;
  const float share = 1.0f / t.rest[0];
  for (int i = threadIdx.x; i < a.group * dim; i += kThreads) out[i] += p[i / dim] * share * t.rest[1 + dim + i % dim];
}

/// Adds the victim to the rest, in the KV buffer and in its home. All threads call it, after they have read the rest.
template <class T> __device__ void add_to_rest(const DecodeArgs& a, const Tile<T>& t, int slot) {
  const int dim = a.slots.head_dim;
  if (slot < 0) return;
  for (int i = threadIdx.x; i <= 2 * dim; i += kThreads) {
    float x = 1;
    if (i < 2 * dim) {
      const auto number_of = [&](const auto* row) {
        using Number = std::remove_cvref_t<decltype(*row)>;
        if constexpr (is_level<Number>) {
          float number[1];
          load_levels<Number::kType>(row, dim, i % dim, number);
          return number[0];
        } else {
          return to_float(row[i % dim]);
        }
      };
      x = i < dim ? number_of(t.k + slot * a.k_row) : number_of(t.v + slot * a.v_row);
    }
    const int at = i < 2 * dim ? 1 + i : 0;
    const float sum = t.rest[at] + x;
    t.rest[at] = sum;
    if (t.home.rest) t.home.rest[at] = sum;
  }
}

}  // namespace weft::kernels::cuda::decode
