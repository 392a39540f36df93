// runtime/requests/result_line.h: the lines of the result file, in the dialect of the requests.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "runtime/requests/choice.h"
#include "runtime/requests/requests.h"

namespace weft::runtime {

/// The code of a request of which the model gives no finite logits.
inline constexpr const char* kNotFinite = "non_finite_logits";

/// Whom an answer goes to, and so its form.
struct Recipient {
  std::string id;  ///< as JSON
  Endpoint endpoint = Endpoint::native;
  std::string model;  ///< as an OpenAI line called it

  static Recipient of(const Request& request) { return {request.id, request.endpoint, request.model}; }
};

/// Without a newline. In Weft's own form a single choice's fields are the line's own, several choices are a list; in
/// OpenAI's they are those of a completion or a chat completion. `tokenizer`, which the texts of single tokens come
/// from, may be null.
std::string result_line(const Recipient& to, std::int64_t prompt_tokens, std::span<const Choice> choices,
                        const Tokenizer* tokenizer);

/// The line of a request that gets no answer.
std::string refusal_line(const Refusal& refusal, Dialect dialect);

/// The index of the request that a line of the result file answers or refuses. Throws UsageError, which `where` begins,
/// if it is no line of a result file of these requests.
std::size_t answered_request(const nlohmann::json& line, const RequestFile& requests, const std::string& where);
/// Whether such a line says why there is no answer.
bool is_refusal(const nlohmann::json& line);

}  // namespace weft::runtime
