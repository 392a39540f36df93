#include "runtime/job/job_plan.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <sstream>

#include "runtime/base/duration.h"
#include "runtime/measure/measure_machine.h"
#include "runtime/planning/machine_file.h"

namespace weft::runtime {
namespace {

void say_lines(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) spdlog::debug("{}", line);
}

}  // namespace

JobPlan::JobPlan(const JobOptions& options, const ModelSource& source, const RequestFile& requests,
                 const std::vector<std::size_t>& todo)
    : options_(options), source_(source), requests_(requests), todo_(todo) {
  if (!options.machine_file.empty()) machine_ = read_machine(options.machine_file);
}

policy::Workload JobPlan::work(const policy::Retention& retention) const {
  policy::Workload work{.requests = 0};  // choices, each of which takes a place
  for (const std::size_t index : todo_) *work.requests += requests_.entry(index).n;
  for (const std::size_t index : todo_) {
    const RequestFile::Entry& entry = requests_.entry(index);
    work.longest_prompt = std::max<std::int64_t>(work.longest_prompt, entry.prompt_tokens);
    work.longest_generation = std::max<std::int64_t>(work.longest_generation, entry.max_tokens);
    work.slots = std::max(work.slots, retention.slots(entry.prompt_tokens, entry.max_tokens));
    const double share = double(entry.n) / double(*work.requests);
    work.mean_prompt += share * double(entry.prompt_tokens);
    work.mean_generation += share * double(entry.max_tokens);
  }
  return work;
}

PlanRequest JobPlan::request(const policy::Budgets& free) const {
  return {.source = source_,
          .machine = *machine_,
          .policy = options_.policy,
          .free = free,
          .work = [this](const policy::Retention& retention) { return work(retention); },
          .retentions = options_.retentions};
}

Decision JobPlan::decide(kernels::Backend& backend, const policy::Budgets& free) {
  if (machine_) require_same_kind(*machine_, options_.machine_file, backend);
  policy::PartialPolicy policy = options_.policy;
  spdlog::debug(
      "{} choices to compute; of each tier a run may use device {}, host {}, disk {} where no budget is given",
      *work(policy.retention.value_or(policy::Retention{})).requests,
      policy::bytes_to_text(free[offload::Tier::device]), policy::bytes_to_text(free[offload::Tier::host]),
      policy::bytes_to_text(free[offload::Tier::disk]));
  if (policy.leaves_open() || !options_.retentions.empty()) {
    if (!machine_) machine_ = measure_machine(backend, options_.machine, Effort::brief);
    const PlanRequest wanted = request(free);
    const Planned planned = make_plan(wanted);
    prediction_ = planned.best();
    if (options_.verbose) say_lines(plan_table(wanted, planned, true));
    policy = policy::PartialPolicy::of(prediction_->policy);
    if (!options_.quiet)
      spdlog::info(
          "planned what the policy leaves open, for {}: {:.1f} tokens/s predicted, {} in all",
          options_.machine_file.empty() ? "this machine as a brief measurement finds it" : options_.machine_file,
          prediction_->prediction.tokens_per_second(), duration_text(prediction_->prediction.seconds));
  } else {
    spdlog::debug("the policy leaves nothing open: nothing is planned");
  }
  return {policy, work(policy.retention.value_or(policy::Retention{}))};
}

const std::optional<policy::Candidate>& JobPlan::predict(const Session& session) {
  if (machine_ && !prediction_) prediction_ = predict_policy(request(session.policy().budgets), session.policy());
  return prediction_;
}

}  // namespace weft::runtime
