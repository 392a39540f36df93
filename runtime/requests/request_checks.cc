#include "runtime/requests/request_checks.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "policy/layout/rolling.h"

namespace weft::runtime {
namespace {

/// 2.0 as 2, anything else as it is.
nlohmann::json whole_number(const nlohmann::json& value) {
  constexpr double kExact = 9007199254740992.0;  // up to here a double holds every integer
  if (!value.is_number_float()) return value;
  const auto number = value.get<double>();
  if (std::fabs(number) > kExact || number != std::floor(number)) return value;
  return static_cast<std::int64_t>(number);
}

}  // namespace

nlohmann::json as_meant(const nlohmann::json& object) {
  nlohmann::json meant = nlohmann::json::object();
  for (const auto& [key, value] : object.items())
    if (!value.is_null()) meant[key] = key == kMetadata ? value : whole_number(value);
  return meant;
}

std::string metadata_of(const nlohmann::json& line) {
  const auto found = line.is_object() ? line.find(kMetadata) : line.end();
  return found == line.end() || found->is_null() ? "" : policy::to_line(*found);
}

std::vector<std::int32_t> token_ids(policy::Fields& fields, const std::string& key, int vocab) {
  const std::string wanted = "a list of token ids from 0 to " + std::to_string(vocab - 1);
  const auto& list = fields.at(key);
  if (!list.is_array() || list.empty()) fields.refuse_field(key, "a non-empty list of token ids");
  std::vector<std::int32_t> ids;
  ids.reserve(list.size());
  for (const auto& id : list) {
    if (!id.is_number_integer() || id < 0 || id >= vocab) fields.refuse_field(key, wanted);
    ids.push_back(id.get<std::int32_t>());
  }
  return ids;
}

NoTokenizer::NoTokenizer(const std::string& where, const std::string& what, const ModelTexts* files,
                         const std::string& or_else)
    : UsageError(where + ": " + what + " needs a tokenizer. " +
                 (files ? Tokenizer::missing(*files) : "--model is no folder, which could hold one") + "; or use " +
                 or_else) {}

std::vector<std::string> stop_strings(policy::Fields& fields, const RequestRules& rules, const std::string& where) {
  const auto& value = fields.at("stop");
  const auto list = value.is_string() ? nlohmann::json::array({value}) : value;
  if (!list.is_array() || list.size() > kMostStops)
    fields.refuse_field("stop", "a string or a list of at most 16 strings");
  std::vector<std::string> stops;
  for (const auto& stop : list) {
    if (!stop.is_string() || stop.get_ref<const std::string&>().empty() ||
        stop.get_ref<const std::string&>().size() > kLongestStop)
      fields.refuse_field("stop", "strings of 1 to 512 bytes");
    stops.push_back(stop.get<std::string>());
  }
  if (!stops.empty() && !rules.tokenizer) throw NoTokenizer(where, "'stop'", rules.openai.files, "'stop_token_ids'");
  return stops;
}

bool is_native_id(const nlohmann::json& value) { return value.is_number_integer() || is_openai_id(value, false); }

bool is_openai_id(const nlohmann::json& value, bool strict) {
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; };
  const auto begins_character = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  return !text.empty() && text.size() <= kLongestId && std::none_of(text.begin(), text.end(), control) &&
         (!strict || std::count_if(text.begin(), text.end(), begins_character) <= kLongestStrictId);
}

Dialect dialect_of(const nlohmann::json& object) {
  const bool openai = object.contains("custom_id") || (object.contains("body") && object.contains("url"));
  return openai ? Dialect::openai : Dialect::native;
}

std::string default_id(std::size_t number) { return "\"" + std::to_string(number - 1) + "\""; }

std::optional<std::string> id_of_line(const nlohmann::json& line, std::size_t number, Dialect dialect, bool strict) {
  if (!line.is_object()) return {};
  const bool openai = dialect == Dialect::openai;
  const auto found = line.find(openai ? "custom_id" : "id");
  if (found == line.end() || found->is_null()) return openai ? std::optional<std::string>() : default_id(number);
  const nlohmann::json id = whole_number(*found);
  const bool readable = openai ? is_openai_id(id, strict) : is_native_id(id);
  return readable ? std::optional(policy::to_line(id)) : std::nullopt;
}

std::uint64_t refused_line(const nlohmann::json& result) {
  for (const char* place : {"/line", "/response/body/error/line"}) {
    const nlohmann::json::json_pointer pointer(place);
    if (result.contains(pointer) && result.at(pointer).is_number_unsigned())
      return result.at(pointer).get<std::uint64_t>();
  }
  return 0;
}

void refuse_unknown_keys(policy::Fields& fields, const std::string& where, const std::string& hint) {
  try {
    fields.refuse_unknown();
  } catch (const policy::FieldError& refused) {
    throw BadRequest(where, "unsupported_parameter", refused.field(),
                     std::string(refused.what()).substr(where.size() + 2) + hint);
  }
}

std::int64_t room_after_prompt(const Request& request, const RequestRules& rules, const std::string& where) {
  const policy::ModelSpec& model = rules.model;
  if (request.prompt.empty()) throw BadRequest(where, "invalid_value", "prompt", "the prompt has no tokens");
  for (const auto& [what, tokens] : {std::pair{"prompt", &request.prompt}, {"continuation", &request.continuation}})
    for (const std::int32_t token : *tokens)
      if (token >= model.vocab)
        throw BadRequest(where, "invalid_value", what,
                         "the " + std::string(what) + " has token " + std::to_string(token) +
                             ", the model's vocabulary has " + std::to_string(model.vocab));
  const std::int64_t room = model.positions - static_cast<std::int64_t>(request.prompt.size());
  if (room < 1)
    throw BadRequest(where, "context_length_exceeded", "prompt",
                     "the prompt has " + std::to_string(request.prompt.size()) + " tokens; the model's context is " +
                         policy::context_text(model) + ", one of which must be left for an answer");
  return rules.rolls() ? kMostTokens : room;
}

bool RequestRules::rolls() const {
  return !retentions.empty() &&
         std::all_of(retentions.begin(), retentions.end(), [](const policy::Retention& one) { return one.rolled(); });
}

bool RequestRules::keeps_all() const {
  return std::all_of(retentions.begin(), retentions.end(),
                     [](const policy::Retention& one) { return one.rule == policy::Retention::Rule::full; });
}

void check_choices(const Request& request, const RequestRules& rules, const std::string& where) {
  const auto refuse = [&](const char* field, const std::string& reason) {
    throw BadRequest(where, "invalid_value", field, "'" + std::string(field) + "' " + reason);
  };
  if (request.n > 1 && request.sampling.temperature == 0)
    refuse("n", "must be 1 when using greedy sampling (temperature 0), got " + std::to_string(request.n));
  if (request.echo && request.logprobs >= 0 && request.prompt_logprobs < 0)
    refuse("echo", "goes with 'logprobs', which are those of generated tokens, only beside 'prompt_logprobs'");
  if (request.prompt_logprobs >= 0 && !rules.keeps_all())
    refuse(request.echo ? "echo" : "prompt_logprobs",
           "asks for log-probabilities of the prompt, which need --retention full; weft score gives those of a "
           "continuation under any retention");
  if (request.prompt_logprobs >= 0 && request.n > 1)
    refuse("n", "must be 1 with log-probabilities of the prompt, got " + std::to_string(request.n));
  if (request.echo && !rules.tokenizer) refuse("echo", "needs a tokenizer and the model folder has none");
  std::set<std::int32_t> enders(request.stop_ids.begin(), request.stop_ids.end());
  enders.insert(rules.model.eos.begin(), rules.model.eos.end());
  if (request.min_tokens > 0 && static_cast<int>(enders.size()) >= rules.model.vocab)
    refuse("stop_token_ids", "has the whole vocabulary, 'min_tokens' leaves nothing to choose");
  if (request.rules.allowed.empty()) return;
  // Tokens that end an answer, and bad words of one token, may not be the only ones that are allowed.
  std::set<std::int32_t> never;
  if (request.min_tokens > 0) never = enders;
  for (const auto& word : request.rules.bad_words)
    if (word.size() == 1) never.insert(word.front());
  std::int64_t left = std::ssize(request.rules.allowed);
  for (const std::int32_t token : never) left -= request.rules.allows(token) ? 1 : 0;
  if (left <= 0) refuse("allowed_token_ids", "has only tokens that 'bad_words' or 'min_tokens' forbid");
}

void check_length(const Request& request, std::int64_t room, const RequestRules& rules, const std::string& where) {
  const auto refuse = [&](const std::string& why) {
    throw BadRequest(where, "context_length_exceeded", "max_tokens",
                     "the prompt has " + std::to_string(request.prompt.size()) + " tokens and " +
                         std::to_string(request.max_tokens) + " are to follow; the model's context is " +
                         policy::context_text(rules.model) + why);
  };
  if (request.max_tokens > room) refuse("");
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  if (!rules.rolls()) return;
  for (const policy::Retention& retention : rules.retentions)
    if (const auto why = policy::too_long(rules.model, retention, prompt, request.max_tokens)) refuse(*why);
}

void split_prompt(Request& request, const std::string& where) {
  if (request.prompt_logprobs < 0) return;
  if (request.prompt.size() == 1 && request.max_tokens == 0)
    throw BadRequest(where, "invalid_value", "prompt",
                     "the prompt's one token has no log-probability, and 'max_tokens' is 0");
  request.continuation.assign(request.prompt.begin() + 1, request.prompt.end());
  request.prompt.resize(1);
  request.max_tokens += std::ssize(request.continuation);
}

}  // namespace weft::runtime
