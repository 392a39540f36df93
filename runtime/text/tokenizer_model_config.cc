// runtime/text/tokenizer_model_config.cc: the class of a tokenizer.model and its added tokens. The order of precedence
// is that of TokenizersBackend in transformers 5: a later mention of a token decides its flags, unless
// added_tokens_decoder has it.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "runtime/text/tokenizer_config.h"

namespace weft::runtime {

using nlohmann::json;
using policy::Fields;

namespace {

/// A token written as a text, which is then special, or as an object.
AddedToken token_from(const json& value, bool special, const std::string& where) {
  AddedToken token;
  if (value.is_string()) {
    token.text = value.get<std::string>();
    token.special = true;
  } else {
    Fields fields(value, where, policy::Blame::data);
    token.text = fields.text("content");
    token.strip_left = fields.boolean("lstrip", false);
    token.strip_right = fields.boolean("rstrip", false);
    token.single_word = fields.boolean("single_word", false);
    token.special = special || fields.boolean("special", false);
    token.normalized = fields.boolean("normalized", !token.special);
  }
  if (token.text.size() > kLongestAdded)
    throw DataError(where + ": an added token has " + std::to_string(token.text.size()) + " bytes, at most " +
                    std::to_string(kLongestAdded));
  return token;
}

std::string text_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// The text of a role that no file names. `model` is looked at with SentenceClass::any alone.
std::string default_of(SentenceClass kind, const PieceModel& model, const std::string& key) {
  if (kind == SentenceClass::any) {
    if (key == "bos_token" && model.begin_id >= 0) return model.begin;
    if (key == "eos_token" && model.end_id >= 0) return model.end;
    if (key == "unk_token" && model.unknown_id >= 0) return model.unknown;
    return {};
  }
  const bool gemma = kind == SentenceClass::gemma;
  if (key == "bos_token") return gemma ? "<bos>" : "<s>";
  if (key == "eos_token") return gemma ? "<eos>" : "</s>";
  if (key == "unk_token") return "<unk>";
  if (key == "pad_token" && gemma) return "<pad>";
  if (key == "mask_token" && gemma) return "<mask>";
  return {};
}

class TokenReader {
 public:
  TokenReader(const ModelTexts& files, SentenceClass kind, const PieceModel& model,
              const std::vector<std::string>& names)
      : files_(files), kind_(kind), model_(model), names_(names), config_(read_config_object(files, kTokenizerConfig)) {
    has_decoder_ = config_.contains("added_tokens_decoder");
    if (!has_decoder_) map_ = read_config_object(files, kSpecialTokens);
  }

  AddedTokenTable read() {
    read_extra();
    read_roles();
    read_listed();
    for (const auto& [id, token] : listed_) append(token);
    for (AddedToken& token : roles_) {
      const auto same = std::find_if(listed_.begin(), listed_.end(),
                                     [&](const auto& entry) { return entry.second.text == token.text; });
      if (same == listed_.end()) append(token);
    }
    for (const AddedToken& token : extra_)
      if (std::none_of(listed_.begin(), listed_.end(),
                       [&](const auto& entry) { return entry.second.text == token.text; }))
        append(token);
    return finish();
  }

 private:
  std::string place(const char* file, const std::string& key) const { return files_.where(file) + ": '" + key + "'"; }

  /// The value of a role and the file that has it; null if no file names the key.
  std::pair<const json*, const char*> role(const std::string& key) const {
    if (const auto found = map_.find(key); found != map_.end()) return {&*found, kSpecialTokens};
    if (const auto found = config_.find(key); found != config_.end()) return {&*found, kTokenizerConfig};
    return {nullptr, kTokenizerConfig};
  }

  void add_role(const AddedToken& token) {
    if (token.text.empty()) return;
    roles_.push_back(token);
    special_.insert(token.text);
  }

  void read_roles() {
    for (const char* key : kTokenRoles) {
      const auto [value, file] = role(key);
      if (!value) add_role({.text = default_of(kind_, model_, key), .special = true});
      else if (!value->is_null()) {
        add_role(token_from(*value, file == kSpecialTokens, place(file, key)));
        if (value->is_string() || file == kSpecialTokens)
          listed_special_.insert(roles_.empty() ? "" : roles_.back().text);
        if (key == kTokenRoles[0] && !roles_.empty()) begin_ = roles_.back().text;
      }
      if (!value && key == kTokenRoles[0]) begin_ = default_of(kind_, model_, key);
    }
    for (const auto& item : config_.items())
      if (!is_role(item.key()) && item.key().ends_with("_token") &&
          (item.value().is_string() || item.value().is_object()))
        add_role(token_from(item.value(), false, place(kTokenizerConfig, item.key())));
  }

  /// Reads extra_special_tokens, or additional_special_tokens, its older name. Where it is missing the model's control
  /// pieces count, and those that users defined.
  void read_extra() {
    const auto filled = [this](const char* key) { return config_.contains(key) && !config_[key].empty(); };
    const char* key = "extra_special_tokens";
    if (!filled(key) && config_.contains("additional_special_tokens")) key = "additional_special_tokens";
    bool given = config_.contains(key);
    if (given) {
      const json& list = config_[key];
      if (!list.is_null() && !list.is_structured())
        throw DataError(place(kTokenizerConfig, key) + " must be a list of tokens, got " + policy::describe(list));
      for (const auto& item : list.items()) {
        const AddedToken token = token_from(item.value(), false, place(kTokenizerConfig, key));
        if (list.is_object()) add_role(token);
        else extra_.push_back(token);
        listed_special_.insert(token.text);
      }
      given = !list.is_object();
    }
    if (given) return;
    for (std::size_t id = 0; id < names_.size(); ++id) {
      const PieceModel::Type type = model_.pieces[id].type;
      if (type == PieceModel::Type::control || (type == PieceModel::Type::user_defined && kind_ != SentenceClass::any))
        extra_.push_back({.text = model_.pieces[id].text, .special = type == PieceModel::Type::control});
    }
  }

  /// Reads the tokens that have ids of their own.
  void read_listed() {
    const json object = has_decoder_ ? config_["added_tokens_decoder"] : read_config_object(files_, kAddedTokens);
    if (!object.is_object())
      throw DataError(place(kTokenizerConfig, "added_tokens_decoder") + ": must be an object, got " +
                      policy::describe(object));
    for (const auto& item : object.items()) {
      const std::string where = place(has_decoder_ ? kTokenizerConfig : kAddedTokens, item.key());
      const json& value = item.value();
      std::int64_t id = -1;
      AddedToken token;
      if (has_decoder_) {
        if (item.key().empty() || item.key().size() > 7 ||
            item.key().find_first_not_of("0123456789") != std::string::npos)
          throw DataError(where + ": the key must be a token id");
        id = std::stoll(item.key());
        token = token_from(value, false, where);
        if (kind_ == SentenceClass::any && model_.dummy_prefix) token.normalized = false;
      } else {
        if (!value.is_number_integer() || value < 0 || value >= 10'000'000)
          throw DataError(where + " must be a token id, got " + policy::describe(value));
        id = value.get<std::int64_t>();
        token = token_from(item.key(), false, where);
        token.special = listed_special_.contains(token.text);
        token.normalized = !token.special && !(kind_ == SentenceClass::any && model_.dummy_prefix);
      }
      if (token.text.empty()) continue;
      if (!listed_.emplace(id, std::move(token)).second) throw DataError(where + ": the id appears twice");
    }
  }

  void append(AddedToken token) {
    token.special = token.special || special_.contains(token.text);
    const auto [known, is_new] = places_.try_emplace(token.text, tokens_.size());
    if (is_new) tokens_.push_back(std::move(token));
    else tokens_[known->second] = std::move(token);
  }

  AddedTokenTable finish() {
    std::unordered_map<std::string_view, std::int32_t> ids;
    for (std::size_t id = 0; id < names_.size(); ++id) ids.emplace(names_[id], static_cast<std::int32_t>(id));
    auto next = static_cast<std::int32_t>(names_.size());
    AddedTokenTable added;
    for (AddedToken& token : tokens_) {
      const auto known = ids.find(token.text);
      token.id = known != ids.end() ? known->second : next++;
      added.tokens.push_back(token);
    }
    for (const auto& [id, token] : listed_) {
      const std::int32_t own = tokens_[places_.at(token.text)].id;
      if (own != id)
        throw DataError(
            place(has_decoder_ ? kTokenizerConfig : kAddedTokens, has_decoder_ ? "added_tokens_decoder" : token.text) +
            ": the token has id " + std::to_string(id) + ", but with tokenizer.model it gets " + std::to_string(own));
    }
    Fields fields(config_, files_.where(kTokenizerConfig), policy::Blame::data);
    if (fields.has("add_bos_token") && !fields.is_null("add_bos_token") && fields.boolean("add_bos_token"))
      if (const auto begin = places_.find(begin_); begin != places_.end()) added.first = tokens_[begin->second].id;
    return added;
  }

  const ModelTexts& files_;
  const SentenceClass kind_;
  const PieceModel& model_;
  const std::vector<std::string>& names_;
  const json config_;
  json map_ = json::object();
  bool has_decoder_ = false;
  std::map<std::int64_t, AddedToken> listed_;
  std::vector<AddedToken> roles_, extra_, tokens_;
  std::set<std::string> special_;         // texts of tokens that have a role
  std::set<std::string> listed_special_;  // texts that make a token of added_tokens.json special
  std::string begin_;
  std::unordered_map<std::string, std::size_t> places_;  // in tokens_
};

}  // namespace

SentenceClass sentence_class(const ModelTexts& files) {
  const json model = read_config_object(files, "config.json"), config = read_config_object(files, kTokenizerConfig);
  const std::string type = text_of(model, "model_type");
  std::string name = text_of(config, "tokenizer_class");
  const char* const file = name.empty() ? "config.json" : kTokenizerConfig;
  if (name.empty()) name = text_of(model, "tokenizer_class");
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  // Of these, transformers takes the model's own rules whatever the files say.
  static const std::set<std::string> kAny{"mistral",   "mixtral", "ministral", "ministral3", "mistral3", "phi3",
                                          "internlm2", "olmo2",   "olmo3",     "granite",    "glm",      "glm4"};
  if (kAny.contains(type)) return SentenceClass::any;
  if (name.empty() && type.starts_with("gemma")) name = "GemmaTokenizer";
  if (name == "LlamaTokenizer") return SentenceClass::llama;
  if (name == "GemmaTokenizer") return SentenceClass::gemma;
  if (name.empty() || name == "TokenizersBackend" || name == "PreTrainedTokenizer") return SentenceClass::any;
  throw DataError(
      files.where(file) + ": 'tokenizer_class': the tokenizer " + name.substr(0, 60) +
      " is not read from tokenizer.model, only LlamaTokenizer, GemmaTokenizer and TokenizersBackend are; put "
      "the model's tokenizer.json next to it");
}

std::map<std::int64_t, std::string> piece_names(const ModelTexts& files) {
  std::map<std::int64_t, std::string> names;
  const json config = read_config_object(files, kTokenizerConfig);
  if (!config.contains("added_tokens_decoder")) {
    const json added = read_config_object(files, kAddedTokens);
    for (const auto& item : added.items())
      if (item.value().is_number_integer()) names.emplace(item.value().get<std::int64_t>(), item.key());
    return names;
  }
  for (const auto& item : config["added_tokens_decoder"].items())
    if (!item.key().empty() && item.key().size() <= 7 &&
        item.key().find_first_not_of("0123456789") == std::string::npos && item.value().is_object())
      names.emplace(std::stoll(item.key()), text_of(item.value(), "content"));
  return names;
}

std::map<std::string, std::string> default_tokens(const ModelTexts& files) {
  constexpr const char* kModel = "tokenizer.model";
  const json config = read_config_object(files, kTokenizerConfig);
  const json map = config.contains("added_tokens_decoder") ? json::object() : read_config_object(files, kSpecialTokens);
  const SentenceClass kind = sentence_class(files);
  PieceModel model;
  if (kind == SentenceClass::any) model = read_piece_model(files.read(kModel, kLargestTokenizer), files.where(kModel));
  std::map<std::string, std::string> tokens;
  for (const char* key : kTokenRoles)
    if (!config.contains(key) && !map.contains(key))
      if (const std::string text = default_of(kind, model, key); !text.empty()) tokens.emplace(key, text);
  return tokens;
}

std::optional<std::string> config_token(const ModelTexts& files, const char* role) {
  const json config = read_config_object(files, kTokenizerConfig);
  const json map = config.contains("added_tokens_decoder") ? json::object() : read_config_object(files, kSpecialTokens);
  const json value = map.contains(role) ? map[role] : config.value(role, json());
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object()) return text_of(value, "content");
  return {};
}

AddedTokenTable read_sentence_tokens(const ModelTexts& files, SentenceClass kind, const PieceModel& model,
                                     const std::vector<std::string>& names) {
  return TokenReader(files, kind, model, names).read();
}

}  // namespace weft::runtime
