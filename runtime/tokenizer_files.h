// runtime/tokenizer_files.h: what the files of a GPT-2 tokenizer say, checked. Each throws DataError in one line that
// names the file and the entry or line, IoError if a file cannot be read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/tokenizer_bpe.h"

namespace weft::runtime {

/// A token's name is written in GPT-2's alphabet: one printable character per byte, so that U+0120 stands for a space.
std::string alphabet_of_byte(unsigned char byte);
/// The bytes that a name stands for; the name itself if it has a character outside the alphabet.
std::string bytes_of_name(std::string_view name);

using Vocabulary = std::unordered_map<std::string, std::int32_t>;  ///< name in the alphabet to id
/// vocab.json: ids are integers in [0, 2^22) and unique, and every byte has a token.
Vocabulary read_vocabulary(const std::filesystem::path& file);

/// merges.txt: two parts a line, which and whose sum are in the vocabulary,
/// no pair twice. "#version" lines are skipped.
BpeMerges read_merges(const std::filesystem::path& file, const Vocabulary& vocabulary);

/// A token that is found in the text before any word is.
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

/// From tokenizer_config.json, special_tokens_map.json and added_tokens.json in `folder`, each where it is present, as
/// transformers does. A folder without tokenizer_config.json whose config.json says "opt" gets what the published OPT
/// checkpoints say: </s> first, </s> and <pad> special.
AddedTokens read_added_tokens(const std::filesystem::path& folder, const Vocabulary& vocabulary);

}  // namespace weft::runtime
