#include "runtime/grammar/form_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "policy/base/json.h"
#include "runtime/grammar/schema_checks.h"
#include "runtime/grammar/schema_rewrites.h"

namespace weft::runtime {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kGuided = "guided_";
constexpr std::string_view kKinds[]{"json", "choice", "regex", "grammar", "json_object"};
constexpr std::string_view kCompact = "disable_any_whitespace";
// Other switches of vLLM's, which are off unless they are said to be on.
constexpr std::string_view kSwitches[]{"disable_fallback", "disable_additional_properties"};

bool is_one_of(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

[[noreturn]] void refuse(const std::string& wanted, const ordered_json& found) {
  throw FormError("must be " + wanted + ", got " + policy::describe(nlohmann::json(found)));
}

AnswerForm schema_form(ordered_json value) {
  if (!value.is_string()) {
    check_schema(value);
    rewrite_schema(value);
    return {AnswerForm::Kind::schema, policy::to_line(value)};
  }
  const auto& text = value.get_ref<const std::string&>();  // vLLM takes a schema as text too
  if (text.size() > kLongestForm) throw FormError("is longer than " + std::to_string(kLongestForm) + " bytes");
  const std::string where = "text";
  try {
    policy::parse_json(text, where, policy::Blame::usage);
  } catch (const UsageError& error) {
    throw FormError("is no JSON: " + std::string(error.what()).substr(where.size() + 2));
  }
  ordered_json schema = ordered_json::parse(text);
  check_schema(schema);
  return {AnswerForm::Kind::schema, rewrite_schema(schema) ? policy::to_line(schema) : text};
}

AnswerForm choice_form(const ordered_json& value) {
  constexpr const char* kWanted = "a list of strings";
  if (!value.is_array() || value.empty()) refuse(kWanted, value);
  std::vector<std::string> all;
  for (const ordered_json& each : value) {
    if (!each.is_string()) refuse(kWanted, value);
    all.push_back(each);
  }
  return form_of_choices(all);
}

std::optional<AnswerForm> guided(std::string_view kind, const ordered_json& value) {
  if (kind == "json") return schema_form(value);
  if (kind == "choice") return choice_form(value);
  if (kind == "json_object") {
    if (!value.is_boolean()) refuse("true or false", value);
    return value.get<bool>() ? std::optional(AnswerForm{}) : std::nullopt;
  }
  if (!value.is_string() || value.get_ref<const std::string&>().empty()) refuse("a string that is not empty", value);
  return kind == "regex" ? AnswerForm{AnswerForm::Kind::regex, value.get<std::string>()}
                         : form_of_grammar(value.get<std::string>());
}

void refuse_unknown(const ordered_json& object, std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : object.items())
    if (!value.is_null() && std::find(known.begin(), known.end(), key) == known.end())
      throw FormError("has '" + key + "', which is not supported");
}

std::optional<AnswerForm> response_format(const ordered_json& value, std::string& name) {
  const auto type = value.is_object() ? value.find("type") : value.end();
  if (!value.is_object() || type == value.end() ||
      (*type != "text" && *type != "json_object" && *type != "json_schema"))
    refuse(R"(an object with the type "text", "json_object" or "json_schema")", value);
  if (*type != "json_schema") {
    refuse_unknown(value, {"type"});
    return *type == "text" ? std::nullopt : std::optional(AnswerForm{});
  }
  refuse_unknown(value, {"type", "json_schema"});
  const auto given = value.find("json_schema");
  if (given == value.end() || !given->is_object() || !given->contains("schema"))
    throw FormError("must have a 'json_schema' with a 'schema'");
  name += ".json_schema";
  refuse_unknown(*given, {"schema", "name", "strict", "description"});
  name += ".schema";
  return schema_form(given->at("schema"));
}

std::optional<AnswerForm> structured(const ordered_json& value, std::string& name) {
  if (!value.is_object()) refuse("an object", value);
  const std::string whole = name;
  std::string first;
  std::optional<AnswerForm> form;
  bool compact = false;
  for (const auto& [key, each] : value.items()) {
    if (each.is_null() || (each == false && is_one_of(kSwitches, key))) continue;
    if (key == kCompact) {
      name = whole + "." + key;
      if (!each.is_boolean()) refuse("true or false", each);
      compact = each.get<bool>();
      continue;
    }
    if (!is_one_of(kKinds, key)) throw FormError("has '" + key + "', which is not supported");
    name = whole;
    if (!first.empty()) throw FormError("has both '" + first + "' and '" + key + "'; one form may be given");
    first = key;
    name = whole + "." + key;
    form = guided(key, each);
  }
  name = whole;
  if (first.empty()) throw FormError("has no form");
  if (compact && !first.starts_with("json"))
    throw FormError("has '" + std::string(kCompact) + "', which goes with 'json' or 'json_object' alone");
  if (form) form->compact = compact;
  return form;
}

}  // namespace

std::optional<AnswerForm> form_in(const std::string& field, const ordered_json& value, std::string& name) {
  if (field == kFormFields[0]) return response_format(value, name);
  if (field == kFormFields[1]) return structured(value, name);
  return guided(std::string_view(field).substr(kGuided.size()), value);
}

}  // namespace weft::runtime
