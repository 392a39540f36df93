// runtime/job/job_plan.h: how a job is laid out on the machine it runs on, and what that machine should reach.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "runtime/engine/session.h"
#include "runtime/job/job_options.h"
#include "runtime/planning/plan.h"

namespace weft::runtime {

/// All references must outlive it.
class JobPlan {
 public:
  /// `resumes`: some begin amid their answers. Throws UsageError for a bad --machine file.
  JobPlan(const JobOptions& options, const ModelSource& source, const RequestFile& requests,
          const std::vector<std::uint32_t>& todo, bool resumes, std::optional<policy::Machine> machine = {});

  /// The same model with weights in other formats that would do as well.
  void allow(std::vector<const ModelSource*> sources) { others_ = std::move(sources); }
  /// The fastest of all that is allowed. Throws as decide() does.
  Planned choose(kernels::Backend& backend, const policy::Budgets& free);
  /// What plans are made with, once one is made.
  const std::optional<policy::Machine>& machine() const { return machine_; }

  /// Plans what the policy leaves open. Throws UsageError for a machine file of another kind of machine, CapacityError
  /// where nothing fits.
  Decision decide(kernels::Backend& backend, const policy::Budgets& free);

  /// What the policy as it runs should reach, if the machine's rates are known.
  const std::optional<policy::Candidate>& predict(const Session& session);

 private:
  policy::Workload work(const policy::Retention& retention) const;
  PlanRequest request(const policy::Budgets& free) const;
  void know_machine(kernels::Backend& backend);

  const JobOptions& options_;
  const ModelSource& source_;
  const RequestFile& requests_;
  const std::vector<std::uint32_t>& todo_;
  const bool resumes_;
  std::vector<const ModelSource*> others_;
  std::optional<policy::Machine> machine_;
  std::optional<policy::Candidate> prediction_;
};

}  // namespace weft::runtime
