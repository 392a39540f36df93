// runtime/analyze/attention_profile.h: measures a model's attention on given text, and so how much of it a small KV
// cache can keep.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

#include "kernels/ops.h"
#include "policy/model/model.h"

namespace weft::runtime {

/// Budgets, as shares of a window's tokens, for which figures are given.
inline constexpr std::array<double, 4> kShares{0.5, 0.2, 0.1, 0.05};

/// Figures of one query head: means over the queries that were looked at. In a layer with a sliding window a query sees
/// the tokens within it; no others have a weight.
struct HeadProfile {
  double sparsity = 0;                        ///< share of the weights below 1 % of their row's largest (H2O, 3.1)
  std::array<double, kShares.size()> best{};  ///< attention on that share of tokens, the best of each query
};

/// Figures of one KV head: means over the windows. A token's accumulated score is the attention that it got from all
/// later tokens, summed over the query heads of the KV head. H2O ranks tokens by it.
struct KvHeadProfile {
  /// Exponent of the power law that fits the accumulated scores best, over the upper half of the ranks.
  double exponent = 0;
  double top_fifth = 0;  ///< share of all attention that the fifth with the highest scores got
  /// The first half's tokens are ranked by score twice, at the middle and at the end: the share of the first ranking's
  /// top fifth that is in the second's.
  double overlap = 0;
  /// Share of the second half's attention to the first half that goes to the tokens with the highest scores at the
  /// middle. H2O's heavy hitters hold that much once they are chosen. Queries whose sliding window has none of the
  /// first half are left out.
  std::array<double, kShares.size()> held{};
  std::vector<double> kept;  ///< [kBudgetSteps] attention that h2o keeps, by add_kept(); empty unless asked for
};

struct LayerProfile {
  std::vector<HeadProfile> heads;
  std::vector<KvHeadProfile> kv_heads;
  std::vector<double> ranked;  ///< [ranks] accumulated scores by rank, as shares of all; mean over heads and windows
};

struct AttentionProfile {
  std::int64_t windows = 0, tokens = 0;
  std::vector<std::int64_t> ranks;  ///< the ranks of LayerProfile::ranked: 1, 2, 4, ...
  KvHeadProfile uniform;            ///< the figures of attention that is spread evenly
  std::vector<double> uniform_ranked;
  std::vector<LayerProfile> layers;
};

/// Collects the profile from the prompts that run through Layers. All prompts have `window` tokens.
class AttentionObserver {
 public:
  /// `queries`: how many queries of each window's second half are looked at, evenly spaced. `budgets`: whether
  /// KvHeadProfile::kept is wanted. `ops`: the ops of a backend whose memory is the host's; they must outlive this.
  AttentionObserver(const policy::ModelSpec& model, std::int64_t window, std::int64_t queries, bool budgets,
                    const kernels::Ops& ops);

  /// Handles Layers::OnPrompts. The numbers that `op` reads must be computed already.
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
  std::vector<std::int64_t> seen_;  // [layers] windows that were seen
  std::vector<std::int64_t> ranks_;
};

}  // namespace weft::runtime
