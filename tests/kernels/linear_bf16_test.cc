#include <algorithm>
#include <catch2/catch.hpp>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "kernels/error.h"
#include "kernels/linear/linear_cpu.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::kernels;
using test::normal;

namespace {

/// As bf16, `misaligned` numbers after the start of a vector.
struct Weights {
  Weights(const std::vector<float>& numbers, std::size_t misaligned = 0) : at(misaligned), stored(misaligned) {
    for (const float x : numbers) stored.emplace_back(x);
  }
  ConstView view(std::int64_t rows, std::int64_t cols) const { return {stored.data() + at, DType::bf16, rows, cols}; }
  double operator[](std::size_t i) const { return static_cast<float>(stored[at + i]); }

  std::size_t at;
  std::vector<bf16> stored;
};

std::vector<float> multiply(const float* x, int m, const ConstView& weight, ThreadPool& pool,
                            Arithmetic arithmetic = Arithmetic::bfloat16) {
  std::vector<float> out(static_cast<std::size_t>(m * weight.rows));
  Linear op;
  op.x = ConstView(x, DType::f32, m, weight.cols), op.weight = weight;
  op.out = View(out.data(), DType::f32, m, weight.rows), op.arithmetic = arithmetic;
  linear_cpu(op, pool);
  return out;
}

/// Whether there is something to test; says so where there is not.
bool here() {
  if (!multiplies_bf16()) WARN("this processor does not multiply bfloat16 numbers");
  return multiplies_bf16();
}

}  // namespace

TEST_CASE("without the instructions bfloat16 arithmetic is refused", "[kernels][bf16]") {
  if (multiplies_bf16()) return;
  ThreadPool pool(1);
  const auto x = normal(2, 1);
  CHECK_THROWS_WITH(multiply(x.data(), 1, Weights(x).view(1, 2), pool), Catch::Matchers::Contains("AVX512-BF16"));
}

TEST_CASE("products of bfloat16 pairs are those of the rounded numbers", "[kernels][bf16]") {
  if (!here()) return;
  ThreadPool pool(2);
  unsigned seed = 1;
  for (const int k : {2, 14, 32, 34, 100, 514, 3000})
    for (const int n : {1, 7, 48, 100})
      for (const int m : {1, 2, 5, 8, 11, 16, 17, 50, 300}) {
        if (m > 17 && (n == 7 || k == 3000)) continue;  // for time
        CAPTURE(m, n, k);
        const auto x = normal(std::int64_t{m} * k, ++seed);
        const Weights w(normal(std::int64_t{n} * k, ++seed, 0.1f), static_cast<std::size_t>(m % 5));
        const std::vector<float> out = multiply(x.data(), m, w.view(n, k), pool);
        double worst = 0;
        for (int r = 0; r<m; r += m> 17 ? 37 : 1)
          for (int c = 0; c < n; ++c) {
            double sum = 0, size = 1e-3;
            for (int i = 0; i < k; ++i) {
              const double rounded = static_cast<float>(bf16(x[static_cast<std::size_t>(r * k + i)]));
              const double product = rounded * w[static_cast<std::size_t>(c * k + i)];
              sum += product, size += std::abs(product);
            }
            worst = test::larger_error(worst, std::abs(double(out[static_cast<std::size_t>(r * n + c)]) - sum) / size);
          }
        REQUIRE(worst < 1e-6);
      }
}

TEST_CASE("rows in bfloat16 arithmetic do not depend on other rows, threads or alignment", "[kernels][bf16]") {
  if (!here()) return;
  const auto [n, k] = GENERATE(table<int, int>({{100, 514}, {49, 5000}, {7, 40}}));
  CAPTURE(n, k);
  constexpr int most = 300;
  const auto x = normal(std::int64_t{most} * k, 21), numbers = normal(std::int64_t{n} * k, 22, 0.1f);
  std::vector<float> expected;
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    for (const std::size_t misaligned : {0, 1, 7}) {
      const Weights w(numbers, misaligned);
      for (const auto& [m, first] : {std::pair{300, 0},
                                     {1, 0},
                                     {1, 299},
                                     {3, 1},
                                     {8, 8},
                                     {11, 0},
                                     {12, 9},
                                     {16, 1},
                                     {17, 5},
                                     {24, 200},
                                     {50, 50},
                                     {130, 1}}) {
        CAPTURE(threads, misaligned, m, first);
        const std::vector<float> out = multiply(x.data() + first * k, m, w.view(n, k), pool);
        if (expected.empty()) expected = out;
        REQUIRE(std::memcmp(out.data(), expected.data() + first * n, out.size() * sizeof(float)) == 0);
      }
    }
  }
}

namespace {

float without_denormals(float x) { return std::abs(x) < FLT_MIN ? std::copysign(0.0f, x) : x; }

/// One output in the order of linear_tiles.h.
float by_tiles(const float* x, const Weights& w, std::size_t column, int k) {
  float sum = 0;
  for (int first = 0; first < k; first += 32) {
    float of_even = 0, of_odd = 0;
    for (int i = first; i < std::min(k, first + 32); ++i) {
      const float a = without_denormals(static_cast<float>(bf16(without_denormals(x[i]))));
      const float b = without_denormals(static_cast<float>(w[column * static_cast<std::size_t>(k) + i]));
      float& part = i % 2 == 0 ? of_even : of_odd;
      part = without_denormals(std::fma(a, b, part));
    }
    sum = without_denormals(sum + without_denormals(of_even + of_odd));
  }
  return sum;
}

}  // namespace

TEST_CASE("products by AMX have the order of sums that its manual defines", "[kernels][bf16]") {
  if (!multiplies_by_tiles()) return;
  ThreadPool pool(2);
  const float size = GENERATE(1.0f, 1e-20f);  // small enough that some products are denormals
  unsigned seed = 70;
  for (const int k : {2, 32, 66, 1030, 2500})
    for (const int n : {1, 16, 40, 100})
      for (const int m : {1, 16, 18, 33, 70}) {
        CAPTURE(m, n, k, size);
        auto x = normal(std::int64_t{m} * k, ++seed, size);
        const Weights w(normal(std::int64_t{n} * k, ++seed, 0.1f * size), static_cast<std::size_t>(m % 5));
        x[0] = 1e-40f;
        const std::vector<float> out = multiply(x.data(), m, w.view(n, k), pool);
        std::vector<float> expected;
        for (int r = 0; r < m; ++r)
          for (int c = 0; c < n; ++c) expected.push_back(by_tiles(x.data() + r * k, w, static_cast<std::size_t>(c), k));
        REQUIRE(test::same_bits(out, expected));
      }
}

TEST_CASE("in bfloat16 arithmetic rows of no whole pairs are multiplied exactly", "[kernels][bf16]") {
  ThreadPool pool(2);
  const int m = GENERATE(1, 40);
  const auto x = normal(std::int64_t{m} * 33, 1);
  const Weights w(normal(20 * 33, 2));
  CHECK(multiply(x.data(), m, w.view(20, 33), pool) == multiply(x.data(), m, w.view(20, 33), pool, Arithmetic::exact));
}

TEST_CASE("bfloat16 arithmetic lets NaN and infinity through to their row alone", "[kernels][bf16]") {
  if (!here()) return;
  const int m = GENERATE(1, 5, 30);
  constexpr int n = 19, k = 22;
  ThreadPool pool(2);
  const Weights ones(std::vector<float>(n * k, 1.0f));
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    auto x = normal(std::int64_t{m} * k, 51);
    x[static_cast<std::size_t>(m * k - 1)] = bad;
    const std::vector<float> y = multiply(x.data(), m, ones.view(n, k), pool);
    for (int i = 0; i < m * n; ++i) {
      const float got = y[static_cast<std::size_t>(i)];
      CAPTURE(m, bad, i);
      if (i < (m - 1) * n) REQUIRE(std::isfinite(got));
      else REQUIRE((std::isnan(bad) ? std::isnan(got) : got == bad));
    }
  }
}
