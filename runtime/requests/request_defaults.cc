#include "runtime/requests/request_defaults.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "runtime/requests/request_checks.h"

namespace weft::runtime {
namespace {

void require(const char* flag, const std::optional<double>& value, double low, double high) {
  if (!value || (*value >= low && *value <= high)) return;
  throw UsageError(std::string(flag) + " must be a number from " + policy::to_line(nlohmann::json(low)) + " to " +
                   policy::to_line(nlohmann::json(high)) + ", got " + std::to_string(*value));
}

void require(const char* flag, const std::optional<std::int64_t>& value, std::int64_t high) {
  if (!value || (*value >= 0 && *value <= high)) return;
  throw UsageError(std::string(flag) + " must be an integer from 0 to " + std::to_string(high) + ", got " +
                   std::to_string(*value));
}

}  // namespace

void RequestDefaults::check() const {
  require("--temperature", temperature, 0, kMostTemperature);
  require("--top-p", top_p, 0, 1);
  if (top_p && static_cast<float>(*top_p) <= 0)
    throw UsageError("--top-p must be over 0, got " + std::to_string(*top_p));
  require("--min-p", min_p, 0, 1);
  require("--top-k", top_k, INT32_MAX);
  require("--seed", seed, INT64_MAX);
  if (stop.size() > kMostStops)
    throw UsageError("--stop may be given at most " + std::to_string(kMostStops) + " times");
  for (const std::string& each : stop)
    if (each.empty() || each.size() > kLongestStop)
      throw UsageError("--stop must have 1 to " + std::to_string(kLongestStop) + " bytes, got " +
                       std::to_string(each.size()));
}

void RequestDefaults::fill_from(const RequestDefaults& other) {
  const auto fill = [](auto& mine, const auto& theirs) {
    if (!mine) mine = theirs;
  };
  fill(temperature, other.temperature);
  fill(top_p, other.top_p);
  fill(min_p, other.min_p);
  fill(repetition_penalty, other.repetition_penalty);
  fill(top_k, other.top_k);
  fill(seed, other.seed);
  fill(max_tokens, other.max_tokens);
}

std::string RequestDefaults::text() const {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  const auto put = [&](const char* name, const auto& value) {
    if (value) json[name] = *value;
  };
  put("temperature", temperature);
  put("top_p", top_p);
  put("top_k", top_k);
  put("min_p", min_p);
  put("repetition_penalty", repetition_penalty);
  put("seed", seed);
  if (!stop.empty()) json["stop"] = stop;
  if (!system_prompt.empty()) json["system_prompt"] = system_prompt;
  if (chat) json["chat"] = true;
  if (reasoning != Reasoning::whole) json["reasoning"] = reasoning == Reasoning::qwen3 ? "qwen3" : "deepseek_r1";
  return json.empty() ? "" : policy::to_line(json);
}

Reasoning reasoning_from_text(const std::string& name) {
  if (name == "deepseek_r1") return Reasoning::deepseek_r1;
  if (name == "qwen3") return Reasoning::qwen3;
  throw UsageError("--reasoning-parser must be deepseek_r1 or qwen3, got '" + name.substr(0, 40) + "'");
}

RequestDefaults suggested_by(const ModelTexts& files) {
  constexpr const char* kFile = "generation_config.json";
  RequestDefaults all;
  if (!files.has(kFile)) return all;
  const nlohmann::json json = as_meant(policy::parse_json(files.read(kFile, kLargestConfig), files.where(kFile),
                                                          policy::Blame::data, {.large_integers = true}));
  policy::Fields fields(json, files.where(kFile), policy::Blame::data);
  const auto number = [&](const char* key, std::optional<double>& value, double low, double high) {
    if (fields.has(key)) value = fields.number(key, low, high);
  };
  number("temperature", all.temperature, 0, kMostTemperature);
  number("top_p", all.top_p, 0, 1);
  if (all.top_p && static_cast<float>(*all.top_p) <= 0) fields.refuse_field("top_p", "a number over 0, at most 1");
  number("min_p", all.min_p, 0, 1);
  number("repetition_penalty", all.repetition_penalty, kLeastRepetition, kMostRepetition);
  if (fields.has("top_k")) all.top_k = std::max<std::int64_t>(0, fields.integer("top_k", -1, INT32_MAX));
  if (fields.has("max_new_tokens")) all.max_tokens = fields.integer("max_new_tokens", 1, kMostTokens);
  return all;
}

}  // namespace weft::runtime
