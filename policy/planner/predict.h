// policy/planner/predict.h: the predicted speed and memory of a policy on a machine. The seconds come from the
// simulator over the real schedule, the bytes from the footprint that a run allocates.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "policy/planner/cost.h"
#include "policy/schedule/simulate.h"

namespace weft::policy {

/// The model, the work and the machine. All references must outlive it.
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
  std::array<double, offload::kLanes.size()> busy{};   ///< seconds
  std::array<double, offload::kLanes.size()> bytes{};  ///< that the lanes move
  offload::Lane longest() const;
};

struct Prediction {
  Phase prefill, decode;                    ///< one full block's; decode: all sweeps after the first token
  double blocks = 1;                        ///< full blocks that the requests make; 1 if places are refilled
  double requests = 0, tokens = 0;          ///< in all blocks; tokens: generated ones
  double seconds = 0, prefill_seconds = 0;  ///< all blocks'; prefill_seconds: their first sweeps'
  double prompt_tokens = 0;                 ///< prompt tokens of those first sweeps
  std::array<std::uint64_t, 3> bytes{};     ///< peak per tier, Footprint::bytes

  double tokens_per_second() const { return tokens / seconds; }
  double prefill_per_second() const { return prompt_tokens / prefill_seconds; }  ///< prompt tokens
  double decode_per_second() const;                                              ///< tokens after each first one
  const Phase& longer() const { return prefill.seconds > decode.seconds ? prefill : decode; }
};

/// Decode is simulated at the beginning, the middle and the end of the generation and summed by Simpson's rule, because
/// attention takes longer as contexts grow. If finished sequences give their places to others, the block is full to the
/// end, and the later prefills add their time to the compute lane. If the number of requests is unknown
/// (Workload::requests), all blocks are full.
Prediction predict(const Problem& problem, const Policy& policy, const Footprint& footprint);

/// Consecutive sweeps, and when each op of theirs would run.
struct SimulatedSweeps {
  Schedule schedule;
  Trace trace;
};
/// The sweeps of a full block that predict() simulates, to look at them: the first one, and up to three decode sweeps
/// halfway through the answers, of which the first begins with empty lanes.
std::vector<SimulatedSweeps> simulate_block(const Problem& problem, const Policy& policy, const Footprint& footprint);

}  // namespace weft::policy
