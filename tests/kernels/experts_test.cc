#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "kernels/error.h"
#include "tests/support/array.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::test;
using kernels::AddRows;
using kernels::ClampedGate;
using kernels::GateRows;
using kernels::Route;

namespace {

struct Routed {
  std::vector<std::int32_t> expert;
  std::vector<float> weight;
};

/// `how` without its operands.
Routed route(const Place& place, const std::vector<float>& logits, std::int64_t experts, Route how,
             const std::vector<float>& bias = {}, const std::vector<float>& by = {}) {
  const std::int64_t rows = std::ssize(logits) / experts;
  const auto choices = static_cast<std::size_t>(rows * how.chosen);
  const Array x(place, logits, rows, experts);
  const HostSpan<std::int32_t> expert(place, choices);
  const HostSpan<float> weight(place, choices);
  std::optional<Array> b, factors;
  if (!bias.empty()) b.emplace(place, bias, 1, experts);
  if (!by.empty()) factors.emplace(place, by, 1, experts);
  how.logits = x;
  if (b) how.bias = *b;
  if (factors) how.by = *factors;
  how.expert = expert.span();
  how.weight = weight.span();
  place.run(how);
  return {expert.copy(), weight.copy()};
}

/// The definition, in fp64.
struct Expected {
  std::vector<std::int32_t> expert;
  std::vector<double> weight;
};
Expected expected(const float* logits, int experts, const Route& how, const std::vector<float>& bias,
                  const std::vector<float>& by) {
  std::vector<double> score(static_cast<std::size_t>(experts)), key;
  double sum = 0;
  for (int e = 0; e < experts; ++e) sum += std::exp(double(logits[e]));
  for (int e = 0; e < experts; ++e)
    score[static_cast<std::size_t>(e)] =
        how.sigmoid ? 1 / (1 + std::exp(-double(logits[e]))) : std::exp(double(logits[e])) / sum;
  key = score;
  for (std::size_t e = 0; e < bias.size(); ++e) key[e] += double(bias[e]);
  if (how.groups > 1) {
    const int size = experts / how.groups;
    std::vector<std::pair<double, int>> groups;
    for (int g = 0; g < how.groups; ++g) {
      std::vector<double> of(key.begin() + g * size, key.begin() + (g + 1) * size);
      std::sort(of.rbegin(), of.rend());
      groups.emplace_back(-(of[0] + (size > 1 ? of[1] : 0)), g);
    }
    std::sort(groups.begin(), groups.end());
    for (int g = how.groups_kept; g < how.groups; ++g)
      std::fill_n(key.begin() + groups[static_cast<std::size_t>(g)].second * size, size, -1e9);
  }
  std::vector<std::int32_t> order(static_cast<std::size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return key[static_cast<std::size_t>(a)] > key[static_cast<std::size_t>(b)]; });
  order.resize(static_cast<std::size_t>(how.chosen));
  std::sort(order.begin(), order.end());
  Expected result{order, {}};
  double of_chosen = 0;
  for (const auto e : order) of_chosen += score[static_cast<std::size_t>(e)];
  for (const auto e : order)
    result.weight.push_back(score[static_cast<std::size_t>(e)] / (how.normalise ? of_chosen : 1) * double(how.scale) *
                            double(by.empty() ? 1 : by[static_cast<std::size_t>(e)]));
  return result;
}

}  // namespace

TEST_CASE("rows go to the experts that the definition names, with its weights", "[kernels][experts]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const auto [experts, chosen, groups, kept] = GENERATE(table<int, int, int, int>(
      {{1, 1, 1, 1}, {8, 2, 1, 1}, {60, 4, 1, 1}, {128, 8, 1, 1}, {512, 512, 1, 1}, {64, 6, 8, 3}, {33, 5, 11, 4}}));
  const bool sigmoid = GENERATE(false, true), normalise = GENERATE(false, true);
  CAPTURE(place.name, experts, chosen, groups, sigmoid, normalise);
  constexpr int rows = 9;
  const std::vector<float> logits = normal(rows * experts, 5);
  const std::vector<float> bias = sigmoid ? normal(experts, 6) : std::vector<float>{};
  const std::vector<float> by = normalise ? normal(experts, 7) : std::vector<float>{};
  const Route how{.chosen = chosen,
                  .sigmoid = sigmoid,
                  .normalise = normalise,
                  .groups = groups,
                  .groups_kept = kept,
                  .scale = 2.5f};
  const Routed got = route(place, logits, experts, how, bias, by);
  for (int r = 0; r < rows; ++r) {
    const Expected want = expected(&logits[static_cast<std::size_t>(r * experts)], experts, how, bias, by);
    const auto first = std::ptrdiff_t{r} * chosen;
    REQUIRE(std::vector(got.expert.begin() + first, got.expert.begin() + first + chosen) == want.expert);
    for (int i = 0; i < chosen; ++i)
      REQUIRE(double(got.weight[static_cast<std::size_t>(first + i)]) ==
              Approx(want.weight[static_cast<std::size_t>(i)]).epsilon(1e-5));
  }
}

TEST_CASE("of equal experts the lower is chosen, NaN is the lowest, and none is chosen twice", "[kernels][experts]") {
  const Place& place = *GENERATE(from_range(every_place()));
  CAPTURE(place.name);
  const Route two{.chosen = 2};
  CHECK(route(place, {1, 1, 1, 1, /**/ 0, 2, 0, 0, /**/ 3, 1, 2, 2}, 4, two).expert ==
        std::vector<std::int32_t>{0, 1, /**/ 0, 1, /**/ 0, 2});
  const Route sigmoid{.chosen = 2, .sigmoid = true};
  CHECK(route(place, {kNaN, 1, kNaN, 0, /**/ kNaN, kNaN, kNaN, kNaN, /**/ -kInfinity, kNaN, -kInfinity, 5}, 4, sigmoid)
            .expert == std::vector<std::int32_t>{1, 3, /**/ 0, 1, /**/ 0, 3});
  CHECK(route(place, {kNaN, 1, kNaN, 0}, 4, two).expert == std::vector<std::int32_t>{0, 1});  // all shares are NaN
  // Two groups of equal worth: the lower one.
  CHECK(route(place, {1, 2, 2, 1}, 4, {.chosen = 2, .sigmoid = true, .groups = 2, .groups_kept = 1}).expert ==
        std::vector<std::int32_t>{0, 1});
  // A bias chooses, and does not weigh.
  const Routed biased = route(place, {0, 0, 0, 0}, 4, {.chosen = 1, .sigmoid = true}, {0, 0, 9, 0});
  CHECK(biased.expert == std::vector<std::int32_t>{2});
  CHECK(biased.weight == std::vector<float>{0.5f});
  CHECK(route(place, {}, 4, two).expert.empty());
}

TEST_CASE("rows are added with factors where they belong, and gated", "[kernels][experts]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const int cols = GENERATE(1, 48, 5000);
  CAPTURE(place.name, cols);
  const std::vector<float> x = normal(5 * cols, 1), y = normal(3 * cols, 2), gate = normal(5, 3);
  const std::vector<std::int32_t> to{4, 0, 2};
  const std::vector<float> factor{0.5f, -2, 3};
  Array sum(place, x, 5, cols);
  const Array added(place, y, 3, cols), gates(place, gate, 5, 1);
  place.run(AddRows{sum, added, to, factor});
  std::vector<double> expected(x.begin(), x.end());
  for (std::size_t i = 0; i < 3; ++i)
    for (int c = 0; c < cols; ++c)
      expected[static_cast<std::size_t>(to[i] * cols + c)] +=
          double(factor[i]) * double(y[i * static_cast<std::size_t>(cols) + static_cast<std::size_t>(c)]);
  CHECK_THAT(sum.host(), near(expected, tolerance(DType::f32)));
  place.run(GateRows{sum, gates});
  for (std::size_t i = 0; i < expected.size(); ++i)
    expected[i] /= 1 + std::exp(-double(gate[i / static_cast<std::size_t>(cols)]));
  CHECK_THAT(sum.host(), near(expected, tolerance(DType::f32)));
}

TEST_CASE("a clamped gate holds both of its sides", "[kernels][experts]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const std::int64_t rows = 3, cols = 301;
  const float slope = 1.702f, limit = 1.5f;
  std::vector<float> gate = normal(static_cast<std::size_t>(rows * cols), 8),
                     up = normal(static_cast<std::size_t>(rows * cols), 9);
  for (std::size_t i = 0; i < gate.size(); ++i) gate[i] *= 2, up[i] *= 2;
  gate[1] = -50, gate[2] = -1000, gate[3] = kInfinity, up[4] = kInfinity, up[5] = -kInfinity;
  Array x(place, gate, rows, cols);
  const Array y(place, up, rows, cols);
  place.run(ClampedGate{x, y, slope, limit});
  std::vector<double> expected;
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double g = std::min(double(gate[i]), double(limit)),
                 u = std::clamp(double(up[i]), -double(limit), double(limit));
    expected.push_back(g / (1 + std::exp(-double(slope) * g)) * (1 + u));
  }
  CHECK_THAT(x.host(), near(expected, tolerance(DType::f32)));

  const std::vector<float> first{kNaN, 1, 2}, second{1, kNaN, 2};
  Array bad(place, first, 1, 3);
  const Array other(place, second, 1, 3);
  place.run(ClampedGate{bad, other, slope, limit});
  const std::vector<float> left = bad.host();
  CHECK((std::isnan(left[0]) && std::isnan(left[1]) && std::isfinite(left[2])));
  CHECK_THROWS_WITH(place.run(ClampedGate{bad, y, slope, limit}),
                    Catch::Contains("clamped_gate: y is [3, 301], x is [3]"));
  CHECK_THROWS_WITH(place.run(ClampedGate{bad, bad, slope, 0}), Catch::Contains("wanted finite numbers"));
}

TEST_CASE("ops of experts refuse what does not fit", "[kernels][experts]") {
  const Place& place = *GENERATE(from_range(every_place()));
  CHECK_THROWS_WITH(route(place, {1, 2}, 2, {.chosen = 3}), "route: 3 experts a row, wanted 1 to 2");
  CHECK_THROWS_WITH(route(place, {1, 2}, 2, {.chosen = 0}), "route: 0 experts a row, wanted 1 to 2");
  CHECK_THROWS_WITH(route(place, {1, 2, 3, 4}, 4, {.chosen = 3, .groups = 2}), "route: 3 experts a row, wanted 1 to 2");
  CHECK_THROWS_WITH(route(place, {1, 2, 3}, 3, {.groups = 2}), "route: 1 of 2 groups of 3 experts");
  CHECK_THROWS_WITH(route(place, normal(513, 1), 513, {}), "route: 513 experts, wanted 1 to 512");
  Array x(place, normal(4, 1), 2, 2), y(place, normal(2, 1), 1, 2);
  const std::vector<std::int32_t> far{2}, two{0, 1};
  const std::vector<float> one{1};
  CHECK_THROWS_WITH(place.run(AddRows{x, y, far, one}), "add_rows: to row 2 of 2");
  CHECK_THROWS_WITH(place.run(AddRows{x, y, two, one}), "add_rows: 2 numbers in to, wanted 1, one for each row");
  CHECK_THROWS_WITH(place.run(GateRows{x, y}), Catch::Contains("gate_rows: gate is [2], wanted [2, 1]"));
}
