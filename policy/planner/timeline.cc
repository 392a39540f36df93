#include "policy/planner/timeline.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

namespace weft::policy {
namespace {

// A job of more rounds is counted by this many of them; fewer if places are filled in many steps.
constexpr double kMostRounds = 64, kFewestRounds = 2, kSteps = 2048;
constexpr double kNone = 1e-6;  // of a sequence

/// The choices that have no place yet, and what those that get one bring.
class Queue {
 public:
  Queue(const Workload& work, int gpu_batch_size, int num_gpu_batches, bool holds_prefixes)
      : groups_(work.groups), block_(double(gpu_batch_size) * num_gpu_batches), one_batch_(num_gpu_batches == 1),
        holds_prefixes_(holds_prefixes) {
    if (groups_.empty()) {
      const auto count = double(work.requests.value_or(static_cast<std::int64_t>(block_)));
      groups_.push_back({count, double(work.longest_prompt), double(work.longest_generation), count});
    }
    for (const WorkGroup& group : groups_) all_ += group.choices;
    left_ = all_;
  }

  bool empty() const { return left_ < kNone; }
  double all() const { return all_; }
  std::size_t groups() const { return groups_.size(); }

  struct Taken {
    double choices = 0, computed = 0, computed_tokens = 0;  ///< computed: prompts, and their tokens
  };
  /// Gives up to `places` places, of which each gpu batch has `in_batch`, to the next choices. Calls
  /// begun(count, generation).
  template <class Begun> Taken take(double places, double in_batch, const Begun& begun) {
    Taken taken;
    double room = in_batch;  // of the gpu batch that is being filled
    while (places > kNone && !empty()) {
      const WorkGroup& group = groups_[next_];
      const double alike = group.choices / std::max(1.0, group.prompts);
      // Where nothing is shared, it does not matter which batch they are in.
      const bool apart = alike < 1 + kNone && !group.continues && group.prefix == 0;
      const double count = std::min({places, (group.choices - used_) / scale_, apart ? places : room});
      const bool neighbour = group.continues && used_ == 0 && room < in_batch;
      const double own = std::max(0.0, distinct(used_, count, alike) - (neighbour ? 1 : 0));
      taken.choices += count, taken.computed += own;
      taken.computed_tokens += own * group.prompt - shared(group, own, room < in_batch) * group.prefix;
      begun(count, std::max<std::int64_t>(1, std::llround(group.generation)));
      places -= count, left_ -= count * scale_, used_ += count * scale_;
      room = std::fmod(room - count, in_batch);
      if (room < kNone) room += in_batch;
      if (group.choices - used_ < kNone * scale_) ++next_, used_ = 0;
      if (next_ == groups_.size()) left_ = 0;
    }
    return taken;
  }
  /// The choices that may join one gpu batch in one sweep. Equal prompts count once.
  double may_join(std::int64_t admitted_tokens) const {
    const WorkGroup& group = groups_[std::min(next_, groups_.size() - 1)];
    return std::max(1.0, std::ceil(double(admitted_tokens) / std::max(1.0, group.prompt - group.prefix))) *
           group.choices / std::max(1.0, group.prompts);
  }
  /// From now on every choice stands for `scale` of them.
  void scale_by(double scale) { scale_ = scale; }

 private:
  /// The distinct prompts of `count` neighbours from the choice `first` on, if each prompt has `alike` of them.
  static double distinct(double first, double count, double alike) {
    const double last = first + std::max(0.0, count - 1);
    return std::min(count, std::floor(last / alike + kNone) - std::floor(first / alike + kNone) + 1);
  }

  /// How many of `own` distinct prompts, which join one batch, need not compute their prefix. `follows`: others of the
  /// batch have come before them in this sweep. Of earlier sweeps, a batch holds a prefix once all batches have had it.
  double shared(const WorkGroup& group, double own, bool follows) const {
    if (group.prefix == 0 || own < kNone) return 0;
    const double alike = std::max(1.0, group.prompts / std::max(1.0, group.prefixes));
    const double first = used_ * group.prompts / group.choices;  // of the group's prompts
    const bool begins = std::fmod(first, alike) < kNone && !(first < kNone && group.prefix_continues);
    const bool held = holds_prefixes_ && (one_batch_ || group.prefix_continues || std::fmod(first, alike) >= block_);
    return std::max(0.0, own - distinct(first, own, alike) + ((follows || held) && !begins ? 1 : 0));
  }

  std::vector<WorkGroup> groups_;
  std::size_t next_ = 0;
  double used_ = 0, all_ = 0, left_ = 0, scale_ = 1;
  double block_;
  bool one_batch_, holds_prefixes_;
};

}  // namespace

FirstSweep first_sweep(const Workload& work, int gpu_batch_size, int num_gpu_batches) {
  const double block = double(gpu_batch_size) * num_gpu_batches;
  Queue queue(work, gpu_batch_size, num_gpu_batches, false);
  const Queue::Taken taken = queue.take(block, gpu_batch_size, [](double, std::int64_t) {});
  if (taken.choices < kNone) return {};
  return {taken.choices, taken.computed_tokens / taken.computed, taken.computed / taken.choices};
}

Timeline timeline(const Workload& work, int gpu_batch_size, int num_gpu_batches, std::int64_t admitted_tokens,
                  bool holds_prefixes) {
  const double block = double(gpu_batch_size) * num_gpu_batches;
  Queue queue(work, gpu_batch_size, num_gpu_batches, holds_prefixes);
  Timeline result;
  double live = 0, joined = 0;
  std::int64_t now = 0;
  std::map<std::int64_t, double> ends;
  const auto begun = [&](double count, std::int64_t generation) { ends[now + generation] += count, live += count; };
  queue.take(block, gpu_batch_size, begun);
  const double steps = std::max(double(queue.groups()), gpu_batch_size / queue.may_join(admitted_tokens));
  const double most = std::clamp(kSteps / steps, kFewestRounds, kMostRounds);
  const double scale = std::max(1.0, (queue.all() - block) / (most * block));
  queue.scale_by(scale);
  while (!ends.empty()) {
    const bool fills = !queue.empty() && block - live > kNone;
    const std::int64_t until = fills ? std::min(now + 1, ends.begin()->first) : ends.begin()->first;
    const double sweeps = double(until - std::max<std::int64_t>(now, 1)) * (queue.empty() ? 1 : scale);
    const bool full = block - live < 0.5;
    (full ? result.full : result.rest) += sweeps;
    (full ? result.full_live : result.rest_live) += sweeps * live - joined;
    joined = 0;
    now = until;
    if (ends.begin()->first == now) {
      live -= ends.begin()->second;
      ends.erase(ends.begin());
    }
    if (queue.empty() || block - live <= kNone) continue;
    const double free = block - live, may_join = queue.may_join(admitted_tokens);
    const double in_batch = std::min(std::max(1.0, std::ceil(free / num_gpu_batches)), may_join);
    const Queue::Taken taken = queue.take(std::min(free, may_join * num_gpu_batches), in_batch, begun);
    joined = scale * taken.choices;
    result.joins += scale;
    result.joining_tokens += scale * taken.computed_tokens;
  }
  if (result.full > 0) result.full_live /= result.full;
  if (result.rest > 0) result.rest_live /= result.rest;
  return result;
}

}  // namespace weft::policy
