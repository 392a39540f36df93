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

constexpr const char* kSpace = "\u2581";

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

  void read_decoder() {
    const auto all = components("decoder", "decoders");
    const std::string types = types_of(all, "decoder");
    if (types == "ByteLevel") return;
    parts_.strips_space = types == "Replace, ByteFallback, Fuse, Strip";
    if (!parts_.strips_space && types != "Replace, ByteFallback, Fuse")
      refuse_kind("decoder", types.empty() ? "null" : types);
    parts_.names = Names::sentences;
    Fields replace = make(*all[0], "decoder");
    if (string_of(replace, "pattern", "String", "decoder") != kSpace || replace.text("content") != " ")
      refuse("decoder", "replaces something else than U+2581 by a space, which is not supported");
    if (!parts_.strips_space) return;
    Fields strip = make(*all[3], "decoder");
    if (strip.text("content") != " " || strip.integer("start", 0, 100) != 1 || strip.integer("stop", 0, 100) != 0)
      refuse("decoder", "strips something else than one space in front, which is not supported");
  }

  void read_normalizer() {
    const auto all = components("normalizer", "normalizers");
    const std::string types = types_of(all, "normalizer");
    if (types.empty()) return;
    if (types == "NFC" && parts_.names == Names::bytes) {
      parts_.normalizer = Normalizer::nfc;
      return;
    }
    const bool prepends = types == "Prepend, Replace";
    if ((!prepends && types != "Replace") || parts_.names == Names::bytes) refuse_kind("normalizer", types);
    if (prepends && make(*all[0], "normalizer").text("prepend") != kSpace)
      refuse("normalizer", "prepends something else than U+2581, which is not supported");
    Fields replace = make(*all.back(), "normalizer");
    if (string_of(replace, "pattern", "String", "normalizer") != " " || replace.text("content") != kSpace)
      refuse("normalizer", "replaces something else than spaces by U+2581, which is not supported");
    parts_.normalizer = Normalizer::spaces;
    if (prepends) parts_.prefix = Prefix::always;
  }

  void read_pre_tokenizer() {
    const auto all = components("pre_tokenizer", "pretokenizers");
    const std::string types = types_of(all, "pre_tokenizer");
    if (parts_.names == Names::sentences) return read_metaspace(all, types);
    const std::string where = where_ + ": 'pre_tokenizer'";
    if (types == "ByteLevel") {
      Fields bytes = make(*all[0], "pre_tokenizer");
      if (bytes.boolean("add_prefix_space", true)) parts_.prefix = Prefix::missing;
      if (!bytes.boolean("use_regex", true)) parts_.pattern = Pattern::none;
      return;
    }
    if (types == "Digits, ByteLevel" && is_smollm(*all[0], *all[1])) {
      parts_.pattern = Pattern::digits;
      return;
    }
    if (all.size() < 2) refuse_kind("pre_tokenizer", types.empty() ? "null" : types);
    parts_.steps = split_steps(all, where);
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

  /// Reads a pre-tokenizer that makes SentencePiece's spaces in the place of a normalizer.
  void read_metaspace(const std::vector<const json*>& all, const std::string& types) {
    parts_.pattern = Pattern::none;
    if (types.empty()) return;
    if (types == "Split") return check_gemma(*all[0]);
    if (types != "Metaspace" || parts_.normalizer != Normalizer::none) refuse_kind("pre_tokenizer", types);
    Fields fields = make(*all[0], "pre_tokenizer");
    if (fields.text("replacement") != kSpace || fields.boolean("split", true))
      refuse("pre_tokenizer", "is a Metaspace that splits or has another mark than U+2581, which is not supported");
    const std::string scheme = fields.text("prepend_scheme", "always");
    if (scheme != "always" && scheme != "first" && scheme != "never")
      fields.refuse_field("prepend_scheme", "always, first or never");
    parts_.metaspace = true;
    parts_.prefix = scheme == "always" ? Prefix::missing : scheme == "first" ? Prefix::first : Prefix::none;
  }

  /// Accepts Gemma's pre-tokenizer: it cuts at spaces, of which the normalizer has left none.
  void check_gemma(const json& value) const {
    Fields split = make(value, "pre_tokenizer");
    if (parts_.normalizer != Normalizer::spaces || string_of(split, "pattern", "String", "pre_tokenizer") != " ")
      refuse("pre_tokenizer", "is a Split of SentencePiece's texts, which is not supported");
  }

  void read_model() {
    Fields model = make(fields_.at("model"), "model");
    if (const std::string type = model.text("type", "BPE"); type != "BPE")
      refuse("model", "is " + type.substr(0, 40) + ", which is not supported; only BPE is");
    const json no_text("");
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"})
      if (model.has(key) && !model.is_null(key) && model.at(key) != no_text) model.refuse_field(key, "null");
    const bool fallback = model.boolean("byte_fallback", false), sentences = parts_.names == Names::sentences;
    if (fallback != sentences)
      refuse("model", std::string("has byte_fallback ") + (fallback ? "true" : "false") +
                          ", which does not go with its decoder");
    parts_.whole_words = model.boolean("ignore_merges", false);
    parts_.vocabulary = vocabulary_from(model.at("vocab"), parts_.names, where_ + ": 'vocab'");
    if (model.has("unk_token") && !model.is_null("unk_token"))
      if (const auto known = parts_.vocabulary.find(model.text("unk_token")); known != parts_.vocabulary.end())
        parts_.unknown = known->second;
    parts_.fuse_unknown = model.boolean("fuse_unk", false);
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
                       .normalized = fields.boolean("normalized", true),
                       .special = fields.boolean("special", false)};
      if (token.text.empty() || token.text.size() > kLongestAdded)
        refuse("added_tokens", "has a token of " + std::to_string(token.text.size()) + " bytes, wanted 1 to " +
                                   std::to_string(kLongestAdded));
      if (fields.boolean("single_word", false)) fields.refuse_field("single_word", "false");
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
