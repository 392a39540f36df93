// runtime/engine/sequence.h: one choice of a request while it is being generated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "runtime/engine/batch_rows.h"
#include "runtime/requests/choice.h"
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
  std::vector<std::int32_t> forced;  ///< tokens to score, fed in place of samples; [max_tokens] if not empty
  std::vector<float> logprobs;       ///< log-probabilities of the forced tokens so far
  std::vector<std::uint8_t> greedy;  ///< whether each was the most likely one
  std::int32_t alternatives = -1;    ///< likeliest tokens to report at each place; -1: report no log-probability
  ChoiceLogprobs token_logprobs;
  std::vector<std::int32_t> stop_ids;
  std::vector<std::int32_t> suppressed_until_min;  ///< tokens that cannot be chosen before min_tokens
  std::optional<StopSearch> stop_search;           ///< if there are stop strings
  std::optional<std::string> echo;                 ///< the prompt's text, with which the answer's text begins
  Finish finish = Finish::none;
  bool ended_by_token = false;  ///< the last token ended it and is not part of the text

  std::int64_t generated() const { return static_cast<std::int64_t>(tokens.size()) - prompt_tokens; }
};

}  // namespace weft::runtime
