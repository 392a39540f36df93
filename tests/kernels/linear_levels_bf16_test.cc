// tests/kernels/linear_levels_bf16_test.cc: levels in bfloat16 arithmetic are multiplied as a matrix of bf16 that has
// their numbers is, to the bit.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/linear/linear_cpu.h"
#include "kernels/linear/linear_pass.h"
#include "kernels/quantised.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::kernels;
using test::Aligned;
using test::normal;
using test::same_bits;

namespace {

/// A matrix of any levels, and one of bf16 with the numbers that they mean.
class LevelMatrix {
 public:
  LevelMatrix(const QuantisedLayout& layout, unsigned seed)
      : layout_(layout), levels_(pack(layout, seed)), numbers_(static_cast<std::size_t>(layout.rows * layout.cols)) {
    std::vector<float> row(static_cast<std::size_t>(layout.cols));
    for (std::int64_t i = 0; i < layout.rows; ++i) {
      dequantise_row(layout, levels_.data, i, row.data());
      std::transform(row.begin(), row.end(), numbers_.begin() + i * layout.cols, [](float x) { return bf16(x); });
    }
  }
  ConstView levels() const {
    ConstView view(levels_.data, layout_.dtype, layout_.rows, layout_.cols);
    view.group = layout_.group, view.table = layout_.table;
    return view;
  }
  ConstView numbers() const { return {numbers_.data(), DType::bf16, layout_.rows, layout_.cols}; }

 private:
  static std::vector<std::int32_t> pack(const QuantisedLayout& layout, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::uint8_t> levels(static_cast<std::size_t>(layout.rows * layout.cols));
    for (std::uint8_t& level : levels) level = static_cast<std::uint8_t>(random() & levels_of(layout.dtype));
    std::vector<GroupScale> scales;
    for (std::int64_t i = 0; i < layout.rows * layout.groups(); ++i) {
      const float scale = std::ldexp(1.0f + float(random() % 64) / 64, static_cast<int>(random() % 6) - 9);
      const float zero_point = float(random() % 5) * float(levels_of(layout.dtype)) / 4;
      scales.push_back(rounded_scale(random() % 9 == 0 ? 0 : scale, -zero_point * scale).value());
    }
    std::vector<std::int32_t> words(static_cast<std::size_t>(layout.bytes()) / 4);
    for (std::int64_t row = 0; row < layout.rows; row += 16)
      pack_tile(layout, {levels.data() + row * layout.cols, scales.data() + row * layout.groups()},
                std::min<std::int64_t>(16, layout.rows - row),
                reinterpret_cast<std::byte*>(words.data()) + row / 16 * layout.tile_bytes());
    return words;
  }

  QuantisedLayout layout_;
  Aligned levels_;
  std::vector<bf16> numbers_;
};

enum class By { automatic, pairs };

std::vector<float> bf16_product(const float* x, std::int64_t m, const ConstView& weight, ThreadPool& pool,
                                By by = By::automatic, Arithmetic arithmetic = Arithmetic::bfloat16) {
  std::vector<float> out(static_cast<std::size_t>(m * weight.rows), 0.25f);
  const auto bias = normal(static_cast<std::size_t>(weight.rows), 5);
  Linear op;
  op.x = ConstView(x, DType::f32, m, weight.cols), op.weight = weight;
  op.out = View(out.data(), DType::f32, m, weight.rows), op.arithmetic = arithmetic;
  if (m % 2 == 0) op.bias = ConstView(bias.data(), DType::f32, 1, weight.rows), op.accumulate = true;
  if (by == By::automatic) {
    linear_cpu(op, pool);
    return out;
  }
  if (weight.dtype == DType::bf16)
    op.weight = ConstView(weight.data, DType::f32, weight.rows, weight.cols / 2, weight.stride / 2);
  linear_by(*pair_kernels_avx512(), {&op, 1}, pool);
  return out;
}

/// Whether there is something to test; says so where there is not.
bool multiplies_pairs() {
  if (!multiplies_bf16()) WARN("this processor does not multiply bfloat16 numbers");
  return multiplies_bf16();
}

struct LevelKind {
  DType dtype;
  LevelTable table = LevelTable::even;
};
const std::vector<LevelKind> kLevelKinds{{DType::i8},
                                         {DType::i4},
                                         {DType::i4, LevelTable::e2m1},
                                         {DType::i4, LevelTable::iq4_nl},
                                         {DType::i4, LevelTable::nf4}};

}  // namespace

TEST_CASE("levels in bfloat16 arithmetic are multiplied as their numbers in bf16 are", "[linear][quantised][bf16]") {
  if (!multiplies_pairs()) return;
  const By by = GENERATE(By::automatic, By::pairs);
  const int group = GENERATE(16, 32, 64, 128);
  ThreadPool pool(2);
  unsigned seed = 1;
  for (const LevelKind& kind : kLevelKinds)
    for (const int k : {2, 30, 64, 146, 514, 2098})
      for (const int n : {1, 16, 49, 100}) {
        const LevelMatrix weights({kind.dtype, group, n, k, kind.table}, ++seed);
        for (const int m : {1, 2, 7, 16, 17, 33, 64, 65, 130}) {
          if (m > 17 && (n == 16 || k > 514)) continue;  // for time
          CAPTURE(static_cast<int>(by), name_of(kind.dtype), name_of(kind.table), group, k, n, m);
          const auto x = normal(std::int64_t{m} * k, ++seed);
          REQUIRE(same_bits(bf16_product(x.data(), m, weights.levels(), pool, by),
                            bf16_product(x.data(), m, weights.numbers(), pool, by)));
        }
      }
}

TEST_CASE("rows that meet levels in bfloat16 arithmetic do not depend on other rows or threads",
          "[linear][quantised][bf16]") {
  if (!multiplies_pairs()) return;
  const LevelKind kind = GENERATE(LevelKind{DType::i8}, LevelKind{DType::i4});
  constexpr int n = 100, k = 2114, most = 1100;  // more rows than a pass takes
  const LevelMatrix weights({kind.dtype, 32, n, k}, 3);
  const auto x = normal(std::int64_t{most} * k, 4);
  ThreadPool one(1), three(3);
  const auto all = bf16_product(x.data(), most, weights.levels(), three);
  for (const auto& [m, first] : {std::pair{2, 0}, {2, 1098}, {12, 33}, {30, 500}, {66, 1}, {512, 400}}) {
    CAPTURE(name_of(kind.dtype), m, first);
    const auto some = bf16_product(x.data() + std::int64_t{first} * k, m, weights.levels(), one);
    REQUIRE(same_bits(some, std::vector<float>(all.begin() + first * n, all.begin() + (first + m) * n)));
  }
}

TEST_CASE("products of one x with levels and with bf16 numbers, in bfloat16 arithmetic", "[linear][quantised][bf16]") {
  if (!multiplies_pairs()) return;
  constexpr int k = 192;
  const int m = GENERATE(1, 40, 70);
  const bool mixed = GENERATE(false, true);
  ThreadPool pool(2);
  const LevelMatrix first({DType::i4, 32, 49, k}, 7), second({DType::i8, 16, 64, k}, 8),
      third({DType::i4, 128, 20, k}, 9);
  const auto x = normal(std::int64_t{m} * k, 10);
  const std::vector<ConstView> views{first.levels(), mixed ? second.numbers() : second.levels(), third.levels()};
  std::vector<std::vector<float>> out;
  for (const ConstView& view : views) out.emplace_back(static_cast<std::size_t>(m * view.rows));
  std::vector<LinearGroup::Part> parts;
  for (std::size_t i = 0; i < views.size(); ++i)
    parts.push_back({views[i], {}, View(out[i].data(), DType::f32, m, views[i].rows)});
  linear_group_cpu({ConstView(x.data(), DType::f32, m, k), parts, Arithmetic::bfloat16}, pool);
  for (std::size_t i = 0; i < views.size(); ++i) {
    std::vector<float> alone(out[i].size());
    linear_cpu({.x = ConstView(x.data(), DType::f32, m, k),
                .weight = views[i],
                .bias = {},
                .out = View(alone.data(), DType::f32, m, views[i].rows),
                .arithmetic = Arithmetic::bfloat16},
               pool);
    CHECK(same_bits(out[i], alone));
  }
}

TEST_CASE("levels of rows of no whole pairs are multiplied exactly in bfloat16 arithmetic",
          "[linear][quantised][bf16]") {
  ThreadPool pool(2);
  const int m = GENERATE(1, 40);
  const LevelMatrix weights({DType::i4, 32, 20, 33}, 11);
  const auto x = normal(std::int64_t{m} * 33, 1);
  CHECK(bf16_product(x.data(), m, weights.levels(), pool) ==
        bf16_product(x.data(), m, weights.levels(), pool, By::automatic, Arithmetic::exact));
}
