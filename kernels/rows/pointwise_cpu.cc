// kernels/rows/pointwise_cpu.cc: ops that work on each row, or each number, separately.
#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/attention/cpu/kernels.h"
#include "kernels/error.h"
#include "kernels/linear/linear_cpu.h"
#include "kernels/machine/cpu_ops.h"
#include "kernels/quantised.h"
#include "kernels/rows/row_blocks.h"

namespace weft::kernels {
namespace {

void convert_rows(ThreadPool& pool, const VectorKernels& vectors, const ConstView& in, const View& out, bool add) {
  ThreadPool::Turn turn(pool);
  for_row_blocks(turn, in.rows, in.cols, [&](std::int64_t first, std::int64_t rows, int) {
    for (std::int64_t r = first; r < first + rows; ++r)
      vectors.convert(in.slice(r, 1).data, in.dtype, out.slice(r, 1).data, out.dtype, in.cols, add);
  });
}

/// Sum of f(x[i]) in fp32, as 16 sums that one fixed tree adds up, so that it is fast and has few roundings.
template <class F> float lane_sum(const float* x, std::int64_t n, const F& f) {
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int l = 0; l < kLanes; ++l) lanes[l] += f(x[i + l]);
  for (int l = 0; i < n; ++i, ++l) lanes[l] += f(x[i]);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return lanes[0];
}

void normalise(float* __restrict row, const float* __restrict weight, const float* __restrict bias, std::int64_t cols,
               float eps, bool rms) {
  const float mean = rms ? 0 : lane_sum(row, cols, [](float v) { return v; }) / static_cast<float>(cols);
  // The squares of the deviations: E[x^2] - mean^2 would cancel in fp32.
  const float squares = lane_sum(row, cols, [mean](float v) { return (v - mean) * (v - mean); });
  const float scale = 1.0f / std::sqrt(squares / static_cast<float>(cols) + eps);
  for (std::int64_t c = 0; c < cols; ++c) row[c] = (row[c] - mean) * scale * weight[c] + bias[c];
}

}  // namespace

void require_f32(const char* op, std::initializer_list<std::pair<const char*, ConstView>> activations) {
  for (const auto& [name, view] : activations)
    if (view.dtype != DType::f32)
      throw UsageError(std::string(op) + ": " + name + " is " + name_of(view.dtype) + ", wanted float32 on a CPU");
}

void CpuOps::run(const Convert& op, Stream&) const {
  check(op);
  convert_rows(pool_, vectors_, op.in, op.out, false);
}

void CpuOps::run(const Add& op, Stream&) const {
  check(op);
  convert_rows(pool_, vectors_, op.y, op.x, true);
}

void CpuOps::run(const Scale& op, Stream&) const {
  check(op);
  float factor = 1;
  if (op.by) vectors_.convert(op.by.data, op.by.dtype, &factor, DType::f32, 1, false);
  factor *= op.factor;
  ThreadPool::Turn turn(pool_);
  for_row_blocks(turn, op.x.rows, op.x.cols, [&](std::int64_t first, std::int64_t rows, int) {
    for (std::int64_t r = first; r < first + rows; ++r) {
      float* const x = row_of(op.x, r);
      for (std::int64_t c = 0; c < op.x.cols; ++c) x[c] = factor == 0 ? 0 : x[c] * factor;
      if (op.cap > 0)
        for (std::int64_t c = 0; c < op.x.cols; ++c) x[c] = op.cap * std::tanh(x[c] / op.cap);
    }
  });
}

void CpuOps::run(const Multiply& op, Stream&) const {
  check(op);
  require_f32("multiply", {{"x", op.x}});
  ThreadPool::Turn turn(pool_);
  for_row_blocks(turn, op.x.rows, op.x.cols, [&](std::int64_t first, std::int64_t rows, int) {
    for (std::int64_t r = first; r < first + rows; ++r) {
      float* __restrict x = row_of(op.x, r);
      const float* __restrict y = row_of(op.y, r);
      for (std::int64_t c = 0; c < op.x.cols; ++c) x[c] *= y[c];
    }
  });
}

void CpuOps::run(const Gather& op, Stream&) const {
  check(op);
  ThreadPool::Turn turn(pool_);
  for_row_blocks(
      turn, static_cast<std::int64_t>(op.ids.size()), op.out.cols, [&](std::int64_t first, std::int64_t rows, int) {
        for (std::int64_t r = first; r < first + rows; ++r) {
          const auto i = static_cast<std::size_t>(r);
          vectors_.convert(op.table.slice(op.ids[i], 1).data, op.table.dtype,
                           op.out.slice(op.to.empty() ? r : op.to[i], 1).data, op.out.dtype, op.out.cols, false);
        }
      });
}

void CpuOps::run(const LayerNorm& op, Stream&) const {
  check(op);
  const std::int64_t cols = op.x.cols;
  const std::int64_t weights = op.weight ? op.weight.rows * cols : cols;
  const auto row_bytes = static_cast<std::size_t>(cols) * sizeof(float);
  ThreadPool::Turn turn(pool_);
  float* const weight =
      reinterpret_cast<float*>(turn.shared(static_cast<std::size_t>(weights) * sizeof(float) + row_bytes));
  float* const bias = weight + weights;
  if (op.weight) vectors_.convert(op.weight.data, op.weight.dtype, weight, DType::f32, weights, false);
  else std::fill(weight, weight + weights, 1.0f);
  if (op.plus_one)
    for (std::int64_t c = 0; c < weights; ++c) weight[c] += 1;
  if (op.bias) vectors_.convert(op.bias.data, op.bias.dtype, bias, DType::f32, cols, false);
  else std::fill(bias, bias + cols, 0.0f);

  for_row_blocks(turn, op.x.rows, cols, [&](std::int64_t first, std::int64_t rows, int thread) {
    float* const row = reinterpret_cast<float*>(turn.scratch(thread, row_bytes));
    for (std::int64_t r = first; r < first + rows; ++r) {
      vectors_.convert(op.x.slice(r, 1).data, op.x.dtype, row, DType::f32, cols, false);
      normalise(row, weight + r * cols % weights, bias, cols, op.eps, op.rms);
      vectors_.convert(row, DType::f32, op.out.slice(r, 1).data, op.out.dtype, cols, false);
    }
  });
}

void CpuOps::run(const TakeHeads& op, Stream&) const {
  check(op);
  require_f32("take_heads", {{"in", op.in}});
  const std::int64_t dim = op.head_dim, heads = op.out.cols / dim;
  ThreadPool::Turn turn(pool_);
  for_row_blocks(turn, op.out.rows, op.out.cols, [&](std::int64_t first, std::int64_t rows, int) {
    for (std::int64_t r = first; r < first + rows; ++r)
      for (std::int64_t h = 0; h < heads; ++h)
        std::copy_n(row_of(op.in, r) + (op.first + h * op.step) * dim, dim, row_of(op.out, r) + h * dim);
  });
}

void CpuOps::run(const Rotary& op, Stream&) const {
  check(op);
  require_f32("rotary", {{"x", op.x}});
  const std::size_t n = op.frequencies.size(), step = op.alternate ? 2 : 1, apart = op.alternate ? 1 : n;
  ThreadPool::Turn turn(pool_);
  for_row_blocks(turn, op.x.rows, op.x.cols, [&](std::int64_t first, std::int64_t rows, int thread) {
    float* const cosine = reinterpret_cast<float*>(turn.scratch(thread, 2 * n * sizeof(float)));
    float* const sine = cosine + n;
    for (std::int64_t r = first; r < first + rows; ++r) {
      for (std::size_t i = 0; i < n; ++i) {
        const float angle = static_cast<float>(op.position[static_cast<std::size_t>(r)]) * op.frequencies[i];
        cosine[i] = std::cos(angle) * op.magnitude;
        sine[i] = std::sin(angle) * op.magnitude;
      }
      float* const row = row_of(op.x, r);
      for (float* head = row; head < row + op.x.cols; head += op.head_dim)
        for (std::size_t i = 0; i < n; ++i) {
          float &x = head[i * step], &y = head[i * step + apart];
          const float a = x, b = y;
          x = a * cosine[i] - b * sine[i];
          y = b * cosine[i] + a * sine[i];
        }
    }
  });
}

void CpuOps::run(const Linear& op, Stream&) const {
  check(op);
  require_f32("linear", {{"x", op.x}, {"out", op.out}});
  linear_cpu(op, pool_);
}

void CpuOps::run(const LinearGroup& op, Stream&) const {
  check(op);
  for (const LinearGroup::Part& part : op.parts) require_f32("linear", {{"x", op.x}, {"out", part.out}});
  linear_group_cpu(op, pool_);
}

void CpuOps::run(const UnpackWeights& op, Stream&) const {
  check(op);
  const QuantisedLayout layout = QuantisedLayout::of(op.weight);
  const auto row_bytes = static_cast<std::size_t>(layout.cols) * sizeof(float);
  ThreadPool::Turn turn(pool_);
  for_row_blocks(turn, layout.rows, layout.cols, [&](std::int64_t first, std::int64_t rows, int thread) {
    float* const row = reinterpret_cast<float*>(turn.scratch(thread, row_bytes));
    for (std::int64_t r = first; r < first + rows; ++r) {
      dequantise_row(layout, op.weight.as<std::byte>(), r, row);
      vectors_.convert(row, DType::f32, op.out.slice(r, 1).data, DType::f16, layout.cols, false);
    }
  });
}

void CpuOps::run(const Hadamard& op, Stream&) const {
  check(op);
  ThreadPool::Turn turn(pool_);
  for_row_blocks(turn, op.x.rows, op.x.cols, [&](std::int64_t first, std::int64_t rows, int) {
    for (std::int64_t r = first; r < first + rows; ++r)
      for (std::int64_t c = 0; c < op.x.cols; c += op.head_dim) vectors_.hadamard(row_of(op.x, r) + c, op.head_dim);
  });
}

}  // namespace weft::kernels
