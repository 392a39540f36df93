#include "runtime/result_line.h"

#include <nlohmann/json.hpp>

#include "policy/json.h"
#include "runtime/tokenizer.h"
#include "runtime/utf8.h"

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

}  // namespace

std::string result_line(const std::string& id, std::int64_t prompt_tokens, std::span<const Choice> choices,
                        const Tokenizer* tokenizer) {
  ordered_json json{{"id", ordered_json::parse(id)}};
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
  return policy::to_line(json);
}

}  // namespace weft::runtime
