// runtime/planning/plan.h: a policy for a model, a machine and a job, what it will do, and what would make it faster.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "policy/search.h"
#include "runtime/engine/model_source.h"

namespace weft::runtime {

/// What is asked of a planner. All references must outlive it.
struct PlanRequest {
  const ModelSource& source;
  const policy::Machine& machine;
  policy::PartialPolicy policy;  ///< what is not to be chosen
  policy::Budgets free;          ///< what a run may use where the policy does not say
  /// The job under a retention, which decides how many slots it takes.
  std::function<policy::Workload(const policy::Retention&)> work;
  /// Other retentions that would do as well; the policy's own is always tried.
  std::vector<policy::Retention> retentions;
  std::vector<policy::KvFormat> kv_formats = {};  ///< other formats of keys and values that would do as well
  std::vector<const ModelSource*> sources = {};   ///< the same model with weights in other formats that would
};

struct Planned {
  const ModelSource* source = nullptr;  ///< of PlanRequest the one whose weights are taken
  policy::Retention retention;
  policy::KvFormat kv_format;
  policy::Workload work;
  policy::SizingInputs sizing;
  policy::Plan plan;
  const policy::Candidate& best() const { return plan.best(); }
};

policy::SizingInputs sizing_inputs(const ModelSource& source, const policy::Machine& machine);

/// The fastest policy, and for every other retention and format that is allowed the fastest with these, among the
/// candidates. Throws CapacityError if nothing fits in any of them.
Planned make_plan(const PlanRequest& request);

/// What `policy`, which is complete, will do.
policy::Candidate predict_policy(const PlanRequest& request, const policy::Policy& policy);

/// Something that would make a plan faster, and by how much at least the linear program says.
struct Gain {
  std::string what;
  double factor = 1;
};
/// More of what the machine has, compression, H2O; those that gain at least 5 %, the largest first.
std::vector<Gain> what_would_help(const PlanRequest& request, const Planned& planned);

/// For people: policy, speed, memory, lanes, the bottleneck and what would move it; `explain`: the runners-up too.
std::string plan_table(const PlanRequest& request, const Planned& planned, bool explain);
/// The same as values: "policy", "predicted", "machine", "gains".
nlohmann::ordered_json plan_report(const PlanRequest& request, const Planned& planned);
/// tokens_per_second, seconds, peak_bytes and utilisation of a candidate; a run's report has it as "predicted".
nlohmann::ordered_json prediction_report(const policy::Candidate& candidate);

/// Tokens per second of the best policy at each of several values of one thing.
struct Curve {
  std::string name;  ///< of the thing: "block size", "kv budget in percent"
  struct Point {
    double x = 0, tokens_per_second = 0;  ///< the latter 0 where nothing fits
    std::string bottleneck;
  };
  std::vector<Point> points;
  bool doubling = false;  ///< the values are best drawn by their logarithms
};
Curve sweep_block_size(const PlanRequest& request);
/// From a twentieth of the context to all of it, half of it for heavy hitters and half for recent tokens.
Curve sweep_kv_budget(const PlanRequest& request);
std::string to_csv(std::span<const Curve> curves);
std::string to_svg(std::span<const Curve> curves, const std::string& title);

}  // namespace weft::runtime
