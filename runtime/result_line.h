// runtime/result_line.h: what an answer consists of, and the line of the result file that says so.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace weft::runtime {

class Tokenizer;

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

/// Without a newline. `id` is JSON; one choice lies flat in the line, several in a list; `tokenizer`, which the texts
/// of single tokens come from, may be null.
std::string result_line(const std::string& id, std::int64_t prompt_tokens, std::span<const Choice> choices,
                        const Tokenizer* tokenizer);

}  // namespace weft::runtime
