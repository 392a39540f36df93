// runtime/requests/request.h: one request as its line says, what lines are checked against, and why one is refused.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kernels/error.h"
#include "kernels/ops.h"
#include "policy/model.h"
#include "policy/retention.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/tokenizer.h"

namespace weft::runtime {

enum class RequestKind : std::uint8_t { generate, score };
enum class Dialect : std::uint8_t { native, openai };
/// What a line asks, and so the form of its answer.
enum class Endpoint : std::uint8_t { native, completions, chat };

/// A request as its line says.
struct Request {
  std::string id;  ///< as JSON: a quoted string or an integer
  std::vector<std::int32_t> prompt;
  std::vector<std::int32_t> continuation;  ///< weft score
  std::int64_t max_tokens = 0;
  kernels::SampleParams sampling;
  std::vector<std::string> stop_strings;
  std::vector<std::int32_t> stop_ids;
  Endpoint endpoint = Endpoint::native;
  std::string model;  ///< what an OpenAI line calls it
  std::int32_t n = 1;
  std::int32_t logprobs = -1;  ///< -1: none, else that many alternatives
  bool echo = false;
  std::int64_t min_tokens = 0;
  bool ignore_eos = false;
};

/// Refuses one line of a request file.
struct BadRequest : UsageError {
  /// `where` is FILE:LINE, `code` OpenAI's where it has one, `param` the field or empty.
  BadRequest(const std::string& where, std::string refused_for, std::string field, const std::string& reason)
      : UsageError(where + ": " + reason), code(std::move(refused_for)), param(std::move(field)) {}
  std::string code, param;
};

/// Ends the whole job: `what`, a field of the line at `where`, needs a tokenizer. `or_else`: what does without.
struct NoTokenizer : UsageError {
  NoTokenizer(const std::string& where, const std::string& what, const std::filesystem::path& model_folder,
              const std::string& or_else);
};

/// What request lines of OpenAI's dialect are checked against in addition.
struct OpenAiRules {
  std::vector<std::string> model_names;  ///< that a body may say; the first is named in messages
  std::filesystem::path model_folder;    ///< whose chat template is read where it is needed; may be empty
  std::string chat_template = {};        ///< ChatTemplate::load_as() in place of the folder's own; may be empty
  ChatTemplate chat;
  bool strict = false;  ///< OpenAI's own limits
};

struct RequestRules {
  RequestKind kind = RequestKind::generate;
  const Tokenizer* tokenizer = nullptr;  ///< null: only token ids are taken
  const policy::ModelSpec& model;
  std::int64_t default_max_tokens = 0;
  OpenAiRules openai;
  /// Retentions under which sequences go on past the model's context: those that the job allows, if all do.
  std::vector<policy::Retention> rolled = {};
};

/// The request that a line holds. `where` begins the messages; `default_id`, as JSON, is that of a line without one.
/// Throws UsageError, a BadRequest where the code is another than invalid_value.
Request read_native_request(const nlohmann::json& line, const std::string& where, const std::string& default_id,
                            const RequestRules& rules);
Request read_openai_request(const nlohmann::json& line, const std::string& where, const RequestRules& rules);

}  // namespace weft::runtime
