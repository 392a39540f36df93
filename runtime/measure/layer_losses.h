// runtime/measure/layer_losses.h: what a small KV budget costs a model in each layer alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine/session.h"

namespace weft::runtime {

/// Feeds the second half of a window of tokens through the decode path after its first half: once with everything kept,
/// and once for each layer with h2o in that layer alone, half of `budget` heavy and half recent.
class LayerLosses {
 public:
  /// Of a session, which must outlive this. `budget`: a share of the window's tokens.
  LayerLosses(Session& session, double budget) : session_(session), budget_(budget) {}

  /// How a session must be laid out for windows of `window` tokens: every layer has slots for all of them.
  static Decision decision(std::int64_t window, int layers);

  void see(std::span<const std::int32_t> tokens);
  /// [layers] Nats per token that the budget costs in each layer alone; a mean over the windows seen.
  std::vector<double> losses() const;

 private:
  /// Mean negative log-likelihood of the second half: with h2o in the layers [first, first + some), one after another;
  /// in the layer -1 for none.
  std::vector<double> likelihoods(std::span<const std::int32_t> tokens, int first, int count);

  Session& session_;
  const double budget_;
  std::vector<double> sums_;  // [1 + layers], the first of everything kept
  std::int64_t windows_ = 0;
};

}  // namespace weft::runtime
