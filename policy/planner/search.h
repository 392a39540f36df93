// policy/planner/search.h: the best policy for a machine and a job: a linear program over the placement for every block
// shape, the most promising timed by the simulator, the best of those improved block by block.
#pragma once

#include <vector>

#include "policy/layout/placement.h"
#include "policy/planner/predict.h"

namespace weft::policy {

struct Candidate {
  Policy policy;
  Prediction prediction;
};

/// Of the policies whose prediction is within this share of the fastest's, the one with the smallest block is taken. It
/// needs the least memory, and rates that are measured anew lead to the same block, or nearly.
inline constexpr double kNearlyAsFast = 0.03;

/// The one to take, and others that differ from each other in what streams, where attention runs or the number of
/// batches, the fastest of them first.
struct Plan {
  std::vector<Candidate> candidates;
  const Candidate& best() const { return candidates.front(); }
  const Candidate& fastest() const;
};

/// Chooses what `partial` leaves open; the retention is not: it decides Problem::work.slots. Deterministic. Throws
/// CapacityError as complete() does where nothing fits.
Plan search(const Problem& problem, const PartialPolicy& partial, const Budgets& free);

/// Tokens per second of the best placement as the linear program alone sees it, to answer "what if
/// the machine had more of this"; 0 where nothing fits.
double relaxed_tokens_per_second(const Problem& problem, const PartialPolicy& partial, const Budgets& free);

}  // namespace weft::policy
