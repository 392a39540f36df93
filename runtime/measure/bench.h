// runtime/measure/bench.h: measures a policy on a made-up workload and compares it with the machine's ceilings.
#pragma once

#include <atomic>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "policy/layout/policy.h"
#include "runtime/engine/session.h"

namespace weft::runtime {

struct BenchOptions {
  std::string model, weights, dtype = "auto";
  std::string machine_file;  ///< machine to plan for and to predict with; empty: neither
  std::string ceilings;      ///< file with the report of measure_lanes(); empty: no bound
  std::int64_t prompt = 512, generation = 32, requests = 0;  ///< requests: 0 is one block
  int repetitions = 1, project_sweeps = 0;
  bool warm_up = true, skip_prefill = false;
  policy::PartialPolicy policy;
  MachineOptions machine;
};

/// Reports a run (report.h) over random prompts of one length, all generated to the end. With `project_sweeps`, decode
/// is timed for that many sweeps at the beginning, the middle and the end of the generation. The rest is projected from
/// these over the growing context, and "measured" is false. With `skip_prefill` the KV cache is filled with random keys
/// and values in place of prefill, and only decode is timed. With `ceilings` the report has a "bound" for prefill,
/// decode and the whole run: the speed of the busiest lane at these ceilings (bound.h). With `machine_file` the fields
/// that the policy leaves open are planned, and the report has "predicted".
nlohmann::ordered_json run_bench(const BenchOptions& options, const std::atomic<bool>& stop);

}  // namespace weft::runtime
