// kernels/rows/sample_cpu.cc: the next token of each row, and log-probabilities of given ones and of the likeliest.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/attention/cpu/kernels.h"
#include "kernels/machine/cpu_ops.h"
#include "kernels/random.h"

namespace weft::kernels {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kForbidden = -std::numeric_limits<float>::infinity();

/// The lowest id among the largest finite logits, or -1.
std::int32_t most_likely(const float* logits, std::int64_t vocab) {
  std::int32_t best = -1;
  float most = kForbidden;  // compared first: a processor foresees that no forbidden token passes
  for (std::int64_t id = 0; id < vocab; ++id)
    if (logits[id] > most && std::isfinite(logits[id])) most = logits[id], best = static_cast<std::int32_t>(id);
  return best;
}

/// Orders the likelier token first, and the lower id among equals.
struct Likelier {
  const float* logits;
  bool operator()(std::int32_t a, std::int32_t b) const {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  }
};

/// The tokens with the likeliest finite logits, at most `count` > 0, the likeliest first.
std::vector<std::int32_t> likeliest(const float* logits, std::int64_t vocab, std::size_t count) {
  const Likelier likelier{logits};
  std::vector<std::int32_t> best;  // a heap, the least likely in front
  for (std::int32_t id = 0; id < vocab; ++id) {
    if (!std::isfinite(logits[id])) continue;
    if (best.size() == count) {
      if (!likelier(id, best.front())) continue;
      std::pop_heap(best.begin(), best.end(), likelier);
      best.back() = id;
    } else {
      best.push_back(id);
    }
    std::push_heap(best.begin(), best.end(), likelier);
  }
  std::sort_heap(best.begin(), best.end(), likelier);
  return best;
}

constexpr std::size_t kChunk = 1024;  // weights that are made at a time

/// One row's distribution after the cut at min_p, before the others; a logit that is not finite has weight 0.
struct Softmax {
  const VectorKernels& vectors;
  std::span<const float> logits;
  Weighing by;
  Softmax(const VectorKernels& loops, std::span<const float> row, float largest, const SampleParams& params)
      : vectors(loops), logits(row), by{.max = largest,
                                        .inverse_temperature = 1 / static_cast<double>(params.temperature),
                                        .least = static_cast<double>(params.temperature) *
                                                 std::log(static_cast<double>(params.min_p))} {}

  std::size_t chunks() const { return (logits.size() + kChunk - 1) / kChunk; }
  std::span<const float> chunk(std::size_t number) const {
    return logits.subspan(number * kChunk).first(std::min(kChunk, logits.size() - number * kChunk));
  }
  bool has(float logit) const { return std::isfinite(logit) & (static_cast<double>(logit) - by.max >= by.least); }
  /// Returns the sum of the weights.
  double weigh(std::span<const float> some, double* out) const {
    return vectors.weigh(some.data(), static_cast<std::int64_t>(some.size()), by, out);
  }
  std::vector<double> weights_of(std::span<const std::int32_t> ids) const {
    std::vector<float> some;
    for (const std::int32_t id : ids) some.push_back(logits[static_cast<std::size_t>(id)]);
    std::vector<double> weights(ids.size());
    weigh(some, weights.data());
    return weights;
  }
};

/// The first place at which the running weight, `sum` before these weights, passes `target`. If there is none, the last
/// that has any weight, or -1.
std::ptrdiff_t pick(std::span<const double> weights, double sum, double target) {
  std::ptrdiff_t last = -1;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0) continue;
    sum += weights[i];
    last = static_cast<std::ptrdiff_t>(i);
    if (sum > target) break;
  }
  return last;
}

/// Picks from all, in order of ids. The weights of each chunk are added up once, and those of the chosen one again.
std::int32_t pick_from_all(const Softmax& softmax, double uniform) {
  std::array<double, kChunk> weights;
  std::vector<double> before{0};  // the weight of all ids before each chunk, and of all
  for (std::size_t chunk = 0; chunk < softmax.chunks(); ++chunk)
    before.push_back(before.back() + softmax.weigh(softmax.chunk(chunk), weights.data()));
  const double target = uniform * before.back();
  const auto passed = std::find_if(before.begin() + 1, before.end() - 1, [&](double sum) { return sum > target; });
  for (auto chunk = passed - before.begin() - 1; chunk >= 0; --chunk) {  // if rounding keeps all from passing, the last
    const auto c = static_cast<std::size_t>(chunk);
    const std::span<const float> some = softmax.chunk(c);
    softmax.weigh(some, weights.data());
    if (const std::ptrdiff_t at = pick(std::span(weights).first(some.size()), before[c], target); at >= 0)
      return static_cast<std::int32_t>(c * kChunk) + static_cast<std::int32_t>(at);
  }
  return -1;
}

/// The tokens of a row in buckets by likelihood, the likeliest first. A bucket is sorted only if a cut or the choice
/// falls into it.
class Buckets {
 public:
  using Number = std::uint16_t;
  static constexpr Number kCount = 2048, kNone = kCount;  // kNone: of tokens that are cut at min_p

  /// The first buckets whole, and some tokens of another, the likeliest first.
  struct Cut {
    std::size_t bucket = kCount;
    std::vector<std::int32_t> ids;
    double before = 0, mass = 0;  // the weight of the whole buckets, and of all
  };

  /// `numbers` [vocab] is work space.
  Buckets(const Softmax& softmax, Number* numbers) : softmax_(softmax), numbers_(numbers) {
    // Buckets reach down to a weight of exp(-32); the last one has all that is below.
    const auto most = static_cast<float>(softmax.by.max),
               scale = static_cast<float>(kCount / 32.0 * softmax.by.inverse_temperature);
    const std::size_t vocab = softmax.logits.size();
    for (std::size_t id = 0; id < vocab; ++id) {
      const float x = softmax.logits[id], at = (most - x) * scale;
      const auto bucket = static_cast<std::int32_t>(at < kCount - 1.0f ? at : kCount - 1.0f);
      numbers_[id] = static_cast<Number>(softmax.has(x) ? bucket : kNone);
    }
    std::array<double, kChunk> weights;
    for (std::size_t chunk = 0; chunk < softmax.chunks(); ++chunk) {
      softmax.weigh(softmax.chunk(chunk), weights.data());
      const Number* const of_chunk = numbers_ + chunk * kChunk;
      for (std::size_t i = 0; i < softmax.chunk(chunk).size(); ++i) {
        ++tokens_[of_chunk[i]];
        mass_[of_chunk[i]] += weights[i];
      }
    }
  }

  /// All tokens that have passed min_p.
  Cut all() const {
    Cut cut;
    for (std::size_t bucket = 0; bucket < kCount; ++bucket) cut.before += mass_[bucket];
    cut.mass = cut.before;
    return cut;
  }
  /// The `count` likeliest of all; fewer if there are fewer.
  Cut likeliest(std::size_t count) const {
    Cut cut;
    cut.bucket = 0;
    for (; cut.bucket < kCount && tokens_[cut.bucket] < count; ++cut.bucket)
      count -= tokens_[cut.bucket], cut.before += mass_[cut.bucket];
    cut.mass = cut.before;
    if (cut.bucket == kCount) return cut;
    cut.ids = sorted(cut.bucket);
    cut.ids.resize(count);
    for (const double weight : softmax_.weights_of(cut.ids)) cut.mass += weight;
    return cut;
  }
  /// The likeliest of `from` that have `wanted` weight together.
  Cut heaviest(double wanted, const Cut& from) const {
    Cut cut;
    cut.bucket = 0;
    for (; cut.bucket < from.bucket && cut.before + mass_[cut.bucket] < wanted; ++cut.bucket)
      cut.before += mass_[cut.bucket];
    cut.ids = cut.bucket == from.bucket ? from.ids : sorted(cut.bucket);
    cut.mass = cut.before;
    const std::vector<double> weights = softmax_.weights_of(cut.ids);
    std::size_t kept = 0;
    while (kept < weights.size() && cut.mass < wanted) cut.mass += weights[kept++];
    cut.ids.resize(kept);
    return cut;
  }
  /// The token at which the running weight passes `target`, by likelihood. If rounding keeps it from that, the last
  /// that has any weight, or -1.
  std::int32_t pick_from(const Cut& cut, double target) const {
    std::size_t bucket = 0;
    double before = 0;
    while (bucket < cut.bucket && before + mass_[bucket] <= target) before += mass_[bucket++];
    for (;; before -= mass_[--bucket]) {
      const std::vector<std::int32_t> ids = bucket == cut.bucket ? cut.ids : sorted(bucket);
      if (const std::ptrdiff_t at = pick(softmax_.weights_of(ids), before, target); at >= 0)
        return ids[static_cast<std::size_t>(at)];
      if (bucket == 0) return -1;
    }
  }

 private:
  std::vector<std::int32_t> sorted(std::size_t bucket) const {
    std::vector<std::int32_t> ids(tokens_[bucket] + 1);
    std::size_t found = 0;
    for (std::size_t id = 0; id < softmax_.logits.size(); ++id) {  // without a branch that no processor foresees
      ids[found] = static_cast<std::int32_t>(id);
      found += numbers_[id] == bucket ? 1 : 0;
    }
    ids.resize(found);
    std::sort(ids.begin(), ids.end(), Likelier{softmax_.logits.data()});
    return ids;
  }

  const Softmax& softmax_;
  Number* const numbers_;
  std::array<std::size_t, kCount + 1> tokens_{};
  std::array<double, kCount + 1> mass_{};
};

/// Cuts to the top_k likeliest and then to top_p of their weight, and picks from these in order of likelihood.
std::int32_t pick_from_cut(const Softmax& softmax, const SampleParams& params, double uniform,
                           Buckets::Number* numbers) {
  const Buckets buckets(softmax, numbers);
  Buckets::Cut cut = params.top_k > 0 ? buckets.likeliest(static_cast<std::size_t>(params.top_k)) : buckets.all();
  if (params.top_p < 1) cut = buckets.heaviest(static_cast<double>(params.top_p) * cut.mass, cut);
  return buckets.pick_from(cut, uniform * cut.mass);
}

/// `numbers` [vocab] is work space.
std::int32_t sample_row(const VectorKernels& vectors, std::span<const float> logits, const SampleParams& params,
                        Buckets::Number* numbers) {
  const std::int32_t best = most_likely(logits.data(), static_cast<std::int64_t>(logits.size()));
  if (best < 0 || params.temperature == 0 || params.top_k == 1) return best;
  const Softmax softmax(vectors, logits, logits[static_cast<std::size_t>(best)], params);
  const double uniform = unit_double(random_bits(params.key, params.counter));
  if (params.top_k > 0 || params.top_p < 1) return pick_from_cut(softmax, params, uniform, numbers);
  return pick_from_all(softmax, uniform);
}

float changed(float x, const LogitChange& change) {
  x += change.bias;
  x = x > 0 ? x / change.repetition : x * change.repetition;
  return x - change.penalty;
}

/// The changes of one row.
std::span<const LogitChange> changes_of(std::int64_t row, std::span<const LogitChange> changes) {
  const auto before = [](const LogitChange& change, std::int64_t r) { return change.row >= 0 && change.row < r; };
  const auto first = std::lower_bound(changes.begin(), changes.end(), row, before);
  const auto end = std::find_if(first, changes.end(), [&](const LogitChange& change) { return change.row != row; });
  return {first, end};
}

/// Makes the changes, and returns what each one's token had.
std::vector<float> make_changes(float* logits, std::span<const LogitChange> changes) {
  std::vector<float> before;
  before.reserve(changes.size());
  for (const LogitChange& change : changes) {
    float& logit = logits[change.token];
    before.push_back(logit);
    logit = changed(logit, change);
  }
  return before;
}

void mask_out(float* logits, std::int64_t vocab, const std::uint32_t* mask) {
  constexpr std::int64_t bits = 32;
  for (std::int64_t first = 0; first < vocab; first += bits) {
    const std::uint32_t word = mask[first / bits];
    if (word == ~std::uint32_t{0}) continue;
    for (std::int64_t id = first; id < std::min(vocab, first + bits); ++id)
      logits[id] = word >> (id - first) & 1 ? logits[id] : kForbidden;
  }
}

}  // namespace

void CpuOps::run(const Sample& op, Stream&) const {
  check(op);
  ThreadPool::Turn turn(pool_);
  turn.run(op.logits.rows, [&](std::int64_t row, int thread) {
    const auto r = static_cast<std::size_t>(row), vocab = static_cast<std::size_t>(op.logits.cols);
    float* logits = op.logits.slice(row, 1).as<float>();
    auto* const numbers = reinterpret_cast<Buckets::Number*>(turn.scratch(thread, vocab * sizeof(Buckets::Number)));
    const auto changes = changes_of(row, op.changes);
    const std::vector<float> before = make_changes(logits, changes);
    if (!op.mask.empty() && op.mask[r] >= 0)
      mask_out(logits, op.logits.cols, op.masks.data() + op.mask[r] * mask_words(op.logits.cols));
    const std::int32_t token = op.token[r] = sample_row(vectors_, {logits, vocab}, op.params[r], numbers);
    if (op.logit.empty()) return;
    const auto change = std::lower_bound(changes.begin(), changes.end(), token,
                                         [](const LogitChange& each, std::int32_t id) { return each.token < id; });
    op.logit[r] = token < 0 ? kNaN
                  : change != changes.end() && change->token == token
                      ? before[static_cast<std::size_t>(change - changes.begin())]
                      : logits[token];
  });
}

void CpuOps::run(const LogProbs& op, Stream&) const {
  check(op);
  pool_.run(op.logits.rows, [&](std::int64_t row, int) {
    const auto r = static_cast<std::size_t>(row);
    const float* logits = op.logits.slice(row, 1).as<float>();
    const std::int32_t best = most_likely(logits, op.logits.cols), target = op.target[r];
    const float max = best < 0 ? kNaN : logits[best];
    const double sum = vectors_.sum_exp(logits, op.logits.cols, max);
    op.logprob[r] = static_cast<float>(static_cast<double>(logits[target]) - static_cast<double>(max) - std::log(sum));
    op.greedy[r] = target == best;
  });
}

void CpuOps::run(const TopLogProbs& op, Stream&) const {
  check(op);
  const auto count = static_cast<std::size_t>(op.count);
  pool_.run(static_cast<std::int64_t>(op.row.size()), [&](std::int64_t index, int) {
    const auto i = static_cast<std::size_t>(index);
    const float* logits = op.logits.slice(op.row[i], 1).as<float>();
    const std::vector<std::int32_t> best = likeliest(logits, op.logits.cols, std::max<std::size_t>(count, 1));
    const float max = best.empty() ? kNaN : logits[best.front()];
    op.log_sum[i] = static_cast<double>(max) + std::log(vectors_.sum_exp(logits, op.logits.cols, max));
    for (std::size_t place = 0; place < count; ++place) {
      const bool there = place < best.size();
      op.token[i * count + place] = there ? best[place] : -1;
      op.logprob[i * count + place] =
          there ? static_cast<float>(static_cast<double>(logits[best[place]]) - op.log_sum[i]) : kNaN;
    }
  });
}

}  // namespace weft::kernels
