// runtime/requests/request_openai.cc: request lines of OpenAI's batches. Nothing that changes an answer is ignored: a
// field that asks for something that Weft cannot do is refused, and the message names it.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/base/hash.h"
#include "runtime/requests/request_checks.h"

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
    {"stream_options", "[{}]"},
    {"logit_bias", "[{}]"},
    {"presence_penalty", "[0]"},
    {"frequency_penalty", "[0]"},
    {"repetition_penalty", "[1]"},
    {"length_penalty", "[1]"},
    {"min_p", "[0]"},
    {"use_beam_search", "[false]"},
    {"include_stop_str_in_output", "[false]"},
    {"skip_special_tokens", "[true]"},
};
/// Fields of OpenAI's and vLLM's whose every value asks for something else.
constexpr const char* kUnsupported[]{"prompt_logprobs",    "truncate_prompt_tokens",
                                     "guided_json",        "guided_regex",
                                     "guided_choice",      "guided_grammar",
                                     "structured_outputs", "bad_words",
                                     "allowed_token_ids",  "logits_processors",
                                     "reasoning_effort",   "verbosity",
                                     "prediction",         "audio",
                                     "web_search_options", "prompt_embeds"};
constexpr Neutral kNeutralCompletion[]{{"suffix", R"([""])"}};
constexpr Neutral kNeutralChat[]{
    {"tools", "[[]]"},
    {"tool_choice", R"(["none", "auto"])"},
    {"parallel_tool_calls", "[true, false]"},
    {"functions", "[[]]"},
    {"function_call", R"(["none", "auto"])"},
    {"response_format", R"([{"type": "text"}])"},
    {"modalities", R"([["text"]])"},
    {"add_generation_prompt", "[true]"},
    {"continue_final_message", "[false]"},
    {"add_special_tokens", "[false]"},
};
/// Fields about the caller and billing. No answer depends on them.
constexpr const char* kIgnored[]{"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"};

class Body {
 public:
  Body(const json& body, bool chat, const std::string& where, const RequestRules& rules, Request& request)
      : where_(where), rules_(rules), chat_(chat), request_(request), json_(as_meant(body)),
        fields_(json_, where, policy::Blame::usage) {}

  void read() {
    read_model();
    request_.prompt = chat_ ? conversation() : prompt();
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
    const json& list = fields_.at("messages");
    if (!list.is_array() || list.empty()) fields_.refuse_field("messages", "a non-empty list of messages");
    std::vector<ChatMessage> messages;
    for (const json& each : list) messages.push_back(message(each, messages.size()));
    const ChatSettings settings = chat_settings();
    std::string prompt;
    try {
      prompt = rules_.openai.chat.render(messages, settings);
    } catch (const ChatError& refused) {
      throw BadRequest(where_, refused.code, refused.param, refused.what());
    }
    return rules_.tokenizer->encode(prompt, false);
  }

  /// `chat_template_kwargs` is vLLM's name for what a template gets in addition to the messages.
  ChatSettings chat_settings() {
    ChatSettings settings;
    if (!fields_.has("chat_template_kwargs")) return settings;
    const json& given = fields_.at("chat_template_kwargs");
    const auto refuse = [&] {
      throw BadRequest(where_, "unsupported_parameter", "chat_template_kwargs",
                       R"('chat_template_kwargs' may have "date_string": "..." and "enable_thinking": true or false; )"
                       "nothing else is supported");
    };
    if (!given.is_object()) refuse();
    for (const auto& item : given.items()) {
      if (item.key() == "date_string" && item.value().is_string() &&
          !item.value().get_ref<const std::string&>().empty())
        settings.date = item.value();
      else if (item.key() == "enable_thinking" && item.value().is_boolean())
        settings.thinking = item.value().get<bool>();
      else refuse();
    }
    return settings;
  }

  ChatMessage message(const json& value, std::size_t index) const {
    const std::string name = "messages[" + std::to_string(index) + "]";
    const auto refuse = [&](const std::string& field, const std::string& reason) {
      throw BadRequest(where_, "invalid_value", name + field, "'" + name + field + "' " + reason);
    };
    if (!value.is_object()) refuse("", "must be an object, got " + policy::describe(value));
    const json object = as_meant(value);
    if (!object.contains("role") || !object["role"].is_string()) refuse(".role", "must be a string");
    ChatMessage message{object["role"].get<std::string>(), {}};
    if (message.role == "developer") message.role = "system";  // OpenAI's newer name for it
    if (message.role != "system" && message.role != "user" && message.role != "assistant")
      refuse(".role", "must be system, user or assistant, got " + policy::describe(object["role"]));
    for (const auto& item : object.items())
      if (item.key() != "role" && item.key() != "content" && !(item.key() == "name" && item.value().is_string()) &&
          !(item.value().is_array() && item.value().empty()))
        throw BadRequest(where_, "unsupported_parameter", name + "." + item.key(),
                         "'" + name + "." + item.key().substr(0, 40) + "' is not supported");
    if (!object.contains("content") && value.contains("content") && message.role == "assistant") return message;
    if (!object.contains("content")) refuse(".content", "must be a string");
    message.content = content(object["content"], refuse);
    return message;
  }

  /// Reads a string, or a list of texts, which become lines as in vLLM.
  template <class Refuse> static std::string content(const json& value, const Refuse& refuse) {
    if (value.is_string()) return value.get<std::string>();
    if (!value.is_array() || value.empty()) refuse(".content", "must be a string, got " + policy::describe(value));
    std::string text;
    for (const json& part : value) {
      const bool is_text = part.is_object() && part.size() == 2 && part.value("type", json()) == "text" &&
                           part.value("text", json()).is_string();
      if (!is_text) refuse(".content", R"(has a part that is not {"type": "text", "text": "..."})");
      text += (&part == &value.front() ? "" : "\n") + part["text"].template get<std::string>();
    }
    return text;
  }

  void read_length(std::int64_t room) {
    const char* key = "max_tokens";
    if (chat_ && fields_.has("max_completion_tokens")) {
      if (fields_.has("max_tokens") && fields_.at("max_tokens") != fields_.at("max_completion_tokens"))
        throw BadRequest(where_, "invalid_value", "max_tokens",
                         "wanted either 'max_tokens' or 'max_completion_tokens', found both, and they differ");
      key = "max_completion_tokens";
    }
    if (fields_.has(key) && fields_.at(key) == 0)
      throw BadRequest(where_, "invalid_value", key,
                       "'" + std::string(key) +
                           "' is 0: nothing would be generated; weft score gives the log-probabilities of a text");
    request_.max_tokens =
        fields_.has(key) ? fields_.integer(key, 1, kMostTokens) : std::min(rules_.default_max_tokens, room);
    request_.min_tokens = fields_.integer("min_tokens", 0, request_.max_tokens, 0);
    request_.ignore_eos = fields_.boolean("ignore_eos", false);
    if (fields_.has("stop")) request_.stop_strings = stop_strings(fields_, rules_, where_);
    if (fields_.has("stop_token_ids") && !fields_.at("stop_token_ids").empty())
      request_.stop_ids = token_ids(fields_, "stop_token_ids", rules_.model.vocab);
  }

  void read_sampling() {
    request_.n = static_cast<std::int32_t>(fields_.integer("n", 1, kMostChoices, 1));
    if (fields_.has("best_of") && fields_.integer("best_of", 1, kMostChoices) != request_.n)
      throw BadRequest(where_, "unsupported_parameter", "best_of", "'best_of' is not supported, but where it is 'n'");
    request_.sampling.temperature = static_cast<float>(fields_.number("temperature", 0, 2, 1.0));
    request_.sampling.top_p = static_cast<float>(fields_.number("top_p", 0, 1, 1.0));
    if (request_.sampling.top_p <= 0) fields_.refuse_field("top_p", "a number over 0, at most 1");
    // vLLM writes -1 for what is 0 here.
    request_.sampling.top_k =
        static_cast<std::int32_t>(std::max<std::int64_t>(0, fields_.integer("top_k", -1, INT32_MAX, 0)));
    request_.sampling.key =
        mix(static_cast<std::uint64_t>(fields_.integer("seed", INT64_MIN, INT64_MAX, 0))) ^ mix(hash(request_.id));
  }

  void read_logprobs() {
    if (!chat_) {
      request_.logprobs = static_cast<std::int32_t>(fields_.integer("logprobs", 0, kMostLogprobs, -1));
      request_.echo = fields_.boolean("echo", false);
      return;
    }
    const bool wanted = fields_.boolean("logprobs", false);
    const auto top = static_cast<std::int32_t>(fields_.integer("top_logprobs", 0, kMostLogprobs, 0));
    if (top > 0 && !wanted) fields_.refuse_field("top_logprobs", "absent or 0 where 'logprobs' is not true");
    if (wanted) request_.logprobs = top;
  }

  const std::string& where_;
  const RequestRules& rules_;
  bool chat_;
  Request& request_;
  json json_;
  Fields fields_;
};

}  // namespace

Request read_openai_request(const json& line, const std::string& where, const RequestRules& rules) {
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
  Body(fields.at("body"), chat, where, rules, request).read();
  return request;
}

}  // namespace weft::runtime
