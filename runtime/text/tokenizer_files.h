// runtime/text/tokenizer_files.h: reads and checks the files of a tokenizer. Each function throws DataError in one line
// that names the file and the entry or line, or IoError if a file cannot be read.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/base/model_texts.h"
#include "runtime/pieces/unigram.h"
#include "runtime/text/tokenizer_bpe.h"
#include "runtime/text/tokenizer_normalize.h"
#include "runtime/text/tokenizer_pretokenize.h"
#include "runtime/text/tokenizer_split.h"

namespace weft::policy {
class Fields;
}

namespace weft::runtime {

/// The roles that tokenizer_config.json gives to tokens of any model; the first is that which begins a text.
inline constexpr std::array kTokenRoles{"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
inline bool is_role(const std::string& key) {
  return std::find(kTokenRoles.begin(), kTokenRoles.end(), key) != kTokenRoles.end();
}

inline constexpr const char* kTokenizerConfig = "tokenizer_config.json";
inline constexpr const char* kSpecialTokens = "special_tokens_map.json";
inline constexpr const char* kAddedTokens = "added_tokens.json";
inline constexpr const char* kSpaceMark = "\u2581";                       ///< SentencePiece writes a space as this
inline constexpr std::size_t kLargestTokenizer = std::size_t{128} << 20;  ///< bytes that a file may have

/// The character that stands for a byte in a token's name. GPT-2's alphabet has one printable character per byte;
/// U+0120, for example, stands for a space.
std::string alphabet_of_byte(unsigned char byte);
/// The bytes that a name stands for; the name itself if it has a character outside the alphabet.
std::string bytes_of_name(std::string_view name);

using Vocabulary = std::unordered_map<std::string, std::int32_t>;  ///< name to id

/// The way in which the names in a vocabulary are written.
enum class Names : std::uint8_t {
  bytes,      ///< in GPT-2's alphabet; bytes that occur in no text may lack a token, as in GPT-NeoX's vocabulary
  sentences,  ///< as text in which U+2581 stands for a space, and <0x00> to <0xFF> for single bytes (SentencePiece)
};
std::string name_of_byte(Names names, unsigned char byte);

/// Reads an object that maps names to ids. Ids must be unique integers in [0, 2^22).
Vocabulary vocabulary_from(const nlohmann::json& entries, const std::string& where);

/// Adds the merge of two names. Both names and their concatenation must be in the vocabulary, and no pair may occur
/// twice. Messages name the place, `where`, and not the text, because the file may be a link to something private.
void add_merge(BpeMerges& merges, const std::string& left, const std::string& right, const Vocabulary& vocabulary,
               const std::string& where);
/// Adds the merge "left right", which is a line of merges.txt or an entry of a tokenizer.json.
void add_merge(BpeMerges& merges, std::string_view line, const Vocabulary& vocabulary, const std::string& where);

inline constexpr std::size_t kLongestAdded = 1024;  ///< bytes; finding longer ones would be slow

/// A token of at most kLongestAdded bytes that is looked for in the text before words are.
struct AddedToken {
  std::string text;
  std::int32_t id = 0;
  bool strip_left = false, strip_right = false;  ///< the token takes the white space on that side with it
  bool single_word = false;                      ///< found only where no letter, mark, digit or connector touches it
  bool normalized = false;                       ///< looked for in the text between the tokens that are not normalized
  bool special = false;                          ///< not part of decoded text
};

struct AddedTokenTable {
  std::vector<AddedToken> tokens;
  std::optional<std::int32_t> first;  ///< the token put before every text
};

/// The way in which the names of Names::sentences become text.
struct Decoding {
  enum class Begin : std::uint8_t {
    kept,
    loses_space,  ///< decoded text loses one space in front
    loses_marks,  ///< the first token loses every `mark`
  };
  std::string mark = "\u2581";  ///< stands for a space; empty: nothing does
  bool bytes = true;            ///< tokens such as <0x0A> are single bytes
  Begin begin = Begin::loses_space;
};

/// A whole tokenizer as its files describe it.
struct TokenizerParts {
  Names names = Names::bytes;
  Vocabulary vocabulary;
  BpeMerges merges;
  AddedTokenTable added;
  Pattern pattern = Pattern::gpt2;
  std::vector<SplitStep> steps = {};  ///< cut texts in the place of `pattern`, which is none then
  std::vector<NormalizeStep> normalizer = {};
  bool prefix_space = false;  ///< texts between added tokens get a space in front, with Names::bytes
  Decoding decoding = {};
  std::shared_ptr<const Unigram> unigram = {};  ///< cuts words in the place of `merges`
  bool byte_fallback = false;                   ///< unknown characters become tokens of bytes, with Names::sentences
  std::optional<std::int32_t> unknown = {};     ///< the token for what has none; without it that is left out
  bool fuse_unknown = false;                    ///< one such token for all such bytes in a row
  bool whole_words = false;                     ///< a word that is in the vocabulary is not merged (ignore_merges)
};

/// Reads vocab.json and merges.txt as GPT-2 has them, and added tokens with read_added_tokens().
TokenizerParts read_gpt2_files(const ModelTexts& files);
/// Reads tokenizer.json as Hugging Face's library writes it: byte-pair encoding of the kinds that TokenizerParts can
/// hold. Refuses any other kind and names the part that is not known. Reads tokenizer_config.json next to it as
/// transformers 5 does, by apply_tokenizer_config().
TokenizerParts read_tokenizer_json(const ModelTexts& files);
/// Reads tokenizer.model as SentencePiece writes it, and the files next to it, as transformers 5 does for such a
/// folder.
TokenizerParts read_tokenizer_model(const ModelTexts& files);
/// Changes a tokenizer by tokenizer_config.json, if there is one: tokens of its added_tokens_decoder that
/// tokenizer.json lacks, special tokens that are in the vocabulary and, `byte_level`, its add_prefix_space. Its other
/// settings do not count. Throws DataError.
void apply_tokenizer_config(const ModelTexts& files, bool byte_level, TokenizerParts& parts);
/// The steps of a pre-tokenizer, given as the components of its sequence. Throws DataError.
std::vector<SplitStep> split_steps(const std::vector<const nlohmann::json*>& components, Names names,
                                   const std::string& where);
/// The fields of a Metaspace: the character that stands for a space, and which texts get one in front.
std::string replacement_of(policy::Fields& fields, const std::string& where);
SplitStep::Prefix scheme_of(policy::Fields& fields);

/// The object in a JSON file of at most 16 MiB; empty if there is no such file. Integers beyond 64 bits, such as
/// transformers' model_max_length for no limit, are read as floating-point numbers. Throws DataError.
nlohmann::json read_config_object(const ModelTexts& files, const char* name);
/// Reads tokenizer_config.json, special_tokens_map.json and added_tokens.json, each if it is present, as transformers
/// does. A folder without tokenizer_config.json whose config.json has the model_type "opt" gets the tokens of the
/// published OPT checkpoints: </s> first, </s> and <pad> special.
AddedTokenTable read_added_tokens(const ModelTexts& files, const Vocabulary& vocabulary);

}  // namespace weft::runtime
