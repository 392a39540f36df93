// runtime/analyze/layer_losses.h: measures what a small KV budget costs a model in each layer alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine/session.h"

namespace weft::runtime {

/// Feeds the second half of a window of tokens through the decode path after its first half: once with everything kept,
/// and once for each layer with h2o in that layer alone, with half of `budget` for heavy hitters and half for recent
/// tokens.
class LayerLosses {
 public:
  /// `session` must outlive this. `budget`: a share of the window's tokens.
  LayerLosses(Session& session, double budget) : session_(session), budget_(budget) {}

  /// The layout that a session needs for windows of `window` tokens: every layer has slots for all of them.
  static Decision decision(std::int64_t window, const policy::ModelSpec& model);

  void see(std::span<const std::int32_t> tokens);
  /// [layers] Nats per token that the budget costs in each layer alone; a mean over the windows seen.
  std::vector<double> losses() const;

 private:
  /// Mean negative log-likelihoods of the second half, with h2o in each of the layers [first, first + count) alone.
  /// Layer -1 stands for none.
  std::vector<double> likelihoods(std::span<const std::int32_t> tokens, int first, int count);

  Session& session_;
  const double budget_;
  std::vector<double> sums_;  // [1 + layers]; the first with everything kept
  std::int64_t windows_ = 0;
};

}  // namespace weft::runtime
