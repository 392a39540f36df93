// kernels/rows/experts_cpu.cc: which experts a row goes to, and what comes back from them.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/attention/cpu/kernels.h"
#include "kernels/machine/cpu_ops.h"
#include "kernels/rows/row_blocks.h"

namespace weft::kernels {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

/// A number by which experts are compared: NaN is the lowest.
float key_of(float x) { return std::isnan(x) ? kLowest : x; }

/// Marks everything outside the best groups as taken. `taken` has an entry for each expert.
void leave_groups(const Route& op, const float* key, bool* taken) {
  const int experts = static_cast<int>(op.logits.cols), size = experts / op.groups;
  std::array<float, kMostExperts> good;
  for (int group = 0; group < op.groups; ++group) {
    float first = kLowest, second = kLowest;
    for (int e = group * size; e < (group + 1) * size; ++e) {
      if (key[e] > first) second = first, first = key[e];
      else if (key[e] > second) second = key[e];
    }
    good[static_cast<std::size_t>(group)] = key_of(first + second);
  }
  std::array<bool, kMostExperts> kept{};
  for (int i = 0; i < op.groups_kept; ++i) {
    int best = -1;
    for (int group = 0; group < op.groups; ++group)
      if (!kept[static_cast<std::size_t>(group)] &&
          (best < 0 || good[static_cast<std::size_t>(group)] > good[static_cast<std::size_t>(best)]))
        best = group;
    kept[static_cast<std::size_t>(best)] = true;
  }
  for (int e = 0; e < experts; ++e) taken[e] = !kept[static_cast<std::size_t>(e / size)];
}

/// `bias`, `by` [experts] or null.
void route_row(const Route& op, const float* logits, const float* bias, const float* by, std::int32_t* expert,
               float* weight) {
  const int experts = static_cast<int>(op.logits.cols);
  std::array<float, kMostExperts> score, key;
  std::array<bool, kMostExperts> taken{};
  if (op.sigmoid) {
    for (int e = 0; e < experts; ++e) score[static_cast<std::size_t>(e)] = 1 / (1 + std::exp(-logits[e]));
  } else {
    float most = kLowest, sum = 0;
    for (int e = 0; e < experts; ++e) most = std::max(most, key_of(logits[e]));
    for (int e = 0; e < experts; ++e) sum += score[static_cast<std::size_t>(e)] = std::exp(logits[e] - most);
    for (int e = 0; e < experts; ++e) score[static_cast<std::size_t>(e)] /= sum;
  }
  for (std::size_t e = 0; e < static_cast<std::size_t>(experts); ++e)
    key[e] = key_of(bias ? score[e] + bias[e] : score[e]);
  if (op.groups > 1) leave_groups(op, key.data(), taken.data());
  for (int i = 0; i < op.chosen; ++i) {
    int best = -1;
    for (int e = 0; e < experts; ++e)
      if (!taken[static_cast<std::size_t>(e)] &&
          (best < 0 || key[static_cast<std::size_t>(e)] > key[static_cast<std::size_t>(best)]))
        best = e;
    taken[static_cast<std::size_t>(best)] = true;
    expert[i] = best;
  }
  std::sort(expert, expert + op.chosen);
  float sum = 0;
  for (int i = 0; i < op.chosen; ++i) sum += weight[i] = score[static_cast<std::size_t>(expert[i])];
  for (int i = 0; i < op.chosen; ++i) {
    weight[i] = (op.normalise ? weight[i] / (sum + 1e-20f) : weight[i]) * op.scale;
    if (by) weight[i] *= by[expert[i]];
  }
}

}  // namespace

void CpuOps::run(const Route& op, Stream&) const {
  check(op);
  ThreadPool::Turn turn(pool_);
  const std::int64_t experts = op.logits.cols;
  auto* const floats = reinterpret_cast<float*>(turn.shared(2 * static_cast<std::size_t>(experts) * sizeof(float)));
  const auto as_floats = [&](const ConstView& row, float* to) -> const float* {
    if (!row) return nullptr;
    vectors_.convert(row.data, row.dtype, to, DType::f32, experts, false);
    return to;
  };
  const float *const bias = as_floats(op.bias, floats), *const by = as_floats(op.by, floats + experts);
  for_row_blocks(turn, op.logits.rows, experts * op.chosen, [&](std::int64_t first, std::int64_t rows, int) {
    for (std::int64_t r = first; r < first + rows; ++r)
      route_row(op, row_of(op.logits, r), bias, by, op.expert.data() + r * op.chosen, op.weight.data() + r * op.chosen);
  });
}

void CpuOps::run(const AddRows& op, Stream&) const {
  check(op);
  ThreadPool::Turn turn(pool_);
  for_row_blocks(turn, op.y.rows, op.y.cols, [&](std::int64_t first, std::int64_t rows, int) {
    for (std::int64_t r = first; r < first + rows; ++r) {
      float* __restrict x = row_of(op.x, op.to[static_cast<std::size_t>(r)]);
      const float* __restrict y = row_of(op.y, r);
      const float factor = op.factor[static_cast<std::size_t>(r)];
      for (std::int64_t c = 0; c < op.y.cols; ++c) x[c] += factor * y[c];
    }
  });
}

void CpuOps::run(const ClampedGate& op, Stream&) const {
  check(op);
  require_f32("clamped_gate", {{"x", op.x}});
  ThreadPool::Turn turn(pool_);
  for_row_blocks(turn, op.x.rows, op.x.cols, [&](std::int64_t first, std::int64_t rows, int) {
    for (std::int64_t r = first; r < first + rows; ++r) {
      float* __restrict x = row_of(op.x, r);
      const float* __restrict y = row_of(op.y, r);
      for (std::int64_t c = 0; c < op.x.cols; ++c) {  // comparisons leave NaN what it is
        const float g = x[c] > op.limit ? op.limit : x[c];
        const float u = y[c] > op.limit ? op.limit : y[c] < -op.limit ? -op.limit : y[c];
        x[c] = g / (1 + std::exp(-op.slope * g)) * (1 + u);
      }
    }
  });
}

void CpuOps::run(const GateRows& op, Stream&) const {
  check(op);
  ThreadPool::Turn turn(pool_);
  for_row_blocks(turn, op.x.rows, op.x.cols, [&](std::int64_t first, std::int64_t rows, int) {
    for (std::int64_t r = first; r < first + rows; ++r) {
      float* const x = row_of(op.x, r);
      const float factor = 1 / (1 + std::exp(-*row_of(op.gate, r)));
      for (std::int64_t c = 0; c < op.x.cols; ++c) x[c] *= factor;
    }
  });
}

}  // namespace weft::kernels
