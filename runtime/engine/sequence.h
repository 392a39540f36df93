// runtime/engine/sequence.h: one choice of a request while it is being generated.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "runtime/engine/batch_rows.h"
#include "runtime/grammar/form_compiler.h"
#include "runtime/requests/choice.h"
#include "runtime/requests/logit_rules.h"
#include "runtime/requests/request_defaults.h"
#include "runtime/requests/token_counts.h"
#include "runtime/text/stop_search.h"

namespace weft::runtime {

/// failed: the last row of logits had no finite number, so there is no next token.
enum class Finish : std::uint8_t { none, stop, length, failed };

/// Lives in a block from its prefill to its last token.
struct Sequence {
  std::size_t request = 0;           ///< index in the request file
  std::int32_t choice = 0;           ///< index among the request's n
  std::vector<std::int32_t> tokens;  ///< the prompt, then what was generated
  std::int64_t prompt_tokens = 0, min_tokens = 0, max_tokens = 0;
  std::int64_t prefix_tokens = 0;  ///< tokens with which prompts of other requests begin too, as far as is known
  LayerKeeps keep;
  kernels::SampleParams sampling;    ///< its counter is that of the next token
  std::vector<std::int32_t> forced;  ///< tokens to score, fed in place of the first samples; at most max_tokens
  std::int64_t prompt_tail = 0;      ///< forced tokens that belong to the request's prompt: all of them or none
  std::vector<float> logprobs;       ///< log-probabilities of the forced tokens so far, unless they are a prompt's
  std::vector<std::uint8_t> greedy;  ///< whether each was the most likely one
  std::int32_t alternatives = -1;    ///< likeliest tokens to report at each place; -1: report no log-probability
  std::int32_t prompt_logprobs = -1, answer_logprobs = -1;  ///< as many of them go into the answer's line; -1: none
  ChoiceLogprobs token_logprobs;
  std::vector<std::int32_t> stop_ids;
  std::vector<std::int32_t> suppressed_until_min;  ///< tokens that cannot be chosen before min_tokens
  LogitRules rules;
  std::optional<Matcher> matcher = {};              ///< if the answer has a form
  TokenCounts counts;                               ///< the counts of `tokens`, if there are penalties
  std::optional<StopSearch> stop_search;            ///< if there are stop strings
  bool include_stop = false, show_special = false;  ///< as in Request
  Reasoning reasoning = Reasoning::whole;
  std::optional<std::string> echo;  ///< the prompt's text, with which the answer's text begins
  bool hides_first = false;         ///< the prompt's first token is no part of its text
  Finish finish = Finish::none;
  bool ended_by_token = false;  ///< the last token ended it and is not part of the text

  std::int64_t generated() const { return static_cast<std::int64_t>(tokens.size()) - prompt_tokens; }
  /// Whether the next token is given.
  bool is_forced() const { return generated() < static_cast<std::int64_t>(forced.size()); }
  /// The number of tokens that were chosen.
  std::int64_t sampled() const {
    return std::max<std::int64_t>(0, generated() - static_cast<std::int64_t>(forced.size()));
  }
  /// The tokens of the request's prompt, and those after it.
  std::int64_t whole_prompt() const { return prompt_tokens + prompt_tail; }
  std::int64_t answered() const { return generated() - prompt_tail; }
};

}  // namespace weft::runtime
