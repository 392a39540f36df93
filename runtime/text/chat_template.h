// runtime/text/chat_template.h: turns conversations into prompts by a model's chat template.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "kernels/error.h"
#include "runtime/base/model_texts.h"
#include "runtime/template/template.h"

namespace weft::runtime {

/// Thrown if a chat template has no prompt for a conversation.
struct ChatError : UsageError {
  /// `refused_for` is OpenAI's error code, `field` the field of the request.
  ChatError(std::string refused_for, std::string field, const std::string& reason)
      : UsageError(reason), code(std::move(refused_for)), param(std::move(field)) {}
  std::string code, param;
};

/// A model's chat template: a program in Jinja, or two of them, one of which is for conversations with tools.
class ChatTemplate {
 public:
  ChatTemplate();
  /// `tokens`, an object, has the texts of special tokens by name, such as "bos_token". Does not throw for a source
  /// that cannot be read: render() does, and says why.
  ChatTemplate(std::string name, const std::string& source, const nlohmann::ordered_json& tokens);
  /// Reads the first that the model has: chat_template.jinja (with additional_chat_templates/tool_use.jinja),
  /// "chat_template" of tokenizer_config.json, that of chat_template.json. The special tokens come from
  /// tokenizer_config.json or special_tokens_map.json. Throws DataError if a file is broken.
  static ChatTemplate load(const ModelTexts& files);
  /// Like load(), but takes the template of this name (template_names()) or this file. Throws UsageError, whose message
  /// begins with --chat-template.
  static ChatTemplate load_as(const std::string& name_or_file, const ModelTexts& files);
  /// A template of template_names(), which is one.
  static ChatTemplate named(std::string_view name, const nlohmann::ordered_json& tokens);

  bool present() const { return !name_.empty(); }
  /// The template's file, or its name.
  const std::string& name() const { return name_; }
  /// One line for people: where it comes from, its SHA-256, what it takes, or why it cannot be run.
  std::string description() const;
  /// The name, if it is one of template_names(), else the SHA-256 of the template's text.
  std::string identity() const;

  /// Asks the template for conversations with or without tools (see jinja::Template). Throws ChatError if there is none
  /// or it cannot be run.
  bool mentions(std::string_view word, bool with_tools) const;
  bool loops_over(std::string_view word, bool with_tools) const;

  /// The prompt, with the beginning of the assistant's answer. Special tokens are written out in it, including the
  /// first one. `variables` has "messages" and what else the template gets, such as "tools"; "strftime_now" there is
  /// the day, as 2025-03-31, that the template's function of this name gives. Throws ChatError if the template refuses
  /// the conversation, begins no answer after it, does not take a variable, or needs one that is not given.
  std::string render(const nlohmann::ordered_json& variables) const;

 private:
  struct Loaded;  // a template, or why it cannot be run
  const jinja::Template& chosen(bool with_tools) const;

  std::string name_;
  std::shared_ptr<const Loaded> default_, tools_;  // the same for both if there is one
  std::shared_ptr<const nlohmann::ordered_json> tokens_;
};

}  // namespace weft::runtime
