// kernels/expert_ops.h: the ops of layers with experts, a part of ops.h.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/tensor.h"

namespace weft::kernels {

inline constexpr int kMostExperts = 512;  ///< experts of a layer

/// Chooses the experts of each row. An expert's score is its softmax over all, or with `sigmoid` 1 / (1 + exp(-logit)).
/// The `chosen` experts with the highest score + bias are taken, the lower expert first among equals; NaN is the
/// lowest. With several `groups` of equally many experts only those of the `groups_kept` best groups can be taken: a
/// group is as good as the sum of its two highest score + bias (DeepSeek-V3, arXiv 2412.19437). A row's weights are the
/// scores of its experts, divided by their sum if `normalise`, times `scale`, times its number in `by`.
///   logits [rows, experts] f32;  bias, by [1, experts] of any float type, or empty
///   expert, weight [rows * chosen]: written, each row's experts in ascending order
struct Route {
  ConstView logits = {}, bias = {}, by = {};
  int chosen = 1;
  bool sigmoid = false, normalise = false;
  int groups = 1, groups_kept = 1;
  float scale = 1;
  std::span<std::int32_t> expert = {};
  std::span<float> weight = {};
};

/// x[to[i]] += factor[i] * y[i].   x [rows of x, cols], y [rows, cols] f32;  to, factor [rows], no row of x twice
struct AddRows {
  View x;
  ConstView y;
  std::span<const std::int32_t> to;
  std::span<const float> factor;
};

/// x = g / (1 + exp(-slope * g)) * (1 + u), where g is x, but at most limit, and u is y, held within +-limit (gpt-oss).
///   x, y [rows, cols] activations of one type
struct ClampedGate {
  View x;
  ConstView y;
  float slope = 1, limit = 1;
};

/// x[r] *= 1 / (1 + exp(-gate[r])).   x [rows, cols] f32;  gate [rows, 1] f32
struct GateRows {
  View x;
  ConstView gate;
};

}  // namespace weft::kernels
