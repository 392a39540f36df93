#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/error.h"
#include "kernels/levels/quantise.h"
#include "kernels/linear/linear_cpu.h"
#include "kernels/machine/cpu_features.h"
#include "kernels/quantised.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::kernels;
using test::normal;
using test::same_bits;

namespace {

/// A matrix [rows, cols] and the same quantised.
struct Quantised {
  Quantised(DType dtype, int group, std::int64_t rows, std::int64_t cols, const std::vector<float>& numbers)
      : layout{dtype, group, rows, cols}, bytes(static_cast<std::size_t>(layout.bytes()) + 64) {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
    data = bytes.data() + (64 - address % 64) % 64;
    for (std::int64_t row = 0; row < rows; row += 16)
      REQUIRE(quantise_tile(
                  layout,
                  ConstView(numbers.data() + row * cols, DType::f32, std::min<std::int64_t>(16, rows - row), cols),
                  data + row / 16 * layout.tile_bytes()) == -1);
    meant.resize(static_cast<std::size_t>(rows * cols));
    for (std::int64_t row = 0; row < rows; ++row) dequantise_row(layout, data, row, meant.data() + row * cols);
  }
  ConstView view() const {
    ConstView view(data, layout.dtype, layout.rows, layout.cols);
    view.group = layout.group;
    return view;
  }

  QuantisedLayout layout;
  std::vector<std::byte> bytes;
  std::byte* data;
  std::vector<float> meant;  // what the levels mean
};

struct Product {
  std::int64_t m = 1, n = 16, k = 64;
  Activation activation = Activation::none;
  bool accumulate = false, biased = true;
};

std::vector<float> multiply(const Product& p, const std::vector<float>& x, const ConstView& weight,
                            const std::vector<float>& bias, Arithmetic arithmetic, LinearPath path, ThreadPool& pool) {
  std::vector<float> out(static_cast<std::size_t>(p.m * p.n), 0.25f);
  linear_cpu({.x = ConstView(x.data(), DType::f32, p.m, p.k),
              .weight = weight,
              .bias = p.biased ? ConstView(bias.data(), DType::f32, 1, p.n) : ConstView{},
              .out = View(out.data(), DType::f32, p.m, p.n),
              .activation = p.activation,
              .accumulate = p.accumulate,
              .arithmetic = arithmetic},
             pool, path);
  return out;
}

const std::vector<Product> kProducts{{1, 16, 64},
                                     {1, 1, 1},
                                     {2, 50, 200},
                                     {7, 17, 63},
                                     {8, 48, 128},
                                     {9, 33, 257, Activation::gelu, true},
                                     {13, 64, 320},
                                     {17, 96, 192},
                                     {40, 100, 96},
                                     {3, 16, 3000, Activation::silu},
                                     {25, 40, 128, Activation::none, false, false},
                                     {14, 48, 200, Activation::none, true, false}};

}  // namespace

TEST_CASE("quantised: levels are the nearest, and 4 bits lose less than those between the ends", "[quantised]") {
  const DType dtype = GENERATE(DType::i4, DType::i8);
  const auto numbers = normal(64 * 50, 1);
  std::vector<std::uint8_t> levels(64);
  double error = 0, between_ends = 0;
  for (std::size_t first = 0; first < numbers.size(); first += 64) {
    const float* const group = numbers.data() + first;
    GroupScale scale;
    REQUIRE(quantise_group(group, 64, dtype, levels.data(), scale));
    const auto step = static_cast<float>(scale.scale), low = static_cast<float>(scale.minimum);
    const auto [least, most] = std::minmax_element(group, group + 64);
    const float plain = (*most - *least) / static_cast<float>(levels_of(dtype));
    for (std::size_t i = 0; i < 64; ++i) {
      const auto off = [&](int level) { return std::abs(std::fma(static_cast<float>(level), step, low) - group[i]); };
      REQUIRE(levels[i] <= levels_of(dtype));
      if (levels[i] > 0) REQUIRE(off(levels[i]) <= off(levels[i] - 1) + 1e-5f);
      if (levels[i] < levels_of(dtype)) REQUIRE(off(levels[i]) <= off(levels[i] + 1) + 1e-5f);
      error += std::pow(double(off(levels[i])), 2);
      const float there = std::nearbyint((group[i] - *least) / plain) * plain + *least;
      between_ends += std::pow(double(there) - group[i], 2);
    }
  }
  CHECK(error < (dtype == DType::i4 ? 0.85 : 1.05) * between_ends);
}

TEST_CASE("quantised: constant, zero, tiny and huge groups are right or refused", "[quantised]") {
  const DType dtype = GENERATE(DType::i4, DType::i8);
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<std::uint8_t> levels(32);
  GroupScale scale;
  const auto meant = [&](std::size_t i) {
    return std::fma(static_cast<float>(levels[i]), static_cast<float>(scale.scale), static_cast<float>(scale.minimum));
  };
  const auto quantises = [&](const std::vector<float>& numbers) {
    return quantise_group(numbers.data(), 32, dtype, levels.data(), scale);
  };
  for (const float same : {0.0f, 1.5f, -3.0f, 65504.0f, 1e-9f}) {
    REQUIRE(quantises(std::vector<float>(32, same)));
    CHECK(meant(7) == static_cast<float>(f16(same)));
  }
  std::vector<float> numbers(32, 1.0f);
  numbers[3] = std::nextafter(1.0f, 2.0f);  // a range whose inverse fp16 cannot hold
  REQUIRE(quantises(numbers));
  CHECK(std::abs(meant(3) - 1) < 1e-3f);
  numbers[3] = 7e5f;
  CHECK(quantises(numbers) == (dtype == DType::i4 || dtype == DType::i8));  // the scale fits; 7e5 is 15 steps of 46666
  CHECK(std::abs(meant(3) - 7e5f) < 3e4f);
  for (const float bad : {infinity, -infinity, std::nanf(""), -7e4f, 3e38f}) {
    numbers[3] = bad;
    CHECK_FALSE(quantises(numbers));
  }
}

TEST_CASE("quantised: a tile's layout is what quantised.h says", "[quantised]") {
  const DType dtype = GENERATE(DType::i4, DType::i8);
  const int group = GENERATE(16, 32, 64, 128);
  const std::int64_t rows = 21, cols = 150;
  const auto numbers = normal(static_cast<std::size_t>(rows * cols), 3);
  const Quantised q(dtype, group, rows, cols, numbers);
  CHECK(q.layout.bytes() % 64 == 0);
  CHECK(double(q.layout.group_bytes()) * 8 / (16 * group) == Approx(bits_of(dtype) + 32.0 / group));
  std::vector<std::uint8_t> levels(static_cast<std::size_t>(group));
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t first = 0; first < cols; first += group) {
      GroupScale scale;
      const std::int64_t count = std::min<std::int64_t>(group, cols - first);
      REQUIRE(quantise_group(numbers.data() + row * cols + first, count, dtype, levels.data(), scale));
      for (std::int64_t i = 0; i < count; ++i)
        REQUIRE(q.meant[static_cast<std::size_t>(row * cols + first + i)] ==
                std::fma(static_cast<float>(levels[static_cast<std::size_t>(i)]), static_cast<float>(scale.scale),
                         static_cast<float>(scale.minimum)));
    }
}

namespace {

struct Numbers {
  std::string what;
  std::vector<float> of;
};

/// Numbers of every kind that a group may hold. `top` is the highest level.
std::vector<Numbers> all_kinds(std::size_t count, unsigned seed, float top) {
  std::mt19937 random(seed);
  const auto each = [&](auto&& f) {
    std::vector<float> numbers(count);
    for (std::size_t i = 0; i < count; ++i) numbers[i] = f(i);
    return numbers;
  };
  std::normal_distribution<float> normal(0, 0.02f);
  std::uniform_real_distribution<float> uniform(-1, 1);
  const auto scaled = [&](float by, float to) { return each([&](auto) { return normal(random) * by + to; }); };
  return {
      {"normal", scaled(1, 0)},
      {"uniform", each([&](auto) { return uniform(random); })},
      {"with outliers", each([&](auto i) { return normal(random) * (i % 37 == 5 ? 50 : 1); })},
      {"of every size", each([&](auto) { return std::ldexp(uniform(random), static_cast<int>(random() % 60) - 50); })},
      {"positive", each([&](auto) { return std::abs(normal(random)); })},
      {"far from 0", scaled(0.01f, 100)},
      {"negative and far from 0", scaled(0.01f, -1000)},
      {"large", each([&](auto) { return uniform(random) * 6e4f; })},
      {"as large as a scale allows", each([&](auto i) { return i % 2 ? -60000 : 9.2e5f * std::abs(uniform(random)); })},
      {"tiny", scaled(1e-5f, 0)},
      {"near the least scale", scaled(3e-5f, 0)},
      {"too tiny", scaled(1e-30f, 0)},
      {"equal", each([&](auto i) { return static_cast<float>(i / 64) - 3; })},
      {"zeros of both signs", each([&](auto) { return random() % 2 ? 0.0f : -0.0f; })},
      {"few", each([&](auto) { return static_cast<float>(static_cast<int>(random() % 5)) * 0.1f - 0.2f; })},
      {"on levels", each([&](auto) { return static_cast<float>(random() % 16) * 0.125f - 1; })},
      {"between levels", each([&](auto) { return static_cast<float>(random() % 31) * 0.0625f - 1; })},
      {"in the middle between levels", each([&](auto i) {
         const auto step = static_cast<float>(f16(0.01f + 0.0001f * static_cast<float>(i / 32)));
         return step * (i % 32 == 0 ? 0 : i % 32 == 1 ? top : static_cast<float>(random() % 14) + 0.5f);
       })},
      {"with ends whose cut scale overflows", each([&](auto i) {
         return i % 32 == 0 ? 65000.0f : i % 32 == 1 ? 65000 + 65513 * top : 4e5f + 2e5f * uniform(random);
       })},
      {"one apart", each([&](auto i) { return i % 64 == 63 ? std::nextafter(1.0f, 2.0f) : 1.0f; })}};
}

template <class T> std::vector<T> as(const std::vector<float>& numbers) {
  return std::vector<T>(numbers.begin(), numbers.end());
}

}  // namespace

TEST_CASE("quantised: tiles have the levels of quantise_group with every instruction set", "[quantised]") {
  const DType dtype = GENERATE(DType::i4, DType::i8), type = GENERATE(DType::f32, DType::f16, DType::bf16);
  const int group = GENERATE(16, 32, 64, 128);
  struct Shape {
    std::int64_t rows, cols, stride;
  };
  REQUIRE(quantise_kernels().back().name == std::string("plain C++"));
  for (const Shape s : {Shape{16, 1024, 1024}, Shape{13, 150, 160}, Shape{8, 99, 99}, Shape{3, 5, 5}, Shape{1, 1, 1}})
    for (const Numbers& numbers : all_kinds(static_cast<std::size_t>(s.rows * s.stride), static_cast<unsigned>(group),
                                            static_cast<float>(levels_of(dtype)))) {
      const QuantisedLayout layout{dtype, group, s.rows, s.cols};
      const auto halves = as<f16>(numbers.of);
      const auto brains = as<bf16>(numbers.of);
      const void* const data = type == DType::f16    ? static_cast<const void*>(halves.data())
                               : type == DType::bf16 ? static_cast<const void*>(brains.data())
                                                     : numbers.of.data();
      const ConstView view(data, type, s.rows, s.cols, s.stride);
      std::vector<std::byte> wanted(static_cast<std::size_t>(layout.tile_bytes()), std::byte{0xAA});
      const std::int64_t refused = quantise_kernels().back().quantise(arguments_of(layout, view, wanted.data()));
      for (const QuantiseKernel& kernel : quantise_kernels()) {
        CAPTURE(numbers.what, kernel.name, name_of(dtype), name_of(type), group, s.rows, s.cols);
        std::vector<std::byte> tile(wanted.size() + 64, std::byte{0x55});
        REQUIRE(kernel.quantise(arguments_of(layout, view, tile.data())) == refused);
        for (std::size_t i = wanted.size(); i < tile.size(); ++i) REQUIRE(tile[i] == std::byte{0x55});
        if (refused < 0) REQUIRE(std::memcmp(tile.data(), wanted.data(), wanted.size()) == 0);
      }
    }
}

TEST_CASE("quantised: every instruction set finds the row that cannot be quantised", "[quantised]") {
  const DType dtype = GENERATE(DType::i4, DType::i8);
  const float infinity = std::numeric_limits<float>::infinity();
  const std::int64_t rows = 16, cols = 200;
  const QuantisedLayout layout{dtype, 64, rows, cols};
  for (const float bad : {infinity, -infinity, std::nanf(""), -7e4f, 3e38f})
    for (const std::int64_t row : {0, 5, 15}) {
      auto numbers = normal(static_cast<std::size_t>(rows * cols), 4);
      numbers[static_cast<std::size_t>(row * cols + 199)] = bad;
      for (const QuantiseKernel& kernel : quantise_kernels()) {
        CAPTURE(kernel.name, bad, row, name_of(dtype));
        std::vector<std::byte> tile(static_cast<std::size_t>(layout.tile_bytes()));
        CHECK(kernel.quantise(arguments_of(layout, ConstView(numbers.data(), DType::f32, rows, cols), tile.data())) ==
              row);
      }
    }
}

TEST_CASE("quantised: levels that others chose mean the same in our tiles", "[quantised]") {
  const DType dtype = GENERATE(DType::i4, DType::i8);
  const int group = GENERATE(16, 32, 64, 128);
  const std::int64_t rows = GENERATE(1, 16, 21), cols = GENERATE(8, 64, 200);
  CAPTURE(name_of(dtype), group, rows, cols);
  const QuantisedLayout layout{dtype, group, rows, cols};
  std::mt19937 generator(static_cast<unsigned>(rows * cols));
  std::vector<std::uint8_t> levels(static_cast<std::size_t>(rows * cols));
  for (std::uint8_t& level : levels)
    level = static_cast<std::uint8_t>(generator() % static_cast<unsigned>(levels_of(dtype) + 1));
  std::vector<GroupScale> scales;
  std::vector<int> zeros;
  for (std::int64_t i = 0; i < rows * layout.groups(); ++i) {
    const float scale = 0.0625f * static_cast<float>(generator() % 32);
    zeros.push_back(static_cast<int>(generator() % 16));
    scales.push_back(rounded_scale(scale, static_cast<float>(-zeros.back()) * scale).value());
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(layout.bytes()), std::byte{0xAA});
  for (std::int64_t row = 0; row < rows; row += 16)
    pack_tile(layout, {levels.data() + row * cols, scales.data() + row * layout.groups()},
              std::min<std::int64_t>(16, rows - row), bytes.data() + row / 16 * layout.tile_bytes());
  std::vector<float> meant(static_cast<std::size_t>(cols));
  for (std::int64_t row = 0; row < rows; ++row) {
    dequantise_row(layout, bytes.data(), row, meant.data());
    for (std::int64_t i = 0; i < cols; ++i) {
      const auto at = static_cast<std::size_t>(row * layout.groups() + i / group);
      const int level = levels[static_cast<std::size_t>(row * cols + i)];
      REQUIRE(meant[static_cast<std::size_t>(i)] ==
              static_cast<float>(scales[at].scale) * static_cast<float>(level - zeros[at]));
    }
  }
  CHECK_FALSE(rounded_scale(65536.0f, 0));
  CHECK_FALSE(rounded_scale(8000.0f, -72000.0f));
  CHECK_FALSE(rounded_scale(std::numeric_limits<float>::quiet_NaN(), 0));
  CHECK(rounded_scale(8000.0f, -64000.0f));
}

TEST_CASE("linear: exact products are those with the numbers that the levels mean, to the bit", "[linear][quantised]") {
  const DType dtype = GENERATE(DType::i4, DType::i8);
  const int group = GENERATE(16, 32, 64, 128);
  ThreadPool pool(2);
  for (const Product& p : kProducts) {
    CAPTURE(p.m, p.n, p.k, group, name_of(dtype));
    const auto x = normal(static_cast<std::size_t>(p.m * p.k), 5), bias = normal(static_cast<std::size_t>(p.n), 6);
    const Quantised q(dtype, group, p.n, p.k, normal(static_cast<std::size_t>(p.n * p.k), 7));
    for (const LinearPath path : linear_paths()) {
      const auto wanted =
          multiply(p, x, ConstView(q.meant.data(), DType::f32, p.n, p.k), bias, Arithmetic::exact, path, pool);
      CHECK(same_bits(multiply(p, x, q.view(), bias, Arithmetic::exact, path, pool), wanted));
    }
  }
}

TEST_CASE("linear: integer products have the same bits on every instruction set", "[linear][quantised]") {
  const DType dtype = GENERATE(DType::i4, DType::i8);
  const int group = GENERATE(16, 32, 64, 128);
  ThreadPool pool(2);
  for (const Product& p : kProducts) {
    CAPTURE(p.m, p.n, p.k, group, name_of(dtype));
    auto x = normal(static_cast<std::size_t>(p.m * p.k), 8);
    for (std::size_t i = 0; i < x.size() / 3; ++i) x[i] = 0;  // groups without a scale
    const auto bias = normal(static_cast<std::size_t>(p.n), 9);
    const Quantised q(dtype, group, p.n, p.k, normal(static_cast<std::size_t>(p.n * p.k), 10));
    const auto wanted = multiply(p, x, q.view(), bias, Arithmetic::int8, LinearPath::plain, pool);
    for (const LinearPath path : linear_paths())
      CHECK(same_bits(multiply(p, x, q.view(), bias, Arithmetic::int8, path, pool), wanted));
    const auto exact = multiply(p, x, q.view(), bias, Arithmetic::exact, LinearPath::automatic, pool);
    double size = 0, error = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      size += double(exact[i]) * exact[i];
      error += std::pow(double(exact[i]) - wanted[i], 2);
    }
    CHECK(error <= 4e-4 * size);  // 8 bits of x: a relative error below 2 %
  }
}

TEST_CASE("linear: 8-bit levels that are all low, or all but one, have the same bits on every instruction set",
          "[linear][quantised]") {
  const int group = GENERATE(16, 32, 64);
  const int high = GENERATE(63, 64, 127, 128, 255);  // the highest, in one place of the second tile
  ThreadPool pool(2);
  std::mt19937 random(11);
  for (const bool extreme : {false, true})  // extreme: every sum is as large as can be
    for (const std::int64_t rows : {1, 3, 4, 6, 7, 32}) {
      CAPTURE(group, high, extreme, rows);
      const Product p{rows, 40, 192, Activation::none, false, false};
      Quantised q(DType::i8, group, p.n, p.k, normal(static_cast<std::size_t>(p.n * p.k), 12));
      for (std::int64_t row = 0; row < p.n; ++row)
        for (std::int64_t column = 0; column < p.k; ++column) {
          std::byte* const tile = q.data + row / 16 * q.layout.tile_bytes();
          std::byte* const levels = tile + column / group * q.layout.group_bytes() + QuantisedLayout::kLine;
          const bool last = row == 30 && column == p.k - 1;
          levels[q.layout.place(row % 16, column % group).byte] =
              static_cast<std::byte>(last      ? high
                                     : extreme ? 63
                                               : static_cast<int>(random() % 64));
        }
      auto x = normal(static_cast<std::size_t>(p.m * p.k), 13);
      if (extreme)
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = i / p.k % 2 == 0 ? 1.0f : -1.0f;
      const auto wanted = multiply(p, x, q.view(), {}, Arithmetic::int8, LinearPath::plain, pool);
      for (const LinearPath path : linear_paths())
        CHECK(same_bits(multiply(p, x, q.view(), {}, Arithmetic::int8, path, pool), wanted));
    }
}

TEST_CASE("linear: quantised products of one x have the same bits together and alone", "[linear][quantised]") {
  const bool alike = GENERATE(true, false);  // groups of one size, so that they share the levels of x
  const bool biased = GENERATE(false, true);
  const Arithmetic arithmetic = GENERATE(Arithmetic::exact, Arithmetic::int8);
  constexpr std::int64_t in = 200;
  std::vector<Quantised> weights;
  unsigned seed = 30;
  for (const auto& [dtype, group, columns] : {std::tuple{DType::i8, 64, 48}, std::tuple{DType::i4, 64, 20},
                                              std::tuple{DType::i4, alike ? 64 : 32, 16}, std::tuple{DType::i8, 64, 1}})
    weights.emplace_back(dtype, group, columns, in, normal(static_cast<std::size_t>(columns * in), ++seed));
  const auto bias = normal(48, 29);
  ThreadPool pool(3);
  for (const std::int64_t rows : {1, 12, 29})
    for (const LinearPath path : linear_paths()) {
      CAPTURE(alike, biased, rows, name_of(path), static_cast<int>(arithmetic));
      const auto x = normal(static_cast<std::size_t>(rows * in), 28);
      std::vector<std::vector<float>> together, alone;
      for (const Quantised& q : weights) alone.emplace_back(static_cast<std::size_t>(rows * q.layout.rows), 0.5f);
      together = alone;
      LinearGroup all{.x = ConstView(x.data(), DType::f32, rows, in), .parts = {}, .arithmetic = arithmetic};
      std::vector<LinearGroup::Part> parts;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const std::int64_t columns = weights[i].layout.rows;
        parts.push_back({weights[i].view(), biased ? ConstView(bias.data(), DType::f32, 1, columns) : ConstView{},
                         View(together[i].data(), DType::f32, rows, columns)});
        Linear single = all.linear(parts[i]);
        single.out = View(alone[i].data(), DType::f32, rows, columns);
        linear_cpu(single, pool, path);
      }
      all.parts = parts;
      linear_group_cpu(all, pool, path);
      for (std::size_t i = 0; i < weights.size(); ++i) CHECK(same_bits(together[i], alone[i]));
    }
}

TEST_CASE("linear: a row of a quantised product depends on that row alone", "[linear][quantised]") {
  const DType dtype = GENERATE(DType::i4, DType::i8);
  const Arithmetic arithmetic = GENERATE(Arithmetic::exact, Arithmetic::int8);
  const Product whole{67, 80, 400};
  const auto x = normal(static_cast<std::size_t>(whole.m * whole.k), 11), bias = normal(80, 12);
  const Quantised q(dtype, 64, whole.n, whole.k, normal(static_cast<std::size_t>(whole.n * whole.k), 13));
  for (const LinearPath path : linear_paths()) {
    ThreadPool one(1), three(3);
    const auto all = multiply(whole, x, q.view(), bias, arithmetic, path, three);
    for (const std::int64_t rows : {1, 2, 5, 12, 13, 30})
      for (const std::int64_t first : {0, 31}) {
        const Product some{rows, whole.n, whole.k};
        const std::vector<float> part(x.begin() + first * whole.k, x.begin() + (first + rows) * whole.k);
        const std::vector<float> wanted(all.begin() + first * whole.n, all.begin() + (first + rows) * whole.n);
        CHECK(same_bits(multiply(some, part, q.view(), bias, arithmetic, path, one), wanted));
      }
  }
}

TEST_CASE("linear: a row that is not finite spoils no other row of a quantised product", "[linear][quantised]") {
  const Arithmetic arithmetic = GENERATE(Arithmetic::exact, Arithmetic::int8);
  const float bad = GENERATE(std::nanf(""), std::numeric_limits<float>::infinity());
  ThreadPool pool(2);
  const Product p{3, 16, 128};
  auto x = normal(static_cast<std::size_t>(p.m * p.k), 14);
  x[128 + 70] = bad;
  const Quantised q(DType::i4, 64, p.n, p.k, normal(static_cast<std::size_t>(p.n * p.k), 15));
  for (const LinearPath path : linear_paths()) {
    const auto out = multiply(p, x, q.view(), std::vector<float>(16), arithmetic, path, pool);
    for (std::size_t i = 0; i < out.size(); ++i) CHECK(std::isfinite(out[i]) == (i / 16 != 1));
  }
}

TEST_CASE("linear: quantised weights with a strange group are refused by name", "[linear][quantised]") {
  const std::vector<float> x(64);
  std::vector<float> out(16);
  std::vector<std::byte> bytes(4096);
  Linear op{.x = ConstView(x.data(), DType::f32, 1, 64),
            .weight = ConstView(bytes.data(), DType::i4, 16, 64),
            .bias = {},
            .out = View(out.data(), DType::f32, 1, 16)};
  for (const int group : {0, 8, 48, 256}) {
    op.weight.group = group;
    CHECK_THROWS_WITH(check(op), Catch::Contains("groups of " + std::to_string(group) + ", wanted 16, 32, 64 or 128"));
  }
  op.weight.group = 64;
  CHECK_NOTHROW(check(op));
}
