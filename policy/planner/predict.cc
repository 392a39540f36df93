#include "policy/planner/predict.h"

#include <algorithm>
#include <cmath>

#include "policy/planner/timeline.h"

namespace weft::policy {
namespace {

constexpr int kSweeps = 3;  // simulated together; the first one starts with empty lanes

Phase operator*(double factor, Phase phase) {
  phase.seconds *= factor;
  for (double& busy : phase.busy) busy *= factor;
  for (double& bytes : phase.bytes) bytes *= factor;
  return phase;
}
Phase operator+(Phase a, const Phase& b) {
  a.seconds += b.seconds;
  for (std::size_t lane = 0; lane < a.busy.size(); ++lane) a.busy[lane] += b.busy[lane], a.bytes[lane] += b.bytes[lane];
  return a;
}

class Predictor {
 public:
  Predictor(const Problem& problem, const Policy& policy, const Footprint& print)
      : problem_(problem), policy_(policy), footprint_(print),
        cost_(problem.model, problem.units, policy, print, problem.sizing, problem.machine),
        begins_(first_sweep(problem.work, policy.gpu_batch_size, policy.num_gpu_batches)),
        first_alike_(print.first_alike()) {
    first_ = schedule(0, 1);
    sweeps_ = int(std::min<std::int64_t>(problem.work.longest_generation - 1, kSweeps));
    if (sweeps_ > 0) decode_ = schedule(1, sweeps_);
  }

  /// The share of sequences whose prompt is computed.
  double own() const { return begins_.own; }
  /// The first sweep, and those in which further prompts of the block begin, where they are too many for one.
  Phase prefill(std::int64_t live) const { return first_sweeps(live) * phase(first_, first_sweep_of(live)); }

  /// All sweeps after the first token. Sequences end at different lengths, so on average only a part of a block is
  /// alive.
  Phase decode(std::int64_t live) const {
    const Workload& work = problem_.work;
    const auto longest = double(work.longest_generation), count = longest - 1;
    if (count < 1) return {};
    const auto alive = static_cast<std::int64_t>(std::ceil(double(live) * std::min(1.0, work.generation() / longest)));
    const auto most = double(work.most_slots());
    const auto at = [&](double sweep) { return sweeps(alive, std::min(most, work.prompt() + sweep)); };
    if (work.prompt() + 1 >= most) return count * at(1);
    return count / 6 * (at(1) + 4 * at((1 + count) / 2) + at(count));
  }

  /// The first sweep of a full block, and some decode sweeps halfway through the answers.
  std::vector<SimulatedSweeps> sweeps_in_time() const {
    const Workload& work = problem_.work;
    const std::int64_t block = policy_.block_size();
    std::vector<SimulatedSweeps> all;
    const auto add = [&](const Schedule& made, const Sweep& sweep) {
      all.push_back({made, in_time(made, sweep, nullptr)});
      for (const Op& op : made.ops)
        all.back().trace.bytes.push_back(
            op.kind == Op::Kind::compute ? 0 : static_cast<std::uint64_t>(cost_.bytes(op, sweep)));
    };
    add(first_, first_sweep_of(block));
    const double visible = std::min(double(work.most_slots()), work.prompt() + work.generation() / 2);
    if (sweeps_ > 0) add(decode_, {.live = block, .visible = visible});
    return all;
  }

  /// For more requests than places, which are refilled.
  Prediction refilled(std::int64_t requests) const {
    const Workload& work = problem_.work;
    const std::int64_t block = policy_.block_size();
    const Timeline line = timeline(work, policy_.gpu_batch_size, policy_.num_gpu_batches,
                                   footprint_.workspace.admitted_tokens, holds_prefixes(problem_.model, policy_));
    const double visible = std::min(double(work.most_slots()), work.prompt() + work.generation() / 2);
    Prediction result{.prefill = prefill(block), .decode = {}, .requests = double(requests), .bytes = footprint_.bytes};
    Phase sweep;
    const auto rows = [](double live) { return std::max<std::int64_t>(1, std::llround(live)); };
    if (line.full > 0) result.decode = line.full * (sweep = sweeps(rows(line.full_live), visible));
    if (line.rest > 0) {
      const Phase other = sweeps(rows(line.rest_live), visible);
      result.decode = result.decode + line.rest * other;
      if (line.full == 0) sweep = other;
    }
    // Experts that only joining prompts choose are loaded for them.
    if (line.joins > 0 && problem_.model.experts.count > 0) {
      const std::int64_t live = rows(line.full > 0 ? line.full_live : line.rest_live);
      const Phase joined = sweeps(live, visible, line.joining_tokens / line.joins);
      result.decode = result.decode + line.joins * (joined + -1 * sweep);
      sweep = joined;
    }
    // A prefill that joins a sweep adds only its computation: other weights are loaded anyway, and while they are the
    // device has time for it.
    constexpr auto compute = static_cast<std::size_t>(offload::Lane::device_compute);
    const double joining = line.joining_tokens / std::max(1.0, begins_.tokens()) * result.prefill.busy[compute];
    result.decode.busy[compute] += joining;
    result.decode.seconds += std::max(0.0, joining - line.joins * (sweep.seconds - sweep.busy[compute]));
    result.prefill_seconds = result.prefill.seconds;
    result.seconds = result.prefill.seconds + result.decode.seconds;
    result.prompt_tokens = begins_.tokens();
    result.tokens = double(requests) * work.generation();
    return result;
  }

 private:
  /// The number of sweeps in which a block's prompts begin.
  double first_sweeps(std::int64_t live) const {
    const double prompts = double(std::min<std::int64_t>(live, policy_.gpu_batch_size)) * begins_.own;
    const double full = prompts * begins_.prompt / double(footprint_.workspace.first_tokens);
    return std::max(1.0, std::ceil(std::min(full, prompts)));
  }
  Sweep first_sweep_of(std::int64_t live) const {
    return {.prefill = true, .live = live, .tokens = begins_.prompt, .own = begins_.own / first_sweeps(live)};
  }
  Schedule schedule(int first, int steps) const {
    Schedule made = zigzag(footprint_.shape, first, steps);
    return policy_.overlap ? made : serialize(std::move(made));
  }
  /// Adds what the lanes move to `moved`, unless that is null.
  Trace in_time(const Schedule& schedule, const Sweep& sweep, Phase* moved) const {
    // The seconds of the first sublayer of each kind serve for all, once per part and number of rows.
    struct Known {
      std::int64_t rows = -1;
      double seconds = 0;
    };
    constexpr auto parts = static_cast<std::size_t>(Op::Part::unpack) + 1;
    std::vector<Known> known(parts * footprint_.shape.sublayers.size());
    const auto seconds = [&](const Op& op, bool routed) {
      if (op.kind != Op::Kind::compute) {
        const double moving = cost_.seconds(op, sweep, routed);
        if (moved && moving > 0) moved->bytes[static_cast<std::size_t>(op.lane)] += cost_.bytes(op, sweep, routed);
        return moving;
      }
      Known& same = known[parts * first_alike_[op.subject] + static_cast<std::size_t>(op.part)];
      const std::int64_t rows = sweep.rows(op.batch, policy_.gpu_batch_size);
      if (same.rows != rows) same = {rows, cost_.seconds(op, sweep)};
      return same.seconds;
    };
    return simulate(schedule, seconds, problem_.machine.together);
  }
  Phase phase(const Schedule& schedule, const Sweep& sweep) const {
    Phase result;
    const Trace trace = in_time(schedule, sweep, &result);
    result.seconds = trace.seconds();
    result.busy = trace.busy(schedule);
    return result;
  }
  /// The average of many consecutive sweeps.
  Phase sweeps(std::int64_t live, double visible, double joining = 0) const {
    const Sweep sweep{.live = live, .visible = visible, .joining = joining};
    const Phase all = phase(decode_, sweep);
    if (sweeps_ == 1) return all;
    const Phase one = phase(truncate(decode_, 1), sweep);
    const Phase next = 1.0 / (sweeps_ - 1) * (all + -1 * one);
    const double begun =
        std::max(1.0, std::min(double(sweeps_per_segment(first_)), double(problem_.work.longest_generation - 1)));
    return next + 1 / begun * (one + -1 * next);
  }

  const Problem& problem_;
  const Policy& policy_;
  const Footprint& footprint_;
  const Cost cost_;
  const FirstSweep begins_;
  const std::vector<std::uint32_t> first_alike_;
  Schedule first_, decode_;
  int sweeps_;
};

}  // namespace

offload::Lane Phase::longest() const {
  return static_cast<offload::Lane>(std::max_element(busy.begin(), busy.end()) - busy.begin());
}

double Prediction::decode_per_second() const {
  return seconds > prefill_seconds ? (tokens - requests) / (seconds - prefill_seconds) : 0;
}

std::vector<SimulatedSweeps> simulate_block(const Problem& problem, const Policy& policy, const Footprint& footprint) {
  return Predictor(problem, policy, footprint).sweeps_in_time();
}

Prediction predict(const Problem& problem, const Policy& policy, const Footprint& footprint) {
  const Workload& work = problem.work;
  const Predictor predictor(problem, policy, footprint);
  const std::int64_t block = policy.block_size();
  const std::int64_t requests = std::max<std::int64_t>(1, work.requests.value_or(block));
  if (policy.continuous && requests > block) return predictor.refilled(requests);
  const std::int64_t full = requests / block, rest = requests % block;
  Prediction result{.prefill = predictor.prefill(std::min(block, requests)),
                    .decode = predictor.decode(std::min(block, requests)),
                    .blocks = std::ceil(double(requests) / double(block)),
                    .requests = double(requests),
                    .bytes = footprint.bytes};
  result.prompt_tokens = result.requests * work.prompt() * predictor.own();
  result.tokens = result.requests * work.generation();
  const double times = double(std::max<std::int64_t>(1, full));
  result.prefill_seconds = times * result.prefill.seconds;
  result.seconds = result.prefill_seconds + times * result.decode.seconds;
  if (full > 0 && rest > 0) {
    const double prefill = predictor.prefill(rest).seconds;
    result.prefill_seconds += prefill;
    result.seconds += prefill + predictor.decode(rest).seconds;
  }
  return result;
}

}  // namespace weft::policy
