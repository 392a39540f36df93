// runtime/requests/choice.h: what an answer consists of.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weft::runtime {

constexpr std::int32_t kMostLogprobs = 20;  ///< alternatives that a request may want

struct TokenLogprob {
  std::int32_t token = 0;
  float logprob = 0;
};

/// Natural logarithms, of the model's own distribution: before temperature, top_k, top_p and min_tokens.
struct ChoiceLogprobs {
  std::vector<float> chosen;                   ///< [tokens] of the generated tokens
  std::vector<std::vector<TokenLogprob>> top;  ///< [tokens] the likeliest at each, the likeliest first
};

/// One of the `n` answers to a request.
struct Choice {
  std::string text;
  bool has_text = false;             ///< false where the model has no tokenizer
  std::vector<std::int32_t> tokens;  ///< generated, the one that ended it included
  const char* finish = "length";     ///< or "stop"
  std::optional<ChoiceLogprobs> logprobs;
};

}  // namespace weft::runtime
