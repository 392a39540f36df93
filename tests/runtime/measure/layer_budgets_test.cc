// tests/runtime/measure/layer_budgets_test.cc: how a KV budget is divided, against brute force and sets by hand.
#include "runtime/measure/layer_budgets.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>
#include <vector>

using namespace weft;
using namespace weft::runtime;

namespace {

/// [kBudgetSteps] that rises evenly to 1 at `last` steps.
std::vector<double> ramp(double last) {
  std::vector<double> kept;
  for (std::int64_t step = 1; step <= kBudgetSteps; ++step) kept.push_back(std::min(1.0, double(step) / last));
  return kept;
}

/// That falls off in slope, with a random total.
std::vector<double> concave(std::mt19937& random) {
  std::vector<double> slopes(static_cast<std::size_t>(kBudgetSteps)), kept;
  for (double& slope : slopes) slope = std::uniform_real_distribution<double>(0, 0.03)(random);
  std::sort(slopes.begin(), slopes.end(), std::greater<>());
  std::partial_sum(slopes.begin(), slopes.end(), std::back_inserter(kept));
  return kept;
}

}  // namespace

TEST_CASE("what a layer can use goes to it first, and no layer gets less than a fifth of the even budget",
          "[budgets]") {
  // 16 of 64 steps each: the first layer can use 8 of them, the second as many as there are.
  CHECK(layer_budgets({ramp(8), ramp(64)}, {1, 1}, 0.25).retention.layers == std::vector<std::int32_t>{5'000, 15'000});
  const LayerBudgets steep = layer_budgets({ramp(1), ramp(64), ramp(1)}, {1, 1, 1}, 0.25);
  CHECK(steep.retention.layers == std::vector<std::int32_t>{2'000, 26'000, 2'000});
  CHECK(steep.kept[1] == Approx(2.6 * 0.25));
  CHECK(steep.kept_evenly[1] == Approx(0.25));
  CHECK(layer_budgets({ramp(64), ramp(64)}, {1, 1}, 1).retention.layers == std::vector<std::int32_t>{10'000, 10'000});
}

TEST_CASE("no other division of concave curves costs less", "[budgets]") {
  std::mt19937 random(3);
  for (int trial = 0; trial < 30; ++trial) {
    const std::vector<std::vector<double>> kept{concave(random), concave(random), concave(random)};
    std::vector<double> losses(3);
    for (double& loss : losses) loss = std::uniform_real_distribution<double>(0.001, 0.1)(random);
    const LayerBudgets found = layer_budgets(kept, losses, 20.0 / 64);
    const auto cost = [&](std::size_t layer, std::size_t steps) {
      const auto dropped = [&](std::size_t at) { return std::max(0.0, 1 - kept[layer][at - 1]); };
      return losses[layer] * std::pow(dropped(steps) / std::max(0.01, dropped(20)), 2);
    };
    double best = 1e9;
    for (std::size_t a = 4; a <= 52; ++a)
      for (std::size_t b = 4; a + b <= 56; ++b) best = std::min(best, cost(0, a) + cost(1, b) + cost(2, 60 - a - b));
    CHECK(found.loss == Approx(best).epsilon(0.01).margin(1e-5));
    CHECK(found.loss_evenly == Approx(losses[0] + losses[1] + losses[2]).margin(1e-5));
    CHECK(found.loss <= found.loss_evenly + 1e-9);
  }
}

TEST_CASE("of layers that are alike the one in which a budget costs more gets more", "[budgets]") {
  std::mt19937 random(6);
  const std::vector<double> curve = concave(random);
  const auto factors = [&](const std::vector<double>& losses) {
    return layer_budgets({curve, curve}, losses, 0.25).retention.layers;
  };
  CHECK(factors({0.1, 0.001})[0] > 12'000);
  CHECK(factors({0.001, 0.1})[0] < 8'000);
  CHECK(factors({0.1, 0.1}) == std::vector<std::int32_t>{10'000, 10'000});
  CHECK(factors({0, -0.01}) == std::vector<std::int32_t>{10'000, 10'000});  // no loss to be measured
}

TEST_CASE("a step that only pays after others is taken with them", "[budgets]") {
  std::vector<double> late(static_cast<std::size_t>(kBudgetSteps), 0.0);  // nothing until half of all tokens are kept
  std::fill(late.begin() + 31, late.end(), 1.0);
  const LayerBudgets found = layer_budgets({late, ramp(640)}, {1, 1}, 0.3);
  CHECK(found.kept[0] > 0.9);
  CHECK(found.kept_evenly[0] == 0);
}

TEST_CASE("what a division says is a retention that reads back", "[budgets]") {
  std::mt19937 random(4);
  for (const double budget : {0.001, 0.05, 0.0625, 0.1, 1.0 / 3, 0.5, 0.77, 1.0}) {
    std::vector<std::vector<double>> kept;
    for (int layer = 0; layer < 7; ++layer) kept.push_back(concave(random));
    const policy::Retention retention = layer_budgets(kept, {0, 1, 2, 3, 4, 5, 6}, budget).retention;
    CAPTURE(budget);
    CHECK(std::accumulate(retention.layers.begin(), retention.layers.end(), 0) == 70'000);
    CHECK(policy::Retention::from_json(nlohmann::json(retention.to_json()), "test") == retention);
  }
}

TEST_CASE("kept attention is that of the newest tokens and the best of the older ones", "[budgets]") {
  std::mt19937 random(5);
  for (const std::int64_t window : {64, 100, 512}) {
    const std::int64_t seen = window / 2 + std::uniform_int_distribution<std::int64_t>(1, window / 2)(random);
    std::vector<float> weights(static_cast<std::size_t>(seen));
    for (float& weight : weights) weight = std::uniform_real_distribution<float>(0, 1)(random);
    std::vector<std::int32_t> order(weights.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<double> kept(static_cast<std::size_t>(kBudgetSteps));
    add_kept(weights, order, window, kept);
    for (std::int64_t step = 1; step <= kBudgetSteps; ++step) {
      const std::int64_t half = step * window / (2 * kBudgetSteps);
      std::set<std::int32_t> held;
      for (std::int64_t back = 1; back <= std::min(std::max<std::int64_t>(1, half), seen); ++back)
        held.insert(static_cast<std::int32_t>(seen - back));
      const std::size_t recent = held.size();
      for (const std::int32_t token : order)
        if (std::ssize(held) < static_cast<std::int64_t>(recent) + half) held.insert(token);
      double sum = 0;
      for (const std::int32_t token : held) sum += double(weights[static_cast<std::size_t>(token)]);
      CAPTURE(window, seen, step);
      CHECK(kept[static_cast<std::size_t>(step - 1)] == Approx(sum));
    }
  }
}

TEST_CASE("scores between the middle and the end come in evenly", "[budgets]") {
  const std::vector<float> middle{4, 1}, end{6, 5, 3, 1};
  CHECK(scores_at(3, middle, end) == end);
  CHECK(scores_at(2, middle, end) == std::vector<float>{5, 3, 1.5f});
}
