// runtime/text/tokenizer_json.cc: reads tokenizer.json as Hugging Face's library writes it. It accepts only known
// components and patterns, because any other would cut texts in another way.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "runtime/text/tokenizer_files.h"

namespace weft::runtime {

using nlohmann::json;
using policy::Fields;

namespace {

/// The bytes that Base64 stands for; nothing if the text is none.
std::optional<std::string> from_base64(std::string_view text) {
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const std::size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return {};
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    count += 6;
    if (count >= 8) bytes += static_cast<char>(bits >> (count -= 8));
  }
  return bytes;
}

class Reader {
 public:
  Reader(const json& file, std::string where) : file_(file), where_(std::move(where)), fields_(make(file_, "")) {}

  TokenizerParts read() {
    if (fields_.text("version", "1.0") != "1.0") fields_.refuse_field("version", "\"1.0\"");
    read_decoder();
    read_normalizer();
    read_pre_tokenizer();
    read_model();
    read_added();
    read_post_processor();
    return std::move(parts_);
  }

 private:
  Fields make(const json& object, const std::string& place) const {
    return Fields(object, where_ + (place.empty() ? "" : ": '" + place + "'"), policy::Blame::data);
  }
  [[noreturn]] void refuse(const std::string& place, const std::string& what) const {
    throw DataError(where_ + ": '" + place + "' " + what);
  }
  bool has(const char* key) { return fields_.has(key) && !fields_.is_null(key); }

  /// The component, or the list of components that a Sequence holds; empty for null.
  std::vector<const json*> components(const char* key, const char* list) {
    if (!has(key)) return {};
    const json& value = fields_.at(key);
    Fields fields = make(value, key);
    if (fields.text("type") != "Sequence") return {&value};
    const json& items = fields.at(list);
    if (!items.is_array()) fields.refuse_field(list, "a list");
    std::vector<const json*> all;
    for (const json& item : items) all.push_back(&item);
    return all;
  }
  std::string types_of(const std::vector<const json*>& all, const char* key) const {
    std::string types;
    for (const json* one : all) types += (types.empty() ? "" : ", ") + make(*one, key).text("type");
    return types;
  }
  [[noreturn]] void refuse_kind(const char* key, const std::string& types) const {
    refuse(key, "is " + types.substr(0, 100) + ", which is not supported");
  }

  /// Reads the text of a pattern, such as {"String": text} of Replace.
  std::string string_of(Fields& fields, const char* key, const char* kind, const char* place) const {
    return make(fields.at(key), place).text(kind);
  }

  /// Accepts ByteLevel, Metaspace, and what SentencePiece's tokenizers have of: Replace, ByteFallback, Fuse, Strip.
  void read_decoder() {
    const auto all = components("decoder", "decoders");
    const std::string types = types_of(all, "decoder");
    if (types == "ByteLevel") return;
    parts_.names = Names::sentences;
    Decoding& decoding = parts_.decoding;
    decoding = {.mark = "", .bytes = false, .begin = Decoding::Begin::kept};
    if (types == "Metaspace") {
      Fields fields = make(*all[0], "decoder");
      decoding.mark = replacement_of(fields, "decoder");
      if (scheme_of(fields) != SplitStep::Prefix::never) decoding.begin = Decoding::Begin::loses_marks;
      return;
    }
    std::size_t next = 0;
    const auto take = [&](const char* type) {
      return next < all.size() && make(*all[next], "decoder").text("type") == type ? all[next++] : nullptr;
    };
    if (const json* one = take("Replace")) {
      Fields replace = make(*one, "decoder");
      decoding.mark = string_of(replace, "pattern", "String", "decoder");
      if (decoding.mark.empty() || replace.text("content") != " ")
        refuse("decoder", "replaces something by something else than a space, which is not supported");
    }
    decoding.bytes = take("ByteFallback") != nullptr;
    const bool fuses = take("Fuse") != nullptr;
    if (const json* one = fuses ? take("Strip") : nullptr) {
      Fields strip = make(*one, "decoder");
      if (strip.text("content") != " " || strip.integer("start", 0, 100) != 1 || strip.integer("stop", 0, 100) != 0)
        refuse("decoder", "strips something else than one space in front, which is not supported");
      decoding.begin = Decoding::Begin::loses_space;
    }
    if (next < all.size() || all.empty()) refuse_kind("decoder", types.empty() ? "null" : types);
  }

  void read_normalizer() {
    for (const json* one : components("normalizer", "normalizers")) {
      Fields fields = make(*one, "normalizer");
      const std::string type = fields.text("type");
      if (type == "NFC") parts_.normalizer.push_back({.kind = NormalizeStep::Kind::nfc});
      else if (type == "Prepend")
        parts_.normalizer.push_back({.kind = NormalizeStep::Kind::prepend, .to = fields.text("prepend")});
      else if (type == "Replace") parts_.normalizer.push_back(replace_step(fields));
      else if (type == "Strip")
        parts_.normalizer.push_back({.kind = NormalizeStep::Kind::white_space,
                                     .left = fields.boolean("strip_left", false),
                                     .right = fields.boolean("strip_right", false)});
      else if (type == "Precompiled") parts_.normalizer.push_back(charsmap_step(fields));
      else refuse_kind("normalizer", type);
    }
  }

  /// Replace of a text, or of the few regular expressions that tokenizers made of SentencePiece's models have.
  NormalizeStep replace_step(Fields& fields) const {
    using Kind = NormalizeStep::Kind;
    const std::string content = fields.text("content");
    Fields pattern = make(fields.at("pattern"), "normalizer");
    if (pattern.has("String")) {
      const std::string from = pattern.text("String");
      if (from.empty()) refuse("normalizer", "replaces an empty text, which is not supported");
      return {.kind = Kind::replace, .from = from, .to = content};
    }
    const std::string regex = pattern.text("Regex");
    if (regex == " {2,}") return {.kind = Kind::spaces_in, .to = content};
    if (regex == R"(\A +| +\z)" && content.empty()) return {.kind = Kind::spaces_out};
    if (regex == std::string(R"(\A)") + kSpaceMark) return {.kind = Kind::begin, .from = kSpaceMark, .to = content};
    refuse("normalizer", "replaces the regular expression " + regex.substr(0, 40) + ", which is not supported");
  }

  NormalizeStep charsmap_step(Fields& fields) const {
    const auto bytes = from_base64(fields.text("precompiled_charsmap"));
    if (!bytes) refuse("normalizer", "has a precompiled_charsmap that is not Base64");
    try {
      return {.kind = NormalizeStep::Kind::charsmap, .charsmap = std::make_shared<const Charsmap>(*bytes)};
    } catch (const UsageError& error) {
      refuse("normalizer", std::string("has a precompiled_charsmap that ") + error.what());
    }
  }

  void read_pre_tokenizer() {
    const auto all = components("pre_tokenizer", "pretokenizers");
    const std::string types = types_of(all, "pre_tokenizer");
    const std::string where = where_ + ": 'pre_tokenizer'";
    if (parts_.names == Names::sentences) {
      parts_.pattern = Pattern::none;
      parts_.steps = split_steps(all, parts_.names, where);
      return drop_gemma_split();
    }
    if (types == "ByteLevel") {
      Fields bytes = make(*all[0], "pre_tokenizer");
      parts_.prefix_space = bytes.boolean("add_prefix_space", true);
      if (!bytes.boolean("use_regex", true)) parts_.pattern = Pattern::none;
      return;
    }
    if (types == "Digits, ByteLevel" && is_smollm(*all[0], *all[1])) {
      parts_.pattern = Pattern::digits;
      return;
    }
    if (all.size() < 2) refuse_kind("pre_tokenizer", types.empty() ? "null" : types);
    parts_.steps = split_steps(all, parts_.names, where);
    parts_.pattern = Pattern::none;
    // The most frequent patterns are known, and faster as code.
    const auto& steps = parts_.steps;
    if (steps.size() != 2 || steps[0].kind != SplitStep::Kind::pattern || steps[0].cut != Cut::isolated ||
        steps[1].kind != SplitStep::Kind::bytes)
      return;
    Fields split = make(*all[0], "pre_tokenizer");
    if (const auto known = pattern_from(string_of(split, "pattern", "Regex", "pre_tokenizer"))) {
      parts_.pattern = *known;
      parts_.steps.clear();
    }
  }

  /// Whether every digit is a word, and GPT-2's pattern cuts the text between them.
  bool is_smollm(const json& first, const json& second) const {
    Fields digits = make(first, "pre_tokenizer"), bytes = make(second, "pre_tokenizer");
    return digits.boolean("individual_digits", false) && !bytes.boolean("add_prefix_space", true) &&
           bytes.boolean("use_regex", true);
  }

  /// Gemma's pre-tokenizer cuts at spaces, of which its normalizer has left none.
  void drop_gemma_split() {
    const auto is_left_out = [](const NormalizeStep& step) {
      return step.kind == NormalizeStep::Kind::replace && step.from == " " && step.to.find(' ') == std::string::npos;
    };
    const auto& steps = parts_.steps;
    if (steps.size() == 1 && steps[0].kind == SplitStep::Kind::text && steps[0].text == " " &&
        !parts_.normalizer.empty() && is_left_out(parts_.normalizer.back()))
      parts_.steps.clear();
  }

  void read_model() {
    Fields model = make(fields_.at("model"), "model");
    const std::string type = model.text("type", "BPE");
    const bool fallback = model.boolean("byte_fallback", false);
    if (fallback && parts_.names == Names::bytes)
      refuse("model", "has byte_fallback true, which does not go with its decoder");
    parts_.byte_fallback = fallback;
    if (type == "Unigram" && parts_.names == Names::sentences) return read_unigram(model);
    if (type != "BPE")
      refuse("model",
             "is " + type.substr(0, 40) + ", which is not supported; only BPE and SentencePiece's Unigram are");
    const json no_text(""), no_dropout(0);
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"})
      if (model.has(key) && !model.is_null(key) && model.at(key) != no_text && model.at(key) != no_dropout)
        model.refuse_field(key, "null");
    parts_.whole_words = model.boolean("ignore_merges", false);
    parts_.vocabulary = vocabulary_from(model.at("vocab"), where_ + ": 'vocab'");
    if (model.has("unk_token") && !model.is_null("unk_token"))
      if (const auto known = parts_.vocabulary.find(model.text("unk_token")); known != parts_.vocabulary.end())
        parts_.unknown = known->second;
    parts_.fuse_unknown = model.boolean("fuse_unk", false);
    read_merges(model);
  }

  void read_merges(Fields& model) {
    const json& merges = model.at("merges");
    if (!merges.is_array()) model.refuse_field("merges", "a list");
    std::size_t number = 0;
    for (const json& merge : merges) {
      const std::string place = where_ + ": merge " + std::to_string(number++) + ": ";
      if (merge.is_string()) {
        const auto& line = merge.get_ref<const std::string&>();
        if (!line.starts_with("#version")) add_merge(parts_.merges, line, parts_.vocabulary, place);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        add_merge(parts_.merges, merge[0].get<std::string>(), merge[1].get<std::string>(), parts_.vocabulary, place);
      } else {
        throw DataError(place + "must be two tokens, got " + policy::describe(merge));
      }
    }
  }

  void read_unigram(Fields& model) {
    const json& list = model.at("vocab");
    if (!list.is_array() || list.empty()) model.refuse_field("vocab", "a list of pieces and scores");
    json ids = json::object();
    std::vector<std::string> pieces;
    std::vector<double> scores;
    for (const json& item : list) {
      const std::string place = where_ + ": piece " + std::to_string(pieces.size());
      if (!item.is_array() || item.size() != 2 || !item[0].is_string() || !item[1].is_number())
        throw DataError(place + " must be a text and a score, got " + policy::describe(item));
      pieces.push_back(item[0].get<std::string>());
      scores.push_back(item[1].get<double>());
      if (ids.contains(pieces.back())) throw DataError(place + " has the text of another one");
      ids[pieces.back()] = pieces.size() - 1;
    }
    parts_.vocabulary = vocabulary_from(ids, where_ + ": 'vocab'");
    if (model.has("unk_id") && !model.is_null("unk_id"))
      parts_.unknown =
          static_cast<std::int32_t>(model.integer("unk_id", 0, static_cast<std::int64_t>(pieces.size()) - 1));
    parts_.unigram = std::make_shared<const Unigram>(std::move(pieces), std::move(scores), parts_.unknown);
  }

  void read_added() {
    if (!has("added_tokens")) return;
    const json& list = fields_.at("added_tokens");
    if (!list.is_array()) fields_.refuse_field("added_tokens", "a list");
    std::set<std::int32_t> taken;
    std::set<std::string> texts;
    for (const auto& [name, id] : parts_.vocabulary) taken.insert(id);
    for (const json& item : list) {
      Fields fields = make(item, "added_tokens");
      AddedToken token{.text = fields.text("content"),
                       .id = static_cast<std::int32_t>(fields.integer("id", 0, (1 << 22) - 1)),
                       .strip_left = fields.boolean("lstrip", false),
                       .strip_right = fields.boolean("rstrip", false),
                       .single_word = fields.boolean("single_word", false),
                       .normalized = fields.boolean("normalized", true),
                       .special = fields.boolean("special", false)};
      if (token.text.empty() || token.text.size() > kLongestAdded)
        refuse("added_tokens", "has a token of " + std::to_string(token.text.size()) + " bytes, wanted 1 to " +
                                   std::to_string(kLongestAdded));
      if (!texts.insert(token.text).second) refuse("added_tokens", "has a token twice, id " + std::to_string(token.id));
      const auto known = parts_.vocabulary.find(token.text);
      if (known != parts_.vocabulary.end() ? known->second != token.id : !taken.insert(token.id).second)
        refuse("added_tokens", "gives id " + std::to_string(token.id) + " to a token, which the vocabulary does not");
      parts_.added.tokens.push_back(std::move(token));
    }
  }

  void read_post_processor() {
    const auto all = components("post_processor", "processors");
    for (const json* one : all) {
      const std::string type = make(*one, "post_processor").text("type");
      if (type == "TemplateProcessing") read_template(*one);
      else if (type != "ByteLevel") refuse_kind("post_processor", type);  // ByteLevel changes only offsets
    }
  }

  /// Accepts at most one token, in front of the text.
  void read_template(const json& value) {
    Fields fields = make(value, "post_processor");
    const json& single = fields.at("single");
    const std::size_t count = single.is_array() ? single.size() : 0;
    const auto is_text = [](const json& piece) { return piece.is_object() && piece.contains("Sequence"); };
    if (count < 1 || count > 2 || !is_text(single[count - 1]) || (count == 2 && is_text(single[0])))
      refuse("post_processor", "puts more around a text than one token in front, which is not supported");
    if (count == 1) return;
    const std::string name = make(make(single[0], "post_processor").at("SpecialToken"), "post_processor").text("id");
    Fields tokens = make(fields.at("special_tokens"), "post_processor");
    const json& ids = make(tokens.at(name), "post_processor").at("ids");
    const auto& added = parts_.added.tokens;
    const auto known = std::find_if(added.begin(), added.end(), [&](const AddedToken& t) { return t.text == name; });
    if (!ids.is_array() || ids.size() != 1 || known == added.end() || ids[0] != known->id)
      refuse("post_processor", "puts a token in front that is not the added token of its name");
    parts_.added.first = known->id;
  }

  const json& file_;
  const std::string where_;
  Fields fields_;
  TokenizerParts parts_;
};

}  // namespace

TokenizerParts read_tokenizer_json(const ModelTexts& files) {
  constexpr const char* kFile = "tokenizer.json";
  const std::string where = files.where(kFile);
  const json object =
      policy::parse_json(files.read(kFile, kLargestTokenizer), where, policy::Blame::data, {.depth = 32});
  TokenizerParts parts = Reader(object, where).read();
  const json pre = object.value("pre_tokenizer", json());
  apply_tokenizer_config(files, pre.is_object() && pre.value("type", json()) == "ByteLevel", parts);
  return parts;
}

}  // namespace weft::runtime
