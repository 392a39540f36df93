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
  bool shows_special = false;        ///< the text has the texts of special tokens
  std::vector<std::int32_t> tokens;  ///< the generated tokens, including the one that ended it
  const char* finish = "length";     ///< or "stop"
  std::optional<ChoiceLogprobs> logprobs = {};
  std::vector<std::int32_t> prompt = {};      ///< the prompt's tokens, if their log-probabilities are reported
  ChoiceLogprobs prompt_logprobs = {};        ///< those of all but the first of these
  bool follows_text = true;                   ///< the prompt has a text, so a first space of the answer's stays
  bool echoes = false;                        ///< the text begins with the prompt's
  bool hides_first = false;                   ///< the prompt's first token is no part of its text
  std::optional<std::string> reasoning = {};  ///< text that is no part of the answer
};

}  // namespace weft::runtime
