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
  std::stable_sort(at(counted), changes.end(), lower_token);
  std::inplace_merge(at(first), at(counted), changes.end(), lower_token);
  join_equal(changes, first);
}

bool has_mask(const Sequence& sequence) { return sequence.matcher || !sequence.rules.allowed.empty(); }

}  // namespace

std::uint64_t LogitRequest::signature(const BatchRows& rows) const {
  std::uint64_t signature = mix(static_cast<std::uint64_t>(rows.live()));
  for (const std::uint64_t part :
       {std::uint64_t{scores}, std::uint64_t{samples}, std::uint64_t{changes.size()}, std::uint64_t{mask.size()},
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
    if (forced) continue;
    add_changes(sequence, r, request.changes);
    if (!has_mask(sequence)) continue;
    request.mask.resize(static_cast<std::size_t>(rows.live()), -1);
    request.mask[static_cast<std::size_t>(r)] = request.masks++;
  }
  // Changes of nothing fill up to a power of two. So there are few different counts, and the ops of a sweep are more
  // often the same as those of an earlier one.
  if (const std::size_t count = request.changes.size(); count > 0) request.changes.resize(std::bit_ceil(count));
  return request;
}

void write_mask(const Sequence& sequence, std::span<std::uint32_t> mask) {
  const std::vector<std::int32_t>& allowed = sequence.rules.allowed;
  const auto by_form = sequence.matcher ? sequence.matcher->allowed() : std::span<const std::uint32_t>();
  if (allowed.empty()) {
    std::copy(by_form.begin(), by_form.end(), mask.begin());
    return;
  }
  std::fill(mask.begin(), mask.end(), 0);
  for (const std::int32_t token : allowed) mask[static_cast<std::size_t>(token) / 32] |= 1U << (token % 32);
  for (std::size_t i = 0; i < by_form.size(); ++i) mask[i] &= by_form[i];
}

}  // namespace weft::runtime
