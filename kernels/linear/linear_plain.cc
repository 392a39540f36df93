// kernels/linear/linear_plain.cc: products in plain C++, for processors without AVX2. They are slow and give the same
// bits as AVX2. Compiled with -ffp-contract=off.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/linear/linear_math.h"
#include "kernels/linear/linear_quantised.h"
#include "kernels/quantised.h"

namespace weft::kernels {
namespace {

constexpr std::int64_t kLine = QuantisedLayout::kLine;

/// Sixteen floats, with the interface of the other files' vector types.
struct Plain {
  using V = std::array<float, kPartialSums>;
  template <class F> static V each(const F& f) {
    V v;
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = f(i);
    return v;
  }
  static V all(float x) {
    return each([&](std::size_t) { return x; });
  }
  static V load(const float* p) {
    return each([&](std::size_t i) { return p[i]; });
  }
  template <class T> static V load_first(const T* p, std::int64_t n) {
    return each([&](std::size_t i) { return static_cast<std::int64_t>(i) < n ? static_cast<float>(p[i]) : 0.0f; });
  }
  static void store(float* p, const V& v) { std::copy(v.begin(), v.end(), p); }
  static void store_first(float* p, const V& v, std::int64_t n) { std::copy_n(v.begin(), n, p); }
  static V add(const V& a, const V& b) {
    return each([&](std::size_t i) { return a[i] + b[i]; });
  }
  static V sub(const V& a, const V& b) {
    return each([&](std::size_t i) { return a[i] - b[i]; });
  }
  static V mul(const V& a, const V& b) {
    return each([&](std::size_t i) { return a[i] * b[i]; });
  }
  static V div(const V& a, const V& b) {
    return each([&](std::size_t i) { return a[i] / b[i]; });
  }
  static V fma(const V& a, const V& b, const V& c) {
    return each([&](std::size_t i) { return std::fma(a[i], b[i], c[i]); });
  }
  static V max(const V& a, const V& b) {  // b where either is not a number
    return each([&](std::size_t i) { return a[i] > b[i] ? a[i] : b[i]; });
  }
  static V min(const V& a, const V& b) {
    return each([&](std::size_t i) { return a[i] < b[i] ? a[i] : b[i]; });
  }
  static V abs(const V& a) {
    return each([&](std::size_t i) { return std::abs(a[i]); });
  }
  static V copy_sign(const V& size, const V& sign) {
    return each([&](std::size_t i) { return std::copysign(size[i], sign[i]); });
  }
  static V round(const V& a) {
    return each([&](std::size_t i) { return std::nearbyint(a[i]); });
  }
  static V times_power_of_two(const V& a, const V& n) {
    return each(
        [&](std::size_t i) { return std::isfinite(n[i]) ? std::ldexp(a[i], static_cast<int>(n[i])) : a[i] * n[i]; });
  }
  static V choose_below(const V& x, float limit, const V& below, const V& other) {
    return each([&](std::size_t i) { return x[i] < limit ? below[i] : other[i]; });
  }
  /// The fixed tree, for sixteen outputs.
  static V reduce(const float* sums) {
    return each([&](std::size_t n) {
      V v = load(sums + n * kPartialSums);
      for (std::size_t half = kPartialSums / 2; half > 0; half /= 2)
        for (std::size_t l = 0; l < half; ++l) v[l] += v[l + half];
      return v[0];
    });
  }
};

float half_at(const std::byte* from, std::int64_t index) {
  f16 half;
  std::memcpy(&half, from + index * 2, 2);
  return static_cast<float>(half);
}

template <bool Four, bool kTable = false> void tile(const IntegerTile& t) {
  constexpr std::int64_t width = QuantisedLayout::kTileRows, quads = Four ? 2 : 1;  // quads: of a line
  std::fill_n(t.sums, width, 0.0f);
  const std::byte* weight = t.weight;
  const std::int8_t* x = t.x;
  for (std::int64_t g = 0; g < t.groups; ++g) {
    const std::byte* const lines = weight + kLine;
    for (std::int64_t n = 0; n < width; ++n) {
      std::int32_t dot = 0;
      for (std::int64_t quad = 0; quad < t.quads; ++quad)
        for (std::int64_t j = 0; j < kQuad; ++j) {
          const int byte = static_cast<int>(lines[quad / quads * kLine + n * kQuad + j]);
          const int level = Four ? (byte >> (quad % 2 * 4)) & 15 : byte;
          dot += (kTable ? t.table[level] : level) * x[quad * kQuad + j];
        }
      float& sum = t.sums[n];
      sum = std::fma(static_cast<float>(dot), half_at(weight, n) * t.x_scale[g], sum);
      sum = std::fma(half_at(weight, width + n), t.x_sum[g], sum);
    }
    x += t.quads * kQuad;
    weight = lines + t.quads / quads * kLine;
  }
}

void quantise(const QuantiseRow& q) {
  std::int8_t* to = q.to;
  for (std::int64_t g = 0; g < q.groups; ++g) {
    const std::int64_t first = g * q.group, count = std::min(q.columns - first, q.group);
    int bits = 0, sum = 0;
    for (std::int64_t i = 0; i < count; ++i)
      bits = std::max(bits, std::bit_cast<std::int32_t>(std::abs(q.from[first + i])));
    const RowScale scale = row_scale(bits);
    for (std::int64_t i = 0; i < q.group; ++i) {
      const bool zero = i >= count || !std::isfinite(scale.scale);
      const auto level = static_cast<int>(zero ? 0.0f : std::nearbyint(q.from[first + i] * scale.inverse));
      sum += level;
      to[i / kQuad * q.rows * kQuad + i % kQuad] = static_cast<std::int8_t>(level);
    }
    to += q.group / kQuad * q.rows * kQuad;
    q.scale[g * q.rows] = scale.scale;
    q.sum[g * q.rows] = scale.scale * static_cast<float>(sum);
  }
}

/// Reads a row of weights as floats.
void read_weights(const ConstView& weights, std::int64_t row, float* to) {
  const auto convert = [&](const auto* from) {
    for (std::int64_t k = 0; k < weights.cols; ++k) to[k] = static_cast<float>(from[row * weights.stride + k]);
  };
  switch (weights.dtype) {
    case DType::f32: return convert(weights.as<float>());
    case DType::f16: return convert(weights.as<f16>());
    case DType::bf16: return convert(weights.as<bf16>());
    case DType::i8:
    case DType::i4:
    case DType::f8: return dequantise_row(QuantisedLayout::of(weights), weights.as<std::byte>(), row, to);
    case DType::i32: break;  // check() refuses it
  }
}

constexpr IntegerKernels make_kernels() {
  IntegerKernels kernels = {};
  kernels.name = "plain C++";
  kernels.rows = 1;
  kernels.tile4[0] = tile<true>;
  kernels.tile8[0] = tile<false>;
  kernels.tile_table[0][0] = kernels.tile_table[1][0] = tile<true, true>;
  kernels.quantise = quantise;
  return kernels;
}
constexpr IntegerKernels kKernels = make_kernels();

}  // namespace

const IntegerKernels* integer_kernels_plain() { return &kKernels; }

void finish_plain(const Finish& f) { linear_finish<Plain, SumsForm::whole>(f); }

namespace {

/// The outputs of one column, for all rows of x. `weight` [cols] is memory for the column's weights.
void multiply_column(const Linear& op, std::int64_t n, float* weight) {
  const auto bias_size = static_cast<std::int64_t>(size_of(op.bias.dtype));
  read_weights(op.weight, n, weight);
  for (std::int64_t row = 0; row < op.x.rows; ++row) {
    const float* const x = op.x.as<float>() + row * op.x.stride;
    std::array<float, kPartialSums> sums{};
    for (std::int64_t k = 0; k < op.weight.cols; ++k) {
      float& sum = sums[static_cast<std::size_t>(k % kPartialSums)];
      sum = std::fma(x[k], weight[k], sum);
    }
    for (std::size_t half = kPartialSums / 2; half > 0; half /= 2)
      for (std::size_t l = 0; l < half; ++l) sums[l] += sums[l + half];
    finish_plain({.sums = sums.data(),
                  .lane_step = 0,
                  .bias = op.bias ? op.bias.as<std::byte>() + n * bias_size : nullptr,
                  .bias_type = op.bias.dtype,
                  .activation = op.activation,
                  .accumulate = op.accumulate,
                  .out = op.out.as<float>() + row * op.out.stride + n,
                  .columns = 1});
  }
}

}  // namespace

void linear_exact_plain(const Linear& op, ThreadPool& pool) {
  constexpr std::int64_t columns = kLine / sizeof(float);  // of a task: outputs of two threads share no cache line
  ThreadPool::Turn turn(pool);
  turn.run(divide_up(op.weight.rows, columns), [&](std::int64_t task, int thread) {
    float* const weight = reinterpret_cast<float*>(
        turn.scratch(thread, static_cast<std::size_t>(std::max<std::int64_t>(1, op.weight.cols)) * sizeof(float)));
    for (std::int64_t n = task * columns; n < std::min((task + 1) * columns, op.weight.rows); ++n)
      multiply_column(op, n, weight);
  });
}

}  // namespace weft::kernels
