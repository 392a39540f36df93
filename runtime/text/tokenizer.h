// runtime/text/tokenizer.h: text to token ids and back, id for id what Hugging Face's tokenizers give.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/base/utf8.h"
#include "runtime/text/tokenizer_bpe.h"
#include "runtime/text/tokenizer_files.h"

namespace weft::runtime {

/// Byte-pair encoding: GPT-2's on bytes, as OPT, GPT-NeoX, Llama 3 and Qwen2 use it, or SentencePiece's on characters
/// with bytes to fall back on, as Llama 2 does. Const calls may run on many threads at once.
class Tokenizer {
 public:
  /// Reads tokenizer.json; where there is none vocab.json, merges.txt and, where they are there, tokenizer_config.json,
  /// special_tokens_map.json, added_tokens.json and the model_type of config.json. Throws DataError that names the file
  /// and the entry or line.
  static Tokenizer load(const std::filesystem::path& folder);
  /// True if the folder has a file that load() would read a tokenizer from.
  static bool present(const std::filesystem::path& folder);
  /// What a folder without one lacks, and where to get it: "FOLDER has no ...". May be empty: there is no folder.
  static std::string missing(const std::filesystem::path& folder);

  /// The ids of the text. Special and added tokens written out in it become their ids. `add_first_token` puts
  /// first_token() in front, if there is one. Any bytes will do: what is not UTF-8 comes back from piece() as it was.
  std::vector<std::int32_t> encode(std::string_view utf8, bool add_first_token) const;

  /// The text of the ids, without special tokens and without ids that name nothing; always UTF-8, for bytes that make
  /// no character become U+FFFD. Nothing is tidied up.
  std::string decode(std::span<const std::int32_t> ids) const;
  /// What `ids` add to the text of `before`: decode() of all of them begins with decode(before), but for a character
  /// that begins in one and ends in the other.
  std::string decode_after(std::span<const std::int32_t> before, std::span<const std::int32_t> ids) const;

  /// The bytes that an id adds to a text, perhaps half a character: empty for special tokens and unknown ids.
  std::string_view piece(std::int32_t id) const;

  /// The largest id plus one: what an embedding must have rows for.
  std::size_t size() const { return pieces_.size(); }
  std::optional<std::int32_t> first_token() const { return first_; }
  bool is_special(std::int32_t id) const;
  /// How the bytes of ids become text: see IncrementalDecoder.
  Names names() const { return names_; }
  bool is_byte(std::int32_t id) const;  ///< a token of Names::sentences that stands for a byte alone

 private:
  explicit Tokenizer(TokenizerParts parts);

  using Ids = std::vector<std::int32_t>;
  struct Added {
    AddedToken token;
    std::string text;  // what is looked for: normalized, if the token is
  };
  /// The added tokens of a pass, in the order of their texts, and those that begin with each byte.
  struct Pass {
    std::vector<Added> tokens;
    std::array<std::pair<std::uint32_t, std::uint32_t>, 256> from{};  // [first, last)
  };
  struct Match {
    std::size_t begin = 0, end = 0;
    const AddedToken* token = nullptr;  // null: none was found
  };
  std::string marked(std::string_view text, bool at_start) const;
  std::string normalize(std::string_view text, bool at_start) const;
  Match find_added(std::string_view text, std::size_t from, bool normalized) const;
  void encode_pass(std::string_view text, bool normalized, bool at_start, Ids& ids, BpeMerges::Scratch& scratch) const;
  const Added* longest_added(std::string_view text, const Pass& pass) const;
  void encode_words(std::string_view text, Ids& ids, BpeMerges::Scratch& scratch) const;
  void encode_run(std::string_view text, Ids& ids, BpeMerges::Scratch& scratch) const;
  void push_symbols(std::string_view word, Ids& ids) const;

  Names names_;
  Normalizer normalizer_;
  Prefix prefix_;
  Pattern pattern_;
  bool metaspace_, whole_words_;
  std::unordered_map<std::string, std::int32_t> ids_;  // by bytes; only where words or characters are looked up
  std::vector<std::string> pieces_;                    // by id
  std::vector<bool> special_;                          // by id
  std::array<std::int32_t, 256> byte_ids_{};           // -1: the byte has no token
  std::optional<std::int32_t> unknown_;
  bool fuse_unknown_;
  std::string removed_;
  BpeMerges merges_;
  std::array<Pass, 2> added_;  // not normalized, normalized
  std::optional<std::int32_t> first_;
};

/// Decodes ids as they come, for text that is shown or searched while it grows. The pieces together are
/// Tokenizer::decode() of all ids, and none ends inside a character. With Names::sentences one space in front of the
/// whole text is left out, and of byte tokens in a row that are no text each is a U+FFFD. Keeps a reference to the
/// tokenizer.
class IncrementalDecoder {
 public:
  explicit IncrementalDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  std::string push(std::int32_t id);
  std::string finish();  ///< U+FFFD if a character was left half

 private:
  std::string take_bytes();
  std::string without_first_space(std::string text);

  const Tokenizer& tokenizer_;
  Utf8Stream stream_;
  std::string bytes_;   // of byte tokens in a row
  bool begun_ = false;  // something has come out
};

}  // namespace weft::runtime
