#include "runtime/job/length_classes.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "runtime/base/duration.h"
#include "runtime/planning/log.h"

namespace weft::runtime {
namespace {

constexpr std::size_t kMostClasses = 4;
constexpr std::uint64_t kUnlike = 2;     // times as long
constexpr double kWorthSplitting = 10;   // seconds that a job must take
constexpr double kWorthIt = 0.95;        // share of the time that may remain
constexpr double kBetweenClasses = 0.5;  // seconds, beside loading weights

bool may_split(const JobOptions& options) {
  const policy::PartialPolicy& policy = options.policy;
  return !policy.gpu_batch_size && !policy.num_gpu_batches && policy.continuous.value_or(true) && options.trace.empty();
}

class Splitter {
 public:
  Splitter(const JobOptions& options, const ModelSource& source, const RequestFile& requests, bool resumes)
      : options_(options), source_(source), requests_(requests), resumes_(resumes) {}

  std::uint64_t length(std::uint32_t index) const {
    const RequestFile::Entry& entry = requests_.entry(index);
    return std::uint64_t{entry.prompt_tokens} + entry.max_tokens;
  }
  /// Sorted by length, the longest first.
  std::vector<std::uint32_t> by_length(std::vector<std::uint32_t> todo) const {
    std::stable_sort(todo.begin(), todo.end(),
                     [this](std::uint32_t a, std::uint32_t b) { return length(a) > length(b); });
    return todo;
  }
  bool unlike(const std::vector<std::uint32_t>& sorted) const {
    return length(sorted.front()) >= kUnlike * length(sorted.back());
  }

  /// Seconds of a plan for these requests.
  double planned(const std::vector<std::uint32_t>& sorted) {
    JobPlan plan(options_, source_, requests_, sorted, resumes_, machine_);
    const Planned found = plan.choose(*backend_, free_);
    machine_ = plan.machine();
    retention_ = found.retention;
    loads_ = loading(found.best().policy);
    return found.best().prediction.seconds;
  }

  /// Finds a backend and plans all as one class; returns the seconds.
  double begin(std::optional<policy::Machine> machine, const std::vector<std::uint32_t>& sorted) {
    machine_ = std::move(machine);
    backend_ = make_backend(options_.machine);
    free_ = free_bytes(*backend_, options_.machine.disk_directory);
    return planned(sorted);
  }

  /// How many of the longest to cut off; 0: none. By the linear program.
  std::size_t best_cut(const std::vector<std::uint32_t>& sorted) const {
    std::size_t best = 0, tried = 0;
    double least = std::numeric_limits<double>::infinity();
    for (std::uint64_t most = length(sorted.front()) / kUnlike; most >= length(sorted.back()); most /= kUnlike) {
      const auto at =
          std::partition_point(sorted.begin(), sorted.end(), [&](std::uint32_t index) { return length(index) > most; });
      const auto count = static_cast<std::size_t>(at - sorted.begin());
      if (count == tried) continue;
      tried = count;
      const double seconds = estimate({sorted.begin(), at}) + estimate({at, sorted.end()});
      if (seconds < least) least = seconds, best = count;
    }
    return best;
  }

  double loads() const { return loads_; }
  const policy::Retention& retention() const { return retention_; }
  const std::optional<policy::Machine>& machine() const { return machine_; }

 private:
  double estimate(const std::vector<std::uint32_t>& sorted) const {
    return JobPlan(options_, source_, requests_, sorted, resumes_, machine_).estimate(free_);
  }
  /// Seconds to load the weights that have their home in memory.
  double loading(const policy::Policy& policy) const {
    const std::vector<std::uint64_t>& units = source_.weights->unit_bytes();
    const double bytes = std::accumulate(units.begin(), units.end(), 0.0) * (1 - policy.weights.disk());
    return bytes / machine_->bytes_per_second[static_cast<std::size_t>(offload::Lane::disk_read)];
  }

  const JobOptions& options_;
  const ModelSource& source_;
  const RequestFile& requests_;
  const bool resumes_;
  std::unique_ptr<kernels::Backend> backend_;
  policy::Budgets free_;
  std::optional<policy::Machine> machine_;
  policy::Retention retention_;
  double loads_ = 0;
};

void say(const LengthClasses& classes, const Splitter& splitter, double as_one) {
  double sum = 0;
  for (const LengthClasses::One& one : classes.all) sum += one.seconds;
  log_info("requests of very different lengths run in {} classes: {} predicted in all, {} as one", classes.all.size(),
           duration_text(sum), duration_text(as_one));
  for (const LengthClasses::One& one : classes.all) {
    std::uint64_t longest = 0;
    for (const std::uint32_t index : one.todo) longest = std::max(longest, splitter.length(index));
    log_info("  {} requests of up to {} tokens, {}", one.todo.size(), longest, duration_text(one.seconds));
  }
}

}  // namespace

double LengthClasses::later_seconds(std::size_t index) const {
  double sum = 0;
  for (std::size_t i = index + 1; i < all.size(); ++i) sum += all[i].seconds;
  return sum;
}

std::vector<std::uint32_t> LengthClasses::later(std::size_t index) const {
  std::vector<std::uint32_t> requests;
  for (std::size_t i = index + 1; i < all.size(); ++i)
    requests.insert(requests.end(), all[i].todo.begin(), all[i].todo.end());
  std::sort(requests.begin(), requests.end());
  return requests;
}

LengthClasses length_classes(JobOptions& options, const ModelSource& source, const RequestFile& requests,
                             const std::vector<std::uint32_t>& todo, bool resumes,
                             std::optional<policy::Machine> machine) {
  LengthClasses classes{{{todo, 0}}, std::move(machine)};
  if (!may_split(options)) return classes;
  Splitter splitter(options, source, requests, resumes);
  const std::vector<std::uint32_t> sorted = splitter.by_length(todo);
  if (!splitter.unlike(sorted)) return classes;
  const double as_one = splitter.begin(classes.machine, sorted);
  classes.machine = splitter.machine();
  if (as_one < kWorthSplitting) return classes;
  const policy::PartialPolicy allowed = options.policy;
  const std::vector<policy::Retention> retentions = options.retentions;
  options.policy.retention = splitter.retention(), options.retentions.clear();
  std::vector<LengthClasses::One> parts{{sorted, as_one}};
  while (parts.size() < kMostClasses && splitter.unlike(parts.back().todo)) {
    const std::vector<std::uint32_t>& whole = parts.back().todo;
    const std::size_t cut = splitter.best_cut(whole);
    if (cut == 0) break;
    const auto at = whole.begin() + static_cast<std::ptrdiff_t>(cut);
    LengthClasses::One longer{{whole.begin(), at}, 0}, shorter{{at, whole.end()}, 0};
    longer.seconds = splitter.planned(longer.todo);
    shorter.seconds = splitter.planned(shorter.todo);
    const double more = splitter.loads() + kBetweenClasses;
    if (longer.seconds + shorter.seconds + more > kWorthIt * parts.back().seconds) break;
    parts.back() = std::move(longer);
    parts.push_back(std::move(shorter));
  }
  if (parts.size() == 1) {
    options.policy = allowed, options.retentions = retentions;
    return classes;
  }
  classes.all = std::move(parts);
  for (LengthClasses::One& one : classes.all) std::sort(one.todo.begin(), one.todo.end());
  if (!options.quiet) say(classes, splitter, as_one);
  return classes;
}

}  // namespace weft::runtime
