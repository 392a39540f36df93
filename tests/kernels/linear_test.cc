#include "kernels/linear/linear_cpu.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>

#include "kernels/backend/ceilings.h"
#include "kernels/error.h"
#include "kernels/linear/linear_kernels.h"
#include "kernels/machine/cpu_features.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::kernels;
using test::normal;
using test::StoredNumbers;

namespace {

struct Shape {
  int m, n, k;
};

/// [rows, cols] within guards: columns after each row, rows before and after.
class Guarded {
 public:
  static constexpr float kGuard = -12345.5f;
  static constexpr std::int64_t kSide = 19;
  Guarded(std::int64_t rows, std::int64_t cols, float value = 7)
      : rows_(rows), cols_(cols), stride_(cols + kSide), data_(static_cast<std::size_t>((rows + 2) * stride_), kGuard) {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c) at(r, c) = value;
  }
  View view() { return {row(0), DType::f32, rows_, cols_, stride_}; }
  float* row(std::int64_t r) { return data_.data() + (r + 1) * stride_; }
  float& at(std::int64_t r, std::int64_t c) { return row(r)[c]; }
  bool guards_hold() {
    for (std::int64_t r = -1; r <= rows_; ++r)
      for (std::int64_t c = 0; c < stride_; ++c)
        if ((r < 0 || r == rows_ || c >= cols_) && std::memcmp(row(r) + c, &kGuard, 4) != 0) return false;
    return true;
  }

 private:
  std::int64_t rows_, cols_, stride_;
  std::vector<float> data_;
};

double reference(double x, Activation activation) {
  switch (activation) {
    case Activation::none: return x;
    case Activation::relu: return x < 0 ? 0 : x;
    case Activation::gelu: return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
    case Activation::relu_squared: return x > 0 ? x * x : 0;
    case Activation::quick_gelu: return x / (1 + std::exp(-1.702 * x));
    case Activation::silu: return x / (1 + std::exp(-x));
    case Activation::tanh: return std::tanh(x);
  }
  return x;
}

/// Of the sum of the absolute products. The reference takes the weights as stored, so that only fp32 sums differ; what
/// they lose does not grow with the coarseness of the type.
double tolerance(DType weights) { return weights == DType::f32 ? 6e-7 : 5e-7; }

/// The largest error of row `r` in units of what tolerance() is stated in.
double error_of_row(const float* got, const std::vector<float>& x, std::int64_t r, const StoredNumbers& w,
                    const StoredNumbers& bias, const Shape& s, Activation activation, float before) {
  double worst = 0;
  for (int n = 0; n < s.n; ++n) {
    double sum = bias.at(static_cast<std::size_t>(n)), size = std::abs(sum) + 1e-3;
    for (int k = 0; k < s.k; ++k) {
      const double p =
          static_cast<double>(x[static_cast<std::size_t>(r * s.k + k)]) * w.at(static_cast<std::size_t>(n) * s.k + k);
      sum += p;
      size += std::abs(p);
    }
    const double expected = reference(sum, activation) + static_cast<double>(before);
    if (activation == Activation::relu_squared)
      size *= std::max(1.0, 2 * std::abs(sum));  // of others the slope is about 1
    worst = std::max(worst,
                     std::abs(static_cast<double>(got[n]) - expected) / (size + std::abs(static_cast<double>(before))));
    if (std::isnan(got[n])) return std::numeric_limits<double>::infinity();
  }
  return worst;
}

Linear linear(const ConstView& x, const ConstView& w, const ConstView& bias, const View& out,
              Activation activation = Activation::none, bool accumulate = false) {
  Linear op;
  op.x = x, op.weight = w, op.bias = bias, op.out = out, op.activation = activation, op.accumulate = accumulate;
  return op;
}

}  // namespace

TEST_CASE("linear matches fp64 on every path, type and shape", "[kernels]") {
  const DType dtype = GENERATE(DType::f16, DType::bf16, DType::f32);
  ThreadPool pool(2);
  unsigned seed = 1;
  for (const LinearPath path : linear_paths())
    for (const int k : {1, 15, 16, 17, 64, 100, 513})
      for (const int n : {1, 7, 48, 100})
        for (const int m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 24, 25, 50, 256, 300}) {
          if (m > 50 && (n == 7 || k == 15 || k == 64)) continue;  // for time
          if (m > 13 && path == LinearPath::plain) continue;       // which takes row by row
          if (path == LinearPath::amx) continue;                   // multiplies floats as avx512 does
          const Shape s{m, n, k};
          CAPTURE(name_of(path), name_of(dtype), m, n, k);
          const auto x = normal(static_cast<std::size_t>(m * k), ++seed);
          const auto misaligned = static_cast<std::size_t>(m % 5);
          const StoredNumbers w(normal(static_cast<std::size_t>(n * k), ++seed, 0.1f), dtype, misaligned);
          const StoredNumbers bias(normal(static_cast<std::size_t>(n), ++seed), dtype, 1);
          Guarded out(m, n);
          linear_cpu(linear(ConstView(x.data(), DType::f32, m, k), w.view(n, k), bias.view(1, n), out.view()), pool,
                     path);
          REQUIRE(out.guards_hold());
          double worst = 0;
          for (int r = 0; r<m; r += m> 50 ? 37 : 1)
            worst = std::max(worst, error_of_row(out.row(r), x, r, w, bias, s, Activation::none, 0));
          REQUIRE(worst < tolerance(dtype));
        }
}

TEST_CASE("linear applies each activation, and adds to what is there", "[kernels]") {
  const Activation activation =
      GENERATE(Activation::none, Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::quick_gelu,
               Activation::silu, Activation::tanh, Activation::relu_squared);
  const bool accumulate = GENERATE(false, true);
  const DType bias_type = GENERATE(DType::f32, DType::f16, DType::bf16);
  CAPTURE(static_cast<int>(activation), accumulate, name_of(bias_type));
  const Shape s{21, 45, 33};
  ThreadPool pool(2);
  auto x = normal(static_cast<std::size_t>(s.m * s.k), 11);
  for (std::size_t i = 0; i < x.size(); i += 3) x[i] *= 20;  // far into both tails
  const StoredNumbers w(normal(static_cast<std::size_t>(s.n * s.k), 12, 0.3f), DType::f16);
  const StoredNumbers bias(normal(static_cast<std::size_t>(s.n), 13), bias_type, 3);
  for (const LinearPath path : linear_paths()) {
    Guarded out(s.m, s.n, 3.25f);
    linear_cpu(linear(ConstView(x.data(), DType::f32, s.m, s.k), w.view(s.n, s.k), bias.view(1, s.n), out.view(),
                      activation, accumulate),
               pool, path);
    CHECK(out.guards_hold());
    for (int r = 0; r < s.m; ++r)
      REQUIRE(error_of_row(out.row(r), x, r, w, bias, s, activation, accumulate ? 3.25f : 0) < 5e-7);
  }
}

TEST_CASE("linear's activations keep their precision over all of their range", "[kernels]") {
  const Activation activation =
      GENERATE(Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::quick_gelu, Activation::silu,
               Activation::tanh, Activation::relu_squared);
  ThreadPool pool(1);
  const float one = 1;
  std::vector<float> x;
  for (float v = 1e-30f; v < 200; v *= 1.01f) x.push_back(v), x.push_back(-v);
  const auto count = static_cast<std::int64_t>(x.size());
  for (const LinearPath path : linear_paths()) {
    std::vector<float> y(x.size());
    linear_cpu(linear(ConstView(x.data(), DType::f32, count, 1), ConstView(&one, DType::f32, 1, 1), {},
                      View(y.data(), DType::f32, count, 1), activation),
               pool, path);
    for (std::size_t i = 0; i < x.size(); ++i) {
      CAPTURE(name_of(path), static_cast<int>(activation), x[i]);
      const double expected = reference(static_cast<double>(x[i]), activation);
      // The gelus multiply x by 1 + erf or 1 + tanh in fp32, as PyTorch does:
      // in the left tail what is left is of x's size.
      REQUIRE(std::abs(static_cast<double>(y[i]) - expected) <=
              4e-7 * std::min(std::abs(static_cast<double>(x[i])), 8.0) + 4e-7 * std::abs(expected));
    }
  }
}

TEST_CASE("linear's rows do not depend on other rows, threads, alignment or instruction set", "[kernels]") {
  const DType dtype = GENERATE(DType::f16, DType::bf16, DType::f32);
  const auto [n, k] = GENERATE(table<int, int>({{100, 513}, {49, 2500}, {7, 40}}));
  const Activation activation = GENERATE(Activation::none, Activation::gelu);
  CAPTURE(name_of(dtype), n, k);
  constexpr int most = 300;
  const auto x = normal(static_cast<std::size_t>(most * k), 21);
  const auto numbers = normal(static_cast<std::size_t>(n * k), 22, 0.1f);
  const StoredNumbers bias(normal(static_cast<std::size_t>(n), 23), DType::f32);
  std::vector<float> expected;
  for (const LinearPath path : linear_paths())
    for (const int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      for (const std::size_t misaligned : {0, 1, 7}) {
        const StoredNumbers w(numbers, dtype, misaligned);
        for (const auto& [m, first] : {std::pair{300, 0},
                                       {1, 0},
                                       {1, 299},
                                       {2, 3},
                                       {3, 1},
                                       {4, 100},
                                       {5, 77},
                                       {8, 8},
                                       {11, 0},
                                       {12, 9},
                                       {13, 1},
                                       {24, 200},
                                       {25, 3},
                                       {50, 50},
                                       {130, 1},
                                       {256, 44}}) {
          if (threads > 1 && misaligned > 1 && m > 50) continue;  // for time
          if (path == LinearPath::plain && (threads > 2 || misaligned > 0 || m > 50)) continue;
          if (path == LinearPath::amx) continue;  // multiplies floats as avx512 does
          CAPTURE(name_of(path), threads, misaligned, m, first);
          std::vector<float> out(static_cast<std::size_t>(m * n));
          linear_cpu(linear(ConstView(x.data() + first * k, DType::f32, m, k), w.view(n, k), bias.view(1, n),
                            View(out.data(), DType::f32, m, n), activation),
                     pool, path);
          if (expected.empty()) expected = out;
          REQUIRE(std::memcmp(out.data(), expected.data() + first * n, out.size() * 4) == 0);
        }
      }
    }
}

TEST_CASE("linear's columns do not depend on other columns", "[kernels]") {
  const int m = GENERATE(1, 8, 40);
  constexpr int n = 130, k = 70;
  const auto x = normal(static_cast<std::size_t>(m * k), 31);
  const StoredNumbers w(normal(n * k, 32), DType::f16);
  ThreadPool pool(2);
  for (const LinearPath path : linear_paths()) {
    std::vector<float> all(static_cast<std::size_t>(m * n));
    linear_cpu(linear(ConstView(x.data(), DType::f32, m, k), w.view(n, k), {}, View(all.data(), DType::f32, m, n)),
               pool, path);
    for (const auto& [first, count] : {std::pair{0, 1}, {5, 17}, {23, 50}, {129, 1}, {48, 82}}) {
      CAPTURE(name_of(path), m, first, count);
      std::vector<float> some(static_cast<std::size_t>(m * count));
      linear_cpu(linear(ConstView(x.data(), DType::f32, m, k), w.view(n, k).slice(first, count), {},
                        View(some.data(), DType::f32, m, count)),
                 pool, path);
      for (int r = 0; r < m; ++r)
        REQUIRE(std::memcmp(&some[static_cast<std::size_t>(r * count)], &all[static_cast<std::size_t>(r * n + first)],
                            static_cast<std::size_t>(count) * 4) == 0);
    }
  }
}

TEST_CASE("linear takes rows of x, weights and out that lie apart", "[kernels]") {
  const int m = GENERATE(3, 40);
  constexpr int n = 20, k = 33, gap = 5;
  const auto wide_x = normal(static_cast<std::size_t>(m * (k + gap)), 41), wide_w = normal(n * (k + gap), 42);
  std::vector<float> x, w;
  for (int r = 0; r < m; ++r) x.insert(x.end(), wide_x.begin() + r * (k + gap), wide_x.begin() + r * (k + gap) + k);
  for (int r = 0; r < n; ++r) w.insert(w.end(), wide_w.begin() + r * (k + gap), wide_w.begin() + r * (k + gap) + k);
  ThreadPool pool(2);
  for (const LinearPath path : linear_paths()) {
    Guarded apart(m, n), close(m, n);
    linear_cpu(linear(ConstView(wide_x.data(), DType::f32, m, k, k + gap),
                      ConstView(wide_w.data(), DType::f32, n, k, k + gap), {}, apart.view()),
               pool, path);
    linear_cpu(linear(ConstView(x.data(), DType::f32, m, k), ConstView(w.data(), DType::f32, n, k), {}, close.view()),
               pool, path);
    CHECK(apart.guards_hold());
    for (int r = 0; r < m; ++r) CHECK(std::memcmp(apart.row(r), close.row(r), n * 4) == 0);
  }
}

TEST_CASE("linear lets NaN and infinity through to their row alone", "[kernels]") {
  const int m = GENERATE(1, 5, 30);
  const Activation activation =
      GENERATE(Activation::none, Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::quick_gelu,
               Activation::silu, Activation::tanh, Activation::relu_squared);
  constexpr int n = 19, k = 21;
  constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  ThreadPool pool(2);
  for (const LinearPath path : linear_paths())
    for (const float bad : {nan, infinity}) {
      CAPTURE(name_of(path), m, static_cast<int>(activation), bad);
      auto x = normal(static_cast<std::size_t>(m * k), 51);
      const std::vector<float> ones(n * k, 1.0f);
      x[static_cast<std::size_t>((m - 1) * k + k - 1)] = bad;
      std::vector<float> y(static_cast<std::size_t>(m * n));
      linear_cpu(linear(ConstView(x.data(), DType::f32, m, k), ConstView(ones.data(), DType::f32, n, k), {},
                        View(y.data(), DType::f32, m, n), activation),
                 pool, path);
      for (int i = 0; i < m * n; ++i) {
        const float got = y[static_cast<std::size_t>(i)];
        if (i < (m - 1) * n) REQUIRE(std::isfinite(got));
        else if (std::isnan(bad)) REQUIRE(std::isnan(got));
        else REQUIRE(got == (activation == Activation::tanh ? 1 : infinity));
      }
    }
  // A weight that is not finite reaches every row, in its column only.
  for (const LinearPath path : linear_paths()) {
    const auto x = normal(static_cast<std::size_t>(m * k), 52);
    std::vector<float> numbers(n * k, 1.0f);
    numbers[3 * k + k - 1] = nan;
    const StoredNumbers w(numbers, DType::f16);
    std::vector<float> y(static_cast<std::size_t>(m * n));
    linear_cpu(
        linear(ConstView(x.data(), DType::f32, m, k), w.view(n, k), {}, View(y.data(), DType::f32, m, n), activation),
        pool, path);
    for (int i = 0; i < m * n; ++i) REQUIRE(std::isnan(y[static_cast<std::size_t>(i)]) == (i % n == 3));
  }
}

TEST_CASE("linear keeps the smallest numbers of each type", "[kernels]") {
  ThreadPool pool(2);
  for (const LinearPath path : linear_paths()) {
    CAPTURE(name_of(path));
    const f16 small_half(0x1p-24f);
    const bf16 small_bf16(0x1p-133f);
    const float x = 1, scaled = 0x1p20f;
    float y = 0;
    linear_cpu(linear(ConstView(&x, DType::f32, 1, 1), ConstView(&small_half, DType::f16, 1, 1), {},
                      View(&y, DType::f32, 1, 1)),
               pool, path);
    CHECK(y == 0x1p-24f);
    linear_cpu(linear(ConstView(&scaled, DType::f32, 1, 1), ConstView(&small_bf16, DType::bf16, 1, 1), {},
                      View(&y, DType::f32, 1, 1)),
               pool, path);
    CHECK(y == 0x1p-113f);
  }
}

TEST_CASE("linear reads no byte outside its weights", "[kernels]") {
  // Exactly as large as they are, so that the address sanitizer sees a read before or after.
  const DType dtype = GENERATE(DType::f16, DType::bf16, DType::f32);
  const auto [n, k] = GENERATE(table<int, int>({{1, 1}, {3, 17}, {25, 31}, {13, 530}}));
  const int m = GENERATE(1, 6, 30);
  ThreadPool pool(2);
  const std::vector<std::byte> weight(static_cast<std::size_t>(n * k) * size_of(dtype)),
      bias(static_cast<std::size_t>(n) * size_of(dtype));
  for (const LinearPath path : linear_paths()) {
    const std::vector<float> x(static_cast<std::size_t>(m * k), 1.0f);
    std::vector<float> y(static_cast<std::size_t>(m * n), 1.0f);
    linear_cpu(linear(ConstView(x.data(), DType::f32, m, k), ConstView(weight.data(), dtype, n, k),
                      ConstView(bias.data(), dtype, 1, n), View(y.data(), DType::f32, m, n)),
               pool, path);
    CHECK(y == std::vector<float>(y.size(), 0.0f));
  }
}

TEST_CASE("linear with nothing to add is the bias, with no rows nothing", "[kernels]") {
  ThreadPool pool(2);
  const int m = GENERATE(1, 30);
  const std::vector<float> bias = normal(5, 61);
  for (const LinearPath path : linear_paths()) {
    Guarded out(m, 5);
    linear_cpu(linear(ConstView(nullptr, DType::f32, m, 0), ConstView(nullptr, DType::f16, 5, 0),
                      ConstView(bias.data(), DType::f32, 1, 5), out.view()),
               pool, path);
    CHECK(out.guards_hold());
    for (int r = 0; r < m; ++r) CHECK(std::vector<float>(out.row(r), out.row(r) + 5) == bias);
    linear_cpu(linear(ConstView(nullptr, DType::f32, 0, 3), ConstView(bias.data(), DType::f32, 1, 3), {},
                      View(nullptr, DType::f32, 0, 1)),
               pool, path);
  }
}

TEST_CASE("linear cuts many long rows into passes that change nothing", "[kernels]") {
  constexpr int m = 131, n = 5, k = 70000;  // about 64 rows of x at a time
  const auto x = normal(std::size_t{m} * k, 71);
  const StoredNumbers w(normal(std::size_t{n} * k, 72, 0.01f), DType::f16);
  ThreadPool pool(2);
  for (const LinearPath path : linear_paths()) {
    std::vector<float> all(m * n), one(n);
    linear_cpu(linear(ConstView(x.data(), DType::f32, m, k), w.view(n, k), {}, View(all.data(), DType::f32, m, n)),
               pool, path);
    for (const int r : {0, 47, 48, 130}) {
      linear_cpu(
          linear(ConstView(x.data() + r * k, DType::f32, 1, k), w.view(n, k), {}, View(one.data(), DType::f32, 1, n)),
          pool, path);
      CHECK(std::memcmp(one.data(), &all[static_cast<std::size_t>(r * n)], n * 4) == 0);
    }
  }
}

TEST_CASE("linear may be called from several threads", "[kernels]") {
  ThreadPool pool(2);
  constexpr int m = 9, n = 60, k = 200;
  const auto x = normal(m * k, 81);
  const StoredNumbers w(normal(n * k, 82), DType::bf16);
  std::vector<std::vector<float>> outs(4, std::vector<float>(m * n));
  std::vector<std::thread> callers;
  for (auto& out : outs)
    callers.emplace_back([&] {
      for (int i = 0; i < 50; ++i)
        linear_cpu(linear(ConstView(x.data(), DType::f32, m, k), w.view(n, k), {}, View(out.data(), DType::f32, m, n)),
                   pool);
    });
  for (std::thread& caller : callers) caller.join();
  for (const auto& out : outs) CHECK(out == outs[0]);
}

TEST_CASE("linear refuses a path that the processor does not have", "[kernels]") {
  ThreadPool pool(1);
  const float x = 1;
  float y = 0;
  const Linear op =
      linear(ConstView(&x, DType::f32, 1, 1), ConstView(&x, DType::f32, 1, 1), {}, View(&y, DType::f32, 1, 1));
  if (!cpu_has_avx512()) CHECK_THROWS_AS(linear_cpu(op, pool, LinearPath::avx512), UsageError);
  if (!cpu_has_avx2()) CHECK_THROWS_AS(linear_cpu(op, pool, LinearPath::avx2), UsageError);
  CHECK(linear_paths().back() == LinearPath::plain);
}

TEST_CASE("ceilings are positive", "[kernels]") {
  ThreadPool pool(2);
  CHECK(measure_dram_read(pool, std::size_t{8} << 20, 0.01) > 1e8);
  CHECK(MeasuredProducts(pool, {.type = DType::f16}, 1).flops(2, 0.01) > 1e6);
  CHECK(measure_quantise(pool, DType::i8, 0.01) > measure_quantise(pool, DType::i4, 0.01));
}
