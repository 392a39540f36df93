// runtime/requests/request.h: one request of a request file, the rules for its line, and the errors that refuse it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/error.h"
#include "kernels/ops.h"
#include "policy/layout/retention.h"
#include "policy/model/model.h"
#include "runtime/grammar/form_compiler.h"
#include "runtime/requests/logit_rules.h"
#include "runtime/requests/request_defaults.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/tokenizer.h"

namespace weft::runtime {

enum class RequestKind : std::uint8_t { generate, score };
enum class Dialect : std::uint8_t { native, openai };
inline constexpr double kMostTemperature = 100;
inline constexpr double kLeastRepetition = 1e-6, kMostRepetition = 1e6;  ///< range of repetition_penalty
/// The kind of a line, which determines the form of its answer.
enum class Endpoint : std::uint8_t { native, completions, chat };

/// A request as its line specifies it.
struct Request {
  std::string id;        ///< as JSON: a quoted string or an integer
  std::string metadata;  ///< as JSON, for the answer's line; empty if there is none
  std::vector<std::int32_t> prompt;
  /// As the line has it, or of the tokens that truncate_prompt_tokens leaves; none if the line has ids or messages.
  std::optional<std::string> prompt_text;
  bool first_added = false;                ///< the tokenizer put the prompt's first token in front of that text
  std::vector<std::int32_t> continuation;  ///< the given text of weft score, or the rest of the prompt
  std::int64_t max_tokens = 0;
  kernels::SampleParams sampling;
  LogitRules rules;
  std::optional<CompiledForm> grammar = {};  ///< the form of the answer, if one is wanted
  std::vector<std::string> stop_strings;
  std::vector<std::int32_t> stop_ids;
  Endpoint endpoint = Endpoint::native;
  std::string model;  ///< the name of the model in an OpenAI line
  std::int32_t n = 1;
  std::int32_t logprobs = -1;  ///< -1: none, else that many alternatives
  /// The same of the prompt's tokens. Then `prompt` is its first token, `continuation` the rest, and `max_tokens`
  /// counts these too.
  std::int32_t prompt_logprobs = -1;
  bool echo = false;
  std::int64_t min_tokens = 0;
  bool ignore_eos = false;
  bool include_stop = false;  ///< the text keeps the stop string, or the text of the token, that ends it
  bool show_special = false;  ///< the text has the texts of special tokens
  Reasoning reasoning = Reasoning::whole;
};

/// Refuses one line of a request file.
struct BadRequest : UsageError {
  /// `refused_for` is OpenAI's code if it has one, `field` the field or empty, and `where` is FILE:LINE.
  BadRequest(const std::string& where, std::string refused_for, std::string field, const std::string& reason)
      : UsageError(where + ": " + reason), code(std::move(refused_for)), param(std::move(field)) {}
  std::string code, param;
};

/// Ends the whole job: `what`, a field of the line at `where`, needs a tokenizer. `or_else` names something that needs
/// none.
struct NoTokenizer : UsageError {
  NoTokenizer(const std::string& where, const std::string& what, const ModelTexts* files, const std::string& or_else);
};

/// The rules that request lines of OpenAI's dialect must follow in addition.
struct OpenAiRules {
  std::vector<std::string> model_names;  ///< the names that a body may use; messages give the first
  const ModelTexts* files = nullptr;     ///< its chat template is read if one is needed; null: there are no files
  std::string chat_template = {};  ///< passed to ChatTemplate::load_as() in the place of the model's own; may be empty
  ChatTemplate chat;
  bool strict = false;  ///< apply OpenAI's own limits
};

struct RequestRules {
  RequestKind kind = RequestKind::generate;
  const Tokenizer* tokenizer = nullptr;  ///< null: only token ids are taken
  const policy::ModelSpec& model;
  std::int64_t default_max_tokens = 0;
  OpenAiRules openai;
  std::vector<policy::Retention> retentions = {};  ///< those that the job allows; none: the full cache
  RequestDefaults defaults = {};
  FormCompiler* forms = nullptr;  ///< null without a tokenizer

  /// Whether every retention lets sequences continue past the model's context, or keeps all tokens.
  bool rolls() const;
  bool keeps_all() const;
};

/// Reads the request of a line, whose text is `text`. `where` begins the messages; `default_id`, as JSON, is the id of
/// a line without one. Throws UsageError, which is a BadRequest if the code is not invalid_value.
Request read_native_request(const nlohmann::json& line, std::string_view text, const std::string& where,
                            const std::string& default_id, const RequestRules& rules);
Request read_openai_request(const nlohmann::json& line, std::string_view text, const std::string& where,
                            const RequestRules& rules);

}  // namespace weft::runtime
