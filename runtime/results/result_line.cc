#include "runtime/results/result_line.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "runtime/base/hash.h"
#include "runtime/base/utf8.h"
#include "runtime/requests/request_checks.h"
#include "runtime/text/tokenizer.h"

namespace weft::runtime {
using nlohmann::ordered_json;

ordered_json native_line(const std::string& id, const std::string& metadata) {
  ordered_json line{{"id", ordered_json::parse(id)}};
  if (!metadata.empty()) line[kMetadata] = ordered_json::parse(metadata);
  return line;
}

namespace {

ordered_json token_json(std::int32_t token, float logprob, const Tokenizer* tokenizer) {
  ordered_json json{{"token_id", token}, {"token", nullptr}, {"logprob", double(logprob)}};
  if (tokenizer) json["token"] = with_replacements(tokenizer->shown_piece(token));
  return json;
}

/// Collects a line piece by piece. Its length may be tens of MiB, and one JSON value of it would take ten times that.
class LineText {
 public:
  /// Texts of up to kWhole bytes are kept. Only the length of a longer text is.
  static constexpr std::size_t kWhole = std::size_t{1} << 20;

  void put(std::string_view piece) {
    bytes_ += piece.size();
    if (bytes_ <= room_) text_ += piece;
  }
  void put_json(const ordered_json& value) { put(policy::to_line(value)); }
  bool whole() const { return bytes_ == text_.size(); }
  /// Begins again, with memory for the whole text.
  void begin_again() {
    text_ = {};
    text_.reserve(bytes_);
    room_ = std::exchange(bytes_, 0);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
  std::size_t bytes_ = 0, room_ = kWhole;
};

/// Puts a list such as `[one,two]`. element(i) puts its elements.
template <class Element> void put_list(LineText& line, std::size_t count, const Element& element) {
  line.put("[");
  for (std::size_t i = 0; i < count; ++i) {
    if (i > 0) line.put(",");
    element(i);
  }
  line.put("]");
}

/// A token of a list of log-probabilities, and the likeliest in its place.
ordered_json logprob_json(std::int32_t token, const ChoiceLogprobs& logprobs, std::size_t at,
                          const Tokenizer* tokenizer) {
  ordered_json json = token_json(token, logprobs.chosen[at], tokenizer);
  json["top"] = ordered_json::array();
  for (const TokenLogprob& other : logprobs.top[at])
    json.at("top").push_back(token_json(other.token, other.logprob, tokenizer));
  return json;
}

/// Puts the members of a choice, without braces.
void put(LineText& line, const Choice& choice, const Tokenizer* tokenizer) {
  line.put("\"text\":");
  line.put_json(choice.has_text ? ordered_json(choice.text) : ordered_json());
  if (choice.reasoning) {
    line.put(",\"reasoning_content\":");
    line.put_json(ordered_json(*choice.reasoning));
  }
  line.put(",\"token_ids\":");
  line.put_json(ordered_json(choice.tokens));
  line.put(",\"finish_reason\":");
  line.put_json(ordered_json(choice.finish));
  if (choice.logprobs) {
    line.put(",\"logprobs\":");
    put_list(line, choice.tokens.size(),
             [&](std::size_t i) { line.put_json(logprob_json(choice.tokens[i], *choice.logprobs, i, tokenizer)); });
  }
  if (choice.prompt.empty()) return;
  line.put(",\"prompt_logprobs\":");
  put_list(line, choice.prompt.size(), [&](std::size_t i) {  // the first token has none
    line.put_json(i == 0 ? ordered_json() : logprob_json(choice.prompt[i], choice.prompt_logprobs, i - 1, tokenizer));
  });
}

/// The text before and after the choices. `frame` has the last "choices": null in their place.
struct Frame {
  std::string before, after;

  explicit Frame(const ordered_json& frame) {
    constexpr std::string_view kHere = "\"choices\":null";
    before = policy::to_line(frame);
    const std::size_t at = before.rfind(kHere);
    after = before.substr(at + kHere.size());
    before.resize(at);
  }
};

Frame native_frame(const Recipient& to, std::int64_t prompt_tokens, std::span<const Choice> choices) {
  std::size_t tokens = 0;
  for (const Choice& choice : choices) tokens += choice.tokens.size();
  ordered_json line = native_line(to.id, to.metadata);
  line["choices"] = nullptr;
  line["usage"] = {{"prompt_tokens", prompt_tokens}, {"completion_tokens", tokens}};
  return Frame(line);
}

void put_native(LineText& line, std::span<const Choice> choices, const Tokenizer* tokenizer) {
  if (choices.size() == 1) return put(line, choices.front(), tokenizer);
  line.put("\"choices\":");
  put_list(line, choices.size(), [&](std::size_t i) {
    line.put("{\"index\":" + std::to_string(i) + ",");
    put(line, choices[i], tokenizer);
    line.put("}");
  });
}

/// 16 hexadecimal digits that are the same for a request in every run.
std::string tag_of(const std::string& id) { return to_hex(mix(hash(id))); }

/// `id` is JSON; it is null for a line without a readable id.
ordered_json openai_line(const std::string& id, const std::string& tag, int status, ordered_json body) {
  return {{"id", "batch_req_" + tag},
          {"custom_id", ordered_json::parse(id)},
          {"response", {{"status_code", status}, {"request_id", "req_" + tag}, {"body", std::move(body)}}},
          {"error", nullptr}};
}

std::string text_of(std::int32_t token, const Tokenizer* tokenizer) {
  return tokenizer ? with_replacements(tokenizer->shown_piece(token)) : std::string();
}

/// The name of a token among others by name: its text, or, if another has that text, `bytes:\x..` as OpenAI writes it
/// where the text is no whole character, else vLLM's `token_id:N`.
std::string name_among(const ordered_json& others, std::int32_t token, const Tokenizer* tokenizer) {
  std::string text = text_of(token, tokenizer);
  if (!others.contains(text)) return text;
  const std::string_view bytes = tokenizer ? tokenizer->shown_piece(token) : std::string_view();
  std::string name = "bytes:";
  for (const char c : bytes) {
    name += "\\x";
    name += "0123456789abcdef"[(c >> 4) & 15];
    name += "0123456789abcdef"[c & 15];
  }
  if (!is_utf8(bytes) && !others.contains(name)) return name;
  return "token_id:" + std::to_string(token);
}

std::size_t characters_in(std::string_view text) {
  std::size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

/// The places of tokens in a text that grows by them, in characters. A token has the place of the first character that
/// is not whole without it.
class TextOffsets {
 public:
  explicit TextOffsets(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {}

  /// Begins the text of other tokens. With `follows`, a first space of theirs stays.
  void begin(SpecialTokens special, bool follows) {
    if (!tokenizer_) return;
    end_bytes();
    if (decoder_) text_ += characters_in(decoder_->finish());
    special_ = special;
    decoder_.emplace(*tokenizer_, special);
    if (follows) decoder_->follow_text();
    here_ = text_;
  }
  void add(std::int32_t token, bool in_text) {
    if (!decoder_ || !in_text) return places_.push_back(here_);
    const std::string_view piece =
        special_ == SpecialTokens::shown ? tokenizer_->shown_piece(token) : tokenizer_->piece(token);
    const bool is_byte = tokenizer_->is_byte(token);
    if (!is_byte && !piece.empty()) end_bytes();
    places_.push_back(here_ + (breaks_character(piece) ? 1 : 0));
    if (is_byte) byte_tokens_.push_back(places_.size() - 1), bytes_ += piece;
    text_ += characters_in(decoder_->push(token));
    here_ = std::max(here_, text_ + characters_in(decoder_->pending()));
  }
  const std::vector<std::size_t>& places() {
    end_bytes();
    return places_;
  }

 private:
  /// Whether the beginning of a character, which came before, stays one and becomes U+FFFD.
  bool breaks_character(std::string_view piece) const {
    const std::string& held = decoder_->held();
    return !held.empty() && !piece.empty() && utf8_at(held + std::string(piece), 0).bytes <= held.size();
  }
  /// Ends a row of byte tokens, of which each becomes U+FFFD if they are no text.
  void end_bytes() {
    if (!is_utf8(bytes_)) {
      for (std::size_t i = 0; i < byte_tokens_.size(); ++i) places_[byte_tokens_[i]] = text_ + i;
      here_ = text_ + byte_tokens_.size();
    }
    byte_tokens_.clear(), bytes_.clear();
  }

  const Tokenizer* tokenizer_;
  SpecialTokens special_ = SpecialTokens::skipped;
  std::optional<IncrementalDecoder> decoder_;
  std::size_t text_ = 0, here_ = 0;  // characters that have come out, and those with what the decoder holds back
  std::vector<std::size_t> places_, byte_tokens_;  // byte_tokens_: those in a row, with which the text ends so far
  std::string bytes_;                              // theirs
};

/// Puts the lists of a completion's logprobs: each token, its place in the text in characters, and the likeliest tokens
/// there. If the text begins with the prompt's, so do the lists; the prompt's first token has no log-probability.
void put_completion_logprobs(LineText& line, const Choice& choice, const Tokenizer* tokenizer) {
  ordered_json tokens = ordered_json::array(), chosen = tokens;
  TextOffsets offsets(tokenizer);
  const auto add = [&](std::int32_t token, ordered_json logprob, bool in_text) {
    tokens.push_back(text_of(token, tokenizer));
    chosen.push_back(std::move(logprob));
    offsets.add(token, in_text);
  };
  const std::size_t prompt = choice.echoes ? choice.prompt.size() : 0;
  offsets.begin(SpecialTokens::shown, false);
  for (std::size_t i = 0; i < prompt; ++i)
    add(choice.prompt[i], i == 0 ? ordered_json() : ordered_json(double(choice.prompt_logprobs.chosen[i - 1])),
        i > 0 || !choice.hides_first);
  offsets.begin(choice.shows_special ? SpecialTokens::shown : SpecialTokens::skipped, choice.follows_text);
  for (std::size_t i = 0; i < choice.tokens.size(); ++i)
    add(choice.tokens[i], double(choice.logprobs->chosen[i]), true);
  line.put("{\"text_offset\":");
  line.put_json(offsets.places());
  line.put(",\"token_logprobs\":");
  line.put_json(chosen);
  line.put(",\"tokens\":");
  line.put_json(tokens);
  line.put(",\"top_logprobs\":");
  const auto put_top = [&](std::int32_t token, const ChoiceLogprobs& logprobs, std::size_t at) {
    ordered_json here{{text_of(token, tokenizer), double(logprobs.chosen[at])}};
    for (const TokenLogprob& other : logprobs.top[at])
      if (other.token != token) here[name_among(here, other.token, tokenizer)] = double(other.logprob);
    line.put_json(here);
  };
  put_list(line, prompt + choice.tokens.size(), [&](std::size_t i) {
    if (i >= prompt) put_top(choice.tokens[i - prompt], *choice.logprobs, i - prompt);
    else if (i == 0) line.put("null");
    else put_top(choice.prompt[i], choice.prompt_logprobs, i - 1);
  });
  line.put("}");
}

ordered_json chat_token(std::int32_t token, float logprob, const Tokenizer* tokenizer) {
  ordered_json bytes = ordered_json::array();
  if (tokenizer)
    for (const char c : tokenizer->shown_piece(token)) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", text_of(token, tokenizer)}, {"logprob", double(logprob)}, {"bytes", std::move(bytes)}};
}

void put_chat_logprobs(LineText& line, const Choice& choice, const Tokenizer* tokenizer) {
  line.put("{\"content\":");
  put_list(line, choice.tokens.size(), [&](std::size_t i) {
    ordered_json token = chat_token(choice.tokens[i], choice.logprobs->chosen[i], tokenizer);
    token["top_logprobs"] = ordered_json::array();
    for (const TokenLogprob& other : choice.logprobs->top[i])
      token.at("top_logprobs").push_back(chat_token(other.token, other.logprob, tokenizer));
    line.put_json(token);
  });
  line.put(",\"refusal\":null}");
}

Frame openai_frame(const Recipient& to, std::int64_t prompt_tokens, std::span<const Choice> choices) {
  const bool chat = to.endpoint == Endpoint::chat;
  std::int64_t tokens = 0;
  for (const Choice& choice : choices) tokens += static_cast<std::int64_t>(choice.tokens.size());
  const std::string tag = tag_of(to.id);
  return Frame(openai_line(
      to.id, tag, 200,
      {{"id", (chat ? "chatcmpl-" : "cmpl-") + tag},
       {"object", chat ? "chat.completion" : "text_completion"},
       {"created", std::time(nullptr)},
       {"model", to.model},
       {"choices", nullptr},
       {"usage",
        {{"prompt_tokens", prompt_tokens}, {"completion_tokens", tokens}, {"total_tokens", prompt_tokens + tokens}}}}));
}

ordered_json message_json(const Choice& choice) {
  ordered_json message{{"role", "assistant"}, {"content", choice.text}};
  if (choice.reasoning) {
    if (choice.text.empty()) message["content"] = nullptr;
    message["reasoning_content"] = *choice.reasoning;
  }
  message["refusal"] = nullptr;
  return message;
}

void put_openai(LineText& line, bool chat, std::span<const Choice> choices, const Tokenizer* tokenizer) {
  line.put("\"choices\":");
  put_list(line, choices.size(), [&](std::size_t i) {
    const Choice& choice = choices[i];
    line.put("{\"index\":" + std::to_string(i) + (chat ? ",\"message\":" : ",\"text\":"));
    if (chat) line.put_json(message_json(choice));
    else line.put_json(ordered_json(choice.text));
    line.put(",\"logprobs\":");
    if (!choice.logprobs) line.put("null");
    else if (chat) put_chat_logprobs(line, choice, tokenizer);
    else put_completion_logprobs(line, choice, tokenizer);
    line.put(",\"finish_reason\":");
    line.put_json(ordered_json(choice.finish));
    line.put("}");
  });
}

int status_of(const std::string& code) {
  if (code == kNotFinite) return 500;
  return code == "model_not_found" ? 404 : 400;
}

}  // namespace

std::string result_line(const Recipient& to, std::int64_t prompt_tokens, std::span<const Choice> choices,
                        const Tokenizer* tokenizer) {
  const bool native = to.endpoint == Endpoint::native;
  const Frame frame = native ? native_frame(to, prompt_tokens, choices) : openai_frame(to, prompt_tokens, choices);
  LineText line;
  const auto put_all = [&] {
    line.put(frame.before);
    if (native) put_native(line, choices, tokenizer);
    else put_openai(line, to.endpoint == Endpoint::chat, choices, tokenizer);
    line.put(frame.after);
  };
  put_all();
  if (!line.whole()) {
    line.begin_again();
    put_all();
  }
  return line.take();
}

std::string refusal_line(const Refusal& refusal, Dialect dialect) {
  const bool nameless = refusal.id == "null";
  if (dialect == Dialect::native) {
    ordered_json json = native_line(refusal.id, refusal.metadata);
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
