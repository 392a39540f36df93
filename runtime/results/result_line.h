// runtime/results/result_line.h: the lines of the result file, in the dialect of the requests.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "runtime/requests/choice.h"
#include "runtime/requests/requests.h"

namespace weft::runtime {

/// The code of a refusal because the model gives no finite logits for a request.
inline constexpr const char* kNotFinite = "non_finite_logits";

/// The request's id, and the form of its answer.
struct Recipient {
  std::string id;  ///< as JSON
  Endpoint endpoint = Endpoint::native;
  std::string model;          ///< the model's name in an OpenAI line
  std::string metadata = {};  ///< as in Request

  static Recipient of(const Request& request) {
    return {request.id, request.endpoint, request.model, request.metadata};
  }
};

/// The beginning of a line in Weft's own form: an id, and metadata if that is not empty, both as JSON.
nlohmann::ordered_json native_line(const std::string& id, const std::string& metadata);

/// The line of an answer, without a newline. In Weft's own form, a single choice's fields are fields of the line, and
/// several choices are a list. In OpenAI's form they are those of a completion or a chat completion. `tokenizer`, which
/// gives the texts of single tokens, may be null.
std::string result_line(const Recipient& to, std::int64_t prompt_tokens, std::span<const Choice> choices,
                        const Tokenizer* tokenizer);

/// The line of a request that gets no answer.
std::string refusal_line(const Refusal& refusal, Dialect dialect);

/// The index of the request that a line of the result file answers or refuses. Throws UsageError, whose message begins
/// with `where`, if it is not a line of a result file of these requests.
std::size_t answered_request(const nlohmann::json& line, const RequestFile& requests, const std::string& where);
/// Whether such a line is a refusal.
bool is_refusal(const nlohmann::json& line);

}  // namespace weft::runtime
