// runtime/text/tokenizer_config.cc: reads which tokens are found before any word, and which one begins a text.
// transformers spreads this over up to four files; the order of precedence here is that of its from_pretrained (version
// 5).
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "runtime/text/tokenizer_files.h"

namespace weft::runtime {

using nlohmann::json;

namespace {

constexpr std::size_t kMostConfigBytes = std::size_t{16} << 20;

/// A token as a file describes it, before its id is known.
struct Draft {
  AddedToken token;
  std::optional<bool> normalized;
  std::optional<std::int64_t> id;
  std::string where;
};

/// Whether a file says that a token of this role does not exist.
bool is_no_token(const json& value) { return value.is_null() || value == ""; }

/// Reads a token that is written as a string or as {"content": ..., "lstrip": ..., ...}.
Draft read_token(const json& value, const std::string& where, bool special) {
  Draft draft;
  draft.where = where;
  draft.token.special = special;
  if (value.is_string()) {
    draft.token.text = value.get<std::string>();
  } else {
    policy::Fields fields(value, where, policy::Blame::data);
    draft.token.text = fields.text("content");
    draft.token.strip_left = fields.boolean("lstrip", false);
    draft.token.strip_right = fields.boolean("rstrip", false);
    draft.token.special = fields.boolean("special", special) || special;
    if (fields.has("normalized")) draft.normalized = fields.boolean("normalized");
    draft.token.single_word = fields.boolean("single_word", false);
  }
  if (draft.token.text.empty()) throw DataError(where + ": an added token is empty");
  if (draft.token.text.size() > kLongestAdded)
    throw DataError(where + ": an added token has " + std::to_string(draft.token.text.size()) + " bytes, at most " +
                    std::to_string(kLongestAdded));
  return draft;
}

void refuse_true(policy::Fields& fields, const std::string& where, const char* key) {
  if (!fields.is_null(key) && fields.boolean(key, false))
    throw DataError(where + ": '" + key + "' is true, which is not supported; only false is");
}

/// Whether a key names a token by a role that this model alone has.
bool is_other_role(const std::string& key, const json& value) {
  return !is_role(key) && value.is_string() && value != "" && key.ends_with("_token");
}

/// Further special tokens: a list, or an object that names them.
bool is_list_of_tokens(const std::string& key) {
  return key == "additional_special_tokens" || key == "extra_special_tokens";
}
const json& tokens_of(const json& value, const std::string& where) {
  if (!value.is_null() && !value.is_structured())
    throw DataError(where + " must be a list of tokens, got " + policy::describe(value));
  return value;
}

class ConfigReader {
 public:
  ConfigReader(const ModelTexts& files, const Vocabulary& vocabulary) : files_(files), vocabulary_(vocabulary) {}

  AddedTokenTable read() {
    read_config();
    if (config_.contains("added_tokens_decoder")) {
      read_decoder();
    } else {
      // The two older files count only if the newer list is missing.
      read_special_map();
      read_added_file();
    }
    for (const char* name : {"bos_token", "eos_token", "unk_token"})
      if (named_.count(name) == 0 && vocabulary_.count("<|endoftext|>") != 0)  // the fallback of GPT2Tokenizer
        named_[name] = read_token("<|endoftext|>", files_.place().string(), true);
    for (const auto& [name, draft] : named_)
      if (draft) add(*draft);
    for (const Draft& draft : extra_) add(draft);
    return finish();
  }

 private:
  std::string place(const char* file, const std::string& key) const { return files_.where(file) + ": '" + key + "'"; }

  void read_config() {
    const json model = read_config_object(files_, "config.json");
    const std::string type =
        model.value("model_type", json()).is_string() ? model["model_type"].get<std::string>() : "";
    if (files_.has(kTokenizerConfig)) {
      config_ = read_config_object(files_, kTokenizerConfig);
    } else if (type == "opt") {
      config_ = {{"add_bos_token", true},
                 {"bos_token", "</s>"},
                 {"eos_token", "</s>"},
                 {"unk_token", "</s>"},
                 {"pad_token", "<pad>"}};
    }
    policy::Fields fields(config_, files_.where(kTokenizerConfig), policy::Blame::data);
    check_class(fields, type);
    for (const char* key : {"add_prefix_space", "add_eos_token", "split_special_tokens"})
      refuse_true(fields, files_.where(kTokenizerConfig), key);
    add_first_ = fields.boolean("add_bos_token", false);
    read_named(config_, kTokenizerConfig);
  }

  void check_class(policy::Fields& fields, const std::string& model_type) const {
    const std::string from_model =
        model_type.empty() || model_type == "opt" || model_type == "gpt2" ? "GPT2Tokenizer" : "of " + model_type;
    const std::string name =
        fields.is_null("tokenizer_class") ? from_model : fields.text("tokenizer_class", from_model);
    if (name != "GPT2Tokenizer" && name != "GPT2TokenizerFast")
      throw DataError(
          place(kTokenizerConfig, "tokenizer_class") + ": the tokenizer " + name +
          " is not read from vocab.json and merges.txt, only GPT2Tokenizer is; put the model's tokenizer.json "
          "next to them");
  }

  /// Reads bos_token and its siblings, and the lists of further special tokens.
  void read_named(const json& object, const char* file) {
    for (const auto& [key, value] : object.items()) {
      const std::string where = place(file, key);
      if (is_list_of_tokens(key))
        for (const auto& token : tokens_of(value, where).items())
          extra_.push_back(read_token(token.value(), where, true));
      else if (is_role(key) && is_no_token(value)) named_[key] = std::nullopt;
      else if (is_role(key) || is_other_role(key, value)) named_[key] = read_token(value, where, true);
    }
  }

  void read_special_map() { read_named(read_config_object(files_, kSpecialTokens), kSpecialTokens); }

  void read_decoder() {
    const json& decoder = config_["added_tokens_decoder"];
    const policy::Fields refuses_what_is_no_object(decoder, place(kTokenizerConfig, "added_tokens_decoder"),
                                                   policy::Blame::data);
    std::map<std::int64_t, Draft> by_id;
    for (const auto& item : decoder.items()) {
      const std::string where = place(kTokenizerConfig, "added_tokens_decoder") + " '" + item.key() + "'";
      const std::string& key = item.key();
      if (key.empty() || key.size() > 9 || key.find_first_not_of("0123456789") != std::string::npos)
        throw DataError(where + ": the key must be a token id");
      Draft draft = read_token(item.value(), where, false);
      draft.id = std::stoll(key);
      if (!by_id.emplace(*draft.id, draft).second) throw DataError(where + ": the id appears twice");
    }
    for (const auto& [id, draft] : by_id) add(draft);
  }

  void read_added_file() {
    const json object = read_config_object(files_, kAddedTokens);
    std::map<std::int64_t, Draft> by_id;
    for (const auto& item : object.items()) {
      const std::string where = place(kAddedTokens, item.key());
      if (!item.value().is_number_integer())
        throw DataError(where + " must be a token id, got " + policy::describe(item.value()));
      Draft draft = read_token(item.key(), where, false);
      draft.id = item.value().get<std::int64_t>();
      if (!by_id.emplace(*draft.id, draft).second) throw DataError(where + ": the id appears twice");
    }
    for (const auto& [id, draft] : by_id) add(draft);
  }

  /// The first mention of a token decides its flags, except that a named token is always special.
  void add(const Draft& draft) {
    const auto [known, is_new] = by_text_.try_emplace(draft.token.text, drafts_.size());
    if (is_new) {
      drafts_.push_back(draft);
    } else {
      Draft& first = drafts_[known->second];
      if (first.id && draft.id) throw DataError(draft.where + ": the token appears twice");
      first.token.special = first.token.special || draft.token.special;
    }
  }

  AddedTokenTable finish() {
    AddedTokenTable added;
    std::set<std::int32_t> taken;
    for (const auto& [name, id] : vocabulary_) taken.insert(id);
    auto next = static_cast<std::int64_t>(vocabulary_.size());
    for (Draft& draft : drafts_) {
      const auto known = vocabulary_.find(draft.token.text);
      const std::int64_t id = known != vocabulary_.end() ? known->second : next;
      if (draft.id && *draft.id != id)
        throw DataError(draft.where + ": the token has id " + std::to_string(*draft.id) + ", but " +
                        (known != vocabulary_.end() ? "the vocabulary says " : "the next free id is ") +
                        std::to_string(id));
      if (known == vocabulary_.end()) {
        if (!draft.id) throw DataError(draft.where + ": the token is not in the vocabulary");
        if (!taken.insert(static_cast<std::int32_t>(id)).second)
          throw DataError(draft.where + ": the vocabulary has holes, so the added token has no id of its own");
        ++next;
      }
      draft.token.id = static_cast<std::int32_t>(id);
      draft.token.normalized = draft.normalized.value_or(!draft.token.special);
      added.tokens.push_back(draft.token);
    }
    const auto bos = named_.find("bos_token");
    if (add_first_ && bos != named_.end() && bos->second)
      for (const AddedToken& token : added.tokens)
        if (token.text == bos->second->token.text) added.first = token.id;
    return added;
  }

  const ModelTexts& files_;
  const Vocabulary& vocabulary_;
  json config_ = json::object();
  bool add_first_ = false;
  std::map<std::string, std::optional<Draft>> named_;  // nullopt if the file has null
  std::vector<Draft> extra_, drafts_;
  std::unordered_map<std::string, std::size_t> by_text_;  // places in drafts_
};

}  // namespace

json read_config_object(const ModelTexts& files, const char* name) {
  if (!files.has(name)) return json::object();
  const std::string where = files.where(name);
  json object =
      policy::parse_json(files.read(name, kMostConfigBytes), where, policy::Blame::data, {.large_integers = true});
  const policy::Fields refuses_what_is_no_object(object, where, policy::Blame::data);
  return object;
}

void apply_tokenizer_config(const ModelTexts& files, bool byte_level, TokenizerParts& parts) {
  const std::string file = files.where(kTokenizerConfig);
  const json config = read_config_object(files, kTokenizerConfig);
  policy::Fields fields(config, file, policy::Blame::data);
  if (byte_level && fields.has("add_prefix_space") && !fields.is_null("add_prefix_space"))
    parts.prefix_space = fields.boolean("add_prefix_space");
  refuse_true(fields, file, "split_special_tokens");

  auto& tokens = parts.added.tokens;
  std::int64_t next = 0;  // the id of the next new token
  for (const auto& [name, id] : parts.vocabulary) next = std::max<std::int64_t>(next, id + 1);
  for (const AddedToken& token : tokens) next = std::max<std::int64_t>(next, token.id + 1);
  std::set<std::string> texts;
  for (const AddedToken& token : tokens) texts.insert(token.text);
  const auto add = [&](Draft draft, std::int64_t id, const std::string& where) {
    if (texts.count(draft.token.text) != 0) return;
    const auto known = parts.vocabulary.find(draft.token.text);
    if (known == parts.vocabulary.end() && id < 0) return;  // nothing has an id for it
    const std::int64_t own = known != parts.vocabulary.end() ? known->second : next;
    if (id >= 0 && id != own)
      throw DataError(where + ": the token has id " + std::to_string(id) + ", but with tokenizer.json it gets " +
                      std::to_string(own));
    next = std::max(next, own + 1);
    draft.token.id = static_cast<std::int32_t>(own);
    draft.token.normalized = draft.normalized.value_or(!draft.token.special);
    texts.insert(draft.token.text);
    tokens.push_back(std::move(draft.token));
  };
  const std::string where = file + ": 'added_tokens_decoder'";
  std::map<std::int64_t, Draft> by_id;
  if (fields.has("added_tokens_decoder") && !fields.is_null("added_tokens_decoder")) {
    const json& decoder = fields.at("added_tokens_decoder");
    if (!decoder.is_object()) fields.refuse_field("added_tokens_decoder", "an object");
    for (const auto& item : decoder.items()) {
      const std::string& key = item.key();
      if (key.empty() || key.size() > 7 || key.find_first_not_of("0123456789") != std::string::npos)
        throw DataError(where + ": a key must be a token id, got " + policy::describe(key));
      by_id.emplace(std::stoll(key), read_token(item.value(), where + " '" + key + "'", false));
    }
  }
  for (auto& [id, draft] : by_id) add(std::move(draft), id, where + " '" + std::to_string(id) + "'");
  for (const auto& [key, value] : config.items()) {
    const std::string place = file + ": '" + key + "'";
    if (is_list_of_tokens(key)) {
      for (const auto& token : tokens_of(value, place).items())
        if (!is_no_token(token.value())) add(read_token(token.value(), place, true), -1, {});
    } else if (is_role(key) ? !is_no_token(value) : is_other_role(key, value)) {
      add(read_token(value, place, true), -1, {});
    }
  }
}

AddedTokenTable read_added_tokens(const ModelTexts& files, const Vocabulary& vocabulary) {
  return ConfigReader(files, vocabulary).read();
}

}  // namespace weft::runtime
