// runtime/measure/attention_profile.h: what a model's attention looks like on given text, and so what a small KV cache
// can keep of it.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

#include "kernels/ops.h"
#include "policy/model.h"

namespace weft::runtime {

/// Budgets, as shares of a window's tokens, for which figures are given.
inline constexpr std::array<double, 4> kShares{0.5, 0.2, 0.1, 0.05};

/// Of one query head, means over the queries that were looked at.
struct HeadProfile {
  double sparsity = 0;                        ///< share of the weights below 1 % of their row's largest (H2O, 3.1)
  std::array<double, kShares.size()> best{};  ///< attention on as many best tokens, chosen anew for each query
};

/// Of one KV head, means over the windows. A token's accumulated score is the attention it got from all later tokens,
/// summed over the query heads of the KV head: what H2O ranks by.
struct KvHeadProfile {
  double exponent = 0;   ///< of the power law that fits the accumulated scores best, over the upper half of the ranks
  double top_fifth = 0;  ///< share of all attention that the fifth with the highest scores got
  double overlap =
      0;  ///< of the first half's fifth with the highest scores: share that still is when all has been seen
  /// Attention of the window's second half to its first: share on as many tokens of the first with the highest scores
  /// at the middle. What H2O's heavy hitters hold, once they are chosen.
  std::array<double, kShares.size()> held{};
  std::vector<double> kept;  ///< [kBudgetSteps] attention that h2o keeps, if asked for; of add_kept()
};

struct LayerProfile {
  std::vector<HeadProfile> heads;
  std::vector<KvHeadProfile> kv_heads;
  std::vector<double> ranked;  ///< [ranks] accumulated scores by rank, as shares of all; mean over heads and windows
};

struct AttentionProfile {
  std::int64_t windows = 0, tokens = 0;
  std::vector<std::int64_t> ranks;  ///< 1, 2, 4, ..., at which LayerProfile::ranked is
  KvHeadProfile uniform;            ///< what attention that is spread evenly would give
  std::vector<double> uniform_ranked;
  std::vector<LayerProfile> layers;
};

/// Collects the profile from the prompts that run through Layers. All prompts have `window` tokens.
class AttentionObserver {
 public:
  /// `queries`: how many queries of each window's second half are looked at, evenly spaced. `ops`: of a backend whose
  /// memory is the host's; must outlive this.
  /// `budgets`: whether KvHeadProfile::kept is wanted.
  AttentionObserver(const policy::ModelSpec& model, std::int64_t window, std::int64_t queries, bool budgets,
                    const kernels::Ops& ops);

  /// Layers::OnPrompts; the numbers that `op` reads are there.
  void see(int layer, const kernels::ColumnSums& op);
  AttentionProfile profile() const;

 private:
  void see_window(int layer, const kernels::ColumnSums& op, std::int64_t first);
  std::vector<float> half_scores(const kernels::ColumnSums& op, std::int64_t first) const;

  const policy::ModelSpec& model_;
  const std::int64_t window_, queries_;
  const bool budgets_;
  const kernels::Ops& ops_;
  std::vector<LayerProfile> sums_;
  std::vector<std::int64_t> seen_;  // [layers] windows
  std::vector<std::int64_t> ranks_;
};

}  // namespace weft::runtime
