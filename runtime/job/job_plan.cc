#include "runtime/job/job_plan.h"

#include <algorithm>
#include <limits>
#include <sstream>

#include "runtime/base/duration.h"
#include "runtime/job/work_list.h"
#include "runtime/measure/measure_machine.h"
#include "runtime/planning/log.h"
#include "runtime/planning/machine_file.h"

namespace weft::runtime {
namespace {

void say_lines(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) log_debug("{}", line);
}

/// Bytes of host memory that the run may use; UINT64_MAX if there is no budget.
std::uint64_t host_memory(const policy::PartialPolicy& policy, const kernels::Backend& backend) {
  const auto budget = [&](offload::Tier tier) { return policy.budgets[static_cast<std::size_t>(tier)]; };
  const auto device = budget(offload::Tier::device), host = budget(offload::Tier::host);
  if (backend.device_is_host_memory() && device) return *device + host.value_or(0);
  return host.value_or(UINT64_MAX);
}

// Upper bounds on what is held in memory. memory_test.py has found them generous enough.
constexpr std::uint64_t kRequestBytes = 128;  // per request: the list, its ids and its order
constexpr std::uint64_t kTokenBytes = 64;     // per token of an answer: id, text, and what lists of them take
constexpr std::uint64_t kLikelyBytes = 16;    // per likely token with its log-probability
constexpr std::uint64_t kLikelyText = 96;     // the same in a result line
constexpr std::uint64_t kChangeBytes = 32;    // per token whose logit a penalty changes
constexpr std::uint64_t kMasks = 2;  // of the vocabulary, a bit for each token: what a form allows, and its copy
constexpr std::uint64_t kMatcherBytes = 256;  // per token of an answer that has a form

/// The bytes that the largest request needs in addition to buffers.
struct OwnMemory {
  std::uint64_t place = 0;      ///< for one choice: in its place, and while it waits to be written
  std::uint64_t collected = 0;  ///< for choices that wait for others of their request, and the line that they become

  void add(const RequestFile::Entry& entry, std::int64_t vocab) {
    const std::uint64_t likely = static_cast<std::uint64_t>(entry.logprobs + 1);
    const std::uint64_t answer = entry.max_tokens * (kTokenBytes + likely * kLikelyBytes);
    const std::uint64_t line = entry.max_tokens * (kTokenBytes + likely * kLikelyText);
    const std::uint64_t tokens = std::uint64_t{entry.prompt_tokens} + entry.max_tokens;
    const std::uint64_t held = entry.holds_line ? 2 * entry.bytes + tokens * kChangeBytes : 0;
    const std::uint64_t form =
        entry.has_form ? static_cast<std::uint64_t>(vocab) * kMasks / 8 + entry.max_tokens * kMatcherBytes : 0;
    const std::uint64_t ids = 2 * std::uint64_t{entry.prompt_tokens} + entry.prefix_tokens;  // Places has these again
    place = std::max(place, form + 2 * (answer + held) + ids * sizeof(std::int32_t));
    collected = std::max(collected, entry.n * (2 * answer + line));
  }
};

}  // namespace

JobPlan::JobPlan(const JobOptions& options, const ModelSource& source, const RequestFile& requests,
                 const std::vector<std::uint32_t>& todo, bool resumes, std::optional<policy::Machine> machine)
    : options_(options), source_(source), requests_(requests), todo_(todo), resumes_(resumes),
      machine_(std::move(machine)) {
  if (!options.machine_file.empty()) machine_ = read_machine(options.machine_file);
  std::vector<std::uint32_t> order = todo;
  if (options.policy.continuous.value_or(true)) put_in_order(order, requests, options.prefix_sharing);
  groups_ = groups_of(order, requests, options.prefix_sharing);
  lengths_ = prompt_lengths_of(order, requests);
}

policy::Workload JobPlan::work(const policy::Retention& retention) const {
  policy::Workload work{.requests = 0, .resumes = resumes_};  // requests: counts choices, because each takes a place
  for (const std::uint32_t index : todo_) *work.requests += requests_.entry(index).n;
  OwnMemory own;
  for (const std::uint32_t index : todo_) {
    const RequestFile::Entry& entry = requests_.entry(index);
    own.add(entry, source_.spec.vocab);
    work.longest_prompt = std::max<std::int64_t>(work.longest_prompt, entry.prompt_tokens);
    work.longest_generation = std::max<std::int64_t>(work.longest_generation, entry.max_tokens);
    if (options_.prefix_sharing) work.longest_prefix = std::max<std::int64_t>(work.longest_prefix, entry.prefix_tokens);
    work.slots.cover(retention.slots(entry.prompt_tokens, entry.max_tokens, source_.spec.windows));
    work.cold_slots.cover(retention.cold_slots(entry.prompt_tokens, entry.max_tokens, source_.spec.windows));
  }
  work.groups = groups_, work.prompt_lengths = lengths_;
  work.job_bytes = requests_.size() * kRequestBytes + own.collected + requests_.form_bytes();
  work.place_bytes = own.place;
  return work;
}

PlanRequest JobPlan::request(const policy::Budgets& free) const {
  return {.source = source_,
          .machine = *machine_,
          .policy = options_.policy,
          .free = free,
          .work = [this](const policy::Retention& retention) { return work(retention); },
          .retentions = options_.retentions,
          .kv_formats = options_.kv_formats,
          .sources = others_};
}

/// The tokens of all prompts and answers.
double JobPlan::tokens() const {
  double tokens = 0;
  for (const std::uint32_t index : todo_) {
    const RequestFile::Entry& entry = requests_.entry(index);
    tokens += double(entry.n) * (double(entry.prompt_tokens) + double(entry.max_tokens));
  }
  return tokens;
}

/// Measures the machine unless a file has its rates.
void JobPlan::know_machine(kernels::Backend& backend) {
  if (machine_) return;
  std::vector<const ModelSource*> sources = others_;
  sources.push_back(&source_);
  std::vector<DType> quantised;
  for (const ModelSource* source : sources)
    if (source->weight_format && source->weight_format->quantised()) quantised.push_back(source->weight_format->dtype);
  constexpr double kShort = 3e8;  // operations: a tenth of what a core does while the machine is measured briefly
  const double operations = 2 * double(policy::parameters(source_.spec)) * tokens();
  double kv_of_token = 0;
  for (int layer = 0; layer < source_.spec.layers; ++layer)
    kv_of_token += 2.0 * source_.spec.kv_heads_of(layer) * source_.spec.head_dim_of(layer) * size_of(DType::f16);
  machine_ = measure_machine(backend, options_.machine, operations < kShort ? Effort::rough : Effort::brief,
                             {.memory = host_memory(options_.policy, backend),
                              .weights = weight_bytes_of(source_),
                              .kv = static_cast<std::uint64_t>(tokens() * kv_of_token),
                              .quantised = quantised,
                              .weight_files = weight_files_of(source_)});
  brief_ = true;
}

Planned JobPlan::plan(kernels::Backend& backend, policy::Budgets free) {
  know_machine(backend);
  constexpr auto disk = static_cast<std::size_t>(offload::Tier::disk);
  if (machine_->measured && machine_->bytes[disk] == 0) free.bytes[disk] = 0;  // nothing can be spilled
  Planned planned = make_plan(request(free));
  const policy::Policy& policy = planned.best().policy;
  if (!brief_ || policy.weights.disk() + policy.kv.disk() + policy.activations.disk() == 0) return planned;
  brief_ = false;
  const MeasuredFor run{.memory = host_memory(options_.policy, backend), .weight_files = weight_files_of(source_)};
  measure_disk_longer(backend, options_.machine, planned.best().prediction.seconds, run, *machine_);
  return make_plan(request(free));
}

double JobPlan::estimate(const policy::Budgets& free) const {
  const policy::Workload of = work(options_.policy.retention.value_or(policy::Retention{}));
  const policy::SizingInputs sizing = sizing_inputs(source_, *machine_);
  const policy::Problem problem{source_.spec, source_.units, of, sizing, *machine_};
  policy::PartialPolicy partial = options_.policy;
  partial.weight_format = source_.weight_format;
  const double rate = relaxed_tokens_per_second(problem, partial, free);
  return rate > 0 ? double(*of.requests) * of.generation() / rate : std::numeric_limits<double>::infinity();
}

Planned JobPlan::choose(kernels::Backend& backend, const policy::Budgets& free) {
  if (!options_.machine_file.empty()) require_same_kind(*machine_, options_.machine_file, backend);
  return plan(backend, free);
}

Decision JobPlan::decide(kernels::Backend& backend, const policy::Budgets& free) {
  if (!options_.machine_file.empty()) require_same_kind(*machine_, options_.machine_file, backend);
  policy::PartialPolicy policy = options_.policy;
  log_debug("{} choices to compute; of each tier a run may use device {}, host {}, disk {} where no budget is given",
            *work(policy.retention.value_or(policy::Retention{})).requests,
            policy::bytes_to_text(free[offload::Tier::device]), policy::bytes_to_text(free[offload::Tier::host]),
            policy::bytes_to_text(free[offload::Tier::disk]));
  if (policy.leaves_open() || !options_.retentions.empty()) {
    const Planned planned = plan(backend, free);
    const PlanRequest wanted = request(free);
    prediction_ = planned.best();
    if (options_.verbose) say_lines(plan_table(wanted, planned, what_would_help(wanted, planned), true));
    policy = policy::PartialPolicy::of(prediction_->policy);
    if (!options_.quiet)
      log_info("planned what the policy leaves open, for {}: {:.1f} tokens/s predicted, {} in all",
               options_.machine_file.empty() ? "this machine as a brief measurement finds it" : options_.machine_file,
               prediction_->prediction.tokens_per_second(), duration_text(prediction_->prediction.seconds));
  } else {
    log_debug("the policy leaves nothing open: nothing is planned");
  }
  return {policy, work(policy.retention.value_or(policy::Retention{}))};
}

const std::optional<policy::Candidate>& JobPlan::predict(const Session& session) {
  if (machine_ && !prediction_) prediction_ = predict_policy(request(session.policy().budgets), session.policy());
  return prediction_;
}

}  // namespace weft::runtime
