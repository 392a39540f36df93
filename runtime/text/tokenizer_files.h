// runtime/text/tokenizer_files.h: what the files of a tokenizer say, checked. Each function throws DataError in one
// line that names the file and the entry or line, IoError if a file cannot be read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/text/tokenizer_bpe.h"
#include "runtime/text/tokenizer_pretokenize.h"

namespace weft::runtime {

inline constexpr std::size_t kLargestTokenizer = std::size_t{128} << 20;  ///< bytes of a file

/// A token's name is written in GPT-2's alphabet: one printable character per byte, so that U+0120 stands for a space.
std::string alphabet_of_byte(unsigned char byte);
/// The bytes that a name stands for; the name itself if it has a character outside the alphabet.
std::string bytes_of_name(std::string_view name);

using Vocabulary = std::unordered_map<std::string, std::int32_t>;  ///< name to id

/// How the names in a vocabulary are written.
enum class Names : std::uint8_t {
  bytes,      ///< in GPT-2's alphabet; bytes that no text has may lack a token, as in GPT-NeoX's
  sentences,  ///< as text in which U+2581 stands for a space, and <0x00> to <0xFF> for single bytes (SentencePiece)
};
std::string name_of_byte(Names names, unsigned char byte);

/// An object of name to id: ids are integers in [0, 2^22) and unique. Every byte has a token, or with Names::bytes at
/// least those of printable ASCII.
Vocabulary vocabulary_from(const nlohmann::json& entries, Names names, const std::string& where);

/// Adds the merge of two names, which and whose sum must be in the vocabulary, no pair twice. Messages say `where` it
/// is and not what it is: the file may be a link to something private.
void add_merge(BpeMerges& merges, const std::string& left, const std::string& right, const Vocabulary& vocabulary,
               const std::string& where);
/// "left right": a line of merges.txt, an entry of a tokenizer.json.
void add_merge(BpeMerges& merges, std::string_view line, const Vocabulary& vocabulary, const std::string& where);

inline constexpr std::size_t kLongestAdded = 1024;  ///< bytes; longer ones would make finding them slow

/// A token of at most kLongestAdded bytes that is found in the text before any word is.
struct AddedToken {
  std::string text;
  std::int32_t id = 0;
  bool strip_left = false, strip_right = false;  ///< takes the white space on that side with it
  bool normalized = false;                       ///< looked for second, between those that are not
  bool special = false;                          ///< not part of decoded text
};

struct AddedTokens {
  std::vector<AddedToken> tokens;
  std::optional<std::int32_t> first;  ///< put before every text
};

/// What is done to text before added tokens that are "normalized" are looked for.
enum class Normalizer : std::uint8_t {
  none,
  nfc,     ///< Unicode's composed form
  spaces,  ///< as TokenizerParts::prefix says, then U+2581 for every space
};
/// Which of the texts between added tokens gets a space in front, which in Names::sentences is U+2581.
enum class Prefix : std::uint8_t {
  none,
  always,
  missing,  ///< those that do not begin with a space
  first,    ///< as missing, but only what begins the whole text
};

/// A whole tokenizer as its files give it.
struct TokenizerParts {
  Names names = Names::bytes;
  Vocabulary vocabulary;
  BpeMerges merges;
  AddedTokens added;
  Pattern pattern = Pattern::gpt2;
  Normalizer normalizer = Normalizer::none;
  bool metaspace = false;  ///< what Normalizer::spaces does is done to words, after all added tokens are found
  Prefix prefix = Prefix::none;
  std::optional<std::int32_t> unknown = {};  ///< stands for bytes without a token; without it they are left out
  bool fuse_unknown = false;                 ///< one for all such bytes in a row
  std::string removed;                       ///< cuts texts, and is not part of any word; empty: nothing does
  bool whole_words = false;                  ///< a word that is in the vocabulary is not merged (ignore_merges)
};

/// vocab.json and merges.txt of GPT-2's kind, with the added tokens of read_added_tokens().
TokenizerParts read_gpt2_files(const std::filesystem::path& folder);
/// tokenizer.json as Hugging Face's library writes it: byte-pair encoding of the kinds that TokenizerParts can hold.
/// Any other kind is refused by the name of what is not known.
TokenizerParts read_tokenizer_json(const std::filesystem::path& file);

/// From tokenizer_config.json, special_tokens_map.json and added_tokens.json in `folder`, each where it is present, as
/// transformers does. A folder without tokenizer_config.json whose config.json says "opt" gets what the published OPT
/// checkpoints say: </s> first, </s> and <pad> special.
AddedTokens read_added_tokens(const std::filesystem::path& folder, const Vocabulary& vocabulary);

}  // namespace weft::runtime
