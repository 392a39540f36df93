#include "runtime/engine/logit_request.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "runtime/base/hash.h"

namespace weft::runtime {
namespace {

using kernels::LogitChange;

constexpr float kForbid = -std::numeric_limits<float>::infinity();

bool lower_token(const LogitChange& a, const LogitChange& b) { return a.token < b.token; }

/// Whether the next token would complete this bad word, of which `generated` must have all others at its end.
bool next_completes(const std::vector<std::int32_t>& word, std::span<const std::int32_t> generated) {
  const std::size_t before = word.size() - 1;
  return before <= generated.size() && std::equal(word.begin(), word.end() - 1, generated.end() - before);
}

/// Makes one change of the changes of each token, in a range that is ascending.
void join_equal(std::vector<LogitChange>& changes, std::size_t first) {
  std::size_t end = first;
  for (std::size_t i = first; i < changes.size(); ++i) {
    if (end == first || changes[end - 1].token != changes[i].token) {
      changes[end++] = changes[i];
      continue;
    }
    LogitChange& joined = changes[end - 1];
    joined.bias += changes[i].bias;
    joined.repetition *= changes[i].repetition;
    joined.penalty += changes[i].penalty;
  }
  changes.resize(end);
}

/// Joins ranges that overlap or touch.
std::vector<TokenRange> joined(std::span<const TokenRange> a, std::span<const TokenRange> b) {
  std::vector<TokenRange> all(a.size() + b.size());
  std::merge(a.begin(), a.end(), b.begin(), b.end(), all.begin(),
             [](const TokenRange& left, const TokenRange& right) { return left.first < right.first; });
  std::size_t end = 0;
  for (const TokenRange& range : all) {
    if (end > 0 && range.first <= all[end - 1].first + all[end - 1].count)
      all[end - 1].count = std::max(all[end - 1].count, range.first + range.count - all[end - 1].first);
    else all[end++] = range;
  }
  all.resize(end);
  return all;
}

/// Puts ranges of forbidden tokens among the changes from `first` on, which are of other tokens. A form may forbid tens
/// of thousands of ranges, so they are not sorted again.
void forbid(std::span<const TokenRange> ranges, std::int32_t row, std::vector<LogitChange>& changes,
            std::size_t first) {
  const std::size_t others = changes.size();
  changes.resize(others + ranges.size());
  const auto at = [&](std::size_t index) { return changes.begin() + static_cast<std::ptrdiff_t>(index); };
  std::transform(ranges.begin(), ranges.end(), at(others), [row](const TokenRange& range) {
    return LogitChange{.row = row, .token = range.first, .tokens = range.count, .bias = kForbid};
  });
  if (others > first) std::inplace_merge(at(first), at(others), changes.end(), lower_token);
}

/// Appends the changes of one row.
void add_changes(Sequence& sequence, std::int32_t row, std::vector<LogitChange>& changes) {
  const LogitRules& rules = sequence.rules;
  const auto prompt = static_cast<std::size_t>(sequence.whole_prompt());
  const auto generated = std::span(std::as_const(sequence).tokens).subspan(prompt);
  const std::size_t first = changes.size();
  if (rules.penalises())
    for (const auto& [token, times] :
         sequence.counts.update(sequence.tokens, sequence.whole_prompt(), rules.repetition_penalty != 1))
      changes.push_back(
          {.row = row,
           .token = token,
           .repetition = rules.repetition_penalty,
           .penalty = rules.frequency_penalty * static_cast<float>(times) + (times > 0 ? rules.presence_penalty : 0)});
  const std::size_t counted = changes.size();
  for (const auto& [token, bias] : rules.bias) changes.push_back({.row = row, .token = token, .bias = bias});
  if (sequence.answered() < sequence.min_tokens)
    for (const std::int32_t token : sequence.suppressed_until_min)
      changes.push_back({.row = row, .token = token, .bias = kForbid});
  for (const std::vector<std::int32_t>& word : rules.bad_words)
    if (next_completes(word, generated)) changes.push_back({.row = row, .token = word.back(), .bias = kForbid});
  const auto at = [&](std::size_t index) { return changes.begin() + static_cast<std::ptrdiff_t>(index); };
  std::span<const TokenRange> forbidden = rules.forbidden;
  std::vector<TokenRange> both;
  if (sequence.matcher && !forbidden.empty()) forbidden = both = joined(forbidden, sequence.matcher->forbidden());
  else if (sequence.matcher) forbidden = sequence.matcher->forbidden();
  if (!forbidden.empty()) {
    changes.erase(
        std::remove_if(at(first), changes.end(), [&](const LogitChange& each) { return is_in(forbidden, each.token); }),
        changes.end());
    std::stable_sort(at(first), changes.end(), lower_token);
    join_equal(changes, first);
    forbid(forbidden, row, changes, first);
  } else {
    std::stable_sort(at(counted), changes.end(), lower_token);
    std::inplace_merge(at(first), at(counted), changes.end(), lower_token);
    join_equal(changes, first);
  }
}

}  // namespace

std::uint64_t LogitRequest::signature(const BatchRows& rows) const {
  std::uint64_t signature = mix(static_cast<std::uint64_t>(rows.live()));
  for (const std::uint64_t part : {std::uint64_t{scores}, std::uint64_t{samples}, std::uint64_t{changes.size()},
                                   std::uint64_t{logprob_rows.size()}, static_cast<std::uint64_t>(alternatives)})
    signature = mix(signature ^ part);
  return signature;
}

LogitRequest logit_request_of(std::span<Sequence> batch, const BatchRows& rows) {
  LogitRequest request;
  for (std::int32_t r = 0; r < rows.live(); ++r) {
    Sequence& sequence = batch[static_cast<std::size_t>(rows.sequence[static_cast<std::size_t>(r)])];
    const bool forced = sequence.is_forced();
    (forced ? request.scores : request.samples) = true;
    if (sequence.alternatives >= 0) {
      request.logprob_rows.push_back(r);
      request.alternatives = std::max(request.alternatives, sequence.alternatives);
    }
    if (!forced) add_changes(sequence, r, request.changes);
  }
  // Changes of nothing fill up to a power of two. So there are few different counts, and the ops of a sweep are more
  // often the same as those of an earlier one.
  if (const std::size_t count = request.changes.size(); count > 0) request.changes.resize(std::bit_ceil(count));
  return request;
}

}  // namespace weft::runtime
