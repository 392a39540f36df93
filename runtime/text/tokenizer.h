// runtime/text/tokenizer.h: turns text into token ids and back, with the same ids as Hugging Face's tokenizers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/base/model_texts.h"
#include "runtime/base/utf8.h"
#include "runtime/text/tokenizer_bpe.h"
#include "runtime/text/tokenizer_files.h"
#include "runtime/text/tokenizer_split.h"

namespace weft::runtime {

enum class SpecialTokens : std::uint8_t { skipped, shown };

/// A byte-pair encoder: GPT-2's on bytes, as OPT, GPT-NeoX, Llama 3 and Qwen2 use it, or SentencePiece's on characters,
/// as Llama 2 and Gemma use it; or SentencePiece's Unigram. Const calls may run on many threads at once.
class Tokenizer {
 public:
  /// Reads tokenizer.json, else vocab.json and merges.txt, else tokenizer.model. With the latter two it reads, if they
  /// are there, tokenizer_config.json, special_tokens_map.json, added_tokens.json and the model_type of config.json.
  /// Throws DataError, which names the file and the entry, line or byte.
  static Tokenizer load(const ModelTexts& files);
  /// Makes a tokenizer of parts that are in memory.
  explicit Tokenizer(TokenizerParts parts);
  /// True if there is a file from which load() would read a tokenizer.
  static bool present(const ModelTexts& files);
  /// Explains what a model without a tokenizer lacks, and where to get it: "FOLDER: has no ...".
  static std::string missing(const ModelTexts& files);

  /// The ids of the text. Special and added tokens written out in it become their ids. `add_first_token` puts
  /// first_token() in front, if there is one. Any bytes will do: piece() returns those that are not UTF-8 unchanged.
  std::vector<std::int32_t> encode(std::string_view utf8, bool add_first_token) const;
  /// The ids of a text that goes on after `before`: it gets no first token, and no space in front unless its words
  /// begin after a special token.
  std::vector<std::int32_t> encode_after(std::span<const std::int32_t> before, std::string_view utf8) const;
  /// The ids of a prompt, and those that the prompt and its continuation have beyond them, as in lm-eval: white space
  /// at the end of the prompt belongs to the continuation, unless it is all that the prompt has.
  std::pair<std::vector<std::int32_t>, std::vector<std::int32_t>> encode_pair(std::string_view prompt,
                                                                              std::string_view continuation,
                                                                              bool add_first_token) const;

  /// The text of the ids, without special tokens and without unknown ids. It is always UTF-8, because bytes that make
  /// no character become U+FFFD. Nothing is tidied up.
  std::string decode(std::span<const std::int32_t> ids) const;
  /// The same with the texts of special tokens.
  std::string decode_shown(std::span<const std::int32_t> ids) const;
  /// The text of an answer `ids` to the prompt `before`, whose own text has ended: half a character at its end is not
  /// part of the answer.
  std::string decode_after(std::span<const std::int32_t> before, std::span<const std::int32_t> ids,
                           SpecialTokens special = SpecialTokens::skipped) const;

  /// The bytes that an id adds to a text, perhaps half a character. Empty for special tokens and unknown ids.
  std::string_view piece(std::int32_t id) const;
  /// The bytes of an id where special tokens are shown: a special token's own text, such as `<|im_end|>`, else piece().
  std::string_view shown_piece(std::int32_t id) const;

  /// The largest id plus one: the number of rows that an embedding must have.
  std::size_t size() const { return pieces_.size(); }
  std::optional<std::int32_t> first_token() const { return first_; }
  /// The id of the special token with this text, if there is one.
  std::optional<std::int32_t> special_token(std::string_view text) const;
  /// The way in which the bytes of ids become text; see IncrementalDecoder.
  Names names() const { return names_; }
  bool is_byte(std::int32_t id) const;  ///< a token of Names::sentences that stands for a single byte

  /// The change to the beginning of what is decoded, with Names::sentences.
  Decoding::Begin decoding_begin() const { return decoding_.begin; }
  /// The bytes of an id that comes first, where that is not piece(): with Decoding::Begin::loses_marks.
  std::string_view first_piece(std::int32_t id) const;

 private:
  using Ids = std::vector<std::int32_t>;
  /// The added tokens of a pass, and the texts to look for: normalized, if the tokens are.
  struct Pass {
    std::vector<AddedToken> tokens;
    TextIndex texts;
  };
  /// Memory for words.
  struct Scratch {
    BpeMerges::Scratch merges;
    Unigram::Scratch unigram;
    std::vector<Unigram::Part> parts;
    Regex::Scratch regex;
  };
  /// An added token in a text, with the white space that it takes; `token_end` is without it.
  struct Match {
    std::size_t begin = 0, end = 0, token_end = 0;
    const AddedToken* token = nullptr;  // null if none was found
  };
  Match find_added(std::string_view text, std::size_t from, std::size_t floor, const Pass& pass) const;
  void set_piece(std::int32_t id, const std::string& name);
  void read_vocabulary(const Vocabulary& vocabulary);
  void read_added(std::vector<AddedToken> tokens);
  void encode_between(std::string_view text, bool normalized, Start start, Ids& ids, Scratch& scratch) const;
  void encode_pass(std::string_view text, bool normalized, Start start, Ids& ids, Scratch& scratch) const;
  void encode_words(std::string_view text, Start start, Ids& ids, Scratch& scratch) const;
  void encode_word(std::string_view word, Ids& ids, Scratch& scratch) const;
  void push_symbols(std::string_view word, Ids& ids) const;
  bool push_bytes(std::string_view character, Ids& ids) const;

  Names names_;
  std::vector<NormalizeStep> normalizer_;
  bool prefix_space_;
  Pattern pattern_;
  std::vector<SplitStep> steps_;
  bool whole_words_, byte_fallback_;
  Decoding decoding_;
  std::shared_ptr<const Unigram> unigram_;
  std::unordered_map<std::string, std::int32_t> ids_;      // by bytes; used only if words or characters are looked up
  std::vector<std::string> pieces_;                        // by id
  std::vector<std::string> first_pieces_;                  // by id, with Decoding::Begin::loses_marks
  std::vector<bool> is_byte_;                              // by id, if some are decoded as bytes
  std::unordered_map<std::int32_t, std::string> special_;  // their texts, by id
  std::array<std::int32_t, 256> byte_ids_{};               // -1 if the byte has no token
  std::optional<std::int32_t> unknown_;
  bool fuse_unknown_;
  BpeMerges merges_;
  std::array<Pass, 2> added_;  // not normalized, normalized
  std::optional<std::int32_t> first_;
};

/// Decodes ids as they come, for text that is shown or searched while it grows. The joined pieces are
/// Tokenizer::decode() of all ids, and none ends inside a character. With Names::sentences, one space in front of the
/// whole text is left out (unless Decoding says something else), and if byte tokens in a row are not valid text, each
/// of them becomes U+FFFD. Keeps a reference to the tokenizer.
class IncrementalDecoder {
 public:
  explicit IncrementalDecoder(const Tokenizer& tokenizer, SpecialTokens special = SpecialTokens::skipped)
      : IncrementalDecoder(tokenizer, special, special) {}
  /// `beginning`: whether special tokens count as text, after which a first space stays.
  IncrementalDecoder(const Tokenizer& tokenizer, SpecialTokens special, SpecialTokens beginning)
      : tokenizer_(&tokenizer), special_(special), beginning_(beginning) {}
  /// Begins the text of an answer to this prompt. The prompt's own text is dropped.
  void follow(std::span<const std::int32_t> prompt);
  /// The same for a prompt that has a text.
  void follow_text() { begun_ = true; }
  bool begun() const { return begun_; }  ///< whether there is a text, after which a first space stays
  std::string push(std::int32_t id);
  /// The text that byte tokens in a row make if no other follows; empty unless it is valid. The next push may take it
  /// back.
  std::string pending() const;
  const std::string& held() const { return stream_.held(); }  ///< the beginning of a character, with Names::bytes
  std::string finish();                                       ///< the rest; U+FFFD for an incomplete character

 private:
  std::string_view piece(std::int32_t id, SpecialTokens special) const;
  std::string take_bytes();
  std::string without_first_space(std::string text) const;

  const Tokenizer* tokenizer_;
  SpecialTokens special_, beginning_;
  Utf8Stream stream_;
  std::string bytes_;   // from byte tokens in a row
  bool begun_ = false;  // some text has come out
};

}  // namespace weft::runtime
