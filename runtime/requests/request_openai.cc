// runtime/requests/request_openai.cc: request lines of OpenAI's batches. Nothing that changes an answer is ignored: a
// field that asks for something that Weft cannot do is refused, and the message names it.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/requests/request_chat.h"
#include "runtime/requests/request_checks.h"
#include "runtime/requests/request_sampling.h"

namespace weft::runtime {
namespace {

using nlohmann::json;
using policy::Fields;

/// A field that Weft does not support, and its values that ask for what Weft does anyway.
struct Neutral {
  const char *key, *values;
};
constexpr Neutral kNeutral[]{
    {"stream", "[false]"},
    {"stream_options", R"([{}, {"include_usage": false}])"},
    {"length_penalty", "[1]"},
    {"use_beam_search", "[false]"},
    {"return_token_ids", "[false]"},
    {"return_tokens_as_token_ids", "[false]"},
    {"spaces_between_special_tokens", "[true]"},
};
/// Fields of OpenAI's and vLLM's whose every value asks for something else.
constexpr const char* kUnsupported[]{"prompt_logprobs",
                                     "guided_decoding_backend",
                                     "guided_whitespace_pattern",
                                     "structural_tag",
                                     "logits_processors",
                                     "reasoning_effort",
                                     "verbosity",
                                     "prediction",
                                     "audio",
                                     "web_search_options",
                                     "prompt_embeds"};
constexpr Neutral kNeutralCompletion[]{{"suffix", R"([""])"}};
constexpr Neutral kNeutralChat[]{
    {"tool_choice", R"(["none", "auto"])"},
    {"parallel_tool_calls", "[true, false]"},
    {"functions", "[[]]"},
    {"function_call", R"(["none", "auto"])"},
    {"modalities", R"([["text"]])"},
    {"add_generation_prompt", "[true]"},
    {"continue_final_message", "[false]"},
    {"add_special_tokens", "[false]"},
    {"echo", "[false]"},
};
/// Fields about the caller, billing and the server's queue and caches. No answer depends on them.
constexpr const char* kIgnored[]{"user",
                                 "metadata",
                                 "store",
                                 "service_tier",
                                 "priority",
                                 "request_id",
                                 "cache_salt",
                                 "safety_identifier",
                                 "prompt_cache_key",
                                 "prompt_cache_retention"};

class Body {
 public:
  Body(const json& body, std::string_view text, bool chat, const std::string& where, const RequestRules& rules,
       Request& request)
      : where_(where), text_(text), rules_(rules), chat_(chat), request_(request), json_(as_meant(body)),
        fields_(json_, where, policy::Blame::usage) {}

  void read() {
    read_model();
    request_.prompt = chat_ ? conversation() : prompt();
    cut_prompt(fields_, rules_, request_);
    const std::int64_t room = room_after_prompt(request_, rules_, where_);
    read_length(room);
    read_sampling();
    read_logprobs();
    for (const char* key : kUnsupported) require_neutral({key, "[]"});
    for (const Neutral& field : kNeutral) require_neutral(field);
    if (chat_)
      for (const Neutral& field : kNeutralChat) require_neutral(field);
    else
      for (const Neutral& field : kNeutralCompletion) require_neutral(field);
    for (const char* key : kIgnored) fields_.has(key);
    refuse_unknown_keys(fields_, where_);
    check_choices(request_, rules_, where_);
    check_length(request_, room, rules_, where_);
    split_prompt(request_, where_);
  }

 private:
  void require(const char* key) {
    if (!fields_.has(key))
      throw BadRequest(where_, "missing_required_parameter", key, "'" + std::string(key) + "' is missing in the body");
  }

  void require_neutral(const Neutral& field) {
    if (!fields_.has(field.key)) return;
    for (const json& value : json::parse(field.values))
      if (fields_.at(field.key) == value) return;
    throw BadRequest(
        where_, "unsupported_parameter", field.key,
        "'" + std::string(field.key) + "' is not supported, got " + policy::describe(fields_.at(field.key)));
  }

  void read_model() {
    require("model");
    request_.model = fields_.text("model");
    const auto& names = rules_.openai.model_names;
    if (std::find(names.begin(), names.end(), request_.model) == names.end())
      throw BadRequest(where_, "model_not_found", "model",
                       "the model '" + request_.model.substr(0, 80) + "' is not there, only '" +
                           (names.empty() ? "" : names.front()) + "' is; give it that name with --served-model-name");
  }

  std::vector<std::int32_t> prompt() {
    require("prompt");
    if (const json& list = fields_.at("prompt");  // a list of one prompt is that prompt
        list.is_array() && list.size() == 1 && (list[0].is_string() || list[0].is_array()))
      json_["prompt"] = json(list[0]);
    const json& value = fields_.at("prompt");
    const bool add_first = fields_.boolean("add_special_tokens", true);
    if (value.is_string()) {
      request_.prompt_text = value.get<std::string>();
      request_.first_added = add_first && rules_.tokenizer->first_token();
      return rules_.tokenizer->encode(*request_.prompt_text, add_first);
    }
    const auto is_prompt = [](const json& each) { return each.is_string() || each.is_array(); };
    if (value.is_array() && !value.empty() && std::all_of(value.begin(), value.end(), is_prompt))
      throw BadRequest(where_, "invalid_value", "prompt",
                       "'prompt' is a list of several prompts; write one request for each");
    return token_ids(fields_, "prompt", rules_.model.vocab);
  }

  std::vector<std::int32_t> conversation() {
    require("messages");
    for (const char* key : kConversationFields) fields_.has(key);
    request_.reasoning = rules_.defaults.reasoning;
    return conversation_ids(text_, "body", where_, rules_);
  }

  void read_length(std::int64_t room) {
    const char* key = "max_tokens";
    if (chat_ && fields_.has("max_completion_tokens")) {
      if (fields_.has("max_tokens") && fields_.at("max_tokens") != fields_.at("max_completion_tokens"))
        throw BadRequest(where_, "invalid_value", "max_tokens",
                         "wanted either 'max_tokens' or 'max_completion_tokens', found both, and they differ");
      key = "max_completion_tokens";
    }
    const bool of_prompt = !chat_ && fields_.boolean("echo", false) && fields_.has("logprobs");
    if (fields_.has(key) && fields_.at(key) == 0 && !of_prompt)
      throw BadRequest(where_, "invalid_value", key,
                       "'" + std::string(key) + "' is 0: nothing would be generated" +
                           (chat_ ? "" : "; 'echo' and 'logprobs' would give the log-probabilities of the prompt"));
    request_.max_tokens = fields_.has(key) ? fields_.integer(key, of_prompt ? 0 : 1, kMostTokens)
                                           : std::min(rules_.default_max_tokens, room);
    request_.min_tokens = fields_.integer("min_tokens", 0, request_.max_tokens, 0);
  }

  void read_sampling() {
    request_.n = static_cast<std::int32_t>(fields_.integer("n", 1, kMostChoices, 1));
    if (fields_.has("best_of") && fields_.integer("best_of", 1, kMostChoices) != request_.n)
      throw BadRequest(where_, "unsupported_parameter", "best_of", "'best_of' is not supported, but where it is 'n'");
    runtime::read_sampling(fields_, kOpenAiSampling, rules_, where_, request_);
    read_text_options(fields_, rules_, where_, request_);
    read_form(fields_, text_, "body", rules_, where_, request_);
  }

  void read_logprobs() {
    if (!chat_) {
      request_.logprobs = static_cast<std::int32_t>(fields_.integer("logprobs", 0, kMostLogprobs, -1));
      request_.echo = fields_.boolean("echo", false);
      if (request_.echo) request_.prompt_logprobs = request_.logprobs;  // those of the whole text
      return;
    }
    const bool wanted = fields_.boolean("logprobs", false);
    const auto top = static_cast<std::int32_t>(fields_.integer("top_logprobs", 0, kMostLogprobs, 0));
    if (top > 0 && !wanted) fields_.refuse_field("top_logprobs", "absent or 0 where 'logprobs' is not true");
    if (wanted) request_.logprobs = top;
  }

  const std::string& where_;
  const std::string_view text_;  // the whole line
  const RequestRules& rules_;
  bool chat_;
  Request& request_;
  json json_;
  Fields fields_;
};

}  // namespace

Request read_openai_request(const json& line, std::string_view text, const std::string& where,
                            const RequestRules& rules) {
  const json object = line.is_object() ? as_meant(line) : line;
  Fields fields(object, where, policy::Blame::usage);
  for (const char* key : {"custom_id", "method", "url", "body"})
    if (!fields.has(key))
      throw BadRequest(where, "missing_required_parameter", key, "'" + std::string(key) + "' is missing");
  Request request;
  const json& id = fields.at("custom_id");
  if (!is_openai_id(id, rules.openai.strict))
    fields.refuse_field("custom_id", rules.openai.strict ? "a string of 1 to 64 characters without control characters"
                                                         : "a string of 1 to 512 bytes without control characters");
  request.id = policy::to_line(id);
  if (fields.at("method") != "POST")
    throw BadRequest(where, "invalid_method", "method",
                     "'method' must be \"POST\", got " + policy::describe(fields.at("method")));
  const bool chat = fields.at("url") == "/v1/chat/completions";
  if (!chat && fields.at("url") != "/v1/completions")
    throw BadRequest(
        where, "invalid_url", "url",
        "'url' must be \"/v1/completions\" or \"/v1/chat/completions\", got " + policy::describe(fields.at("url")));
  request.endpoint = chat ? Endpoint::chat : Endpoint::completions;
  if (!fields.at("body").is_object()) fields.refuse_field("body", "an object");
  refuse_unknown_keys(fields, where);
  Body(fields.at("body"), text, chat, where, rules, request).read();
  return request;
}

}  // namespace weft::runtime
