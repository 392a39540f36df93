#include "runtime/requests/request_sampling.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>

#include "runtime/base/hash.h"
#include "runtime/grammar/form_fields.h"
#include "runtime/requests/request_checks.h"
#include "runtime/template/text.h"

namespace weft::runtime {
namespace {

using nlohmann::json;
using policy::Fields;

std::optional<std::int32_t> id_of_text(std::string_view text) {
  std::int32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return {};
  return number;
}

std::vector<LogitRules::Bias> logit_bias(Fields& fields, int vocab) {
  const char* const key = "logit_bias";
  const std::string wanted = "an object of token ids from 0 to " + std::to_string(vocab - 1) +
                             ", each once and with a number from -100 to 100";
  const json& object = fields.at(key);
  if (!object.is_object()) fields.refuse_field(key, wanted);
  std::vector<LogitRules::Bias> all;
  for (const auto& [name, value] : object.items()) {
    const auto token = id_of_text(name);
    if (!token || *token < 0 || *token >= vocab || !value.is_number() || value < -100 || value > 100)
      fields.refuse_field(key, wanted);
    if (value != 0) all.push_back({*token, value.get<float>()});
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.token < b.token; });
  const auto same = [](const auto& a, const auto& b) { return a.token == b.token; };
  if (std::adjacent_find(all.begin(), all.end(), same) != all.end()) fields.refuse_field(key, wanted);
  return all;
}

/// As vLLM tokenizes them: each word as it begins a text and, if that gives another first token and as many tokens, as
/// it follows a space.
std::vector<std::vector<std::int32_t>> bad_words(Fields& fields, const RequestRules& rules, const std::string& where) {
  const char* const key = "bad_words";
  const json& list = fields.at(key);
  if (!list.is_array()) fields.refuse_field(key, "a list of strings");
  if (!list.empty() && !rules.tokenizer)
    throw NoTokenizer(where, "'bad_words'", rules.openai.files, "'logit_bias' or 'allowed_token_ids'");
  std::vector<std::vector<std::int32_t>> all;
  for (const json& each : list) {
    if (!each.is_string()) fields.refuse_field(key, "a list of strings");
    const std::string word = jinja::strip(each.get_ref<const std::string&>(), {}, /*left=*/true, /*right=*/false);
    std::vector<std::int32_t> ids = rules.tokenizer->encode(word, false);
    const auto beyond = [&](std::int32_t id) { return id >= rules.model.vocab; };
    if (ids.empty() || std::any_of(ids.begin(), ids.end(), beyond))
      fields.refuse_field(key, "strings that have tokens of the model's vocabulary without the white space in front");
    std::vector<std::int32_t> after_space = rules.tokenizer->encode(" " + word, false);
    const bool other = after_space.size() == ids.size() && after_space.front() != ids.front() &&
                       std::none_of(after_space.begin(), after_space.end(), beyond);
    all.push_back(std::move(ids));
    if (other) all.push_back(std::move(after_space));
  }
  return all;
}

LogitRules logit_rules(Fields& fields, const RequestRules& rules, const std::string& where) {
  LogitRules read;
  const auto number = [&](const char* key, double low, double high, double otherwise) {
    return static_cast<float>(fields.number(key, low, high, otherwise));
  };
  read.repetition_penalty =
      number("repetition_penalty", kLeastRepetition, kMostRepetition, rules.defaults.repetition_penalty.value_or(1));
  read.presence_penalty = number("presence_penalty", -2, 2, 0);
  read.frequency_penalty = number("frequency_penalty", -2, 2, 0);
  if (fields.has("logit_bias")) read.bias = logit_bias(fields, rules.model.vocab);
  if (fields.has("bad_words")) read.bad_words = bad_words(fields, rules, where);
  if (fields.has("allowed_token_ids")) {
    read.allowed = token_ids(fields, "allowed_token_ids", rules.model.vocab);
    std::sort(read.allowed.begin(), read.allowed.end());
    read.allowed.erase(std::unique(read.allowed.begin(), read.allowed.end()), read.allowed.end());
  }
  return read;
}

}  // namespace

void read_sampling(Fields& fields, const SamplingRanges& ranges, const RequestRules& rules, const std::string& where,
                   Request& request) {
  const RequestDefaults& defaults = rules.defaults;
  kernels::SampleParams& sampling = request.sampling;
  sampling.temperature = static_cast<float>(
      fields.number("temperature", 0, ranges.most_temperature, defaults.temperature.value_or(ranges.temperature)));
  sampling.top_p = static_cast<float>(fields.number("top_p", 0, 1, defaults.top_p.value_or(1)));
  if (sampling.top_p <= 0) fields.refuse_field("top_p", "a number over 0, at most 1");
  sampling.top_k = static_cast<std::int32_t>(
      std::max<std::int64_t>(0, fields.integer("top_k", ranges.least_top_k, INT32_MAX, defaults.top_k.value_or(0))));
  sampling.min_p = static_cast<float>(fields.number("min_p", 0, 1, defaults.min_p.value_or(0)));
  const std::int64_t seed = fields.integer("seed", ranges.least_seed, INT64_MAX, defaults.seed.value_or(0));
  sampling.key = mix(static_cast<std::uint64_t>(seed)) ^ mix(hash(request.id));
  request.rules = logit_rules(fields, rules, where);
}

void read_text_options(Fields& fields, const RequestRules& rules, const std::string& where, Request& request) {
  request.stop_strings = fields.has("stop") ? stop_strings(fields, rules, where) : rules.defaults.stop;
  if (fields.has("stop_token_ids") && !fields.at("stop_token_ids").empty())
    request.stop_ids = token_ids(fields, "stop_token_ids", rules.model.vocab);
  request.ignore_eos = fields.boolean("ignore_eos", false);
  request.include_stop = fields.boolean("include_stop_str_in_output", false);
  request.show_special = !fields.boolean("skip_special_tokens", true);
}

void read_form(Fields& fields, std::string_view text, const char* within, const RequestRules& rules,
               const std::string& where, Request& request) {
  std::string field;
  for (const char* const key : kFormFields) {
    if (!fields.has(key)) continue;
    if (!field.empty())
      throw BadRequest(where, "invalid_value", key,
                       "wanted one form of the answer, found '" + field + "' and '" + key + "'");
    field = key;
  }
  if (field.empty()) return;
  const auto line = nlohmann::ordered_json::parse(text.begin(), text.end());
  std::string name = field;
  try {
    const std::optional<AnswerForm> form = form_in(field, (within ? line.at(within) : line).at(field), name);
    if (!form) return;
    if (!rules.tokenizer) throw NoTokenizer(where, "'" + field + "'", rules.openai.files, "'allowed_token_ids'");
    request.grammar = rules.forms->compile(*form);
  } catch (const FormError& refused) {
    throw BadRequest(where, "invalid_value", field, "'" + name + "' " + refused.what());
  }
}

void cut_prompt(Fields& fields, const RequestRules& rules, Request& request) {
  const char* const key = "truncate_prompt_tokens";
  if (!fields.has(key)) return;
  std::int64_t most = fields.integer(key, -1, kMostTokens);
  if (most == 0) fields.refuse_field(key, "an integer over 0, or -1");
  if (most < 0) {  // as many as leave room for the answer
    const char* const length = fields.has("max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
    const std::int64_t answer = fields.integer(length, 0, kMostTokens, rules.default_max_tokens);
    most = std::max<std::int64_t>(1, rules.model.positions - answer);
  }
  std::vector<std::int32_t>& prompt = request.prompt;
  if (std::ssize(prompt) <= most) return;
  const int kept = request.first_added ? 1 : 0;
  prompt.erase(prompt.begin() + kept, prompt.end() - (most - kept));
  if (request.prompt_text) request.prompt_text = rules.tokenizer->decode_shown(std::span(prompt).subspan(kept));
}

}  // namespace weft::runtime
