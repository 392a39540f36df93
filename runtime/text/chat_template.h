// runtime/text/chat_template.h: turns conversations into prompts, as the chat templates of published models do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/error.h"
#include "runtime/base/model_texts.h"

namespace weft::runtime {

/// Thrown if a chat template has no prompt for a conversation.
struct ChatError : UsageError {
  /// `refused_for` is OpenAI's error code, `field` the field of the request.
  ChatError(std::string refused_for, std::string field, const std::string& reason)
      : UsageError(reason), code(std::move(refused_for)), param(std::move(field)) {}
  std::string code, param;
};

struct ChatMessage {
  std::string role, content;
};

/// The layout that a chat template gives a conversation. Templates of one family give a plain conversation (no tools,
/// text alone, an answer to come) the same prompt.
enum class ChatFamily : std::uint8_t {
  none,     ///< the model has no chat template
  unknown,  ///< it has a chat template that is none of these
  chatml,
  qwen1_5,
  qwen2,
  qwen2_5,
  qwen3,  ///< earlier answers lose their thoughts
  smollm2,
  llama2,
  llama3,
  llama3_1,
  llama3_2,  ///< as llama3_1, but without a given date it would put the day's date into every prompt
  mistral_v0_1,
  mistral_v0_2,
  mistral_system,  ///< v0.1 to v0.2 as revised later: a system message goes before the first user message
  mistral_v0_3,    ///< a system message goes before the last user message
  zephyr,
};

/// The settings that a request gives a chat template in addition to the messages.
struct ChatSettings {
  std::string date;                   ///< today's date for Llama 3.1 and later; empty: not given
  std::optional<bool> thinking = {};  ///< false: Qwen3 answers without thinking first
};

/// A model's chat template. A template is a program (Jinja) in a file from anywhere, so Weft never runs one. It
/// recognises the exact text of a known template and does the same in C++. It refuses any other.
class ChatTemplate {
 public:
  ChatTemplate() = default;
  ChatTemplate(ChatFamily family, std::string bos, std::string eos);
  /// Reads chat_template.jinja, or else "chat_template" of tokenizer_config.json. The first and last token that the
  /// template uses come from tokenizer_config.json or special_tokens_map.json. Throws DataError if a file is broken.
  static ChatTemplate load(const ModelTexts& files);
  /// Like load(), but instead of the model's template it takes that of a family, given by a name of family_names(), or
  /// one in a file, whose text must be known. Throws UsageError, whose message begins with --chat-template.
  static ChatTemplate load_as(const std::string& name_or_file, const ModelTexts& files);
  /// The names of all families: "chatml, qwen1.5, ...".
  static std::string family_names();
  /// The family of the template whose text has this SHA-256, in hexadecimal.
  static ChatFamily with_hash(std::string_view sha256);

  ChatFamily family() const { return family_; }
  std::string family_name() const;  ///< a name of family_names(), or empty if the family has none
  /// The prompt, with the beginning of the assistant's answer. Special tokens are written out in it, including the
  /// first one. Throws ChatError if the template is not known, refuses the roles, does not take a setting that is
  /// given, or needs one that is not.
  std::string render(const std::vector<ChatMessage>& messages, const ChatSettings& settings) const;

 private:
  static ChatTemplate with_tokens_of(const ModelTexts& files);
  void check_settings(const ChatSettings& settings) const;

  ChatFamily family_ = ChatFamily::none;
  std::string bos_, eos_, hash_;
};

}  // namespace weft::runtime
