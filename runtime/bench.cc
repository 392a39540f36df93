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
Totals run_once(Session& session, const BenchOptions& options, std::int64_t requests, std::int64_t prompt, std::int64_t tokens) {
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

/// Decode tokens per second of a whole generation, from sweeps at three contexts: Simpson's rule over the growing context.
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
    throw UsageError("--prompt-len " + std::to_string(options.prompt) + " and --gen-len " + std::to_string(options.generation) +
                     " go beyond the model's context of " + std::to_string(spec.positions));
  if (options.repetitions < 1) throw UsageError("--repetitions must be at least 1");
  if (options.project_sweeps < 0 || (options.project_sweeps > 0 && 3 * options.project_sweeps >= options.generation))
    throw UsageError("--project: three times the sweeps must be fewer than --gen-len");
}

}  // namespace

ordered_json run_bench(const BenchOptions& options, const std::atomic<bool>& stop) {
  const auto source = open_model(options.model, options.dtype, options.weights);
  check(options, source->spec);
  const policy::Retention retention = options.policy.retention.value_or(policy::Retention{});
  const bool fixed = options.policy.gpu_batch_size && options.policy.num_gpu_batches;
  const std::int64_t wanted = options.requests > 0 ? options.requests : fixed ? std::int64_t{*options.policy.gpu_batch_size} * *options.policy.num_gpu_batches : INT32_MAX;
  const policy::Workload work{.requests = wanted, .longest_prompt = options.skip_prefill ? 1 : options.prompt,
                              .slots = retention.slots(options.prompt, options.generation), .longest_generation = options.generation};
  Session session(*source, options.policy, work, options.machine, stop);
  const std::int64_t requests = options.requests > 0 ? options.requests : session.policy().block_size();
  if (options.warm_up) {
    session.layers().set_synthetic_prefill(true);
    run_once(session, options, std::min<std::int64_t>(requests, session.policy().block_size()), std::min<std::int64_t>(options.prompt, 16), std::min<std::int64_t>(options.generation, 2));
    session.layers().set_synthetic_prefill(false);
  }
  const Totals before = session.executor().totals();
  std::vector<double> prefill, decode, total;
  ordered_json points = ordered_json::array();
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    const bool project = options.project_sweeps > 0;
    double prefill_seconds = 0;
    if (!options.skip_prefill || !project) {
      session.layers().set_synthetic_prefill(options.skip_prefill);
      const Totals timing = run_once(session, options, requests, options.prompt, project ? 1 : options.generation);
      session.layers().set_synthetic_prefill(false);
      prefill_seconds = timing.prefill_seconds;
      if (!options.skip_prefill) prefill.push_back(rate(double(timing.prompt_tokens), timing.prefill_seconds));
      if (!project) decode.push_back(rate(double(timing.decode_tokens), timing.decode_seconds));
    }
    if (project) decode.push_back(project_decode(session, options, requests, points));
    const double decoded = double(requests) * double(options.generation - 1);
    if (!options.skip_prefill)
      total.push_back(rate(double(requests * options.generation), prefill_seconds + rate(decoded, decode.back())));
  }
  ordered_json report = make_report(session, before);
  const auto spread = [](std::vector<double> values) -> ordered_json {
    if (values.empty()) return nullptr;
    std::sort(values.begin(), values.end());
    return {{"median", values[values.size() / 2]}, {"min", values.front()}, {"max", values.back()}};
  };
  report["measured"] = options.project_sweeps == 0;
  report["workload"] = {{"prompt_len", options.prompt}, {"gen_len", options.generation}, {"requests", requests},
                        {"repetitions", options.repetitions}, {"prefill", options.skip_prefill ? "skipped: random keys and values" : "computed"}};
  report["tokens_per_second"] = {{"total", spread(total)}, {"prefill", spread(prefill)}, {"decode", spread(decode)}};
  if (options.project_sweeps > 0) report["projected_from"] = points;
  return report;
}

}  // namespace weft::runtime
