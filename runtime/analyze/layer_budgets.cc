#include "runtime/analyze/layer_budgets.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

namespace weft::runtime {
namespace {

constexpr std::int32_t kOnce = policy::Retention::kOnce;
constexpr double kNothingDropped = 0.01;  // less than this share of the attention is noise
constexpr double kNoLoss = 1e-6;          // so that attention decides if no loss could be measured

/// The value of a curve at a budget in steps: linear between two steps and flat before the first.
double at(const std::vector<double>& curve, double steps) {
  const double whole = std::floor(steps);
  const auto value = [&](double step) {
    return curve[static_cast<std::size_t>(std::clamp(step, 1.0, double(kBudgetSteps))) - 1];
  };
  return value(whole) + (steps - whole) * (value(whole + 1) - value(whole));
}

/// A straight piece of a curve: its gain per step and its length in steps.
struct Piece {
  double slope = 0, steps = 0;
  std::size_t curve = 0;
};

/// Adds the pieces of the least concave curve above `gain`, from `least` steps on.
void add_pieces(const std::vector<double>& gain, double least, std::size_t curve, std::vector<Piece>& pieces) {
  double from = least, value = at(gain, least);
  while (from < double(kBudgetSteps)) {
    Piece best{-std::numeric_limits<double>::infinity(), 0, curve};
    for (double to = std::floor(from) + 1; to <= double(kBudgetSteps); ++to) {
      const double slope = (at(gain, to) - value) / (to - from);
      if (slope >= best.slope) best = {slope, to - from, curve};
    }
    pieces.push_back(best);
    from += best.steps, value = at(gain, from);
  }
}

/// Returns the steps for each curve that give the largest total gain, `even` on average and at least kLeast * even
/// each.
std::vector<double> divide(const std::vector<std::vector<double>>& gains, double even) {
  const double least = kLeast * even;
  std::vector<Piece> pieces;
  for (std::size_t curve = 0; curve < gains.size(); ++curve) add_pieces(gains[curve], least, curve, pieces);
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.slope > b.slope; });
  std::vector<double> budgets(gains.size(), least);
  double left = double(gains.size()) * (even - least);
  for (auto begin = pieces.begin(); begin != pieces.end();) {
    const auto end = std::find_if(begin, pieces.end(), [&](const Piece& other) { return other.slope < begin->slope; });
    const double all = std::accumulate(begin, end, 0.0, [](double sum, const Piece& p) { return sum + p.steps; });
    const double share = std::min(1.0, left / all);  // equal slopes get equal shares
    for (; begin != end; ++begin) budgets[begin->curve] += share * begin->steps;
    left -= share * all;
  }
  return budgets;
}

/// The attention that a layer's heads keep together.
double kept_by(const std::vector<std::vector<double>>& heads, const std::vector<double>& budgets) {
  double sum = 0;
  for (std::size_t head = 0; head < heads.size(); ++head) sum += at(heads[head], budgets[head]);
  return sum / double(heads.size());
}

/// [kBudgetSteps] The attention that a layer's heads keep by the best division of each budget.
std::vector<double> best_of(const std::vector<std::vector<double>>& heads) {
  if (heads.size() == 1) return heads.front();
  std::vector<double> best;
  for (std::int64_t step = 1; step <= kBudgetSteps; ++step) best.push_back(kept_by(heads, divide(heads, double(step))));
  return best;
}

/// Budgets in ten-thousandths of their mean. Their own mean is exactly 10000, and none is more than `most`.
std::vector<std::int32_t> factors_of(const std::vector<double>& budgets, std::int32_t most) {
  const double mean = std::accumulate(budgets.begin(), budgets.end(), 0.0) / double(budgets.size());
  std::vector<std::int32_t> factors;
  for (const double budget : budgets)
    factors.push_back(std::clamp(static_cast<std::int32_t>(budget / mean * kOnce + 1e-6), 1, most));
  std::int64_t left =
      std::int64_t{kOnce} * std::ssize(factors) - std::accumulate(factors.begin(), factors.end(), std::int64_t{0});
  for (bool moved = true; left > 0 && moved;) {
    moved = false;
    for (std::int32_t& factor : factors)
      if (left > 0 && factor < most) ++factor, --left, moved = true;
  }
  return factors;
}

}  // namespace

void add_kept(std::span<const float> weights, std::span<const std::int32_t> order, std::int64_t window,
              std::span<double> kept) {
  const std::int64_t seen = std::ssize(weights);
  double recent_sum = 0;
  std::int64_t recent = 0;
  for (std::int64_t step = 1; step <= kBudgetSteps; ++step) {
    const std::int64_t half = step * window / (2 * kBudgetSteps);
    for (; recent < std::min(std::max<std::int64_t>(half, 1), seen); ++recent)
      recent_sum += double(weights[static_cast<std::size_t>(seen - 1 - recent)]);
    double heavy_sum = 0;
    std::int64_t heavy = 0;
    for (std::size_t i = 0; i < order.size() && heavy < half; ++i) {
      if (order[i] >= seen - recent) continue;
      heavy_sum += double(weights[static_cast<std::size_t>(order[i])]), ++heavy;
    }
    kept[static_cast<std::size_t>(step - 1)] += recent_sum + heavy_sum;
  }
}

std::vector<float> scores_at(std::int64_t query, std::span<const float> middle, std::span<const float> end,
                             std::int64_t sliding) {
  const std::int64_t half = std::ssize(middle), window = std::ssize(end);
  std::vector<float> scores(static_cast<std::size_t>(query + 1));
  for (std::int64_t j = 0; j <= query; ++j) {
    const std::int64_t from = std::max(j, half),
                       to = std::max(from + 1, sliding > 0 ? std::min(window, j + sliding) : window);
    const float before = j < half ? middle[static_cast<std::size_t>(j)] : 0,
                share = static_cast<float>(std::min(query + 1, to) - from) / static_cast<float>(to - from);
    scores[static_cast<std::size_t>(j)] = before + share * (end[static_cast<std::size_t>(j)] - before);
  }
  return scores;
}

policy::Retention h2o_of(double budget) {
  // Rounded down, so that the largest factor asks for no more than all tokens.
  const double half = std::floor(budget / 2 * 1e6 + 1e-6) / 1e6;
  return policy::Retention::from_json({{"rule", "h2o"}, {"heavy", half}, {"recent", half}}, "a budget by layer");
}

LayerBudgets layer_budgets(const std::vector<std::vector<std::vector<double>>>& kept, const std::vector<double>& losses,
                           double budget) {
  const double even = budget * double(kBudgetSteps);
  const bool among_layers = !losses.empty();
  std::vector<std::vector<double>> gains;  // [layers][kBudgetSteps] the loss, with its sign changed
  std::vector<double> steepness;
  LayerBudgets result{.retention = h2o_of(budget), .kept = {}, .kept_evenly = {}};
  for (std::size_t layer = 0; layer < kept.size(); ++layer) {
    result.kept_evenly.push_back(kept_by(kept[layer], std::vector<double>(kept[layer].size(), even)));
    const double dropped = std::max(1 - result.kept_evenly.back(), kNothingDropped);
    if (!among_layers) continue;
    steepness.push_back((std::max(losses[layer], 0.0) + kNoLoss) / (dropped * dropped));
    std::vector<double>& gain = gains.emplace_back();
    for (const double share : best_of(kept[layer]))
      gain.push_back(-steepness.back() * std::pow(std::max(0.0, 1 - share), 2));
  }
  std::vector<double> budgets;  // for all heads, layer after layer
  const std::vector<double> of_layers = among_layers ? divide(gains, even) : std::vector<double>(kept.size(), even);
  for (std::size_t layer = 0; layer < kept.size(); ++layer) {
    if (kept[layer].size() == 1) budgets.push_back(of_layers[layer]);
    else
      for (const double of_head : divide(kept[layer], of_layers[layer])) budgets.push_back(of_head);
  }
  const std::vector<std::int32_t> factors = factors_of(budgets, static_cast<std::int32_t>(kOnce / budget));
  auto factor = factors.begin();
  for (std::size_t layer = 0; layer < kept.size(); ++layer) {
    std::vector<double> steps;
    std::vector<std::int32_t>& own = result.retention.layers.emplace_back();
    for (std::size_t head = 0; head < kept[layer].size(); ++head, ++factor) {
      own.push_back(*factor);
      steps.push_back(even * *factor / kOnce);
    }
    result.kept.push_back(kept_by(kept[layer], steps));
    if (!among_layers) continue;
    const auto loss = [&](double share) { return steepness[layer] * std::pow(std::max(0.0, 1 - share), 2); };
    result.loss += loss(result.kept.back());
    result.loss_evenly += loss(result.kept_evenly[layer]);
  }
  return result;
}

}  // namespace weft::runtime
