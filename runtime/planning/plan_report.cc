#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "policy/json.h"
#include "runtime/engine/policy_text.h"
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

/// Why a policy is slower than the best one: what takes longer.
std::string why_slower(const Candidate& best, const Candidate& other) {
  const policy::Phase& phase = other.prediction.longer();
  const bool prefill = &phase == &other.prediction.prefill;
  const policy::Phase& same = prefill ? best.prediction.prefill : best.prediction.decode;
  const auto each = [&](const Candidate& candidate, double seconds) {
    return 1e3 * seconds / (candidate.policy.block_size());
  };
  const offload::Lane lane = phase.longest();
  return fmt::format("{} {} {:.1f} ms a sequence, {} there {:.1f}", prefill ? "prefill:" : "decode:", name_of(lane),
                     each(other, phase.busy[static_cast<std::size_t>(lane)]), name_of(same.longest()),
                     each(best, same.busy[static_cast<std::size_t>(same.longest())]));
}

std::string runners_up(const policy::Plan& plan) {
  std::string text = fmt::format("{:<10} {:>9} {:>9} {:>11} {:>11} {:<12} {}\n", "tokens/s", "block", "", "weights",
                                 "kv", "attention", "retention; why it is not the best");
  for (std::size_t i = 0; i < std::min(plan.candidates.size(), kRunnersUp + 1); ++i) {
    const Candidate& candidate = plan.candidates[i];
    const policy::Policy& policy = candidate.policy;
    text += fmt::format(
        "{:<10.2f} {:>9} {:>9} {:>11} {:>11} {:<12} {}; {}\n", candidate.prediction.tokens_per_second(),
        policy.block_size(), fmt::format("{} x {}", policy.gpu_batch_size, policy.num_gpu_batches),
        percentages(policy.weights), percentages(policy.kv),
        policy.attention_on_host == 0 ? "device" : fmt::format("{:.0f} % host", 100 * policy.attention_on_host),
        name_of(policy.retention.rule), i == 0 ? "the best" : why_slower(plan.best(), candidate));
  }
  return text;
}

}  // namespace

std::string plan_table(const PlanRequest& request, const Planned& planned, bool explain) {
  const Candidate& best = planned.best();
  const Prediction& prediction = best.prediction;
  std::string text =
      fmt::format("machine: {} ({})\n", request.machine.name,
                  request.machine.measured ? "measured" : "from datasheets, not measured; its file says how");
  text += fmt::format("policy: {}\n", policy_line(best.policy));
  text += fmt::format(
      "predicted: {:.2f} tokens/s; prefill {:.2f} s ({:.1f} prompt tokens/s), decode {:.2f} s ({:.1f} tokens/s), of a "
      "block of {}\n",
      prediction.tokens_per_second(), prediction.prefill.seconds, prediction.prefill_per_second(),
      prediction.decode.seconds, prediction.decode_per_second(), best.policy.block_size());
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
  for (const Gain& gain : what_would_help(request, planned))
    text += fmt::format("  {}: {:.1f}x\n", gain.what, gain.factor);
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
  for (const offload::Lane lane : offload::kLanes)
    policy::object_at(report, "utilisation")[name_of(lane)] = {{"prefill", share(prediction.prefill, lane)},
                                                               {"decode", share(prediction.decode, lane)}};
  report["bottleneck"] = name_of(prediction.longer().longest());
  return report;
}

ordered_json plan_report(const PlanRequest& request, const Planned& planned) {
  ordered_json report{{"model", request.source.path},
                      {"machine", {{"name", request.machine.name}, {"measured", request.machine.measured}}}};
  report["policy"] = planned.best().policy.to_json();
  report["predicted"] = prediction_report(planned.best());
  report["gains"] = ordered_json::array();
  for (const Gain& gain : what_would_help(request, planned))
    report["gains"].push_back({{"what", gain.what}, {"factor", gain.factor}});
  for (std::size_t i = 1; i < planned.plan.candidates.size(); ++i) {
    const Candidate& other = planned.plan.candidates[i];
    report["runners_up"].push_back({{"policy", other.policy.to_json()}, {"predicted", prediction_report(other)}});
  }
  return report;
}

}  // namespace weft::runtime
