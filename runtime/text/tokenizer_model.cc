// runtime/text/tokenizer_model.cc: a folder whose tokenizer is SentencePiece's tokenizer.model, read as transformers 5
// reads it. The class that tokenizer_config.json or config.json names decides how: LlamaTokenizer and GemmaTokenizer
// have rules of their own, all others follow the model's.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "runtime/pieces/merges.h"
#include "runtime/pieces/model_file.h"
#include "runtime/text/tokenizer_config.h"
#include "runtime/text/tokenizer_files.h"

namespace weft::runtime {

using nlohmann::json;

namespace {

constexpr const char* kFile = "tokenizer.model";
using Type = PieceModel::Type;

class ModelReader {
 public:
  explicit ModelReader(const ModelTexts& files)
      : files_(files), where_(files.where(kFile)), config_(read_config_object(files, kTokenizerConfig)),
        fields_(config_, files.where(kTokenizerConfig), policy::Blame::data), class_(sentence_class(files)),
        model_(read_piece_model(files.read(kFile, kLargestTokenizer), where_)) {}

  TokenizerParts read() {
    check();
    parts_.names = Names::sentences;
    parts_.pattern = Pattern::none;
    parts_.fuse_unknown = true;
    name_pieces();
    for (std::size_t id = 0; id < names_.size(); ++id)
      if (!parts_.vocabulary.emplace(names_[id], static_cast<std::int32_t>(id)).second)
        throw DataError(files_.where(kTokenizerConfig) + ": 'added_tokens_decoder' gives piece " + std::to_string(id) +
                        " the text of another one");
    if (class_ == SentenceClass::llama) read_llama();
    else if (class_ == SentenceClass::gemma) read_gemma();
    else read_any();
    parts_.added = read_sentence_tokens(files_, class_, model_, names_);
    return std::move(parts_);
  }

 private:
  void check() {
    using Algorithm = PieceModel::Algorithm;
    if (model_.algorithm == Algorithm::word || model_.algorithm == Algorithm::character)
      throw DataError(where_ + ": is a model of " + (model_.algorithm == Algorithm::word ? "words" : "characters") +
                      ", which is not supported; BPE and Unigram are");
    if (model_.whitespace_as_suffix)
      throw DataError(where_ + ": has treat_whitespace_as_suffix, which is not supported");
    for (const char* key : {"add_eos_token", "split_special_tokens"})
      if (fields_.has(key) && !fields_.is_null(key) && fields_.boolean(key))
        throw DataError(files_.where(kTokenizerConfig) + ": '" + key +
                        "' is true, which is not supported; only false is");
  }

  /// The pieces' texts. With the model's own rules, added_tokens_decoder may give a piece another name.
  void name_pieces() {
    for (const PieceModel::Piece& piece : model_.pieces) names_.push_back(piece.text);
    if (class_ != SentenceClass::any) return;
    const auto renamed = piece_names(files_);
    std::set<std::string> kept;  // a name that a piece keeps is not given to another one
    for (std::size_t id = 0; id < names_.size(); ++id)
      if (!renamed.contains(static_cast<std::int64_t>(id))) kept.insert(names_[id]);
    for (const auto& [id, name] : renamed)
      if (id < static_cast<std::int64_t>(names_.size()) && !kept.contains(name))
        names_[static_cast<std::size_t>(id)] = name;
  }

  /// All pairs of the pieces that `takes_part` accepts. The highest score first, if scores count; then the lowest id.
  template <class Accept> void read_merges(const Accept& takes_part, bool by_score) {
    std::vector<std::string> texts = names_;
    for (std::size_t id = 0; id < texts.size(); ++id)
      if (!takes_part(model_.pieces[id].type)) texts[id].clear();
    std::vector<PieceMerge> merges = piece_merges(texts);
    if (merges.size() > kMostMerges)
      throw DataError(where_ + ": its pieces make more than " + std::to_string(kMostMerges) + " merges");
    const auto score = [this](const PieceMerge& merge) {
      return model_.pieces[static_cast<std::size_t>(merge.whole)].score;
    };
    if (by_score)
      std::stable_sort(merges.begin(), merges.end(),
                       [&](const PieceMerge& a, const PieceMerge& b) { return score(a) > score(b); });
    for (const PieceMerge& merge : merges) parts_.merges.add(merge.left, merge.right, merge.whole);
  }

  std::optional<std::int32_t> id_of(const std::string& name) const {
    const auto found = parts_.vocabulary.find(name);
    return found == parts_.vocabulary.end() ? std::nullopt : std::optional(found->second);
  }

  /// `legacy` of tokenizer_config.json: spaces go in front of every text between added tokens, not only the first.
  SplitStep spaces_in_front(bool fallback) {
    const bool legacy = fields_.has("legacy") ? !fields_.is_null("legacy") && fields_.boolean("legacy") : fallback;
    return {.kind = SplitStep::Kind::spaces,
            .cut = Cut::to_next,
            .text = kSpaceMark,
            .prefix = legacy ? SplitStep::Prefix::always : SplitStep::Prefix::first};
  }

  void read_llama() {
    const bool prefix =
        !fields_.has("add_prefix_space") || fields_.is_null("add_prefix_space") || fields_.boolean("add_prefix_space");
    parts_.steps.push_back(spaces_in_front(false));
    if (!prefix) parts_.steps[0].prefix = SplitStep::Prefix::never;
    parts_.decoding.begin = prefix ? Decoding::Begin::loses_space : Decoding::Begin::kept;
    parts_.byte_fallback = true;
    read_merges([](Type) { return true; }, false);
  }

  void read_gemma() {
    parts_.normalizer.push_back({.kind = NormalizeStep::Kind::replace, .from = " ", .to = kSpaceMark});
    parts_.decoding.begin = Decoding::Begin::kept;
    parts_.byte_fallback = true;
    parts_.unknown = id_of(config_token(files_, "unk_token").value_or("<unk>"));
    read_merges([](Type) { return true; }, false);
  }

  void read_any() {
    using Kind = NormalizeStep::Kind;
    auto& normalizer = parts_.normalizer;
    if (!model_.charsmap.empty()) normalizer.push_back({.kind = Kind::charsmap, .charsmap = charsmap()});
    if (model_.removes_extra_spaces) {
      normalizer.push_back({.kind = Kind::spaces_out});
      normalizer.push_back({.kind = Kind::spaces_in, .to = " "});
    }
    if (model_.escapes_spaces) normalizer.push_back({.kind = Kind::replace, .from = " ", .to = kSpaceMark});
    if (model_.dummy_prefix) {
      const SplitStep spaces = spaces_in_front(true);
      if (spaces.prefix == SplitStep::Prefix::always)
        normalizer.push_back({.kind = Kind::begin, .from = kSpaceMark, .to = std::string(kSpaceMark) + kSpaceMark});
      parts_.steps.push_back(spaces);
    }
    std::vector<std::string> whole;
    for (std::size_t id = 0; id < names_.size(); ++id)
      if (model_.pieces[id].type == Type::user_defined) whole.push_back(names_[id]);
    parts_.whole_words = !whole.empty();
    if (!whole.empty())
      parts_.steps.push_back({.kind = SplitStep::Kind::pieces,
                              .cut = Cut::isolated,
                              .pieces = std::make_shared<const TextIndex>(std::move(whole))});
    parts_.byte_fallback = parts_.decoding.bytes = model_.byte_fallback;
    parts_.decoding.begin = model_.dummy_prefix ? Decoding::Begin::loses_space : Decoding::Begin::kept;
    if (model_.algorithm == PieceModel::Algorithm::bpe) {
      parts_.unknown = id_of(model_.unknown);
      read_merges([](Type type) { return type == Type::normal; }, true);
      return;
    }
    parts_.whole_words = false;
    if (model_.unknown_id < 0 || model_.unknown_id >= static_cast<std::int32_t>(names_.size()))
      throw DataError(where_ + ": 'unk_id' is " + std::to_string(model_.unknown_id) + ", wanted the id of one of its " +
                      std::to_string(names_.size()) + " pieces");
    parts_.unknown = model_.unknown_id;
    std::vector<double> scores;
    for (const PieceModel::Piece& piece : model_.pieces) scores.push_back(piece.score);
    parts_.unigram = std::make_shared<const Unigram>(names_, std::move(scores), parts_.unknown);
  }

  std::shared_ptr<const Charsmap> charsmap() const {
    try {
      return std::make_shared<const Charsmap>(model_.charsmap);
    } catch (const UsageError& error) {
      throw DataError(where_ + ": its precompiled_charsmap " + error.what());
    }
  }

  const ModelTexts& files_;
  const std::string where_;
  const json config_;
  policy::Fields fields_;
  const SentenceClass class_;
  const PieceModel model_;
  std::vector<std::string> names_;  // of the pieces, by id
  TokenizerParts parts_;
};

}  // namespace

TokenizerParts read_tokenizer_model(const ModelTexts& files) { return ModelReader(files).read(); }

}  // namespace weft::runtime
