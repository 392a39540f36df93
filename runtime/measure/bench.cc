#include "runtime/measure/bench.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "runtime/base/files.h"
#include "runtime/measure/bound.h"
#include "runtime/measure/lane_gaps.h"
#include "runtime/measure/report.h"
#include "runtime/planning/log.h"
#include "runtime/planning/machine_file.h"
#include "runtime/planning/plan.h"

namespace weft::runtime {
namespace {

using nlohmann::ordered_json;

/// Runs `requests` random prompts of `prompt` tokens for `tokens` tokens each, under the budgets of the whole workload.
Totals run_once(Session& session, const BenchOptions& options, std::int64_t requests, std::int64_t prompt,
                std::int64_t tokens) {
  std::mt19937 random(static_cast<std::mt19937::result_type>(prompt));
  std::uniform_int_distribution<std::int32_t> id(0, session.source().spec.vocab - 1);
  const Totals before = session.executor().totals();
  const std::int64_t block_size = session.policy().block_size();
  for (std::int64_t first = 0; first < requests; first += block_size) {
    std::vector<Sequence> block(static_cast<std::size_t>(std::min(block_size, requests - first)));
    for (Sequence& sequence : block) {
      sequence.tokens.resize(static_cast<std::size_t>(prompt));
      for (std::int32_t& token : sequence.tokens) token = id(random);
      sequence.prompt_tokens = prompt;
      sequence.max_tokens = tokens;
      sequence.keep = session.keep(options.prompt, options.generation);
    }
    session.executor().run(block, [](const Sequence& sequence) {
      if (sequence.finish == Finish::failed)
        throw DataError("a row of logits has no finite number; the weights or --dtype do not fit the model");
    });
  }
  return session.executor().totals() - before;
}

double per_second(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }

std::int64_t blocks_of(const Session& session, std::int64_t requests) {
  return (requests + session.policy().block_size() - 1) / session.policy().block_size();
}

/// The average work of a generated token over a whole generation, from sweeps at three contexts by Simpson's rule over
/// the growing context.
Work project_decode(Session& session, const BenchOptions& options, std::int64_t requests, ordered_json& points) {
  const std::int64_t sweeps = options.project_sweeps, last = options.prompt + options.generation - 1 - sweeps;
  const LayerKeeps keep = session.keep(options.prompt, options.generation);
  std::array<Work, 3> work;
  for (std::size_t point = 0; point < work.size(); ++point) {
    const std::int64_t context = options.prompt + (last - options.prompt) * static_cast<std::int64_t>(point) / 2;
    session.layers().set_synthetic_prefill(true);
    const Totals timing = run_once(session, options, requests, context, sweeps + 1);
    session.layers().set_synthetic_prefill(false);
    work[point] = decode_work(session, timing, keep, context, sweeps, blocks_of(session, requests));
    points.push_back({{"context", context}, {"sweeps", sweeps}, {"tokens_per_second", 1 / work[point].seconds}});
  }
  return 1.0 / 6 * (work[0] + 4 * work[1] + work[2]);
}

void check(const BenchOptions& options, const policy::ModelSpec& spec) {
  check_lengths(options.prompt, options.generation, spec, options.policy.retention.value_or(policy::Retention{}));
  if (options.requests < 0) throw UsageError("--requests must be 0 or more, got " + std::to_string(options.requests));
  if (options.repetitions < 1) throw UsageError("--repetitions must be at least 1");
  if (options.project_sweeps < 0 || (options.project_sweeps > 0 && 3 * options.project_sweeps >= options.generation))
    throw UsageError("--project: three times the sweeps must be fewer than --gen-len");
}

policy::Workload workload(const BenchOptions& options, const policy::Retention& retention,
                          const std::vector<int>& windows) {
  const policy::PartialPolicy& chosen = options.policy;
  std::int64_t requests = options.requests;
  if (requests == 0 && chosen.gpu_batch_size && chosen.num_gpu_batches)
    requests = std::int64_t{*chosen.gpu_batch_size} * *chosen.num_gpu_batches;
  policy::Workload work = policy::alike(requests > 0 ? std::optional(requests) : std::nullopt, options.prompt,
                                        options.generation, retention, windows);
  if (options.skip_prefill) work.longest_prompt = 1;
  return work;
}

void warm_up(Session& session, const BenchOptions& options, std::int64_t requests) {
  session.layers().set_synthetic_prefill(true);
  run_once(session, options, std::min<std::int64_t>(requests, session.policy().block_size()),
           std::min<std::int64_t>(options.prompt, 16), std::min<std::int64_t>(options.generation, 2));
  session.layers().set_synthetic_prefill(false);
}

/// Tokens per second, one number per repetition. `points` are the contexts from which decode was projected. The work is
/// that of one token, summed over the repetitions.
struct Rates {
  std::vector<double> total, prefill, decode;
  ordered_json points = ordered_json::array();
  Work prefill_work, decode_work;
};

void measure_once(Session& session, const BenchOptions& options, std::int64_t requests, Rates& rates) {
  const bool project = options.project_sweeps > 0;
  const std::int64_t sweeps = options.generation - 1, blocks = blocks_of(session, requests);
  Totals timing;
  if (!options.skip_prefill || !project) {
    session.layers().set_synthetic_prefill(options.skip_prefill);
    timing = run_once(session, options, requests, options.prompt, project ? 1 : options.generation);
    session.layers().set_synthetic_prefill(false);
  }
  Work decode;
  if (project) decode = project_decode(session, options, requests, rates.points);
  else if (sweeps > 0)
    decode =
        decode_work(session, timing, session.keep(options.prompt, options.generation), options.prompt, sweeps, blocks);
  rates.decode_work = rates.decode_work + decode;
  rates.decode.push_back(per_second(1, decode.seconds));
  if (options.skip_prefill) return;
  const Work prefill = prefill_work(session, timing, options.prompt, blocks);
  rates.prefill_work = rates.prefill_work + prefill;
  rates.prefill.push_back(per_second(1, prefill.seconds));
  const double seconds = double(options.prompt) * prefill.seconds + double(sweeps) * decode.seconds;
  rates.total.push_back(per_second(double(options.generation), seconds));
}

/// The bounds of each phase and of the whole run, next to the mean of the repetitions.
ordered_json bound_of(const BenchOptions& options, const Ceilings& ceilings, const Rates& rates) {
  const double each = 1.0 / options.repetitions;
  const Work prefill = each * rates.prefill_work, decode = each * rates.decode_work;
  ordered_json bound{{"ceilings", options.ceilings}};
  double measured = 0, least = 0;  // seconds of one sequence
  const auto add = [&](const char* phase, const Work& work, std::int64_t tokens) {
    bound[phase] = bound_report(work, ceilings);
    measured += double(tokens) * work.seconds;
    least += double(tokens) / bound.at(phase).at("tokens_per_second").get<double>();
  };
  if (!options.skip_prefill) add("prefill", prefill, options.prompt);
  if (options.generation > 1) add("decode", decode, options.generation - 1);
  if (!options.skip_prefill)
    bound["total"] = {{"tokens_per_second", double(options.generation) / least}, {"achieved", least / measured}};
  return bound;
}

/// Traces the runs from now on: to a file, and summed up for the report.
class Tracing {
 public:
  Tracing(Session& session, const std::string& file) : file_(file, session.footprint().shape, session.source().units) {
    session.executor().set_trace([this](const policy::Schedule& schedule, const policy::Trace& trace) {
      file_.add(schedule, trace);
      (schedule.ops.front().prefill ? prefill_ : decode_).add(schedule, trace);
    });
  }
  ordered_json report() const { return {{"prefill", prefill_.report()}, {"decode", decode_.report()}}; }

 private:
  TraceFile file_;
  LaneGaps prefill_, decode_;
};

ordered_json spread(std::vector<double> values) {
  if (values.empty()) return nullptr;
  std::sort(values.begin(), values.end());
  return {{"median", values[values.size() / 2]}, {"min", values.front()}, {"max", values.back()}};
}

}  // namespace

void run_bench(const BenchOptions& options, const std::atomic<bool>& stop, const OnReport& on_report) {
  const auto source = open_model(options.model, options.dtype, options.weights, options.policy.weight_format);
  source->packing = packing_lines();
  source->warn = warning_lines();
  source->quantises_slowly = quantising_line(*source);
  check(options, source->spec);
  constexpr std::size_t largest_report = 1 << 20;
  nlohmann::json measured;
  if (!options.ceilings.empty())
    measured = policy::parse_json(read_file(options.ceilings, largest_report), options.ceilings, policy::Blame::usage);
  std::optional<PlanRequest> request;
  std::optional<policy::Machine> machine;
  if (!options.machine_file.empty()) machine = read_machine(options.machine_file);
  const auto decide = [&](kernels::Backend& backend, const policy::Budgets& free) -> Decision {
    policy::PartialPolicy policy = options.policy;
    policy.continuous = false;  // sequences that are all alike end together
    if (machine) {
      require_same_kind(*machine, options.machine_file, backend);
      request.emplace(PlanRequest{
          .source = *source,
          .machine = *machine,
          .policy = policy,
          .free = free,
          .work = [&](const policy::Retention& kept) { return workload(options, kept, source->spec.windows); },
          .retentions = {}});
      if (policy.leaves_open()) policy = policy::PartialPolicy::of(make_plan(*request).best().policy);
    }
    return {policy, workload(options, policy.retention.value_or(policy::Retention{}), source->spec.windows)};
  };
  Session session(*source, decide, options.machine, stop);
  if (const std::string warning = session.backend().warning(); !warning.empty()) log_warn("{}", warning);
  std::optional<Ceilings> ceilings;
  if (!options.ceilings.empty())
    ceilings = ceilings_from_report(measured, !session.backend().device_is_host_memory(), options.ceilings);
  const std::int64_t requests = options.requests > 0 ? options.requests : session.policy().block_size();
  if (options.warm_up) warm_up(session, options, requests);
  std::optional<Tracing> tracing;
  if (!options.trace.empty()) tracing.emplace(session, options.trace);
  const Totals before = session.executor().totals();
  Rates rates;
  for (int i = 0; i < options.repetitions; ++i) measure_once(session, options, requests, rates);
  ordered_json report = make_report(session, before);
  report["measured"] = options.project_sweeps == 0;
  report["workload"] = {{"prompt_len", options.prompt},
                        {"gen_len", options.generation},
                        {"requests", requests},
                        {"repetitions", options.repetitions},
                        {"prefill", options.skip_prefill ? "skipped: random keys and values" : "computed"}};
  report["tokens_per_second"] = {
      {"total", spread(rates.total)}, {"prefill", spread(rates.prefill)}, {"decode", spread(rates.decode)}};
  if (options.project_sweeps > 0) report["projected_from"] = rates.points;
  if (request) report["predicted"] = prediction_report(predict_policy(*request, session.policy()));
  if (tracing) report["gaps"] = tracing->report();
  if (ceilings) report["bound"] = bound_of(options, *ceilings, rates);
  on_report(report);
}

}  // namespace weft::runtime
