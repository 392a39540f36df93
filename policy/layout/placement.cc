#include "policy/layout/placement.h"

#include <algorithm>
#include <optional>
#include <string>

#include "kernels/error.h"
#include "policy/layout/rolling.h"

namespace weft::policy {
namespace {

constexpr int kSteps = 64;          // parts of a fraction in a search
constexpr int kWorthResident = 16;  // resident weights are preferred only if this many sequences also fit

/// The choices of complete(), one block shape at a time.
class Chooser {
 public:
  Chooser(const PartialPolicy& partial, const ModelSpec& model, const std::vector<Unit>& units,
          const Workload& workload, const SizingInputs& sizing, const Budgets& budgets, bool host_allowed)
      : partial_(partial), model_(model), units_(units), workload_(workload), sizing_(sizing),
        host_allowed_(host_allowed), base_(partial.over(Policy{})) {
    base_.budgets = budgets;
  }

  Footprint measure(const Policy& policy) const { return footprint(model_, units_, policy, workload_, sizing_); }
  bool fits(const Policy& policy) const { return !lacking(measure(policy), policy.budgets).has_value(); }

  /// The best placement for one block shape; `resident`: all weights on the device or nothing.
  std::optional<Policy> place(int gpu_batch_size, int num_gpu_batches, bool resident) const {
    Policy policy = base_;
    policy.gpu_batch_size = gpu_batch_size;
    policy.num_gpu_batches = num_gpu_batches;
    policy.weights = partial_.weights.value_or(resident ? Fractions{} : Fractions{{0, 0, 1}});
    if (!fits(policy) && !spill_kv(policy)) return {};
    if (!partial_.weights && !resident) {
      raise(policy, Tier::device);
      if (host_allowed_) raise(policy, Tier::host);
    }
    return policy;
  }

  /// The largest block with the batches or the batch size that the user fixed, if any.
  std::optional<Policy> largest(bool resident) const {
    const auto most = static_cast<int>(std::clamp<std::int64_t>(workload_.at_most(kLargestBlock), 1, kLargestBlock));
    if (partial_.gpu_batch_size && partial_.num_gpu_batches)
      return place(*partial_.gpu_batch_size, *partial_.num_gpu_batches, resident);
    return largest_of(most, [&](int block) {
      const auto [size, batches] = shape_of(block);
      return place(size, batches, resident);
    });
  }

  /// The policy of the largest block in [1, most] for which `policy_of` returns one.
  template <class PolicyOf> static std::optional<Policy> largest_of(int most, const PolicyOf& policy_of) {
    std::optional<Policy> best;
    int low = 0, high = most + 1;  // the largest known to fit, the smallest known not to
    for (int block = most; low + 1 < high; block = low + (high - low) / 2) {
      if (auto policy = policy_of(block)) best = std::move(policy), low = block;
      else high = block;
    }
    return best;
  }

  std::pair<int, int> shape_of(int block) const {
    if (partial_.gpu_batch_size && partial_.num_gpu_batches)
      return {*partial_.gpu_batch_size, *partial_.num_gpu_batches};
    if (partial_.gpu_batch_size) return {*partial_.gpu_batch_size, std::max(1, block / *partial_.gpu_batch_size)};
    // One batch makes the largest matrix products; several let KV and hidden states move while others are computed.
    const bool moves = (partial_.kv && partial_.kv->device() < 1) || base_.activations.device() < 1;
    const int batches = partial_.num_gpu_batches.value_or(moves ? std::min(block, 4) : 1);
    return {std::max(1, (block + batches - 1) / batches), batches};
  }

  const Policy& base() const { return base_; }
  std::uint64_t device_overhead() const { return sizing_.device_overhead; }

 private:
  bool spill_kv(Policy& policy) const {
    if (partial_.kv) return false;
    const Tier below = host_allowed_ ? Tier::host : Tier::disk;
    if (below == Tier::disk && policy.block_size() > 1) return false;  // a smaller block beats KV on disk
    for (int step = kSteps - 1; step >= 0; --step) {
      const double device = double(step) / kSteps;
      policy.kv = Fractions{};
      policy.kv.of[0] = device;
      policy.kv.of[static_cast<std::size_t>(below)] = 1 - device;
      if (fits(policy)) return true;
    }
    return false;
  }

  /// Moves as much of the weights from disk to `tier` as fits.
  void raise(Policy& policy, Tier tier) const {
    const Fractions before = policy.weights;
    int low = 0, high = kSteps;
    const auto with = [&](int step) {
      const double share = before.disk() * step / kSteps;
      policy.weights = before;
      policy.weights.of[static_cast<std::size_t>(tier)] += share;
      policy.weights.of[2] = before.disk() - share;
    };
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      with(middle);
      if (fits(policy)) low = middle;
      else high = middle - 1;
    }
    with(low);
  }

  const PartialPolicy& partial_;
  const ModelSpec& model_;
  const std::vector<Unit>& units_;
  const Workload& workload_;
  const SizingInputs& sizing_;
  bool host_allowed_;
  Policy base_;  // the fields that are not chosen
};

[[noreturn]] void refuse_block(const Chooser& chooser, const PartialPolicy& partial, const Workload& workload) {
  const auto [size, batches] = chooser.shape_of(1);
  Policy asked = chooser.base();
  asked.gpu_batch_size = size;
  asked.num_gpu_batches = batches;
  asked.weights = partial.weights.value_or(Fractions{{0, 0, 1}});
  const Footprint print = chooser.measure(asked);
  const Tier tier = lacking(print, asked.budgets).value_or(Tier::device);
  std::string message = "a block of " + std::to_string(size) + " x " + std::to_string(batches) +
                        " sequences of up to " + std::to_string(workload.longest_prompt) + " prompt tokens needs " +
                        bytes_to_text(print[tier]) + " on " + name_of(tier) + ", the budget is " +
                        bytes_to_text(asked.budgets[tier]);
  if (const std::uint64_t own = chooser.device_overhead(); tier == Tier::device && own > 0)
    message += " (" + bytes_to_text(own) + " of it are what the GPU's context and libraries take)";
  if (print.job > 0)
    message += " (" + bytes_to_text(print.job) +
               " of memory are for requests and answers: less n, logprobs or max_tokens, or fewer requests, need less)";
  const int most_batches = batches;
  const auto fitting = Chooser::largest_of(asked.block_size() - 1, [&](int block) {
    return chooser.place(std::max(1, block / most_batches), std::min(most_batches, block), false);
  });
  if (fitting)
    message += "; the largest block that fits is " + std::to_string(fitting->gpu_batch_size) + " x " +
               std::to_string(fitting->num_gpu_batches);
  else message += "; no block fits: raise --" + std::string(name_of(tier)) + "-memory or place more on a slower tier";
  throw CapacityError(message);
}

}  // namespace

std::vector<Tier> spread(std::span<const std::size_t> block_bytes, const std::array<double, 3>& fractions) {
  double sum = 0;
  for (const double fraction : fractions) {
    if (!(fraction >= 0)) throw UsageError("placement: a fraction is negative");
    sum += fraction;
  }
  if (!(sum > 1 - 1e-6 && sum < 1 + 1e-6))
    throw UsageError("placement: the fractions sum to " + std::to_string(sum) + ", not to 1");
  // Error diffusion: each buffer goes to the tier that lacks most.
  std::vector<Tier> homes;
  std::array<double, 3> lacking{};
  for (const std::size_t bytes : block_bytes) {
    for (std::size_t tier = 0; tier < 3; ++tier) lacking[tier] += fractions[tier] * double(bytes);
    const auto most = static_cast<std::size_t>(std::max_element(lacking.begin(), lacking.end()) - lacking.begin());
    lacking[most] -= double(bytes);
    homes.push_back(static_cast<Tier>(most));
  }
  return homes;
}

std::vector<Tier> spread(std::size_t blocks, const std::array<double, 3>& fractions) {
  const std::vector<std::size_t> equal(blocks, 1);
  return spread(equal, fractions);
}

Allowance allowance(const PartialPolicy& partial, const Budgets& free, bool on_host_memory) {
  const auto asks_host = [](const std::optional<Fractions>& f) { return f && f->host() > 0; };
  const bool host_asked = asks_host(partial.weights) || asks_host(partial.kv) || asks_host(partial.activations) ||
                          partial.attention_on_host.value_or(0) > 0 || partial.experts_on_host.value_or(0) > 0 ||
                          partial.budgets[1].has_value();
  Budgets budgets = free;
  // Two tiers in one memory share its free bytes.
  if (on_host_memory && host_asked) budgets.bytes[0] = budgets.bytes[1] = free.bytes[0] / 2;
  if (on_host_memory && !host_asked) budgets.bytes[1] = 0;
  for (std::size_t tier = 0; tier < 3; ++tier)
    budgets.bytes[tier] = partial.budgets[tier].value_or(budgets.bytes[tier]);
  return {budgets, !on_host_memory || host_asked};
}

Policy complete(const PartialPolicy& partial, const ModelSpec& model, const std::vector<Unit>& units,
                const Workload& workload, const SizingInputs& sizing, const Budgets& free, bool on_host_memory) {
  if (partial.retention) partial.retention->require_layers(kv_heads_of_layers(model));
  check_positions(partial.retention.value_or(Retention{}), model, "retention");
  const auto [budgets, host_allowed] = allowance(partial, free, on_host_memory);
  const Chooser chooser(partial, model, units, workload, sizing, budgets, host_allowed);
  std::optional<Policy> chosen;
  if (!partial.weights) {
    chosen = chooser.largest(true);
    const auto worth = workload.at_most(kWorthResident);
    const bool fixed = partial.gpu_batch_size && partial.num_gpu_batches;
    if (chosen && !fixed && chosen->block_size() < worth) chosen.reset();
  }
  if (!chosen) chosen = chooser.largest(false);
  if (!chosen) refuse_block(chooser, partial, workload);
  return *chosen;
}

}  // namespace weft::policy
