// policy/planner/timeline.h: counts how full the places of a block are while it serves a job, sweep by sweep.
#pragma once

#include <cstdint>

#include "policy/layout/footprint.h"

namespace weft::policy {

/// The sequences of a block's first sweep.
struct FirstSweep {
  double sequences = 0;
  double prompt = 1;  ///< tokens of a prompt, on average
  double own = 1;     ///< share of the sequences whose prompt is computed; the others share a neighbour's prefill
  double tokens() const { return sequences * own * prompt; }  ///< prompt tokens that are computed
};
FirstSweep first_sweep(const Workload& work, int gpu_batch_size, int num_gpu_batches);

/// The sweeps of a job after the first one.
struct Timeline {
  double full = 0, full_live = 0;  ///< sweeps in which all places are taken, and the mean of sequences that decode
  double rest = 0, rest_live = 0;  ///< the other sweeps, likewise
  double joins = 0;                ///< sweeps that prompts join, and do not yet decode; counted above as well
  double joining_tokens = 0;       ///< prompt tokens that are computed in those
};
/// Lets the job's choices take places in their order, each for as many sweeps as it has tokens, as runtime/engine
/// does it. `admitted_tokens`: Workspace::admitted_tokens; `holds_prefixes`: policy::holds_prefixes(). A job of very
/// many rounds is counted by part of them.
Timeline timeline(const Workload& work, int gpu_batch_size, int num_gpu_batches, std::int64_t admitted_tokens,
                  bool holds_prefixes = false);

}  // namespace weft::policy
