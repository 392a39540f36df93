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

/// One row's distribution after the cut at min_p, before the others; a logit that is not finite has weight 0.
struct Softmax {
  const float* logits;
  double max, temperature;
  double least;  // a logit that is less than max + least is cut
  Softmax(const float* row, float largest, const SampleParams& params)
      : logits(row), max(largest), temperature(params.temperature),
        least(temperature * std::log(static_cast<double>(params.min_p))) {}
  bool has(std::int64_t id) const {
    return std::isfinite(logits[id]) & (static_cast<double>(logits[id]) - max >= least);
  }
  double weight(std::int64_t id) const {
    return has(id) ? std::exp((static_cast<double>(logits[id]) - max) / temperature) : 0.0;
  }
};

/// The ids from `first` to `end` - 1 that may have weight, at most kChunk. Which ids a mask leaves, no branch predictor
/// foresees, so there is no branch.
constexpr std::int64_t kChunk = 1024;
class Chunk {
 public:
  Chunk(const Softmax& softmax, std::int64_t first, std::int64_t end) {
    for (std::int64_t id = first; id < end; ++id) {
      ids_[count_] = static_cast<std::int32_t>(id);
      count_ += softmax.has(id) ? 1 : 0;
    }
  }
  std::span<const std::int32_t> ids() const& { return {ids_.data(), count_}; }
  std::span<const std::int32_t> ids() const&& = delete;

 private:
  std::size_t count_ = 0;
  std::array<std::int32_t, kChunk> ids_;
};

/// The first id at which the running weight, `sum` before these ids, passes `target`. If there is none, the last that
/// has any weight, or -1.
std::int32_t pick(const Softmax& softmax, std::span<const std::int32_t> ids, double sum, double target) {
  std::int32_t last = -1;
  for (const std::int32_t id : ids) {
    const double weight = softmax.weight(id);
    if (weight == 0) continue;
    sum += weight;
    last = id;
    if (sum > target) break;
  }
  return last;
}

/// Cuts to the top_k likeliest and then to top_p of their weight, and picks from these in order of likelihood. It sorts
/// no more than it keeps: it finds k by selection, and the nucleus by taking from a heap until it is full.
std::int32_t pick_from_cut(const Softmax& softmax, std::int64_t vocab, const SampleParams& params, double uniform) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(vocab));
  std::iota(ids.begin(), ids.end(), 0);
  ids.erase(std::remove_if(ids.begin(), ids.end(), [&](auto id) { return !softmax.has(id); }), ids.end());
  const Likelier likelier{softmax.logits};
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < ids.size()) {
    std::nth_element(ids.begin(), ids.begin() + params.top_k, ids.end(), likelier);
    ids.resize(static_cast<std::size_t>(params.top_k));
  }
  double total = 0;
  if (params.top_p < 1) {
    std::sort(ids.begin(),
              ids.end());  // the rounding of the total must not depend on the order in which the selection left the ids
    for (const std::int32_t id : ids) total += softmax.weight(id);
  }
  const auto less_likely = [&](std::int32_t a, std::int32_t b) { return likelier(b, a); };
  std::make_heap(ids.begin(), ids.end(), less_likely);
  const double wanted =
      params.top_p < 1 ? static_cast<double>(params.top_p) * total : std::numeric_limits<double>::infinity();
  std::vector<std::int32_t> kept;
  double mass = 0;
  for (auto end = ids.end(); end != ids.begin() && mass < wanted; --end) {
    std::pop_heap(ids.begin(), end, less_likely);
    kept.push_back(*(end - 1));
    mass += softmax.weight(kept.back());
  }
  return pick(softmax, kept, 0, uniform * mass);
}

/// Picks from all, in order of ids. The weights of each chunk are added up once, and those of the chosen one again.
std::int32_t pick_from_all(const Softmax& softmax, std::int64_t vocab, double uniform) {
  std::vector<double> before{0};  // the weight of all ids before each chunk, and of all
  for (std::int64_t first = 0; first < vocab; first += kChunk) {
    double sum = before.back();
    const Chunk chunk(softmax, first, std::min(vocab, first + kChunk));
    for (const std::int32_t id : chunk.ids()) sum += softmax.weight(id);
    before.push_back(sum);
  }
  const double target = uniform * before.back();
  const auto passed = std::find_if(before.begin() + 1, before.end() - 1, [&](double sum) { return sum > target; });
  for (auto chunk = passed - before.begin() - 1; chunk >= 0; --chunk) {  // if rounding keeps all from passing, the last
    const std::int64_t first = chunk * kChunk;
    const Chunk ids(softmax, first, std::min(vocab, first + kChunk));
    if (const std::int32_t id = pick(softmax, ids.ids(), before[static_cast<std::size_t>(chunk)], target); id >= 0)
      return id;
  }
  return -1;
}

std::int32_t sample_row(const float* logits, std::int64_t vocab, const SampleParams& params) {
  const std::int32_t best = most_likely(logits, vocab);
  if (best < 0 || params.temperature == 0 || params.top_k == 1) return best;
  const Softmax softmax(logits, logits[best], params);
  const double uniform = unit_double(random_bits(params.key, params.counter));
  if (params.top_k > 0 || params.top_p < 1) return pick_from_cut(softmax, vocab, params, uniform);
  return pick_from_all(softmax, vocab, uniform);
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
  pool_.run(op.logits.rows, [&](std::int64_t row, int) {
    const auto r = static_cast<std::size_t>(row);
    float* logits = op.logits.slice(row, 1).as<float>();
    const auto changes = changes_of(row, op.changes);
    const std::vector<float> before = make_changes(logits, changes);
    if (!op.mask.empty() && op.mask[r] >= 0)
      mask_out(logits, op.logits.cols, op.masks.data() + op.mask[r] * mask_words(op.logits.cols));
    const std::int32_t token = op.token[r] = sample_row(logits, op.logits.cols, op.params[r]);
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
