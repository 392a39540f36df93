// policy/planner/relaxation.h: where everything would live if blocks could be cut at will: FlexGen's linear program
// over the placement (arXiv 2303.06865, section 4.3), extended by the share of attention on the host.
#pragma once

#include <vector>

#include "policy/planner/predict.h"

namespace weft::policy {

/// A placement of which seconds and bytes are exact but for rounding to whole blocks.
struct Relaxed {
  Fractions weights, kv, activations;
  double attention_on_host = 0;
  double seconds = 0;  ///< of a full block with nothing to wait for but the busiest lane
};

/// The best placement for one block shape, once for every choice of what streams at all, because that decides which
/// windows there are; those that fit, the fastest first. `shape` gives batches, retention, overlap and budgets, `fixed`
/// what is not to be chosen. `host_allowed`: blocks may have their home on the host.
std::vector<Relaxed> relax(const Problem& problem, const Policy& shape, const PartialPolicy& fixed, bool host_allowed);

}  // namespace weft::policy
