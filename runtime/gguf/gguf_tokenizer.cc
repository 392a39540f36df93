// runtime/gguf/gguf_tokenizer.cc: a file's vocabulary as the tokenizer.json that Hugging Face's library would have for
// it. tokenizer.ggml.model is "gpt2" for byte pairs with merges, "llama" for SentencePiece's pieces with scores,
// "gemma4" for such pieces with merges.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "runtime/base/quote.h"
#include "runtime/base/utf8.h"
#include "runtime/gguf/gguf_texts.h"
#include "runtime/gguf/pre_tokenizers.h"
#include "runtime/pieces/merges.h"

namespace weft::runtime {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kMostTokens = 1 << 22;
constexpr const char* kSpace = "\u2581";
constexpr std::int64_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4;  // tokenizer.ggml.token_type

ordered_json text_pattern(const char* text) { return {{"String", text}}; }

/// Builds the tokenizer.json of one file.
class TokenizerMaker {
 public:
  explicit TokenizerMaker(const Gguf& gguf) : gguf_(gguf) { read_tokens(); }

  ordered_json make() {
    const std::string& kind = gguf_.text("tokenizer.ggml.model");
    gemma4_ = kind == kGgufGemma4Pieces;
    if (kind == "gpt2") make_byte_pairs();
    else if (kind == "llama") make_sentence_pieces(merges_by_score());
    else if (gemma4_) make_sentence_pieces(listed_merges());
    else refuse("tokenizer.ggml.model", "is " + in_quotes(kind) + "; read are gpt2, llama and gemma4");
    if (gguf_.boolean("tokenizer.ggml.add_eos_token", false))
      refuse("tokenizer.ggml.add_eos_token", "is true, but a prompt must not end with the token that ends texts");
    return {{"version", "1.0"},
            {"truncation", nullptr},
            {"padding", nullptr},
            {"added_tokens", added()},
            {"normalizer", normalizer_},
            {"pre_tokenizer", pre_tokenizer_},
            {"post_processor", post_processor()},
            {"decoder", decoder_},
            {"model", std::move(model_)}};
  }

 private:
  [[noreturn]] void refuse(const std::string& key, const std::string& what) const {
    gguf_.refuse(GgufFault::bad_metadata, "the metadata's " + in_quotes(key) + " " + what);
  }

  void read_tokens() {
    const auto* const tokens = gguf_.texts("tokenizer.ggml.tokens");
    if (!tokens || tokens->empty() || static_cast<std::int64_t>(tokens->size()) > kMostTokens)
      refuse("tokenizer.ggml.tokens", "is no list of 1 to " + std::to_string(kMostTokens) + " texts");
    tokens_ = tokens;
    types_.assign(tokens->size(), kNormal);
    if (const auto* const types = gguf_.integers("tokenizer.ggml.token_type")) {
      if (types->size() != tokens->size())
        refuse("tokenizer.ggml.token_type", "has " + std::to_string(types->size()) +
                                                " entries, wanted one for each of " + std::to_string(tokens->size()) +
                                                " tokens");
      types_ = *types;
    }
    for (std::size_t id = 0; id < tokens->size(); ++id) {
      const std::string& text = (*tokens)[id];
      if (text.empty() || !is_utf8(text))
        refuse("tokenizer.ggml.tokens", "has an empty text, or one that is no UTF-8, as token " + std::to_string(id));
      const auto [known, is_new] = ids_.emplace(text, static_cast<std::int64_t>(id));
      if (!is_new)
        refuse("tokenizer.ggml.tokens", "has the token " + in_quotes(text) +
                                            " twice: " + std::to_string(known->second) + " and " + std::to_string(id));
    }
  }

  static std::size_t at(std::int32_t id) { return static_cast<std::size_t>(id); }

  ordered_json vocabulary() const {
    ordered_json::object_t all;
    for (std::size_t id = 0; id < tokens_->size(); ++id) all.emplace_back((*tokens_)[id], id);
    return all;
  }

  /// The id that a key of the metadata has; -1 if it has none.
  std::int64_t id_of(const char* name) const {
    return gguf_.integer(gguf_token_key(name), 0, static_cast<std::int64_t>(tokens_->size()) - 1, -1);
  }

  ordered_json added() const {
    ordered_json all = ordered_json::array();
    const std::int64_t begin = first_id();
    for (std::size_t id = 0; id < types_.size(); ++id) {
      const bool listed = types_[id] == kUserDefined, control = types_[id] == kControl || types_[id] == kUnknown,
                 special = control || (listed && gemma4_) || static_cast<std::int64_t>(id) == begin;
      if (!special && !listed) continue;
      all.push_back({{"id", id},
                     {"content", (*tokens_)[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", special}});
    }
    return all;
  }

  /// The id of the token that is put in front of texts; -1 if none is. Some files of Gemma 4 say that none is, wrongly.
  std::int64_t first_id() const {
    return gemma4_ || gguf_.boolean("tokenizer.ggml.add_bos_token", begins_) ? id_of("bos") : -1;
  }

  ordered_json post_processor() const {
    const std::int64_t begin = first_id();
    if (begin < 0) return nullptr;
    const std::string& text = (*tokens_)[static_cast<std::size_t>(begin)];
    const auto token = [&] { return ordered_json{{"SpecialToken", {{"id", text}, {"type_id", 0}}}}; };
    const auto sequence = [](const char* name) { return ordered_json{{"Sequence", {{"id", name}, {"type_id", 0}}}}; };
    ordered_json special{{"id", text}, {"ids", ordered_json::array({begin})}, {"tokens", ordered_json::array({text})}};
    return {{"type", "TemplateProcessing"},
            {"single", ordered_json::array({token(), sequence("A")})},
            {"pair", ordered_json::array({token(), sequence("A"), token(), sequence("B")})},
            {"special_tokens", {{text, std::move(special)}}}};
  }

  ordered_json model(const ordered_json& unknown_token, bool fallback, bool whole_words, ordered_json merges) const {
    return {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", unknown_token},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", fallback},
            {"byte_fallback", fallback},
            {"ignore_merges", whole_words},
            {"vocab", vocabulary()},
            {"merges", std::move(merges)}};
  }

  void make_byte_pairs() {
    const std::string name = gguf_.text("tokenizer.ggml.pre", "default");
    const PreTokenizer* const pre = pre_tokenizer(name);
    if (!pre)
      refuse("tokenizer.ggml.pre", "is " + in_quotes(name) + ", by which Weft cannot cut texts into words; it can by " +
                                       pre_tokenizer_names() + ": use the Hugging Face folder of the model");
    const bool own = !pre->patterns.front();
    const ordered_json bytes{
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", own}};
    ordered_json parts = ordered_json::array();
    for (const char* const pattern : pre->patterns)
      if (pattern)
        parts.push_back(
            {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
    if (pre->digits) parts.push_back({{"type", "Digits"}, {"individual_digits", true}});
    parts.push_back(bytes);
    pre_tokenizer_ =
        parts.size() == 1 ? bytes : ordered_json{{"type", "Sequence"}, {"pretokenizers", std::move(parts)}};
    if (pre->nfc) normalizer_ = {{"type", "NFC"}};
    decoder_ = bytes;
    begins_ = pre->begins;
    model_ = model(nullptr, false, pre->whole_words, listed_merges());
  }

  ordered_json listed_merges() const {
    const auto* const merges = gguf_.texts("tokenizer.ggml.merges");
    if (!merges) refuse("tokenizer.ggml.merges", "is missing, wanted a list of pairs of tokens");
    return *merges;
  }

  /// All pairs of pieces that make a piece, those of the highest score first: Hugging Face's way to say which pieces
  /// SentencePiece joins first.
  ordered_json merges_by_score() const {
    const auto* const scores = gguf_.numbers("tokenizer.ggml.scores");
    if (!scores || scores->size() != tokens_->size())
      refuse("tokenizer.ggml.scores", "is no list of " + std::to_string(tokens_->size()) + " floats");
    if (!std::all_of(scores->begin(), scores->end(), [](double score) { return std::isfinite(score); }))
      refuse("tokenizer.ggml.scores", "has a score that is not finite");
    std::vector<std::string> pieces = *tokens_;
    for (std::size_t id = 0; id < pieces.size(); ++id)
      if (types_[id] != kNormal && types_[id] != kUserDefined) pieces[id].clear();
    std::vector<PieceMerge> merges = piece_merges(pieces);
    if (merges.size() > kMostMerges)
      refuse("tokenizer.ggml.tokens", "has pieces that make more than " + std::to_string(kMostMerges) + " merges");
    std::erase_if(merges, [this](const PieceMerge& merge) { return types_[at(merge.whole)] != kNormal; });
    std::sort(merges.begin(), merges.end(), [&](const PieceMerge& a, const PieceMerge& b) {
      const double first = (*scores)[at(a.whole)], second = (*scores)[at(b.whole)];
      return first != second ? first > second
                             : std::tuple(a.whole, a.left, a.right) < std::tuple(b.whole, b.left, b.right);
    });
    ordered_json list = ordered_json::array();
    for (const PieceMerge& merge : merges)
      list.push_back(ordered_json::array({(*tokens_)[at(merge.left)], (*tokens_)[at(merge.right)]}));
    return list;
  }

  void make_sentence_pieces(ordered_json merges) {
    const ordered_json spaces{{"type", "Replace"}, {"pattern", text_pattern(" ")}, {"content", kSpace}};
    const bool prefixed = gguf_.boolean("tokenizer.ggml.add_space_prefix", !gemma4_);
    if (prefixed)
      normalizer_ = {
          {"type", "Sequence"},
          {"normalizers", ordered_json::array({ordered_json{{"type", "Prepend"}, {"prepend", kSpace}}, spaces})}};
    else normalizer_ = spaces;
    ordered_json decoders =
        ordered_json::array({ordered_json{{"type", "Replace"}, {"pattern", text_pattern(kSpace)}, {"content", " "}},
                             ordered_json{{"type", "ByteFallback"}}, ordered_json{{"type", "Fuse"}}});
    if (prefixed) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    decoder_ = {{"type", "Sequence"}, {"decoders", std::move(decoders)}};
    begins_ = true;
    const std::int64_t id = id_of("unknown");
    const ordered_json unknown_token = id < 0 ? ordered_json() : ordered_json((*tokens_)[static_cast<std::size_t>(id)]);
    model_ = model(unknown_token, true, false, std::move(merges));
  }

  const Gguf& gguf_;
  const std::vector<std::string>* tokens_ = nullptr;
  std::vector<std::int64_t> types_;
  std::unordered_map<std::string, std::int64_t> ids_;
  bool gemma4_ = false;
  bool begins_ = false;  // the first token is put in front unless the file says something else
  ordered_json normalizer_, pre_tokenizer_, decoder_, model_;
};

}  // namespace

ordered_json gguf_tokenizer(const Gguf& gguf) { return TokenizerMaker(gguf).make(); }

ordered_json gguf_tokenizer_config(const Gguf& gguf) {
  ordered_json config{{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  const auto* const tokens = gguf.texts("tokenizer.ggml.tokens");
  for (const auto& [key, name] :
       {std::pair{"bos_token", "bos"}, {"eos_token", "eos"}, {"unk_token", "unknown"}, {"pad_token", "padding"}}) {
    const std::string id = gguf_token_key(name);
    if (!tokens || tokens->empty() || !gguf.has(id)) continue;
    config[key] =
        (*tokens)[static_cast<std::size_t>(gguf.integer(id, 0, static_cast<std::int64_t>(tokens->size()) - 1))];
  }
  if (gguf.has("tokenizer.chat_template")) config["chat_template"] = gguf.text("tokenizer.chat_template");
  return config;
}

}  // namespace weft::runtime
