// policy/planner/relaxation.h: the best placement if buffers could be cut at will: FlexGen's linear program over the
// placement (arXiv 2303.06865, section 4.3), extended by the share of attention on the host.
#pragma once

#include <vector>

#include "policy/planner/predict.h"

namespace weft::policy {

/// A placement whose seconds and bytes are exact except for rounding to whole buffers.
struct Relaxed {
  Fractions weights, kv, activations;
  double attention_on_host = 0;
  /// Seconds of a full block that waits for the busiest lane alone. If places are refilled: on average, for as many
  /// tokens.
  double seconds = 0;
};

/// The best placements for one block shape that fit, the fastest first. There is one for each set of tiers that may
/// stream, because that set decides which windows there are. `shape` gives batches, retention, overlap and budgets;
/// `fixed` has the user's choices. `host_allowed`: buffers may have their home on the host.
std::vector<Relaxed> relax(const Problem& problem, const Policy& shape, const PartialPolicy& fixed, bool host_allowed);

}  // namespace weft::policy
