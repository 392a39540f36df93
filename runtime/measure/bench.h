// runtime/measure/bench.h: measures a policy on a made-up workload and compares it with the machine's ceilings.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "policy/layout/policy.h"
#include "runtime/engine/session.h"

namespace weft::runtime {

struct BenchOptions {
  std::string model, weights, dtype = "auto";
  std::string machine_file;  ///< machine to plan for and to predict with; empty: neither
  std::string ceilings;      ///< file with the report of measure_lanes(); empty: no bound
  std::string trace;         ///< file for a trace of the timed runs; empty: none
  std::int64_t prompt = 512, generation = 32, requests = 0;  ///< requests: 0 is one block
  int repetitions = 1, project_sweeps = 0;
  bool warm_up = true, skip_prefill = false;
  policy::PartialPolicy policy;
  MachineOptions machine;
};

using OnReport = std::function<void(const nlohmann::ordered_json& report)>;

/// Reports a run (report.h) over random prompts of one length, all generated to the end. With `project_sweeps`, decode
/// is timed for that many sweeps at the beginning, the middle and the end of the generation. The rest is projected from
/// these over the growing context, and "measured" is false. With `skip_prefill` the KV cache is filled with random keys
/// and values in place of prefill, and only decode is timed. With `ceilings` the report has a "bound" for prefill,
/// decode and the whole run: the speed of the busiest lane at these ceilings (bound.h). With `machine_file` the fields
/// that the policy leaves open are planned, and the report has "predicted". With `trace` it has "gaps", those of the
/// lanes in prefill and in decode (lane_gaps.h). `on_report` gets the report before the memory of the run is given
/// back, which may take longer than writing it.
void run_bench(const BenchOptions& options, const std::atomic<bool>& stop, const OnReport& on_report);

}  // namespace weft::runtime
