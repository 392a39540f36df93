#include "tests/support/h2o.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/support/numbers.h"

namespace weft::test {
namespace {

std::vector<int> counted(int end) {
  std::vector<int> all(static_cast<std::size_t>(end));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// The positions that a prompt's row attends to.
std::vector<int> seen_by(int row, int window) {
  std::vector<int> all = counted(row + 1);
  if (window > 0) std::erase_if(all, [&](int k) { return k <= row - window; });
  return all;
}

const std::vector<double>& weights_of(const H2oCase& c, std::size_t head, int query) {
  return c.weights[head][static_cast<std::size_t>(query)];
}

/// The softmax of one query of a case.
std::map<int, double> probabilities_of(const H2oCase& c, std::size_t head, int query, const std::vector<int>& visible) {
  std::vector<double> weights = weights_of(c, head, query);
  if (c.cap > 0)
    for (double& weight : weights) weight = std::exp(c.cap * std::tanh(std::log(weight) / c.cap));
  return probabilities(weights, visible, c.sink);
}

/// Leaves in `score` what stays of a prompt; returns how clear the choice was.
double keep_prompt(std::map<int, double>& score, const H2oCase& c) {
  const double clear = std::numeric_limits<double>::infinity();
  if (c.prompt <= c.keep.of_prompt()) return clear;
  if (c.keep.window > 0)  // the next token, at position c.prompt, attends to the last `window`, itself included
    std::erase_if(score, [&](const auto& entry) { return entry.first <= c.prompt - c.keep.window; });
  std::vector<std::pair<double, int>> rest;  // by score, then by age: the front goes first
  int pinned = 0;
  for (const auto& [position, value] : score) {
    if (position >= c.prompt - c.keep.recent) continue;
    if (position < c.keep.sinks && pinned < c.keep.heavy) ++pinned;
    else rest.emplace_back(value, position);
  }
  std::sort(rest.begin(), rest.end());
  const auto leaving = rest.size() - static_cast<std::size_t>(c.keep.heavy - pinned);
  for (std::size_t i = 0; i < leaving; ++i) score.erase(rest[i].second);
  return leaving > 0 && leaving < rest.size() ? rest[leaving].first - rest[leaving - 1].first : clear;
}

/// One-hot keys, so that a query's products are its logits; zero where a token comes after the query.
Tokens tokens_of(const H2oCase& c, int first, int count, int head_dim) {
  Tokens t;
  t.v = normal(std::int64_t{count} * head_dim, 17);
  for (int i = first; i < first + count; ++i) {
    for (std::size_t h = 0; h < c.weights.size(); ++h)
      for (int j = 0; j < head_dim; ++j)
        t.q.push_back(j <= i ? static_cast<float>(std::log(weights_of(c, h, i)[static_cast<std::size_t>(j)])) : 0.0f);
    for (int j = 0; j < head_dim; ++j) t.k.push_back(j == i ? 1.0f : 0.0f);
  }
  return t;
}

std::map<int, double> kept_by(const SlotsUnderTest& run, int sequence) {
  std::map<int, double> kept;
  for (const auto& [position, score] : run.kept(sequence, 0)) kept[position] = static_cast<double>(score);
  return kept;
}

/// The prompts of all cases as one call.
void prefill_cases(SlotsUnderTest& run, const std::vector<H2oCase>& cases, int head_dim, const H2oOptions& options,
                   std::vector<H2oTrace>& traces) {
  Tokens tokens;
  std::vector<int> lengths;
  std::vector<kernels::Keep> keep;
  std::vector<float> fed;
  for (const H2oCase& c : cases) {
    append(tokens, tokens_of(c, 0, c.prompt, head_dim));
    lengths.push_back(c.prompt);
    keep.push_back(c.keep);
    if (!options.feed) continue;
    for (const double score : h2o_in_fp64(c, options.window).prefill_scores) fed.push_back(static_cast<float>(score));
  }
  const auto result = run.prefill(tokens, lengths, keep, 1, options.window, fed);
  auto score = result.score.begin();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    traces[i].prefill_scores.assign(score, score + lengths[i]);
    score += lengths[i];
    traces[i].kept.push_back(kept_by(run, static_cast<int>(i)));
  }
}

}  // namespace

std::map<int, double> probabilities(const std::vector<double>& weights, const std::vector<int>& visible, double sink) {
  double total = sink;
  for (const int k : visible) total += weights[static_cast<std::size_t>(k)];
  std::map<int, double> p;
  for (const int k : visible) p[k] = weights[static_cast<std::size_t>(k)] / total;
  return p;
}

H2oTrace h2o_in_fp64(const H2oCase& c, int window) {
  H2oTrace trace;
  std::map<int, double> score;
  for (int i = 0; i < c.prompt; ++i) score[i] = 0;
  for (std::size_t head = 0; head < c.weights.size(); ++head)
    for (int i = window > 0 ? std::max(0, c.prompt - window) : 0; i < c.prompt; ++i)
      for (const auto& [k, p] : probabilities_of(c, head, i, seen_by(i, c.keep.window))) score[k] += p;
  for (int i = 0; i < c.prompt; ++i) trace.prefill_scores.push_back(score[i]);
  trace.gap.push_back(keep_prompt(score, c));
  trace.kept.push_back(score);

  for (int t = c.prompt; t < c.prompt + c.steps; ++t) {
    score[t] = 0;
    std::vector<int> visible;
    for (const auto& entry : score) visible.push_back(entry.first);
    for (std::size_t head = 0; head < c.weights.size(); ++head)
      for (const auto& [k, p] : probabilities_of(c, head, t, visible)) score[k] += p;
    std::vector<std::pair<double, int>> candidates;
    if (static_cast<int>(visible.size()) > c.keep.budget())
      for (const auto& [k, value] : score)
        if (k >= c.keep.sinks && k <= t - c.keep.recent - c.keep.grace) candidates.emplace_back(value, k);
    for (const auto& [k, value] : score)
      if (c.keep.window > 0 && k == t + 1 - c.keep.window) candidates = {{value, k}};
    std::sort(candidates.begin(), candidates.end());
    trace.evicted.push_back(candidates.empty() ? -1 : candidates[0].second);
    trace.gap.push_back(candidates.size() > 1 ? candidates[1].first - candidates[0].first
                                              : std::numeric_limits<double>::infinity());
    if (!candidates.empty()) score.erase(candidates[0].second);
    trace.kept.push_back(score);
  }
  return trace;
}

namespace {

std::vector<H2oTrace> traces_on(const Place& place, const std::vector<H2oCase>& cases, const H2oOptions& options,
                                const RuleParameters& rule) {
  const std::size_t group = cases.front().weights.size();
  int head_dim = 1, slots = 1, most_steps = 0;
  for (const H2oCase& c : cases) {
    head_dim = std::max(head_dim, c.prompt + c.steps);
    slots = std::max(slots, std::min(c.keep.budget(), c.prompt + c.steps) + 1);
    most_steps = std::max(most_steps, c.steps);
  }
  SlotsUnderTest run(place, static_cast<int>(cases.size()), {static_cast<int>(group), 1, head_dim},
                     slots + options.more_slots);
  run.cap = static_cast<float>(cases.front().cap);
  if (cases.front().sink > 0) run.sink_logits.assign(group, static_cast<float>(std::log(cases.front().sink)));
  run.decay = rule.decay, run.pool = rule.pool, run.statistic = rule.statistic;
  std::vector<H2oTrace> traces(cases.size());
  prefill_cases(run, cases, head_dim, options, traces);

  for (int step = 0; step < most_steps; ++step) {
    Tokens tokens;
    std::vector<std::int32_t> sequence, position;
    std::vector<kernels::Keep> keep;
    std::vector<std::map<int, float>> fed;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const H2oCase& c = cases[i];
      if (step >= c.steps) continue;
      const int t = c.prompt + step;
      sequence.push_back(static_cast<std::int32_t>(i));
      position.push_back(t);
      keep.push_back(c.keep);
      append(tokens, tokens_of(c, t, 1, head_dim));
      if (!options.feed) continue;
      std::vector<int> visible;
      for (const auto& entry : traces[i].kept.back()) visible.push_back(entry.first);
      visible.push_back(t);
      for (std::size_t h = 0; h < group; ++h) {
        fed.emplace_back();
        for (const auto& [k, p] : probabilities_of(c, h, t, visible)) fed.back()[k] = static_cast<float>(p);
      }
    }
    const auto result = run.step(tokens, sequence, position, keep, 1, fed);
    auto evicted = result.evicted.begin();
    for (const std::int32_t s : sequence) {
      H2oTrace& trace = traces[static_cast<std::size_t>(s)];
      trace.evicted.push_back(*evicted++);
      trace.kept.push_back(kept_by(run, s));
    }
  }
  return traces;
}

}  // namespace

std::vector<H2oTrace> h2o_on(const Place& place, const std::vector<H2oCase>& cases, const H2oOptions& options) {
  return traces_on(place, cases, options, {});
}

H2oTrace rule_on(const Place& place, const H2oCase& c, const RuleParameters& rule) {
  return traces_on(place, {c}, {.window = rule.window}, rule)[0];
}

}  // namespace weft::test
