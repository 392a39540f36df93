#include "policy/planner/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <tuple>

#include "policy/planner/relaxation.h"

namespace weft::policy {
namespace {

constexpr std::size_t kTimed = 32;       // relaxed placements that the simulator times
constexpr std::size_t kImproved = 4;     // timed placements that are improved
constexpr int kEvaluations = 240;        // to improve one placement
constexpr double kOpsSimulated = 1.2e7;  // in a whole search: bounds its time, the same on every machine
constexpr double kGain = 1e-4;           // a change worth making
constexpr int kRepairs = 96;
constexpr int kSmaller = 24;  // smaller blocks that are tried for one nearly as fast
constexpr int kTriedOfNearlyEqual = 2;
constexpr double kNearlyAsLarge = 1.2;
constexpr std::array kHostShares{0.25, 0.5, 0.75, 1.0};  // of the experts: those that are tried in every block shape
constexpr std::array kHostSteps{0.125, 0.0625};          // and from the best of them
constexpr std::size_t kHostTimed = 12;
constexpr double kDigits = 1e4;  // parts of a share of 1: finer than any unit

struct Shape {
  int gpu_batch_size, num_gpu_batches;
  /// Orders by the number of batches first.
  bool operator<(const Shape& other) const {
    return std::tie(num_gpu_batches, gpu_batch_size) < std::tie(other.num_gpu_batches, other.gpu_batch_size);
  }
};

/// Block shapes to try: powers of two, sizes between them, and sizes by which the requests fill blocks evenly.
std::vector<Shape> shapes(const PartialPolicy& partial, std::int64_t requests) {
  const auto most = static_cast<int>(std::clamp<std::int64_t>(requests, 1, kLargestBlock));
  std::vector<int> batches{1, 2, 3, 4, 6, 8, 12, 16, 24, 32};
  if (partial.num_gpu_batches) batches = {*partial.num_gpu_batches};
  std::set<Shape> found;
  for (const int count : batches) {
    if (count > most && !partial.num_gpu_batches) break;
    if (partial.gpu_batch_size) {
      found.insert({*partial.gpu_batch_size, count});
      continue;
    }
    std::set<int> sizes;
    for (int size = 1; size <= most; size *= 2) sizes.insert({size, size + size / 2});
    for (int blocks = 1; blocks <= 4; ++blocks)
      sizes.insert(static_cast<int>((std::int64_t{most} + std::int64_t{count} * blocks - 1) / (count * blocks)));
    for (const int size : sizes)
      if (std::int64_t{size - 1} * count < most) found.insert({size, count});  // the last batch is not empty
  }
  return {found.begin(), found.end()};
}

struct Start {
  Policy policy;
  double tokens_per_second;  ///< of the relaxed placement
};

class Searcher {
 public:
  Searcher(const Problem& problem, const PartialPolicy& partial, const Budgets& free)
      : problem_(problem), partial_(partial), free_(free),
        allowance_(allowance(partial, free, problem.machine.device_is_host_memory)), base_(partial.over(Policy{})) {
    base_.budgets = allowance_.budgets;
  }

  /// The share of the experts that the host computes unless others are tried.
  double experts_on_host() const { return base_.experts_on_host; }

  /// The relaxed placements of all shapes with a share of the experts on the host, the most promising first.
  std::vector<Start> starts(double experts_on_host) const {
    std::vector<Start> found;
    int too_many = INT32_MAX, batches = 0;  // sequences in a batch that do not fit, so more do not either
    for (const Shape& shape : shapes(partial_, problem_.work.at_most(kLargestBlock))) {
      if (shape.num_gpu_batches != batches) batches = shape.num_gpu_batches, too_many = INT32_MAX;
      if (shape.gpu_batch_size >= too_many) continue;
      const std::vector<Start> placements = starts_of(shape, experts_on_host);
      if (placements.empty()) too_many = shape.gpu_batch_size;
      found.insert(found.end(), placements.begin(), placements.end());
    }
    sort(found);
    return found;
  }

  Plan run() {
    std::vector<Candidate> timed;
    double best = 0;
    std::vector<Start> relaxed = starts(experts_on_host());
    for (const Start& start : relaxed) {
      // The relaxation is faster than any rounding of it, so later policies cannot be faster than the best.
      if (timed.size() >= kTimed || start.tokens_per_second < best) break;
      const auto candidate = evaluate(repaired(start.policy));
      if (!candidate) continue;
      best = std::max(best, candidate->prediction.tokens_per_second());
      timed.push_back(*candidate);
    }
    if (timed.empty())  // no relaxation fits or none could be rounded: fill the tiers one by one, or throw the reason
      if (auto candidate = evaluate(filled())) timed.push_back(*candidate);
    sort(timed);
    timed = distinct(timed);
    for (std::size_t i = 0; i < std::min(kImproved, timed.size()); ++i) improve(timed[i]);
    sort(timed);
    timed = distinct(timed);
    if (auto hosted = with_experts_on_host(timed.front())) {
      timed.insert(timed.begin(), std::move(*hosted));
      relaxed = starts(timed.front().policy.experts_on_host);
    }
    put_smallest_first(timed, relaxed);
    return {std::move(timed), relaxed.empty() ? 0 : relaxed.front().tokens_per_second};
  }

 private:
  /// The relaxed placements of one shape, the most promising first.
  std::vector<Start> starts_of(const Shape& shape, double experts_on_host) const {
    Policy policy = base_;
    policy.gpu_batch_size = shape.gpu_batch_size;
    policy.num_gpu_batches = shape.num_gpu_batches;
    policy.experts_on_host = experts_on_host;
    std::vector<Start> found;
    for (const Relaxed& relaxed : relax(problem_, policy, partial_, allowance_.host)) {
      policy.weights = relaxed.weights;
      policy.kv = relaxed.kv;
      policy.activations = relaxed.activations;
      policy.attention_on_host = relaxed.attention_on_host;
      found.push_back({policy, tokens_of(policy) / relaxed.seconds});
    }
    return found;
  }

  /// Whether it is open which share of the experts the host computes, and some of them would come over the link.
  bool may_share_experts(const Policy& fastest) const {
    return !problem_.machine.device_is_host_memory && !problem_.machine.host.decode_attention.empty() &&
           !partial_.experts_on_host && partial_.leaves_open() && fastest.weights.device() < 1 &&
           units_for_host(problem_.units) > 0;
  }

  /// The fastest policy found in which the host computes a share of the experts, if that gains more than what counts as
  /// nearly as fast: the host's rates are rough.
  std::optional<Candidate> with_experts_on_host(const Candidate& without) {
    if (!may_share_experts(without.policy)) return {};
    const double least = 1.0 / double(units_for_host(problem_.units));
    std::vector<Start> relaxed;
    for (const double share : kHostShares) {
      if (share < least) continue;
      const std::vector<Start> of_share = starts(share);
      relaxed.insert(relaxed.end(), of_share.begin(), of_share.end());
    }
    sort(relaxed);
    ops_ = 0;
    std::optional<Candidate> best;
    double enough = (1 + kNearlyAsFast) * without.prediction.tokens_per_second();
    const auto time = [&](const Start& start) {
      auto candidate = evaluate(repaired(start.policy));
      if (!candidate || candidate->prediction.tokens_per_second() < enough) return;
      enough = candidate->prediction.tokens_per_second();
      best = std::move(candidate);
    };
    for (std::size_t i = 0; i < std::min(kHostTimed, relaxed.size()); ++i)
      if (relaxed[i].tokens_per_second >= enough) time(relaxed[i]);
    if (!best) return {};
    for (const double step : kHostSteps) {
      const Policy from = best->policy;
      for (const double share : {from.experts_on_host - step, from.experts_on_host + step}) {
        if (share < least || share > 1) continue;
        const std::vector<Start> near = starts_of({from.gpu_batch_size, from.num_gpu_batches}, share);
        if (!near.empty()) time(near.front());
      }
    }
    improve(*best);
    return best;
  }

  /// Moves to the front the policy with the smallest block among those nearly as fast as the fastest, found.front().
  void put_smallest_first(std::vector<Candidate>& found, std::vector<Start> relaxed) {
    const double enough = (1 - kNearlyAsFast) * found.front().prediction.tokens_per_second();
    const auto fastest = kind_of(found.front().policy), resident = kind_of(Policy{});
    const auto smaller = [&](const Candidate& a, const Candidate& b) {
      const bool a_will_do = a.prediction.tokens_per_second() >= enough,
                 b_will_do = b.prediction.tokens_per_second() >= enough;
      return a_will_do != b_will_do ? a_will_do : a_will_do && a.policy.block_size() < b.policy.block_size();
    };
    const auto smallest = std::min_element(found.begin(), found.end(), smaller);
    std::rotate(found.begin(), smallest, smallest + 1);
    std::erase_if(relaxed, [&](const Start& start) {
      const auto kind = kind_of(start.policy);
      return start.tokens_per_second < enough || (kind != fastest && kind != resident);
    });
    std::stable_sort(relaxed.begin(), relaxed.end(),
                     [](const Start& a, const Start& b) { return a.policy.block_size() < b.policy.block_size(); });
    ops_ = 0;
    // Of blocks that are nearly equally large, laid out as the fastest is or resident, the most promising are tried.
    auto begin = relaxed.begin();
    for (int left = kSmaller; left > 0 && begin != relaxed.end();) {
      const double most = kNearlyAsLarge * begin->policy.block_size();
      const auto end = std::find_if(begin, relaxed.end(), [&](const Start& s) { return s.policy.block_size() > most; });
      std::stable_sort(begin, end,
                       [](const Start& a, const Start& b) { return a.tokens_per_second > b.tokens_per_second; });
      for (auto start = begin; start != end && start < begin + kTriedOfNearlyEqual; ++start, --left) {
        if (start->policy.block_size() >= found.front().policy.block_size()) continue;
        const auto candidate = evaluate(repaired(start->policy));
        if (!candidate || candidate->prediction.tokens_per_second() < enough) continue;
        found.insert(found.begin(), *candidate);
        return;
      }
      begin = end;
    }
  }

  static void sort(std::vector<Start>& found) {
    std::stable_sort(found.begin(), found.end(),
                     [](const Start& a, const Start& b) { return a.tokens_per_second > b.tokens_per_second; });
  }
  static void sort(std::vector<Candidate>& candidates) {
    std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
      return a.prediction.tokens_per_second() > b.prediction.tokens_per_second();
    });
  }

  Policy filled() const {
    return complete(partial_, problem_.model, problem_.units, problem_.work, problem_.sizing, free_,
                    problem_.machine.device_is_host_memory);
  }

  double tokens_of(const Policy& policy) const {
    return double(problem_.work.at_most(policy.block_size())) * problem_.work.generation();
  }

  Footprint measure(const Policy& policy) const {
    return footprint(problem_.model, problem_.units, policy, problem_.work, problem_.sizing);
  }

  /// Whether the job has a request for the last gpu batch of a block.
  bool fills(const Policy& policy) const {
    return (policy.gpu_batch_size == 1 && policy.num_gpu_batches == 1) || !problem_.work.requests ||
           policy.block_size() - policy.num_gpu_batches < *problem_.work.requests;
  }

  double unit_step() const { return 1.0 / double(problem_.units.size()); }
  double kv_step(const Policy& policy) const { return 1.0 / (problem_.model.layers * policy.num_gpu_batches); }

  /// Moves a share of up to `step` between two tiers. False if there is nothing to move.
  static bool shift(Fractions& shares, std::size_t from, std::size_t to, double step) {
    const double moved = std::min(step, shares.of[from]);
    if (moved < 1e-9) return false;
    shares.of[from] -= moved;
    shares.of[to] += moved;
    if (shares.of[from] < 1e-9) shares.of[to] += shares.of[from], shares.of[from] = 0;
    return true;
  }

  /// Rounds shares to four digits; they still sum to 1.
  static void round(Fractions& shares) {
    for (double& share : shares.of) share = std::round(share * kDigits) / kDigits;
    double& most = *std::max_element(shares.of.begin(), shares.of.end());
    most += 1 - (shares.of[0] + shares.of[1] + shares.of[2]);
    most = std::round(most * kDigits) / kDigits;
  }

  /// Rounding to whole buffers may slightly exceed a tier's budget; moves buffers down until everything fits.
  Policy repaired(Policy policy) const {
    policy.attention_on_host = policy.kv.device() == 1 ? 0 : std::round(policy.attention_on_host * kDigits) / kDigits;
    if (partial_.attention_on_host) policy.attention_on_host = *partial_.attention_on_host;
    for (int i = 0; i < kRepairs; ++i) {
      if (!partial_.weights) round(policy.weights);
      if (!partial_.kv) round(policy.kv);
      if (!partial_.activations) round(policy.activations);
      const auto tier = lacking(measure(policy), policy.budgets);
      if (!tier || *tier == Tier::disk) break;
      const auto from = static_cast<std::size_t>(*tier);
      const std::size_t to = *tier == Tier::device && allowance_.host ? 1 : 2;
      const bool moved = (!partial_.weights && shift(policy.weights, from, to, unit_step())) ||
                         (!partial_.kv && shift(policy.kv, from, to, kv_step(policy)));
      if (!moved) break;
    }
    return policy;
  }

  std::optional<Candidate> evaluate(const Policy& policy) {
    if (ops_ > kOpsSimulated) return {};
    const Footprint print = measure(policy);
    if (lacking(print, policy.budgets)) return {};
    ops_ += 12.0 * double(print.shape.sublayers.size()) * policy.num_gpu_batches;
    return Candidate{policy, predict(problem_, policy, print)};
  }

  /// The neighbours of a policy. Each differs in one field, by `scale` times the smallest change.
  std::vector<Policy> neighbours(const Policy& policy, int scale) const {
    std::vector<Policy> found;
    const auto shares = [&](Fractions Policy::*kind, double step) {
      for (std::size_t from = 0; from < 3; ++from)
        for (std::size_t to = 0; to < 3; ++to) {
          if (from == to || (to == 1 && !allowance_.host)) continue;
          Policy next = policy;
          if (shift(next.*kind, from, to, step * scale)) found.push_back(next);
        }
    };
    if (!partial_.weights) shares(&Policy::weights, unit_step());
    if (!partial_.kv) shares(&Policy::kv, kv_step(policy));
    if (!partial_.activations) shares(&Policy::activations, 1.0 / policy.num_gpu_batches);
    if (!partial_.attention_on_host && allowance_.host && policy.kv.device() < 1)
      for (const double step : {-0.02 * scale, 0.02 * scale}) {
        Policy next = policy;
        next.attention_on_host = std::clamp(policy.attention_on_host + step, 0.0, 1.0);
        if (next.attention_on_host != policy.attention_on_host) found.push_back(next);
      }
    const auto resize = [&](int Policy::*size, int low) {
      const int step = scale * std::max(1, policy.*size / 64);
      for (const int change : {-step, step}) {
        Policy next = policy;
        next.*size = policy.*size + change;
        if (next.*size >= low && next.block_size() <= kLargestBlock && fills(next)) found.push_back(next);
      }
    };
    if (!partial_.gpu_batch_size) resize(&Policy::gpu_batch_size, 1);
    if (!partial_.num_gpu_batches && scale <= 2) resize(&Policy::num_gpu_batches, 1);
    return found;
  }

  /// Climbs while a neighbour is better, first by large changes, then by single buffers.
  void improve(Candidate& candidate) {
    int left = kEvaluations;
    for (int scale = 16; scale >= 1; scale /= 2)
      for (bool better = true; better && left > 0;) {
        better = false;
        for (const Policy& next : neighbours(candidate.policy, scale)) {
          if (--left < 0) break;
          const auto tried = evaluate(repaired(next));
          if (!tried || tried->prediction.tokens_per_second() < (1 + kGain) * candidate.prediction.tokens_per_second())
            continue;
          candidate = *tried;
          better = true;
          break;
        }
      }
  }

  /// What streams, and what the host computes.
  using Kind = std::tuple<bool, bool, bool, bool, bool>;
  static Kind kind_of(const Policy& policy) {
    return {policy.weights.device() < 1, policy.kv.device() < 1, policy.attention_on_host > 0,
            policy.experts_on_host > 0, policy.activations.device() < 1};
  }

  static std::vector<Candidate> distinct(const std::vector<Candidate>& candidates) {
    std::set<std::pair<Kind, int>> seen;
    std::vector<Candidate> result;
    for (const Candidate& candidate : candidates) {
      const Policy& policy = candidate.policy;
      if (seen.insert({kind_of(policy), policy.num_gpu_batches}).second) result.push_back(candidate);
    }
    return result;
  }

  const Problem& problem_;
  PartialPolicy partial_;
  const Budgets free_;
  const Allowance allowance_;
  Policy base_;
  double ops_ = 0;
};

}  // namespace

const Candidate& Plan::fastest() const {
  return *std::max_element(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.prediction.tokens_per_second() < b.prediction.tokens_per_second();
  });
}

Plan search(const Problem& problem, const PartialPolicy& partial, const Budgets& free) {
  return Searcher(problem, partial, free).run();
}

double relaxed_tokens_per_second(const Problem& problem, const PartialPolicy& partial, const Budgets& free) {
  const Searcher searcher(problem, partial, free);
  const auto starts = searcher.starts(searcher.experts_on_host());
  return starts.empty() ? 0 : starts.front().tokens_per_second;
}

}  // namespace weft::policy
