#include "runtime/analyze/attention_profile.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <span>

#include "kernels/backend.h"
#include "runtime/analyze/layer_budgets.h"
#include "runtime/base/parallel.h"

namespace weft::runtime {
namespace {

constexpr double kNegligible = 0.01;  // share of a row's largest weight
constexpr double kFifth = 0.2;

std::int64_t count_of(double share, std::int64_t tokens) {
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(share * static_cast<double>(tokens)));
}

/// Rows [first, first + tokens) of one head's part of a matrix, as fp32, transposed: [head_dim][tokens], so that loops
/// over tokens can be vectorised.
std::vector<float> transposed(const ConstView& from, std::int64_t first, std::int64_t tokens, std::int64_t column,
                              int head_dim) {
  std::vector<float> to(static_cast<std::size_t>(tokens * head_dim));
  const auto fill = [&]<class T>(const T* data) {
    for (std::int64_t row = 0; row < tokens; ++row)
      for (std::int64_t d = 0; d < head_dim; ++d)
        to[static_cast<std::size_t>(d * tokens + row)] =
            static_cast<float>(data[(first + row) * from.stride + column + d]);
  };
  if (from.dtype == DType::f16) fill(from.as<f16>());
  else if (from.dtype == DType::bf16) fill(from.as<bf16>());
  else fill(from.as<float>());
  return to;
}

double sum(std::span<const float> numbers) { return std::accumulate(numbers.begin(), numbers.end(), 0.0); }

/// Minus the slope of the least-squares line of ln(score) over ln(rank), for ranks 1 to half of all.
double exponent_of(std::span<const float> sorted) {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (std::size_t i = 0; i < (sorted.size() + 1) / 2 && sorted[i] > 0; ++i) {
    const double rank = std::log(static_cast<double>(i + 1)), score = std::log(static_cast<double>(sorted[i]));
    n += 1, x += rank, y += score, xx += rank * rank, xy += rank * score;
  }
  const double spread = n * xx - x * x;
  return spread > 0 ? -(n * xy - x * y) / spread : 0;
}

/// Indices of the `count` largest scores. Of equal scores the lower index, which is the older token, comes first.
std::vector<std::int32_t> largest(std::span<const float> scores, std::int64_t count) {
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto before = [&](std::int32_t a, std::int32_t b) {
    const float x = scores[static_cast<std::size_t>(a)], y = scores[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::partial_sort(order.begin(), order.begin() + count, order.end(), before);
  order.resize(static_cast<std::size_t>(count));
  return order;
}

void add_scores(KvHeadProfile& to, std::vector<double>& ranked, std::span<const std::int64_t> ranks,
                std::span<const float> scores, double weight) {
  std::vector<float> sorted(scores.begin(), scores.end());
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  const double all = sum(sorted);
  to.exponent += exponent_of(sorted);
  to.top_fifth += sum({sorted.data(), static_cast<std::size_t>(count_of(kFifth, std::ssize(sorted)))}) / all;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    ranked[i] += weight * static_cast<double>(sorted[static_cast<std::size_t>(ranks[i] - 1)]) / all;
}

/// Share of the first half's top fifth by the attention of its own queries that is also its top fifth by the attention
/// of all queries.
double overlap_of(std::span<const float> middle, std::span<const float> end) {
  const std::int64_t count = count_of(kFifth, std::ssize(middle));
  std::vector<std::int32_t> then = largest(middle, count), later = largest(end.first(middle.size()), count), both;
  std::sort(then.begin(), then.end());
  std::sort(later.begin(), later.end());
  std::set_intersection(then.begin(), then.end(), later.begin(), later.end(), std::back_inserter(both));
  return static_cast<double>(both.size()) / static_cast<double>(count);
}

/// Sums over the queries of one query head.
struct Queries {
  HeadProfile head;
  std::array<double, kShares.size()> held{};
  std::array<double, kBudgetSteps> kept{};
  std::int64_t to_first_half = 0;  // queries that see any of the first half
};

/// The first token that a query sees.
std::int64_t first_seen(const kernels::ColumnSums& op, std::int64_t query) {
  return op.window > 0 ? std::max<std::int64_t>(0, query + 1 - op.window) : 0;
}

class QueryReader {
 public:
  /// `keys`: from transposed(). `heavy`: tokens of the first half, the most important first.
  QueryReader(const kernels::ColumnSums& op, std::int64_t first, std::int64_t window, std::span<const float> keys,
              std::span<const std::int32_t> heavy)
      : op_(op), first_(first), window_(window), keys_(keys), heavy_(heavy),
        weights_(static_cast<std::size_t>(window)) {}

  /// `order`: the tokens that the query sees, the highest score first; empty if `kept` is not wanted.
  void read(int head, std::int64_t query, std::span<const std::int32_t> order, Queries& to) {
    weigh(head, query);
    const auto until_here = std::span<float>(weights_).first(static_cast<std::size_t>(query + 1)),
               seen = until_here.subspan(static_cast<std::size_t>(first_seen(op_, query)));
    const double all = sum(seen), first_half = sum(until_here.first(static_cast<std::size_t>(window_ / 2)));
    if (!order.empty()) add_kept(until_here, order, window_, to.kept);
    const float largest_weight = *std::max_element(seen.begin(), seen.end());
    const auto below = std::count_if(seen.begin(), seen.end(), [&](float weight) {
      return static_cast<double>(weight) < kNegligible * static_cast<double>(largest_weight);
    });
    to.head.sparsity += static_cast<double>(below) / static_cast<double>(seen.size());
    to.to_first_half += first_half > 0 ? 1 : 0;
    double held = 0;
    std::size_t taken = 0;
    for (std::size_t i = kShares.size(); i-- > 0;) {  // from the smallest budget up
      const auto count = static_cast<std::size_t>(count_of(kShares[i], window_ / 2));
      for (; taken < count; ++taken) held += static_cast<double>(weights_[static_cast<std::size_t>(heavy_[taken])]);
      to.held[i] += first_half > 0 ? held / first_half : 0;
    }
    std::sort(seen.begin(), seen.end(), std::greater<>());
    for (std::size_t i = 0; i < kShares.size(); ++i) {
      const auto count = std::min(seen.size(), static_cast<std::size_t>(count_of(kShares[i], window_)));
      to.head.best[i] += sum(seen.first(count)) / all;
    }
  }

 private:
  /// Computes the softmax over the tokens that the query sees. The weights of all others are 0.
  void weigh(int head, std::int64_t query) {
    const std::int64_t begin = first_seen(op_, query);
    std::fill(weights_.begin(), weights_.end(), 0.0f);
    const float* const q = op_.q.as<float>() + (first_ + query) * op_.q.stride + std::int64_t{head} * op_.head_dim;
    for (int d = 0; d < op_.head_dim; ++d) {
      const float* const key = keys_.data() + std::int64_t{d} * window_;
      for (std::int64_t j = begin; j <= query; ++j) weights_[static_cast<std::size_t>(j)] += q[d] * key[j];
    }
    const float log_sum = op_.lse.as<float>()[std::int64_t{head} * op_.lse.stride + first_ + query];
    for (std::int64_t j = begin; j <= query; ++j) {
      float& weight = weights_[static_cast<std::size_t>(j)];
      const float logit = op_.scale * weight;
      weight = std::exp((op_.cap > 0 ? op_.cap * std::tanh(logit / op_.cap) : logit) - log_sum);
    }
  }

  const kernels::ColumnSums& op_;
  const std::int64_t first_, window_;
  const std::span<const float> keys_;
  const std::span<const std::int32_t> heavy_;
  std::vector<float> weights_;
};

std::vector<std::int64_t> powers_of_two(std::int64_t last) {
  std::vector<std::int64_t> ranks;
  for (std::int64_t rank = 1; rank <= last; rank *= 2) ranks.push_back(rank);
  return ranks;
}

/// The scores of `window` tokens if every token attends evenly to all that it sees: the sum over i >= j of 1 / (i + 1).
std::vector<float> uniform_scores(std::int64_t window) {
  std::vector<float> scores(static_cast<std::size_t>(window));
  double score = 0;
  for (std::int64_t j = window - 1; j >= 0; --j)
    scores[static_cast<std::size_t>(j)] = static_cast<float>(score += 1 / static_cast<double>(j + 1));
  return scores;
}

}  // namespace

AttentionObserver::AttentionObserver(const policy::ModelSpec& model, std::int64_t window, std::int64_t queries,
                                     bool budgets, const kernels::Ops& ops)
    : model_(model), window_(window), queries_(queries), budgets_(budgets), ops_(ops),
      seen_(static_cast<std::size_t>(model.layers)), ranks_(powers_of_two(window)) {
  const KvHeadProfile none{.kept = std::vector<double>(budgets ? kBudgetSteps : 0)};
  for (int layer = 0; layer < model.layers; ++layer)
    sums_.push_back({.heads = std::vector<HeadProfile>(static_cast<std::size_t>(model.heads)),
                     .kv_heads = std::vector<KvHeadProfile>(static_cast<std::size_t>(model.kv_heads_of(layer)), none),
                     .ranked = std::vector<double>(ranks_.size())});
}

void AttentionObserver::see(int layer, const kernels::ColumnSums& op) {
  for (std::size_t s = 0; s + 1 < op.offsets.size(); ++s) see_window(layer, op, op.offsets[s]);
}

/// [kv_heads, window / 2] The scores of the first half at the middle of the window.
std::vector<float> AttentionObserver::half_scores(const kernels::ColumnSums& op, std::int64_t first) const {
  const std::int64_t half = window_ / 2;
  std::vector<float> scores(static_cast<std::size_t>(half * op.kv_heads));
  const std::array<std::int32_t, 2> offsets{0, static_cast<std::int32_t>(half)};
  kernels::ColumnSums part = op;
  part.q = op.q.slice(first, half), part.k = op.k.slice(first, half);
  part.lse = ConstView(op.lse.as<float>() + first, DType::f32, op.lse.rows, half, op.lse.stride);
  part.offsets = offsets;
  part.score = View(scores.data(), DType::f32, op.kv_heads, half);
  kernels::Stream stream;
  ops_.run(part, stream);
  return scores;
}

void AttentionObserver::see_window(int layer, const kernels::ColumnSums& op, std::int64_t first) {
  const std::int64_t half = window_ / 2;
  const int group = op.heads / op.kv_heads;
  const std::vector<float> middle = half_scores(op, first);
  LayerProfile& sums = sums_[static_cast<std::size_t>(layer)];
  ++seen_[static_cast<std::size_t>(layer)];
  std::mutex ranked;
  for_each_of(op.kv_heads, [&](std::int64_t g) {
    KvHeadProfile& kv = sums.kv_heads[static_cast<std::size_t>(g)];
    const std::span<const float> at_end(op.score.as<const float>() + g * op.score.stride + first,
                                        static_cast<std::size_t>(window_));
    const std::span<const float> at_middle(middle.data() + g * half, static_cast<std::size_t>(half));
    {
      const std::lock_guard lock(ranked);
      add_scores(kv, sums.ranked, ranks_, at_end, 1.0 / op.kv_heads);
    }
    kv.overlap += overlap_of(at_middle, at_end);
    const std::vector<float> keys = transposed(op.k, first, window_, g * op.head_dim, op.head_dim);
    const std::vector<std::int32_t> heavy = largest(at_middle, count_of(kShares.front(), half));
    std::vector<std::vector<std::int32_t>> orders(static_cast<std::size_t>(queries_));
    const auto query_at = [&](std::int64_t i) { return half + i * (window_ - half) / queries_; };
    for (std::int64_t i = 0; budgets_ && i < queries_; ++i) {
      const std::int64_t query = query_at(i), begin = first_seen(op, query);
      std::vector<std::int32_t>& order = orders[static_cast<std::size_t>(i)];
      order = largest(scores_at(query, at_middle, at_end, op.window), query + 1);
      std::erase_if(order, [begin](std::int32_t token) { return token < begin; });
    }
    QueryReader reader(op, first, window_, keys, heavy);
    for (std::int64_t head = g * group; head < (g + 1) * group; ++head) {
      Queries read;
      for (std::int64_t i = 0; i < queries_; ++i)
        reader.read(static_cast<int>(head), query_at(i), orders[static_cast<std::size_t>(i)], read);
      HeadProfile& to = sums.heads[static_cast<std::size_t>(head)];
      const double weight = 1.0 / static_cast<double>(queries_);
      to.sparsity += weight * read.head.sparsity;
      for (std::size_t i = 0; i < kShares.size(); ++i) {
        to.best[i] += weight * read.head.best[i];
        kv.held[i] += read.held[i] / static_cast<double>(group * std::max<std::int64_t>(1, read.to_first_half));
      }
      for (std::size_t step = 0; step < kv.kept.size(); ++step) kv.kept[step] += weight / group * read.kept[step];
    }
  });
}

AttentionProfile AttentionObserver::profile() const {
  AttentionProfile result;
  result.windows = seen_.front();
  result.tokens = result.windows * window_;
  result.ranks = ranks_;
  result.uniform_ranked.assign(ranks_.size(), 0);
  add_scores(result.uniform, result.uniform_ranked, ranks_, uniform_scores(window_), 1);
  result.uniform.overlap = 1;
  for (std::size_t i = 0; i < kShares.size(); ++i) result.uniform.held[i] = kShares[i];
  result.layers = sums_;
  const double each = 1.0 / static_cast<double>(std::max<std::int64_t>(1, result.windows));
  for (LayerProfile& layer : result.layers) {
    for (HeadProfile& head : layer.heads) {
      head.sparsity *= each;
      for (double& mass : head.best) mass *= each;
    }
    for (KvHeadProfile& kv : layer.kv_heads) {
      for (double* const figure : {&kv.exponent, &kv.top_fifth, &kv.overlap}) *figure *= each;
      for (double& mass : kv.held) mass *= each;
      for (double& share : kv.kept) share *= each;
    }
    for (double& share : layer.ranked) share *= each;
  }
  return result;
}

}  // namespace weft::runtime
