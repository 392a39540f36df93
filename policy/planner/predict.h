// policy/planner/predict.h: what a policy will do on a machine: seconds by the simulator over the real schedule, bytes
// by the footprint that a run allocates.
#pragma once

#include <array>
#include <cstdint>

#include "policy/planner/cost.h"
#include "policy/schedule/simulate.h"

namespace weft::policy {

/// What is to be done on what. All references must outlive it.
struct Problem {
  const ModelSpec& model;
  const std::vector<Unit>& units;
  const Workload& work;
  const SizingInputs& sizing;
  const Machine& machine;
};

/// One phase of a full block.
struct Phase {
  double seconds = 0;
  std::array<double, offload::kLanes.size()> busy{};  ///< seconds
  offload::Lane longest() const;
};

struct Prediction {
  Phase prefill, decode;                    ///< of one full block; decode: all sweeps after the first token
  double blocks = 1;                        ///< that the requests fill; where places are refilled, once
  double requests = 0, tokens = 0;          ///< of all blocks; tokens: generated
  double seconds = 0, prefill_seconds = 0;  ///< of all blocks; the second: of their first sweeps
  double prompt_tokens = 0;                 ///< of these
  std::array<std::uint64_t, 3> bytes{};     ///< peak per tier, Footprint::bytes

  double tokens_per_second() const { return tokens / seconds; }
  double prefill_per_second() const { return prompt_tokens / prefill_seconds; }  ///< prompt tokens
  double decode_per_second() const;                                              ///< tokens after each first one
  const Phase& longer() const { return prefill.seconds > decode.seconds ? prefill : decode; }
};

/// Decode is simulated at the beginning, the middle and the end of the generation and summed by Simpson's rule, for
/// attention takes longer as contexts grow. Where finished sequences give their places to others the block is full to
/// the last, and what those others' prefill takes of the compute lane is added to that lane's work. A run whose
/// number of requests is unknown (Workload::requests) is that of full blocks.
Prediction predict(const Problem& problem, const Policy& policy, const Footprint& footprint);

}  // namespace weft::policy
