// runtime/text/chat_template.h: conversations as prompts, by the chat templates of published models.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/error.h"

namespace weft::runtime {

/// A conversation that a chat template has no prompt for.
struct ChatError : UsageError {
  /// `code` OpenAI's, `param` the field of the request.
  ChatError(std::string refused_for, std::string field, const std::string& reason)
      : UsageError(reason), code(std::move(refused_for)), param(std::move(field)) {}
  std::string code, param;
};

struct ChatMessage {
  std::string role, content;
};

/// How a chat template lays a conversation out. Templates of one family differ in nothing that a plain conversation
/// (no tools, text alone, an answer to come) shows.
enum class ChatFamily : std::uint8_t {
  none,     ///< the model has no chat template
  unknown,  ///< it has one that is none of these
  chatml,
  qwen1_5,
  qwen2,
  qwen2_5,
  qwen3,  ///< earlier answers lose what they thought
  smollm2,
  llama2,
  llama3,
  llama3_1,
  llama3_2,  ///< as llama3_1, but where no date is given it would put that of the day into every prompt
  mistral_v0_1,
  mistral_v0_2,
  mistral_system,  ///< v0.1 to v0.2 as revised later: a system message goes before the first user message
  mistral_v0_3,    ///< a system message goes before the last user message
  zephyr,
};

/// What a request gives a chat template in addition to the messages.
struct ChatSettings {
  std::string date;                   ///< what Llama 3.1 and later take for today; empty: not given
  std::optional<bool> thinking = {};  ///< false: Qwen3 answers without thinking first
};

/// A model's chat template. A template is a program (Jinja) in a file from anywhere, so Weft never runs one. It
/// recognises the exact text of a known template and does the same here. It refuses any other.
class ChatTemplate {
 public:
  ChatTemplate() = default;
  ChatTemplate(ChatFamily family, std::string bos, std::string eos);
  /// From chat_template.jinja, else "chat_template" of tokenizer_config.json; the first and last token that it names
  /// from tokenizer_config.json or special_tokens_map.json. Throws DataError where a file is broken.
  static ChatTemplate load(const std::filesystem::path& folder);
  /// As load(), but in place of the folder's template the one of a family, by its name as family_names() has it, or the
  /// one in a file, whose text must be known. Throws UsageError, which --chat-template begins.
  static ChatTemplate load_as(const std::string& name_or_file, const std::filesystem::path& folder);
  /// "chatml, qwen1.5, ..."
  static std::string family_names();
  /// The family of the template whose text has this SHA-256, in hexadecimal.
  static ChatFamily with_hash(std::string_view sha256);

  ChatFamily family() const { return family_; }
  std::string family_name() const;  ///< as family_names() has it; empty where it has none
  /// The prompt, with what begins the assistant's answer; special tokens are written out in it, the first one too.
  /// Throws ChatError where the template is not known or refuses the roles, and where it does not take a setting that
  /// is given or needs one that is not.
  std::string render(const std::vector<ChatMessage>& messages, const ChatSettings& settings) const;

 private:
  static ChatTemplate with_tokens_of(const std::filesystem::path& folder);
  void check_settings(const ChatSettings& settings) const;

  ChatFamily family_ = ChatFamily::none;
  std::string bos_, eos_, hash_;
};

}  // namespace weft::runtime
