// runtime/requests/request_native.cc: Weft's own request lines, of weft generate and weft score.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "runtime/requests/request_chat.h"
#include "runtime/requests/request_checks.h"
#include "runtime/requests/request_sampling.h"

namespace weft::runtime {
namespace {

using policy::Fields;

class Reader {
 public:
  Reader(const nlohmann::json& line, std::string_view text, const std::string& where, const RequestRules& rules)
      : where_(where), text_(text), rules_(rules), line_(line.is_object() ? as_meant(line) : line),
        fields_(line_, where, policy::Blame::usage) {}

  Request read(const std::string& default_id) {
    read_id(default_id);
    if (fields_.has(kMetadata)) request_.metadata = metadata_of(line_);
    read_prompt();
    if (rules_.kind == RequestKind::generate) cut_prompt(fields_, rules_, request_);
    if (rules_.kind == RequestKind::score) read_continuation();
    const std::int64_t room = room_after_prompt(request_, rules_, where_);
    if (rules_.kind == RequestKind::score) {
      if (request_.continuation.empty())
        throw UsageError(where_ + ": the continuation has no tokens: the whole text has no more than the prompt");
      request_.max_tokens = static_cast<std::int64_t>(request_.continuation.size());
    } else {
      read_options(room);
    }
    refuse_unknown_keys(fields_, where_, "; what the answer is to carry goes into 'metadata'");
    check_length(request_, room, rules_, where_);
    split_prompt(request_, where_);
    return std::move(request_);
  }

 private:
  void read_id(const std::string& default_id) {
    request_.id = default_id;
    if (!fields_.has("id")) return;
    const auto& id = fields_.at("id");
    if (!is_native_id(id))
      fields_.refuse_field("id", "an integer or a string of 1 to 512 bytes without control characters");
    request_.id = policy::to_line(id);
  }

  void read_prompt() {
    const bool generates = rules_.kind == RequestKind::generate;
    if (generates && fields_.has("messages")) return read_conversation("prompt");
    if (generates && rules_.defaults.chat && fields_.has("prompt")) {
      if (!fields_.at("prompt").is_string()) fields_.refuse_field("prompt", "a string");
      return read_conversation("messages");
    }
    request_.prompt_text = text("prompt", "prompt_ids");
    add_first_ = fields_.boolean("add_special_tokens", true);
    request_.first_added = request_.prompt_text && add_first_ && rules_.tokenizer->first_token();
    request_.prompt = request_.prompt_text ? rules_.tokenizer->encode(*request_.prompt_text, add_first_)
                                           : token_ids(fields_, "prompt_ids", rules_.model.vocab);
  }

  void read_conversation(const std::string& other) {
    const std::string given = other == "prompt" ? "messages" : "prompt";
    for (const std::string& key : {other, std::string("prompt_ids")})
      if (fields_.has(key))
        throw BadRequest(where_, "invalid_value", key, "wanted either '" + given + "' or '" + key + "', found both");
    for (const char* key : kConversationFields) fields_.has(key);
    if (!rules_.tokenizer) throw NoTokenizer(where_, "'" + given + "'", rules_.openai.files, "'prompt_ids'");
    request_.prompt = conversation_ids(text_, nullptr, where_, rules_);
    request_.reasoning = rules_.defaults.reasoning;
  }

  /// A continuation is read as part of the text that it continues: by itself it would have other tokens.
  void read_continuation() {
    const std::optional<std::string> given = text("continuation", "continuation_ids");
    if (!given) {
      request_.continuation = token_ids(fields_, "continuation_ids", rules_.model.vocab);
    } else if (request_.prompt_text) {
      std::tie(request_.prompt, request_.continuation) =
          rules_.tokenizer->encode_pair(*request_.prompt_text, *given, add_first_);
    } else {
      request_.continuation = rules_.tokenizer->encode_after(request_.prompt, *given);
    }
  }

  /// The text of a field, or nothing if the ids are given in its place.
  std::optional<std::string> text(const std::string& text_key, const std::string& ids_key) {
    const bool text = fields_.has(text_key), ids = fields_.has(ids_key);
    if (text == ids)
      throw BadRequest(where_, text ? "invalid_value" : "missing_required_parameter", text_key,
                       "wanted either '" + text_key + "' or '" + ids_key + "', found " + (text ? "both" : "neither"));
    if (ids) return {};
    if (!rules_.tokenizer) throw NoTokenizer(where_, "'" + text_key + "'", rules_.openai.files, "'" + ids_key + "'");
    return fields_.text(text_key);
  }

  void read_options(std::int64_t room) {
    request_.prompt_logprobs = static_cast<std::int32_t>(fields_.integer("prompt_logprobs", 0, kMostLogprobs, -1));
    const std::int64_t least = request_.prompt_logprobs >= 0 ? 0 : 1;  // the prompt alone may be asked about
    request_.max_tokens = fields_.has("max_tokens") ? fields_.integer("max_tokens", least, kMostTokens)
                                                    : std::min(rules_.default_max_tokens, room);
    read_sampling(fields_, kNativeSampling, rules_, where_, request_);
    read_text_options(fields_, rules_, where_, request_);
    read_form(fields_, text_, nullptr, rules_, where_, request_);
    request_.n = static_cast<std::int32_t>(fields_.integer("n", 1, kMostChoices, 1));
    request_.logprobs = static_cast<std::int32_t>(fields_.integer("logprobs", 0, kMostLogprobs, -1));
    request_.echo = fields_.boolean("echo", false);
    request_.min_tokens = fields_.integer("min_tokens", 0, request_.max_tokens, 0);
    check_choices(request_, rules_, where_);
  }

  const std::string& where_;
  const std::string_view text_;
  const RequestRules& rules_;
  const nlohmann::json line_;
  Fields fields_;
  Request request_;
  bool add_first_ = true;
};

}  // namespace

Request read_native_request(const nlohmann::json& line, std::string_view text, const std::string& where,
                            const std::string& default_id, const RequestRules& rules) {
  return Reader(line, text, where, rules).read(default_id);
}

}  // namespace weft::runtime
