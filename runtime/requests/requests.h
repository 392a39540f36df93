// runtime/requests/requests.h: the request file: one JSON object per line, all of them checked before any work begins.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "policy/model/model.h"
#include "runtime/base/input_file.h"
#include "runtime/grammar/form_compiler.h"
#include "runtime/inputs/request_input.h"
#include "runtime/requests/id_index.h"
#include "runtime/requests/prefix_index.h"
#include "runtime/requests/request.h"

namespace weft::runtime {

/// Calls `line(text, offset, number)` for every line of a file that may be far larger than memory. Numbers begin
/// with 1. A line ends with \n, and a \r before it is dropped; the last line may lack both. Throws UsageError for a
/// line over 16 MiB.
void for_each_line(const InputFile& file,
                   const std::function<void(std::string_view line, std::uint64_t offset, std::size_t number)>& line);

enum class OnBadRequest : std::uint8_t {
  fail,    ///< no request runs if one is refused
  record,  ///< the others run; each refused one gets a line with the reason
};

/// The reason why a request gets no answer.
struct Refusal {
  std::string id;  ///< as JSON; null if the line has none that can be read, or another request's
  std::size_t line = 0;
  std::string code, param, reason;
  std::string metadata = {};  ///< as in Request
};

/// Keeps 64 bytes per request: the place of its line and what it needs. The text is read again when its turn comes.
class RequestFile {
 public:
  enum class Verdict : std::uint8_t { good, refused, repeated_id, no_id };
  enum class Id : std::uint8_t { unreadable, absent, given };
  struct Entry {
    std::uint64_t offset = 0;
    std::uint32_t bytes = 0, line = 0, prompt_tokens = 0, max_tokens = 0, n = 1;
    std::uint32_t prompt_hash = 0;              ///< equal prompts have equal hashes
    std::uint32_t check = 0;                    ///< hash of the line
    std::uint32_t prefix = PrefixIndex::kNone;  ///< equal for prompts that begin alike (PrefixIndex::Match::leader)
    std::uint32_t prefix_tokens = 0;            ///< tokens with which another prompt begins, too; or fewer
    std::int8_t logprobs = -1;                  ///< alternatives at each token; -1: not even that of the chosen token
    Verdict verdict = Verdict::good;
    Id id = Id::unreadable;
    bool holds_line : 1 = false;  ///< its sequences hold about as much as its line has: metadata, or rules for logits
    bool has_form : 1 = false;    ///< its answer has a form
  };
  /// Reads and checks all lines. The first one that is an object determines the dialect of all. `tokenizer` may be
  /// null; then only prompt_ids are taken. `retentions` and `defaults` are as in RequestRules; `origins` are for
  /// messages. Throws UsageError, which lists the first 20 lines that are refused (with OnBadRequest::fail) with file,
  /// line, what was wanted and what was found, or states what is wrong with the file. Throws Interrupted once `stop` is
  /// set.
  RequestFile(InputFile file, RequestKind kind, const Tokenizer* tokenizer, const policy::ModelSpec& model,
              std::int64_t default_max_tokens, OpenAiRules openai = {}, OnBadRequest on_bad = OnBadRequest::fail,
              const std::atomic<bool>* stop = nullptr, std::vector<policy::Retention> retentions = {},
              LineOrigins origins = {}, RequestDefaults defaults = {});
  RequestFile(const std::filesystem::path& path, RequestKind kind, const Tokenizer* tokenizer,
              const policy::ModelSpec& model, std::int64_t default_max_tokens, OpenAiRules openai = {},
              OnBadRequest on_bad = OnBadRequest::fail, const std::atomic<bool>* stop = nullptr)
      : RequestFile(InputFile(path), kind, tokenizer, model, default_max_tokens, std::move(openai), on_bad, stop) {}

  const std::filesystem::path& path() const { return path_; }
  RequestKind kind() const { return rules_.kind; }
  /// Whether a line may need the chat template: OpenAI's do, Weft's own with messages, and all with --chat.
  bool has_conversations() const { return has_conversations_; }
  Dialect dialect() const { return dialect_.value_or(Dialect::native); }
  std::size_t size() const { return entries_.size(); }
  /// The fingerprint of all lines except blank ones, in their order.
  std::uint64_t fingerprint() const { return fingerprint_; }
  const Entry& entry(std::size_t index) const { return entries_[index]; }
  /// The bytes of compiled forms that are kept.
  std::uint64_t form_bytes() const { return forms_ ? forms_->bytes() : 0; }
  /// Requests whose prompt, given as text, begins with the first token that the tokenizer puts in front anyway.
  std::size_t doubled_first_tokens() const { return doubled_first_tokens_; }
  bool refused(std::size_t index) const { return entries_[index].verdict != Verdict::good; }
  /// Reads a request that is not refused. Throws UsageError if the line is no longer what it was.
  Request read(std::size_t index) const;
  /// The reason why entry `index` is refused.
  Refusal refusal(std::size_t index) const;
  /// The index of the request with this id, as JSON, or of the request on this line.
  std::optional<std::size_t> find(const std::string& id) const;
  std::optional<std::size_t> find_line(std::uint64_t line) const;

 private:
  void check(std::string_view line, std::uint64_t offset, std::size_t number, PrefixIndex& prefixes);
  void refuse_other_formats(std::string_view line, std::size_t number) const;
  void refuse_missing_ids();
  void refuse_repeated_ids();
  void refuse_beyond_limits() const;
  void refuse_bad() const;
  std::string where(std::size_t number) const;
  void recognise(const nlohmann::json& line);
  void read_chat_template(const nlohmann::json& line);
  nlohmann::json parse(std::string_view line, std::size_t number) const;
  Request request_of(const nlohmann::json& line, std::string_view text, std::size_t number) const;
  std::optional<std::string> id_of(const nlohmann::json& line, std::size_t number) const;
  std::string id_of(std::size_t index) const;
  std::string line_of(std::size_t index) const;

  std::filesystem::path path_;
  LineOrigins origins_;
  std::unique_ptr<FormCompiler> forms_;  // null without a tokenizer
  RequestRules rules_;
  std::optional<Dialect> dialect_;
  InputFile file_;
  std::vector<Entry> entries_;
  IdIndex ids_;
  bool has_conversations_ = false;
  std::uint64_t fingerprint_ = 0;
  std::size_t doubled_first_tokens_ = 0;
};

}  // namespace weft::runtime
