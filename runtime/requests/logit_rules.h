// runtime/requests/logit_rules.h: the changes of logits that a request asks for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace weft::runtime {

/// The fields that change logits before a token is chosen, as vLLM has them. The defaults change nothing.
struct LogitRules {
  struct Bias {
    std::int32_t token = 0;
    float bias = 0;
  };
  /// Tokens whose ids follow each other.
  struct Range {
    std::int32_t first = 0, count = 0;
  };

  float repetition_penalty = 1;                        ///< divides tokens in the prompt or the answer
  float presence_penalty = 0, frequency_penalty = 0;   ///< lower tokens in the answer: once, and each time
  std::vector<Bias> bias = {};                         ///< ascending by token, each once
  std::vector<std::vector<std::int32_t>> bad_words{};  ///< none empty; their last token may not complete them
  std::vector<Range> forbidden = {};                   ///< ascending, apart: all but the allowed_token_ids

  bool penalises() const { return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0; }
  bool any() const { return penalises() || !bias.empty() || !bad_words.empty() || !forbidden.empty(); }
  bool forbids(std::int32_t token) const {
    const auto after = std::upper_bound(forbidden.begin(), forbidden.end(), token,
                                        [](std::int32_t id, const Range& range) { return id < range.first; });
    return after != forbidden.begin() && token - (after - 1)->first < (after - 1)->count;
  }
};

}  // namespace weft::runtime
