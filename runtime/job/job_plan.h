// runtime/job/job_plan.h: plans how a job is laid out on its machine, and predicts its speed.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "runtime/engine/session.h"
#include "runtime/job/job_options.h"
#include "runtime/planning/plan.h"

namespace weft::runtime {

/// Plans one job. All references must outlive it.
class JobPlan {
 public:
  /// `resumes`: some sequences begin in the middle of their answers. Throws UsageError for a bad --machine file.
  JobPlan(const JobOptions& options, const ModelSource& source, const RequestFile& requests,
          const std::vector<std::uint32_t>& todo, bool resumes, std::optional<policy::Machine> machine = {});

  /// Allows the same model with weights in other formats.
  void allow(std::vector<const ModelSource*> sources) { others_ = std::move(sources); }
  /// Seconds by the linear program alone, which is much quicker than a plan; infinite if nothing fits. choose() first.
  double estimate(const policy::Budgets& free) const;
  /// Finds the fastest plan of all that are allowed. Throws as decide() does.
  Planned choose(kernels::Backend& backend, const policy::Budgets& free);
  /// The machine that plans are made for. Known once one is made.
  const std::optional<policy::Machine>& machine() const { return machine_; }

  /// Plans what the policy leaves open. Throws UsageError for a machine file of another kind of machine, CapacityError
  /// if nothing fits.
  Decision decide(kernels::Backend& backend, const policy::Budgets& free);

  /// The prediction for the session's policy, if the machine's rates are known.
  const std::optional<policy::Candidate>& predict(const Session& session);

 private:
  /// Plans, and plans again if the plan depends on rates of the disk that were measured too briefly.
  Planned plan(kernels::Backend& backend, policy::Budgets free);
  policy::Workload work(const policy::Retention& retention) const;
  PlanRequest request(const policy::Budgets& free) const;
  double tokens() const;
  void know_machine(kernels::Backend& backend);

  const JobOptions& options_;
  const ModelSource& source_;
  const RequestFile& requests_;
  const std::vector<std::uint32_t>& todo_;
  const bool resumes_;
  std::vector<policy::WorkGroup> groups_;  // the job in its order
  std::vector<policy::PromptLength> lengths_;
  std::vector<const ModelSource*> others_;
  std::optional<policy::Machine> machine_;
  bool brief_ = false;  // machine_ was measured briefly
  std::optional<policy::Candidate> prediction_;
};

}  // namespace weft::runtime
