// runtime/result_line.h: what an answer consists of, and the line of the result file that says so.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/requests.h"

namespace weft::runtime {

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

/// Whom an answer goes to, and so its form.
struct Recipient {
  std::string id;  ///< as JSON
  Endpoint endpoint = Endpoint::native;
  std::string model;  ///< as an OpenAI line called it

  static Recipient of(const Request& request) { return {request.id, request.endpoint, request.model}; }
};

/// Without a newline. In Weft's own form one choice lies flat in the line, several in a list; in OpenAI's they are
/// those of a completion or a chat completion. `tokenizer`, which the texts of single tokens come from, may be null.
std::string result_line(const Recipient& to, std::int64_t prompt_tokens, std::span<const Choice> choices,
                        const Tokenizer* tokenizer);

/// The line of a request that gets no answer.
std::string refusal_line(const Refusal& refusal, Dialect dialect);

/// The index of the request that a line of the result file answers or refuses. Throws UsageError, which `where` begins,
/// if it is no line of a result file of these requests.
std::size_t answered_request(const nlohmann::json& line, const RequestFile& requests, const std::string& where);

}  // namespace weft::runtime
