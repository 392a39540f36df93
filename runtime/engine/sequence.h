// runtime/engine/sequence.h: one choice of a request while it is being generated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "runtime/engine/batch_rows.h"
#include "runtime/requests/choice.h"

namespace weft::runtime {

/// failed: the last row of logits had no finite number, so there is no next token.
enum class Finish : std::uint8_t { none, stop, length, failed };

/// Lives in a block from its prefill to its last token.
struct Sequence {
  std::size_t request = 0;           ///< index in the request file
  std::int32_t choice = 0;           ///< which of the request's n
  std::vector<std::int32_t> tokens;  ///< the prompt, then what was generated
  std::int64_t prompt_tokens = 0, min_tokens = 0, max_tokens = 0;
  LayerKeeps keep;
  kernels::SampleParams sampling;    ///< counter: of the next token
  std::vector<std::int32_t> forced;  ///< to be scored: fed in place of samples, [max_tokens] if not empty
  std::vector<float> logprobs;       ///< of the forced tokens so far
  std::vector<std::uint8_t> greedy;  ///< whether each was the most likely one
  std::int32_t alternatives = -1;    ///< likely tokens to report at each place; -1: not even the log-probability there
  ChoiceLogprobs token_logprobs;
  std::vector<std::int32_t> stop_ids;
  std::vector<std::int32_t> suppressed_until_min;  ///< that cannot be chosen before min_tokens
  std::vector<std::string> stop_strings;
  std::string text;   ///< what was generated, as bytes, where stop strings have to be found
  bool echo = false;  ///< the answer's text begins with the prompt's
  Finish finish = Finish::none;
  bool ended_by_token = false;               ///< the last token is no part of the text
  std::size_t text_end = std::string::npos;  ///< where a stop string begins in `text`

  std::int64_t generated() const { return static_cast<std::int64_t>(tokens.size()) - prompt_tokens; }
};

}  // namespace weft::runtime
