// runtime/requests/choice.h: the contents of an answer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weft::runtime {

constexpr std::int32_t kMostLogprobs = 20;  ///< the most alternatives that a request may ask for

struct TokenLogprob {
  std::int32_t token = 0;
  float logprob = 0;
};

/// Natural logarithms of the model's own distribution, before temperature, top_k, top_p and min_tokens.
struct ChoiceLogprobs {
  std::vector<float> chosen;                   ///< [tokens] those of the generated tokens
  std::vector<std::vector<TokenLogprob>> top;  ///< [tokens] the likeliest tokens at each place, likeliest first
};

/// One of the `n` answers to a request.
struct Choice {
  std::string text;
  bool has_text = false;             ///< false if the model has no tokenizer
  std::vector<std::int32_t> tokens;  ///< the generated tokens, including the one that ended it
  const char* finish = "length";     ///< or "stop"
  std::optional<ChoiceLogprobs> logprobs;
};

}  // namespace weft::runtime
