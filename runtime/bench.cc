#include "runtime/bench.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "kernels/error.h"
#include "runtime/report.h"

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
    session.executor().run(block, [](Sequence&) {});
  }
  return session.executor().totals() - before;
}

double rate(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }

/// Decode tokens per second of a whole generation, from sweeps at three contexts: Simpson's rule over the growing
/// context.
double project_decode(Session& session, const BenchOptions& options, std::int64_t requests, ordered_json& points) {
  const std::int64_t sweeps = options.project_sweeps, last = options.prompt + options.generation - 1 - sweeps;
  std::array<double, 3> seconds{};
  for (std::size_t point = 0; point < seconds.size(); ++point) {
    const std::int64_t context = options.prompt + (last - options.prompt) * static_cast<std::int64_t>(point) / 2;
    session.layers().set_synthetic_prefill(true);
    const Totals timing = run_once(session, options, requests, context, sweeps + 1);
    session.layers().set_synthetic_prefill(false);
    seconds[point] = timing.decode_seconds / double(timing.decode_tokens);
    points.push_back({{"context", context}, {"sweeps", sweeps}, {"tokens_per_second", 1 / seconds[point]}});
  }
  return 6 / (seconds[0] + 4 * seconds[1] + seconds[2]);
}

void check(const BenchOptions& options, const policy::ModelSpec& spec) {
  if (options.prompt < 1 || options.generation < 1) throw UsageError("--prompt-len and --gen-len must be at least 1");
  if (options.prompt + options.generation > spec.positions)
    throw UsageError("--prompt-len " + std::to_string(options.prompt) + " and --gen-len " +
                     std::to_string(options.generation) + " go beyond the model's context of " +
                     std::to_string(spec.positions));
  if (options.repetitions < 1) throw UsageError("--repetitions must be at least 1");
  if (options.project_sweeps < 0 || (options.project_sweeps > 0 && 3 * options.project_sweeps >= options.generation))
    throw UsageError("--project: three times the sweeps must be fewer than --gen-len");
}

policy::Workload workload(const BenchOptions& options) {
  const policy::PartialPolicy& chosen = options.policy;
  const policy::Retention retention = chosen.retention.value_or(policy::Retention{});
  std::int64_t requests = options.requests;
  if (requests == 0 && chosen.gpu_batch_size && chosen.num_gpu_batches)
    requests = std::int64_t{*chosen.gpu_batch_size} * *chosen.num_gpu_batches;
  return {.requests = requests > 0 ? requests : INT32_MAX,
          .longest_prompt = options.skip_prefill ? 1 : options.prompt,
          .slots = retention.slots(options.prompt, options.generation),
          .longest_generation = options.generation};
}

void warm_up(Session& session, const BenchOptions& options, std::int64_t requests) {
  session.layers().set_synthetic_prefill(true);
  run_once(session, options, std::min<std::int64_t>(requests, session.policy().block_size()),
           std::min<std::int64_t>(options.prompt, 16), std::min<std::int64_t>(options.generation, 2));
  session.layers().set_synthetic_prefill(false);
}

/// Tokens per second, a number per repetition; `points` are the contexts that a projection came from.
struct Rates {
  std::vector<double> total, prefill, decode;
  ordered_json points = ordered_json::array();
};

void measure_once(Session& session, const BenchOptions& options, std::int64_t requests, Rates& rates) {
  const bool project = options.project_sweeps > 0;
  Totals timing;
  if (!options.skip_prefill || !project) {
    session.layers().set_synthetic_prefill(options.skip_prefill);
    timing = run_once(session, options, requests, options.prompt, project ? 1 : options.generation);
    session.layers().set_synthetic_prefill(false);
  }
  rates.decode.push_back(project ? project_decode(session, options, requests, rates.points)
                                 : rate(double(timing.decode_tokens), timing.decode_seconds));
  if (options.skip_prefill) return;
  rates.prefill.push_back(rate(double(timing.prompt_tokens), timing.prefill_seconds));
  const double decoded = double(requests) * double(options.generation - 1);
  rates.total.push_back(
      rate(double(requests * options.generation), timing.prefill_seconds + rate(decoded, rates.decode.back())));
}

ordered_json spread(std::vector<double> values) {
  if (values.empty()) return nullptr;
  std::sort(values.begin(), values.end());
  return {{"median", values[values.size() / 2]}, {"min", values.front()}, {"max", values.back()}};
}

}  // namespace

ordered_json run_bench(const BenchOptions& options, const std::atomic<bool>& stop) {
  const auto source = open_model(options.model, options.dtype, options.weights);
  check(options, source->spec);
  Session session(*source, options.policy, workload(options), options.machine, stop);
  const std::int64_t requests = options.requests > 0 ? options.requests : session.policy().block_size();
  if (options.warm_up) warm_up(session, options, requests);
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
  return report;
}

}  // namespace weft::runtime
