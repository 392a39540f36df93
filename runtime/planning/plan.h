// runtime/planning/plan.h: plans a policy for a model, a machine and a job, and finds what would make it faster.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "policy/planner/search.h"
#include "runtime/model/model_source.h"

namespace weft::runtime {

/// The inputs of a plan. All references must outlive it.
struct PlanRequest {
  const ModelSource& source;
  const policy::Machine& machine;
  policy::PartialPolicy policy;  ///< the part of the policy that is not to be chosen
  policy::Budgets free;          ///< memory that a run may use where the policy names no budget
  /// Returns the job under a retention. The retention decides how many slots the job takes.
  std::function<policy::Workload(const policy::Retention&)> work;
  /// Other retentions that are allowed. The policy's own is always tried.
  std::vector<policy::Retention> retentions;
  std::vector<policy::KvFormat> kv_formats = {};  ///< other allowed formats of keys and values
  std::vector<const ModelSource*> sources = {};   ///< the same model with weights in other allowed formats
};

struct Planned {
  const ModelSource* source = nullptr;  ///< the source of the request whose weights are used
  policy::Retention retention;
  policy::KvFormat kv_format;
  policy::Workload work;
  policy::SizingInputs sizing;
  policy::Plan plan;
  const policy::Candidate& best() const { return plan.best(); }
};

policy::SizingInputs sizing_inputs(const ModelSource& source, const policy::Machine& machine);

/// Finds the fastest policy. The candidates include the fastest one for every other retention and format that is
/// allowed. Throws CapacityError if nothing fits with any of them.
Planned make_plan(const PlanRequest& request);

/// Predicts `policy`, which must be complete.
policy::Candidate predict_policy(const PlanRequest& request, const policy::Policy& policy);

/// Something that would make a plan faster. `factor` is the speedup according to the linear program.
struct Gain {
  std::string what;
  double factor = 1;
};
/// Tries quantised formats, H2O and more of what the machine has. Returns what gains at least 5 %, the largest first.
/// Takes longer than make_plan(): each try solves a linear program for every block shape.
std::vector<Gain> what_would_help(const PlanRequest& request, const Planned& planned);

/// A text for people: policy, speed, memory, lanes, the bottleneck and the gains of what_would_help(). It has the
/// runners-up too with `explain`.
std::string plan_table(const PlanRequest& request, const Planned& planned, const std::vector<Gain>& gains,
                       bool explain);
/// The same as JSON: "policy", "predicted", "machine", "gains".
nlohmann::ordered_json plan_report(const PlanRequest& request, const Planned& planned, const std::vector<Gain>& gains);
/// tokens_per_second, seconds, peak_bytes and utilisation of a candidate. A run's report has them as "predicted".
nlohmann::ordered_json prediction_report(const policy::Candidate& candidate);

/// Tokens per second of the best policy at several values of one parameter.
struct Curve {
  std::string name;  ///< the parameter: "block size", "KV budget in percent of the context"
  struct Point {
    double x = 0, tokens_per_second = 0;  ///< tokens_per_second is 0 if nothing fits
    std::string bottleneck;
  };
  std::vector<Point> points;
  bool doubling = false;  ///< the values are best drawn on a logarithmic axis
};
Curve sweep_block_size(const PlanRequest& request);
/// Sweeps the KV budget from a twentieth of the context to all of it, half for heavy hitters and half for recent
/// tokens.
Curve sweep_kv_budget(const PlanRequest& request);
std::string to_csv(std::span<const Curve> curves);
std::string to_svg(std::span<const Curve> curves, const std::string& title);
/// Whether a text is one of these.
bool is_sweep(std::string_view text);

}  // namespace weft::runtime
