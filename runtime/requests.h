// runtime/requests.h: the request file: one JSON object a line, all of them checked before any work begins.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "policy/model.h"
#include "runtime/input_file.h"
#include "runtime/sequence.h"
#include "runtime/tokenizer.h"

namespace weft::runtime {

/// Calls `line(text, offset, number)` for every line of a file that may be far larger than memory; numbers begin with
/// 1, a line ends with \n, a \r before it is dropped, the last may lack both. Throws UsageError for a line over 16 MiB.
void for_each_line(const std::filesystem::path& path,
                   const std::function<void(std::string_view line, std::uint64_t offset, std::size_t number)>& line);

/// A request as its line says.
struct Request {
  std::string id;  ///< as JSON: a quoted string or an integer
  std::vector<std::int32_t> prompt;
  std::vector<std::int32_t> continuation;  ///< weft score
  std::int64_t max_tokens = 0;
  kernels::SampleParams sampling;
  std::vector<std::string> stop_strings;
  std::vector<std::int32_t> stop_ids;
};

enum class RequestKind : std::uint8_t { generate, score };

/// Keeps per request where its line is and what it needs; the text is read again when its turn comes.
class RequestFile {
 public:
  struct Entry {
    std::uint64_t offset = 0;
    std::uint32_t bytes = 0, line = 0, prompt_tokens = 0, max_tokens = 0;
  };
  /// Reads and checks all lines. `tokenizer` may be null: then only prompt_ids are taken. Throws UsageError, which
  /// names file, line, what was wanted and what was found.
  RequestFile(const std::filesystem::path& path, RequestKind kind, const Tokenizer* tokenizer,
              const policy::ModelSpec& model, std::int64_t default_max_tokens);

  RequestKind kind() const { return kind_; }
  std::size_t size() const { return entries_.size(); }
  /// Of all lines but blank ones, in their order.
  std::uint64_t fingerprint() const { return fingerprint_; }
  const Entry& entry(std::size_t index) const { return entries_[index]; }
  /// Throws UsageError if the line is no longer what it was.
  Request read(std::size_t index) const;
  /// The index of the request with this id, as JSON.
  std::optional<std::size_t> find(const std::string& id) const;

 private:
  Request parse(std::string_view line, std::size_t number) const;
  std::string id_of(std::size_t index) const;
  std::string line_of(std::size_t index) const;
  void refuse_repeated_ids();

  std::filesystem::path path_;
  RequestKind kind_;
  const Tokenizer* tokenizer_;
  const policy::ModelSpec& model_;
  std::int64_t default_max_tokens_;
  InputFile file_;
  std::vector<Entry> entries_;
  std::uint64_t fingerprint_ = 0;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> by_hash_;  // of the id; sorted
};

}  // namespace weft::runtime
