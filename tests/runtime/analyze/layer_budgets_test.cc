// tests/runtime/analyze/layer_budgets_test.cc: how a KV budget is divided, against brute force and sets by hand.
#include "runtime/analyze/layer_budgets.h"

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

using Factors = std::vector<std::vector<std::int32_t>>;
using Curves = std::vector<std::vector<double>>;

}  // namespace

TEST_CASE("what a layer can use goes to it first, and no layer gets less than a fifth of the even budget",
          "[budgets]") {
  // 16 of 64 steps each: the first layer can use 8 of them, the second as many as there are.
  CHECK(layer_budgets({{ramp(8)}, {ramp(64)}}, {1, 1}, 0.25).retention.layers == Factors{{5'000}, {15'000}});
  const LayerBudgets steep = layer_budgets({{ramp(1)}, {ramp(64)}, {ramp(1)}}, {1, 1, 1}, 0.25);
  CHECK(steep.retention.layers == Factors{{2'000}, {26'000}, {2'000}});
  CHECK(steep.kept[1] == Approx(2.6 * 0.25));
  CHECK(steep.kept_evenly[1] == Approx(0.25));
  CHECK(layer_budgets({{ramp(64)}, {ramp(64)}}, {1, 1}, 1).retention.layers == Factors{{10'000}, {10'000}});
}

TEST_CASE("no other division of concave curves costs less", "[budgets]") {
  std::mt19937 random(3);
  for (int trial = 0; trial < 30; ++trial) {
    const std::vector<Curves> kept{{concave(random)}, {concave(random)}, {concave(random)}};
    std::vector<double> losses(3);
    for (double& loss : losses) loss = std::uniform_real_distribution<double>(0.001, 0.1)(random);
    const LayerBudgets found = layer_budgets(kept, losses, 20.0 / 64);
    const auto cost = [&](std::size_t layer, std::size_t steps) {
      const auto dropped = [&](std::size_t at) { return std::max(0.0, 1 - kept[layer][0][at - 1]); };
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
    return layer_budgets({{curve}, {curve}}, losses, 0.25).retention.layers;
  };
  CHECK(factors({0.1, 0.001})[0][0] > 12'000);
  CHECK(factors({0.001, 0.1})[0][0] < 8'000);
  CHECK(factors({0.1, 0.1}) == Factors{{10'000}, {10'000}});
  CHECK(factors({0, -0.01}) == Factors{{10'000}, {10'000}});  // no loss to be measured
}

TEST_CASE("a step that only pays after others is taken with them", "[budgets]") {
  std::vector<double> late(static_cast<std::size_t>(kBudgetSteps), 0.0);  // nothing until half of all tokens are kept
  std::fill(late.begin() + 31, late.end(), 1.0);
  const LayerBudgets found = layer_budgets({{late}, {ramp(640)}}, {1, 1}, 0.3);
  CHECK(found.kept[0] > 0.9);
  CHECK(found.kept_evenly[0] == 0);
}

TEST_CASE("of a layer's budget a head gets what it can use, and no less than a fifth of its share", "[budgets]") {
  // 16 of 64 steps each on average; the heads of a layer that can use more have them from one that is full with 8.
  const LayerBudgets found = layer_budgets({{ramp(8), ramp(64)}, {ramp(64), ramp(64)}}, {0, 0}, 0.25);
  CHECK(found.retention.layers[0][0] == 5'000);
  CHECK(found.retention.layers[0][1] > 10'000);
  CHECK(found.retention.layers[1][0] == found.retention.layers[1][1]);
  CHECK(layer_budgets({{ramp(1), ramp(64)}}, {1}, 0.25).retention.layers == Factors{{2'000, 18'000}});
}

TEST_CASE("without losses each layer keeps its budget, and its heads share that", "[budgets]") {
  const LayerBudgets found = layer_budgets({{ramp(1), ramp(64)}, {ramp(64), ramp(64)}}, {}, 0.25);
  CHECK(found.retention.layers == Factors{{2'000, 18'000}, {10'000, 10'000}});
  CHECK(found.kept[0] == Approx((1 + 1.8 * 0.25) / 2));
  CHECK(found.kept_evenly[0] == Approx((1 + 0.25) / 2));
  CHECK(found.loss == 0);
}

TEST_CASE("no other division of a layer's budget among its heads keeps more", "[budgets]") {
  std::mt19937 random(12);
  for (int trial = 0; trial < 30; ++trial) {
    const Curves heads{concave(random), concave(random), concave(random)};
    const LayerBudgets found = layer_budgets({heads}, {1}, 20.0 / 64);
    double best = 0;
    for (std::size_t a = 4; a <= 52; ++a)
      for (std::size_t b = 4; a + b <= 56; ++b)
        best = std::max(best, (heads[0][a - 1] + heads[1][b - 1] + heads[2][60 - a - b - 1]) / 3);
    CHECK(found.kept[0] == Approx(best).epsilon(1e-3));
    CHECK(found.kept_evenly[0] == Approx((heads[0][19] + heads[1][19] + heads[2][19]) / 3));
  }
}

TEST_CASE("what is divided among heads is a retention that reads back", "[budgets]") {
  std::mt19937 random(13);
  for (const double budget : {0.001, 0.1, 1.0 / 3, 0.77}) {
    std::vector<Curves> kept(5);
    for (Curves& heads : kept) heads = {concave(random), concave(random), concave(random)};
    const policy::Retention retention = layer_budgets(kept, {0, 1, 2, 3, 4}, budget).retention;
    CAPTURE(budget);
    std::int32_t sum = 0;
    for (const auto& heads : retention.layers) sum += std::accumulate(heads.begin(), heads.end(), 0);
    CHECK(sum == 150'000);
    CHECK(policy::Retention::from_json(nlohmann::json(retention.to_json()), "test") == retention);
  }
}

TEST_CASE("what a division says is a retention that reads back", "[budgets]") {
  std::mt19937 random(4);
  for (const double budget : {0.001, 0.05, 0.0625, 0.1, 1.0 / 3, 0.5, 0.77, 1.0}) {
    std::vector<Curves> kept;
    for (int layer = 0; layer < 7; ++layer) kept.push_back({concave(random)});
    const policy::Retention retention = layer_budgets(kept, {0, 1, 2, 3, 4, 5, 6}, budget).retention;
    CAPTURE(budget);
    std::int32_t sum = 0;
    for (const auto& of_layer : retention.layers) sum += of_layer.at(0);
    CHECK(sum == 70'000);
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
  CHECK(scores_at(2, middle, end, 2) == std::vector<float>{6, 5, 1.5f});  // no later query sees tokens 0 and 1
}
