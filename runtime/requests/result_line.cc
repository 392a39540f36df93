#include "runtime/requests/result_line.h"

#include <ctime>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/json.h"
#include "runtime/base/hash.h"
#include "runtime/base/utf8.h"
#include "runtime/requests/request_checks.h"
#include "runtime/text/tokenizer.h"

namespace weft::runtime {
namespace {

using nlohmann::ordered_json;

ordered_json token_json(std::int32_t token, float logprob, const Tokenizer* tokenizer) {
  ordered_json json{{"token_id", token}, {"token", nullptr}, {"logprob", double(logprob)}};
  if (tokenizer) json["token"] = with_replacements(tokenizer->piece(token));
  return json;
}

ordered_json logprobs_json(const Choice& choice, const Tokenizer* tokenizer) {
  ordered_json list = ordered_json::array();
  for (std::size_t i = 0; i < choice.tokens.size(); ++i) {
    ordered_json json = token_json(choice.tokens[i], choice.logprobs->chosen[i], tokenizer);
    json["top"] = ordered_json::array();
    for (const TokenLogprob& other : choice.logprobs->top[i])
      json["top"].push_back(token_json(other.token, other.logprob, tokenizer));
    list.push_back(std::move(json));
  }
  return list;
}

void put(ordered_json& json, const Choice& choice, const Tokenizer* tokenizer) {
  json["text"] = choice.has_text ? ordered_json(choice.text) : ordered_json();
  json["token_ids"] = choice.tokens;
  json["finish_reason"] = choice.finish;
  if (choice.logprobs) json["logprobs"] = logprobs_json(choice, tokenizer);
}

ordered_json native_answer(const Recipient& to, std::int64_t prompt_tokens, std::span<const Choice> choices,
                           const Tokenizer* tokenizer) {
  ordered_json json{{"id", ordered_json::parse(to.id)}};
  std::size_t tokens = 0;
  for (const Choice& choice : choices) tokens += choice.tokens.size();
  if (choices.size() == 1) {
    put(json, choices.front(), tokenizer);
  } else {
    json["choices"] = ordered_json::array();
    for (const Choice& choice : choices) {
      ordered_json one{{"index", json["choices"].size()}};
      put(one, choice, tokenizer);
      json["choices"].push_back(std::move(one));
    }
  }
  json["usage"] = {{"prompt_tokens", prompt_tokens}, {"completion_tokens", tokens}};
  return json;
}

/// 16 hexadecimal digits that are the same for a request in every run.
std::string tag_of(const std::string& id) {
  std::string tag;
  for (std::uint64_t bits = mix(hash(id)), i = 0; i < 16; ++i, bits <<= 4) tag += "0123456789abcdef"[bits >> 60];
  return tag;
}

/// `id`: as JSON, null for a line without one that can be read.
ordered_json openai_line(const std::string& id, const std::string& tag, int status, ordered_json body) {
  return {{"id", "batch_req_" + tag},
          {"custom_id", ordered_json::parse(id)},
          {"response", {{"status_code", status}, {"request_id", "req_" + tag}, {"body", std::move(body)}}},
          {"error", nullptr}};
}

std::string text_of(std::int32_t token, const Tokenizer* tokenizer) {
  return tokenizer ? with_replacements(tokenizer->piece(token)) : std::string();
}

/// The lists of a completion's logprobs: each token, its place in the text in characters, and the likeliest there.
ordered_json completion_logprobs(const Choice& choice, const Tokenizer* tokenizer) {
  ordered_json tokens = ordered_json::array(), top = tokens, offsets = tokens, chosen = tokens;
  std::size_t offset = 0;
  for (std::size_t i = 0; i < choice.tokens.size(); ++i) {
    const std::string text = text_of(choice.tokens[i], tokenizer);
    tokens.push_back(text);
    chosen.push_back(double(choice.logprobs->chosen[i]));
    offsets.push_back(offset);
    for (const char c : text) offset += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    ordered_json here{{text, double(choice.logprobs->chosen[i])}};
    for (const TokenLogprob& other : choice.logprobs->top[i])
      here.emplace(text_of(other.token, tokenizer), double(other.logprob));
    top.push_back(std::move(here));
  }
  return {{"text_offset", offsets}, {"token_logprobs", chosen}, {"tokens", tokens}, {"top_logprobs", top}};
}

ordered_json chat_token(std::int32_t token, float logprob, const Tokenizer* tokenizer) {
  ordered_json bytes = ordered_json::array();
  if (tokenizer)
    for (const char c : tokenizer->piece(token)) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", text_of(token, tokenizer)}, {"logprob", double(logprob)}, {"bytes", std::move(bytes)}};
}

ordered_json chat_logprobs(const Choice& choice, const Tokenizer* tokenizer) {
  ordered_json content = ordered_json::array();
  for (std::size_t i = 0; i < choice.tokens.size(); ++i) {
    ordered_json token = chat_token(choice.tokens[i], choice.logprobs->chosen[i], tokenizer);
    token["top_logprobs"] = ordered_json::array();
    for (const TokenLogprob& other : choice.logprobs->top[i])
      token["top_logprobs"].push_back(chat_token(other.token, other.logprob, tokenizer));
    content.push_back(std::move(token));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

ordered_json openai_answer(const Recipient& to, std::int64_t prompt_tokens, std::span<const Choice> choices,
                           const Tokenizer* tokenizer) {
  const bool chat = to.endpoint == Endpoint::chat;
  ordered_json list = ordered_json::array();
  std::int64_t tokens = 0;
  for (const Choice& choice : choices) {
    tokens += static_cast<std::int64_t>(choice.tokens.size());
    ordered_json one{{"index", list.size()}};
    if (chat) one["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
    else one["text"] = choice.text;
    one["logprobs"] = nullptr;
    if (choice.logprobs)
      one["logprobs"] = chat ? chat_logprobs(choice, tokenizer) : completion_logprobs(choice, tokenizer);
    one["finish_reason"] = choice.finish;
    list.push_back(std::move(one));
  }
  const std::string tag = tag_of(to.id);
  ordered_json body{
      {"id", (chat ? "chatcmpl-" : "cmpl-") + tag},
      {"object", chat ? "chat.completion" : "text_completion"},
      {"created", std::time(nullptr)},
      {"model", to.model},
      {"choices", std::move(list)},
      {"usage",
       {{"prompt_tokens", prompt_tokens}, {"completion_tokens", tokens}, {"total_tokens", prompt_tokens + tokens}}}};
  return openai_line(to.id, tag, 200, std::move(body));
}

int status_of(const std::string& code) {
  if (code == kNotFinite) return 500;
  return code == "model_not_found" ? 404 : 400;
}

}  // namespace

std::string result_line(const Recipient& to, std::int64_t prompt_tokens, std::span<const Choice> choices,
                        const Tokenizer* tokenizer) {
  return policy::to_line(to.endpoint == Endpoint::native ? native_answer(to, prompt_tokens, choices, tokenizer)
                                                         : openai_answer(to, prompt_tokens, choices, tokenizer));
}

std::string refusal_line(const Refusal& refusal, Dialect dialect) {
  const bool nameless = refusal.id == "null";
  if (dialect == Dialect::native) {
    ordered_json json{{"id", ordered_json::parse(refusal.id)}};
    if (nameless) json["line"] = refusal.line;
    json["error"] = {{"code", refusal.code}, {"message", refusal.reason}};
    return policy::to_line(json);
  }
  ordered_json error{{"message", refusal.reason},
                     {"type", refusal.code == kNotFinite ? "server_error" : "invalid_request_error"},
                     {"param", nullptr}};
  if (!refusal.param.empty()) error["param"] = refusal.param;
  error["code"] = refusal.code;
  if (nameless) error["line"] = refusal.line;
  const std::string tag = tag_of(nameless ? "line " + std::to_string(refusal.line) : refusal.id);
  return policy::to_line(openai_line(refusal.id, tag, status_of(refusal.code), {{"error", std::move(error)}}));
}

std::size_t answered_request(const nlohmann::json& line, const RequestFile& requests, const std::string& where) {
  const bool scores = requests.kind() == RequestKind::score, openai = requests.dialect() == Dialect::openai;
  const auto has = [&](const char* key) { return line.is_object() && line.contains(key); };
  const bool refused = has("error") && line.at("error").is_object();
  const bool answer = openai ? has("custom_id") && has("response")
                             : has("id") && (refused || (scores ? has("greedy") : has("token_ids") || has("choices")));
  if (!answer)
    throw UsageError(where + ": not a result of weft " + (scores ? "score" : "generate") +
                     (openai ? " for OpenAI's request lines" : ""));
  const nlohmann::json& id = line.at(openai ? "custom_id" : "id");
  const auto request = id.is_null() ? requests.find_line(refused_line(line)) : requests.find(policy::to_line(id));
  if (!request) throw UsageError(where + ": answers a request that is not in the input");
  return *request;
}

bool is_refusal(const nlohmann::json& line) {
  if (line.contains("error") && line.at("error").is_object()) return true;
  return line.contains("response") && line.at("response").is_object() &&
         line.at("response").value("status_code", 200) != 200;
}

}  // namespace weft::runtime
