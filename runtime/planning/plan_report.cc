#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "policy/base/json.h"
#include "policy/layout/policy_text.h"
#include "runtime/base/duration.h"
#include "runtime/planning/plan.h"

namespace weft::runtime {
namespace {

using nlohmann::ordered_json;
using policy::bytes_to_text;
using policy::Candidate;
using policy::Prediction;

constexpr std::size_t kRunnersUp = 6;

double share(const policy::Phase& phase, offload::Lane lane) {
  return phase.seconds > 0 ? phase.busy[static_cast<std::size_t>(lane)] / phase.seconds : 0;
}

/// "host_to_device 96 % busy in decode, which is 94 % of the time"
std::string bottleneck(const Prediction& prediction) {
  const policy::Phase& phase = prediction.longer();
  const bool prefill = &phase == &prediction.prefill;
  const offload::Lane lane = phase.longest();
  return fmt::format("{} {:.0f} % busy in {}, which is {:.0f} % of the time", name_of(lane), 100 * share(phase, lane),
                     prefill ? "prefill" : "decode",
                     100 * phase.seconds / (prediction.prefill.seconds + prediction.decode.seconds));
}

double prefill_each(const Prediction& prediction) { return prediction.prefill_seconds / prediction.requests; }
double decode_each(const Prediction& prediction) {
  return (prediction.seconds - prediction.prefill_seconds) / prediction.requests;
}

/// Why a policy is slower than the best one, in seconds per sequence: the time of all sequences over their number.
std::string why_not(const Candidate& best, const Candidate& other) {
  const Prediction &own = best.prediction, &its = other.prediction;
  const double all = its.seconds / its.requests, wanted = own.seconds / own.requests;
  const auto block = fmt::format("a block of {} in place of {}", other.policy.block_size(), best.policy.block_size());
  if (std::abs(all / wanted - 1) <= policy::kNearlyAsFast && other.policy.block_size() > best.policy.block_size())
    return fmt::format("{:.1f} % {}, for {}", 100 * std::abs(wanted / all - 1), all < wanted ? "faster" : "slower",
                       block);
  const bool prefill = prefill_each(its) - prefill_each(own) > decode_each(its) - decode_each(own);
  const policy::Phase& phase = prefill ? its.prefill : its.decode;
  return fmt::format("{:.1f} ms a sequence, there {:.1f}: {} takes {:.1f}, there {:.1f}; {} {:.0f} % busy", 1e3 * all,
                     1e3 * wanted, prefill ? "prefill" : "decode",
                     1e3 * (prefill ? prefill_each(its) : decode_each(its)),
                     1e3 * (prefill ? prefill_each(own) : decode_each(own)), name_of(phase.longest()),
                     100 * share(phase, phase.longest()));
}

/// The most that saving all sequences in flight takes (--checkpoint-every), which is when every cache is full.
struct Saving {
  std::uint64_t bytes = 0;
  double seconds = 0;
};

Saving saving(const PlanRequest& request, const Planned& planned) {
  const policy::Policy& policy = planned.best().policy;
  const policy::Footprint print =
      policy::footprint(request.source.spec, request.source.units, policy, planned.work, planned.sizing);
  std::uint64_t each = 0;  // bytes of one sequence
  for (int layer = 0; layer < request.source.spec.layers; ++layer)
    for (const offload::KvShape& run : print.kv_runs(layer)) {
      offload::KvShape shape = run.with_rows();  // as records have them
      shape.sequences = 1;
      each += shape.offsets().end;
    }
  const std::uint64_t bytes = static_cast<std::uint64_t>(planned.work.at_most(policy.block_size())) * each;
  const double rate = request.machine.bytes_per_second[static_cast<std::size_t>(offload::Lane::disk_write)];
  return {bytes, rate > 0 ? double(bytes) / rate : 0};
}

/// "full", "h2o, kv int8 keys and int4 values, weights int4"
std::string kept_as(const policy::Policy& policy) {
  std::string text = retention_name(policy.retention);
  if (policy.kv_format.dtype) text += std::string(", kv ") + name_of(*policy.kv_format.dtype);
  if (policy.weight_format) text += std::string(", weights ") + name_of(policy.weight_format->dtype);
  if (policy.experts_on_host > 0) text += ", experts on " + policy::host_share_to_text(policy.experts_on_host);
  return text;
}

std::string runners_up(const policy::Plan& plan) {
  std::string text = fmt::format("{:<10} {:>9} {:>9} {:>11} {:>11} {:<12} {}\n", "tokens/s", "block", "", "weights",
                                 "kv", "attention", "retention and formats; why it is not the best");
  for (std::size_t i = 0; i < std::min(plan.candidates.size(), kRunnersUp + 1); ++i) {
    const Candidate& candidate = plan.candidates[i];
    const policy::Policy& policy = candidate.policy;
    text += fmt::format(
        "{:<10.2f} {:>9} {:>9} {:>11} {:>11} {:<12} {}; {}\n", candidate.prediction.tokens_per_second(),
        policy.block_size(), fmt::format("{} x {}", policy.gpu_batch_size, policy.num_gpu_batches),
        percentages(policy.weights), percentages(policy.kv),
        policy.attention_on_host == 0 ? "device" : fmt::format("{:.0f} % host", 100 * policy.attention_on_host),
        kept_as(policy), i == 0 ? "the best" : why_not(plan.best(), candidate));
  }
  return text;
}

/// Seconds for people: "8.42 s", "12:03".
std::string seconds_text(double seconds) {
  return seconds < 120 ? fmt::format("{:.2f} s", seconds) : duration_text(seconds);
}

/// What the figures refer to: the whole job if its requests are known, else one full block.
std::string duration(const Planned& planned) {
  const Prediction& prediction = planned.best().prediction;
  const int block = planned.best().policy.block_size();
  const double decode = prediction.seconds - prediction.prefill_seconds;
  const bool job = planned.work.requests.has_value(),
             refilled = job && prediction.requests > block && planned.best().policy.continuous;
  return fmt::format("{}: {}; prefill {}{} ({:.1f} prompt tokens/s), {} {} ({:.1f} tokens/s)",
                     job ? fmt::format("the whole job, {:.0f} sequences in blocks of {}", prediction.requests, block)
                         : fmt::format("one full block of {} sequences", block),
                     seconds_text(prediction.seconds), refilled ? "of the first block " : "",
                     seconds_text(prediction.prefill_seconds), prediction.prefill_per_second(),
                     refilled ? "then, with the other prompts," : "decode", seconds_text(decode),
                     prediction.decode_per_second());
}

}  // namespace

std::string plan_table(const PlanRequest& request, const Planned& planned, const std::vector<Gain>& gains,
                       bool explain) {
  const Candidate& best = planned.best();
  const Prediction& prediction = best.prediction;
  std::string text =
      fmt::format("machine: {} ({})\n", request.machine.name,
                  request.machine.measured ? "measured" : "from datasheets, not measured; its file says how");
  text += fmt::format("policy: {}\n", policy_line(best.policy));
  text += fmt::format("predicted: {:.2f} tokens/s\n{}\n", prediction.tokens_per_second(), duration(planned));
  text += fmt::format("{:<8} {:>12} {:>12} {:>7}\n", "tier", "peak", "budget", "used");
  for (const offload::Tier tier : offload::kTiers) {
    const std::uint64_t peak = prediction.bytes[static_cast<std::size_t>(tier)], budget = best.policy.budgets[tier];
    text += fmt::format("{:<8} {:>12} {:>12} {:>6.0f}%\n", name_of(tier), bytes_to_text(peak), bytes_to_text(budget),
                        budget > 0 ? 100.0 * double(peak) / double(budget) : 0);
  }
  text += fmt::format("{:<16} {:>8} {:>8}\n", "lane", "prefill", "decode");
  for (const offload::Lane lane : offload::kLanes)
    text += fmt::format("{:<16} {:>7.0f}% {:>7.0f}%\n", name_of(lane), 100 * share(prediction.prefill, lane),
                        100 * share(prediction.decode, lane));
  text += "bottleneck: " + bottleneck(prediction) + "\n";
  const Saving saved = saving(request, planned);
  text += fmt::format("saving what is in flight (--checkpoint-every): at most {} on disk, {:.1f} s\n",
                      bytes_to_text(saved.bytes), saved.seconds);
  for (const Gain& gain : gains) text += fmt::format("  {}: {:.1f}x\n", gain.what, gain.factor);
  if (explain) text += "\n" + runners_up(planned.plan);
  return text;
}

ordered_json prediction_report(const Candidate& candidate) {
  const Prediction& prediction = candidate.prediction;
  ordered_json report = ordered_json::object();
  report["tokens_per_second"] = {{"total", prediction.tokens_per_second()},
                                 {"prefill", prediction.prefill_per_second()},
                                 {"decode", prediction.decode_per_second()}};
  report["seconds"] = {{"prefill", prediction.prefill_seconds},
                       {"decode", prediction.seconds - prediction.prefill_seconds}};
  for (const offload::Tier tier : offload::kTiers)
    policy::object_at(report, "peak_bytes")[name_of(tier)] = prediction.bytes[static_cast<std::size_t>(tier)];
  for (const offload::Lane lane : offload::kLanes) {
    policy::object_at(report, "utilisation")[name_of(lane)] = {{"prefill", share(prediction.prefill, lane)},
                                                               {"decode", share(prediction.decode, lane)}};
    const auto moved = [&](const policy::Phase& phase) {
      return std::llround(phase.bytes[static_cast<std::size_t>(lane)]);
    };
    policy::object_at(report, "bytes")[name_of(lane)] = {{"prefill", moved(prediction.prefill)},
                                                         {"decode", moved(prediction.decode)}};
  }
  report["bottleneck"] = name_of(prediction.longer().longest());
  return report;
}

ordered_json plan_report(const PlanRequest& request, const Planned& planned, const std::vector<Gain>& gains) {
  ordered_json report{{"model", shown_name(request.source.path)},
                      {"machine", {{"name", request.machine.name}, {"measured", request.machine.measured}}}};
  report["policy"] = planned.best().policy.to_json();
  report["predicted"] = prediction_report(planned.best());
  const Saving saved = saving(request, planned);
  report["checkpoint"] = {{"bytes", saved.bytes}, {"seconds", saved.seconds}};
  report["gains"] = ordered_json::array();
  for (const Gain& gain : gains) report.at("gains").push_back({{"what", gain.what}, {"factor", gain.factor}});
  for (std::size_t i = 1; i < planned.plan.candidates.size(); ++i) {
    const Candidate& other = planned.plan.candidates[i];
    policy::array_at(report, "runners_up")
        .push_back({{"policy", other.policy.to_json()}, {"predicted", prediction_report(other)}});
  }
  return report;
}

}  // namespace weft::runtime
