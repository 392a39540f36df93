// policy/planner/search.h: the best policy for a machine and a job. It solves a linear program over the placement for
// every block shape, times the most promising with the simulator, and improves the best of those buffer by buffer.
#pragma once

#include <vector>

#include "policy/layout/placement.h"
#include "policy/planner/predict.h"

namespace weft::policy {

struct Candidate {
  Policy policy;
  Prediction prediction;
};

/// Among the policies whose prediction is within this share of the fastest's, the search takes the one with the
/// smallest block. It needs the least memory, and newly measured rates lead to the same block, or nearly.
inline constexpr double kNearlyAsFast = 0.03;

/// The policy to take, followed by others, the fastest first. They differ from each other in the tiers that stream, in
/// what the host computes or in the number of batches.
struct Plan {
  std::vector<Candidate> candidates;
  double relaxed = 0;  ///< tokens per second of the best placement by the linear program alone; 0 if nothing fits
  const Candidate& best() const { return candidates.front(); }
  const Candidate& fastest() const;
};

/// Chooses the fields that `partial` leaves open, except the retention, which decides Problem::work.slots.
/// Deterministic. The host computes a share of the experts if `partial` has one; else if there is a device, `partial`
/// leaves more open than this, and that is faster by more than kNearlyAsFast. Throws CapacityError as complete() does
/// if nothing fits.
Plan search(const Problem& problem, const PartialPolicy& partial, const Budgets& free);

/// Tokens per second of the best placement by the linear program alone, to answer "what if the machine had more of
/// this"; 0 if nothing fits.
double relaxed_tokens_per_second(const Problem& problem, const PartialPolicy& partial, const Budgets& free);

}  // namespace weft::policy
