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

  float repetition_penalty = 1;                        ///< divides tokens in the prompt or the answer
  float presence_penalty = 0, frequency_penalty = 0;   ///< lower tokens in the answer: once, and each time
  std::vector<Bias> bias = {};                         ///< ascending by token, each once
  std::vector<std::vector<std::int32_t>> bad_words{};  ///< none empty; their last token may not complete them
  std::vector<std::int32_t> allowed = {};              ///< ascending, each once: no others; empty: all

  bool penalises() const { return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0; }
  bool any() const { return penalises() || !bias.empty() || !bad_words.empty() || !allowed.empty(); }
  bool allows(std::int32_t token) const {
    return allowed.empty() || std::binary_search(allowed.begin(), allowed.end(), token);
  }
};

}  // namespace weft::runtime
