#include "runtime/text/chat_template.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "runtime/base/files.h"
#include "runtime/base/sha256.h"
#include "runtime/base/utf8.h"
#include "runtime/text/chat_template_hashes.h"

namespace weft::runtime {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr std::size_t kMostBytes = std::size_t{16} << 20;
constexpr std::pair<std::string_view, ChatFamily> kFamilies[]{
    {"chatml", ChatFamily::chatml},
    {"qwen1.5", ChatFamily::qwen1_5},
    {"qwen2", ChatFamily::qwen2},
    {"qwen2.5", ChatFamily::qwen2_5},
    {"qwen3", ChatFamily::qwen3},
    {"smollm2", ChatFamily::smollm2},
    {"llama2", ChatFamily::llama2},
    {"llama3", ChatFamily::llama3},
    {"llama3.1", ChatFamily::llama3_1},
    {"llama3.2", ChatFamily::llama3_2},
    {"mistral-v0.1", ChatFamily::mistral_v0_1},
    {"mistral-v0.2", ChatFamily::mistral_v0_2},
    {"mistral-system", ChatFamily::mistral_system},
    {"mistral-v0.3", ChatFamily::mistral_v0_3},
    {"zephyr", ChatFamily::zephyr},
};
using Messages = std::vector<ChatMessage>;

/// Thrown if a template would raise an exception. The words are the template's.
struct WrongRoles {
  const char* reason;
};
constexpr const char* kAlternate = "conversation roles must alternate user/assistant/user/assistant/...";
constexpr const char* kTwoRoles = "only user and assistant roles are supported";

/// Whether Python's str.strip() removes `c`.
bool is_python_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

std::string stripped(std::string_view text) {
  std::size_t begin = text.size(), end = 0;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_at(text, at);
    if (!is_python_space(c.code)) {
      begin = std::min(begin, at);
      end = at + c.bytes;
    }
    at += c.bytes;
  }
  return begin < end ? std::string(text.substr(begin, end - begin)) : std::string();
}

/// Puts `system` first, unless it is null or the conversation begins with a system message.
std::string chatml(const Messages& messages, const char* system) {
  std::string text;
  if (system && messages.front().role != "system") text = std::string("<|im_start|>system\n") + system + "<|im_end|>\n";
  for (const auto& [role, content] : messages) text += "<|im_start|>" + role + "\n" + content + "<|im_end|>\n";
  return text + "<|im_start|>assistant\n";
}

std::string qwen1_5(const Messages& messages) {
  if (messages.back().role == "assistant") throw WrongRoles{"the last message must not be the assistant's"};
  return chatml(messages, "You are a helpful assistant");
}

/// The text after Python's str.lstrip("\n") or str.rstrip("\n").
std::string_view without_newlines_before(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of('\n'), text.size()));
}
std::string_view without_newlines_after(std::string_view text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

constexpr std::string_view kThink = "<think>", kEndThink = "</think>";

/// Splits an answer into its thoughts and its text, as Qwen3's template does. Both are empty views or parts of
/// `content`. An answer without "</think>" has no thoughts.
std::pair<std::string_view, std::string_view> thought_and_said(std::string_view content) {
  const std::size_t end = content.find(kEndThink);
  if (end == std::string_view::npos) return {{}, content};
  std::string_view thought = without_newlines_after(content.substr(0, end));
  if (const std::size_t begin = thought.rfind(kThink); begin != std::string_view::npos)
    thought.remove_prefix(begin + kThink.size());
  return {without_newlines_before(thought),
          without_newlines_before(content.substr(content.rfind(kEndThink) + kEndThink.size()))};
}

bool is_tool_response(const ChatMessage& message) {
  return message.content.starts_with("<tool_response>") && message.content.ends_with("</tool_response>");
}

/// Answers to the last question keep their thoughts; earlier answers lose them.
std::string qwen3(const Messages& messages, bool thinking) {
  std::size_t last_question = messages.size() - 1;
  for (std::size_t i = 0; i < messages.size(); ++i)
    if (messages[i].role == "user" && !is_tool_response(messages[i])) last_question = i;
  std::string text;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto& [role, content] = messages[i];
    text += "<|im_start|>" + role + "\n";
    if (role != "assistant") {
      text += content;
    } else {
      const auto [thought, said] = thought_and_said(content);
      if (i > last_question && (i + 1 == messages.size() || !thought.empty()))
        text.append("<think>\n")
            .append(without_newlines_after(thought))
            .append("\n</think>\n\n")
            .append(without_newlines_before(said));
      else text += said;
    }
    text += "<|im_end|>\n";
  }
  return text + "<|im_start|>assistant\n" + (thinking ? "" : "<think>\n\n</think>\n\n");
}

std::string llama3_turn(const std::string& role, const std::string& content) {
  return "<|start_header_id|>" + role + "<|end_header_id|>\n\n" + content + "<|eot_id|>";
}

std::string llama3(const Messages& messages, const std::string& bos) {
  std::string text = bos;
  for (const auto& [role, content] : messages) text += llama3_turn(role, stripped(content));
  return text + "<|start_header_id|>assistant<|end_header_id|>\n\n";
}

std::string llama3_1(const Messages& messages, const std::string& date, const std::string& bos) {
  const bool has_system = messages.front().role == "system";
  std::string system =
      "Cutting Knowledge Date: December 2023\nToday Date: " + (date.empty() ? "26 Jul 2024" : date) + "\n\n";
  if (has_system) system += stripped(messages.front().content);
  std::string text = bos + llama3_turn("system", system);
  for (std::size_t i = has_system ? 1 : 0; i < messages.size(); ++i)
    text += llama3_turn(messages[i].role, stripped(messages[i].content));
  return text + "<|start_header_id|>assistant<|end_header_id|>\n\n";
}

/// Splits off a system message at the beginning. Checks that the other messages are the user's at even places and not
/// at odd ones, and that the last is the user's, so that an answer can follow.
Messages turns_of(const Messages& messages, std::string* system) {
  const bool has_system = system && messages.front().role == "system";
  if (has_system) *system = messages.front().content;
  Messages turns(messages.begin() + (has_system ? 1 : 0), messages.end());
  for (std::size_t i = 0; i < turns.size(); ++i)
    if ((turns[i].role == "user") != (i % 2 == 0)) throw WrongRoles{kAlternate};
  if (turns.empty() || turns.back().role != "user") throw WrongRoles{"the last message must be the user's"};
  return turns;
}

std::string llama2(const Messages& messages, const std::string& bos, const std::string& eos) {
  std::string system, text;
  Messages turns = turns_of(messages, &system);
  if (messages.front().role == "system")
    turns.front().content = "<<SYS>>\n" + system + "\n<</SYS>>\n\n" + turns.front().content;
  for (const auto& [role, content] : turns) {
    if (role == "user") text += bos + "[INST] " + stripped(content) + " [/INST]";
    else if (role == "assistant") text += " " + stripped(content) + " " + eos;
  }
  return text;
}

std::string mistral(const Messages& messages, const std::string& bos, const std::string& after_answer) {
  std::string text = bos;
  for (const auto& [role, content] : turns_of(messages, nullptr)) {
    if (role == "user") text += "[INST] " + content + " [/INST]";
    else if (role == "assistant") text += content + after_answer;
    else throw WrongRoles{kTwoRoles};
  }
  return text;
}

/// Puts a system message before the first user message, or, in v0.3, before the last.
std::string mistral_with_system(const Messages& messages, ChatFamily family, const std::string& bos,
                                const std::string& eos) {
  std::string system, text = bos;
  Messages turns = turns_of(messages, &system);
  const bool third = family == ChatFamily::mistral_v0_3;
  if (messages.front().role == "system") {
    std::string& content = (third ? turns.back() : turns.front()).content;
    content = system + "\n\n" + content;
  }
  for (const auto& [role, content] : turns) {
    if (role == "user") text += third ? "[INST] " + content + "[/INST]" : " [INST] " + content + " [/INST]";
    else if (role == "assistant") text += " " + (third ? stripped(content) : content) + eos;
    else throw WrongRoles{kTwoRoles};
  }
  return text;
}

std::string zephyr(const Messages& messages, const std::string& eos) {
  std::string text;
  for (const auto& [role, content] : messages) text += "<|" + role + "|>\n" + content + eos + "\n";
  return text + "<|assistant|>\n";
}

json read_object(const ModelTexts& files, const char* name) {
  if (!files.has(name)) return json::object();
  const std::string where = files.where(name);
  json object = policy::parse_json(files.read(name, kMostBytes), where, policy::Blame::data);
  const policy::Fields refuses_what_is_no_object(object, where, policy::Blame::data);
  return object;
}

/// The text of a token that is written as a string or as {"content": ...}; empty if there is none.
std::string token_text(const json& object, const char* key) {
  const json value = object.value(key, json());
  if (value.is_string()) return value.get<std::string>();
  return value.is_object() && value.value("content", json()).is_string() ? value["content"].get<std::string>() : "";
}

/// The template itself, or the default one if there are several with names. Empty if there is none.
std::string template_text(const ModelTexts& files, const json& config) {
  constexpr const char* kFile = "chat_template.jinja";
  if (files.has(kFile)) return files.read(kFile, kMostBytes);
  const json value = config.value("chat_template", json());
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return {};
  for (const json& each : value)
    if (each.is_object() && each.value("name", json()) == "default" && each.value("template", json()).is_string())
      return each["template"].get<std::string>();
  return {};
}

}  // namespace

ChatTemplate::ChatTemplate(ChatFamily family, std::string bos, std::string eos)
    : family_(family), bos_(std::move(bos)), eos_(std::move(eos)) {}

ChatFamily ChatTemplate::with_hash(std::string_view sha256) {
  for (const KnownTemplate& known : kKnownTemplates)
    if (known.sha256 == sha256) return known.family;
  return ChatFamily::unknown;
}

ChatTemplate ChatTemplate::with_tokens_of(const ModelTexts& files) {
  const json config = read_object(files, "tokenizer_config.json"), map = read_object(files, "special_tokens_map.json");
  ChatTemplate loaded;
  for (const auto& [key, token] : {std::pair{"bos_token", &loaded.bos_}, {"eos_token", &loaded.eos_}})
    *token = token_text(config.contains(key) ? config : map, key);
  return loaded;
}

ChatTemplate ChatTemplate::load(const ModelTexts& files) {
  const std::string text = template_text(files, read_object(files, "tokenizer_config.json"));
  if (text.empty()) return {};
  ChatTemplate loaded = with_tokens_of(files);
  loaded.hash_ = sha256(text);
  loaded.family_ = with_hash(loaded.hash_);
  return loaded;
}

ChatTemplate ChatTemplate::load_as(const std::string& name_or_file, const ModelTexts& files) {
  ChatTemplate loaded = with_tokens_of(files);
  for (const auto& [name, family] : kFamilies) {
    if (name_or_file != name) continue;
    loaded.family_ = family;
    return loaded;
  }
  const std::string flag = "--chat-template " + name_or_file.substr(0, 80);
  if (!fs::is_regular_file(name_or_file))
    throw UsageError(flag + ": wanted the name of a known template (" + family_names() + ") or a file that holds one");
  loaded.family_ = with_hash(sha256(read_file(name_or_file, kMostBytes)));
  if (loaded.family_ == ChatFamily::unknown)
    throw UsageError(flag + ": this template is not known, and Weft runs none; give the name of one that lays " +
                     "conversations out as it does: " + family_names());
  return loaded;
}

std::string ChatTemplate::family_name() const {
  for (const auto& [name, family] : kFamilies)
    if (family == family_) return std::string(name);
  return {};
}

std::string ChatTemplate::family_names() {
  std::string names;
  for (const auto& [name, family] : kFamilies) names += (names.empty() ? "" : ", ") + std::string(name);
  return names;
}

void ChatTemplate::check_settings(const ChatSettings& settings) const {
  const auto refuse = [](const char* code, const std::string& reason) {
    throw ChatError(code, "chat_template_kwargs", reason);
  };
  const bool dated = family_ == ChatFamily::llama3_1 || family_ == ChatFamily::llama3_2;
  if (!settings.date.empty() && !dated)
    refuse("unsupported_parameter", "'chat_template_kwargs' has a date, which the model's chat template does not take");
  if (settings.thinking && family_ != ChatFamily::qwen3)
    refuse("unsupported_parameter",
           "'chat_template_kwargs' has enable_thinking, which the model's chat template does not take");
  if (settings.date.empty() && family_ == ChatFamily::llama3_2)
    refuse("missing_required_parameter",
           "the model's chat template would put the date of the day into the prompt, and answers would "
           "depend on it; give one: \"chat_template_kwargs\": {\"date_string\": \"26 Jul 2024\"}");
}

std::string ChatTemplate::render(const Messages& messages, const ChatSettings& settings) const try {
  check_settings(settings);
  switch (family_) {
    case ChatFamily::none:
      throw ChatError(
          "unknown_chat_template", "url",
          "the model has no chat template in its folder; name one that it was trained with by --chat-template (" +
              family_names() + "), or write the prompts out and use /v1/completions");
    case ChatFamily::unknown: break;
    case ChatFamily::chatml: return chatml(messages, nullptr);
    case ChatFamily::qwen1_5: return qwen1_5(messages);
    case ChatFamily::qwen2: return chatml(messages, "You are a helpful assistant.");
    case ChatFamily::qwen2_5:
      return chatml(messages, "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.");
    case ChatFamily::qwen3: return qwen3(messages, settings.thinking.value_or(true));
    case ChatFamily::smollm2:
      return chatml(messages, "You are a helpful AI assistant named SmolLM, trained by Hugging Face");
    case ChatFamily::llama2: return llama2(messages, bos_, eos_);
    case ChatFamily::llama3: return llama3(messages, bos_);
    case ChatFamily::llama3_1:
    case ChatFamily::llama3_2: return llama3_1(messages, settings.date, bos_);
    case ChatFamily::mistral_v0_1: return mistral(messages, bos_, eos_ + " ");
    case ChatFamily::mistral_v0_2: return mistral(messages, bos_, eos_);
    case ChatFamily::mistral_system:
    case ChatFamily::mistral_v0_3: return mistral_with_system(messages, family_, bos_, eos_);
    case ChatFamily::zephyr: return zephyr(messages, eos_);
  }
  throw ChatError("unknown_chat_template", "url",
                  "chat template of this model is not known (sha256 " + hash_ +
                      "); name one that lays conversations out as it does by --chat-template (" + family_names() +
                      "), or write the prompts out and use /v1/completions");
} catch (const WrongRoles& wrong) {
  throw ChatError("invalid_value", "messages",
                  "the model's chat template refuses these messages: " + std::string(wrong.reason));
}

}  // namespace weft::runtime
