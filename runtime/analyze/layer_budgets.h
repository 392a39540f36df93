// runtime/analyze/layer_budgets.h: divides a KV budget among layers and their KV heads by how much attention each of
// them keeps and what its loss costs the model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/layout/retention.h"

namespace weft::runtime {

/// The number of budgets at which kept attention is measured: 1 / kBudgetSteps of a window's tokens, 2 / kBudgetSteps,
/// ..., all.
inline constexpr std::int64_t kBudgetSteps = 64;

/// Adds to kept[s] the attention that a query pays to the tokens that h2o would hold with a budget of
/// (s + 1) / kBudgetSteps of the window's tokens: the most recent ones, and as many earlier ones with the highest
/// scores.
///   weights [query + 1]: its attention      order: the tokens that it sees, the highest score first
void add_kept(std::span<const float> weights, std::span<const std::int32_t> order, std::int64_t window,
              std::span<double> kept);

/// Estimates the scores of the tokens that a query sees from those at the middle and at the end of its window, as if
/// attention came in evenly between the two. `sliding`: how many queries see a token, itself included; 0: all later
/// ones.
std::vector<float> scores_at(std::int64_t query, std::span<const float> middle, std::span<const float> end,
                             std::int64_t sliding = 0);

/// h2o with half of `budget`, a share of all tokens, for heavy hitters and half for recent tokens.
policy::Retention h2o_of(double budget);

struct LayerBudgets {
  policy::Retention retention;       ///< h2o_of(budget), with a factor for each layer, or each KV head
  std::vector<double> kept;          ///< [layers] attention kept by these budgets, as a share of all
  std::vector<double> kept_evenly;   ///< [layers] attention kept if every layer has the same budget
  double loss = 0, loss_evenly = 0;  ///< nats per token that these cost by the formula below
};

/// Divides `budget`, a share of all tokens, among layers so that together they cost little:
///   the smallest sum over layers of losses_l * ((1 - kept_l(b_l)) / (1 - kept_l(budget)))^2,
/// where the b_l are `budget` on average and at least kLeast * budget. A layer's output loses at most twice the
/// attention that it drops times its largest value (AdaKV, arXiv 2407.11550, theorem 3.1), and a model's loss grows
/// with the square of small errors. How steeply it grows is measured for each layer, because equal errors cost little
/// in one layer and much in another. (PyramidKV, arXiv 2406.02069, gives early layers more by a formula; LAVa, arXiv
/// 2509.09754, gives more to layers whose attention is spread.) The curves are made concave, and budget goes where the
/// slope is largest, as in water filling. kLeast is AdaKV's safeguard.
/// With several heads a layer's budget is divided among them so that together they keep the most attention, as AdaKV
/// does with a layer's scores. kept_l(b) is then the attention that they keep by the best division of b.
///   kept [layers][1 or KV heads][kBudgetSteps]: sums of add_kept(), as shares of all attention
///   losses [layers]: nats per token that `budget` costs in each layer alone, from LayerLosses; empty: no budget goes
///   from one layer to another, and no loss is computed
///   budget: more than 0, at most 1
LayerBudgets layer_budgets(const std::vector<std::vector<std::vector<double>>>& kept, const std::vector<double>& losses,
                           double budget);
inline constexpr double kLeast = 0.2;

}  // namespace weft::runtime
