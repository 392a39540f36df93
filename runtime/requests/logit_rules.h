// runtime/requests/logit_rules.h: the changes of logits that a request asks for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/grammar/form_compiler.h"

namespace weft::runtime {

/// Whether a token is in ranges that are ascending and apart.
inline bool is_in(std::span<const TokenRange> ranges, std::int32_t token) {
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), token,
                                      [](std::int32_t id, const TokenRange& range) { return id < range.first; });
  return after != ranges.begin() && token - (after - 1)->first < (after - 1)->count;
}

/// The fields that change logits before a token is chosen, as vLLM has them. The defaults change nothing.
struct LogitRules {
  struct Bias {
    std::int32_t token = 0;
    float bias = 0;
  };

  float repetition_penalty = 1;                        ///< divides tokens in the prompt or the answer
  float presence_penalty = 0, frequency_penalty = 0;   ///< lower tokens in the answer: once, and each time
  std::vector<Bias> bias = {};                         ///< ascending by token, each once
  std::vector<std::vector<std::int32_t>> bad_words{};  ///< none empty; their last token may not complete them
  std::vector<TokenRange> forbidden = {};              ///< ascending, apart: all but the allowed_token_ids

  bool penalises() const { return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0; }
  bool any() const { return penalises() || !bias.empty() || !bad_words.empty() || !forbidden.empty(); }
  bool forbids(std::int32_t token) const { return is_in(forbidden, token); }
};

}  // namespace weft::runtime
