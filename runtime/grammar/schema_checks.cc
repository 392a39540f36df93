#include "runtime/grammar/schema_checks.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "policy/base/json.h"
#include "runtime/base/quote.h"
#include "runtime/grammar/form.h"

namespace weft::runtime {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kMostValues = 20'000;
constexpr int kDeepest = 64;

// Keywords that answers would not be held to.
constexpr std::string_view kIgnored[]{"not",
                                      "if",
                                      "then",
                                      "else",
                                      "dependencies",
                                      "contains",
                                      "uniqueItems",
                                      "dependentRequired",
                                      "minContains",
                                      "maxContains",
                                      "dependentSchemas",
                                      "$dynamicRef",
                                      "$recursiveRef",
                                      "additionalItems"};
// Keywords that only tell of the schema, or hold schemas for others. Formats are notes too, but for those that are
// known.
constexpr std::string_view kNotes[]{"title",    "description", "default",     "examples",    "deprecated",
                                    "readOnly", "writeOnly",   "$comment",    "$schema",     "$id",
                                    "$anchor",  "$defs",       "definitions", "$vocabulary", "id"};
constexpr std::string_view kOfSchemas[]{"anyOf", "oneOf", "allOf", "prefixItems"};
constexpr std::string_view kNamedSchemas[]{"properties", "patternProperties", "$defs", "definitions"};
constexpr std::string_view kOneSchema[]{"items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems",
                                        "propertyNames"};
constexpr std::string_view kNeedType[]{"required",      "patternProperties", "propertyNames",    "minProperties",
                                       "maxProperties", "minItems",          "maxItems",         "minLength",
                                       "maxLength",     "pattern",           "format",           "minimum",
                                       "maximum",       "exclusiveMinimum",  "exclusiveMaximum", "multipleOf"};
constexpr std::string_view kSizes[]{"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"};
constexpr std::string_view kValues[]{"const", "enum", "default", "examples"};  // hold no schemas
// Formats that the compiler writes without JSON's escapes.
constexpr std::string_view kRawFormats[]{"json-pointer", "relative-json-pointer"};
// The first of these that a schema has decides alone.
constexpr std::string_view kAlone[]{"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};

template <std::size_t N> bool is_in(const std::string_view (&list)[N], std::string_view key) {
  return std::find(std::begin(list), std::end(list), key) != std::end(list);
}

bool is_of_type(const ordered_json& value, std::string_view type) {
  if (type == "integer")
    return value.is_number_integer() ||
           (value.is_number_float() && value.get<double>() == static_cast<double>(value.get<std::int64_t>()));
  if (type == "number") return value.is_number();
  return type == value.type_name();
}

bool is_of_types(const ordered_json& value, const ordered_json& types) {
  if (types.is_string()) return is_of_type(value, types.get_ref<const std::string&>());
  if (!types.is_array()) return true;  // the compiler refuses it
  return std::any_of(types.begin(), types.end(), [&](const ordered_json& type) { return is_of_types(value, type); });
}

/// Whether 'type' is, or has, this type.
bool may_be(const ordered_json& types, std::string_view type) {
  return types == type || (types.is_array() && std::find(types.begin(), types.end(), type) != types.end());
}

class Walk {
 public:
  /// `is_text`: the schema is of names, whose type need not be said.
  void schema(const ordered_json& at, const std::string& path, int depth, bool is_text = false) {
    count(path, depth);
    if (!at.is_object()) return;
    for (const auto& [key, value] : at.items()) {
      const std::string below = path + "/" + key;
      if (is_in(kIgnored, key) && value != false)
        refuse(path, "has " + in_quotes(key) + ", which answers cannot be held to");
      if (key == "items" && value.is_array()) refuse(path, "has a list of 'items'; write 'prefixItems'");
      if (is_in(kOfSchemas, key) && value.is_array()) {
        for (std::size_t i = 0; i < value.size(); ++i) schema(value[i], below + "/" + std::to_string(i), depth + 1);
      } else if (is_in(kNamedSchemas, key) && value.is_object()) {
        for (const auto& [name, one] : value.items()) schema(one, below + "/" + name, depth + 1);
      } else if (is_in(kOneSchema, key)) {
        schema(value, below, depth + 1, key == "propertyNames");
      } else {
        any(value, below, depth + 1);
      }
    }
    alone(at, path);
    types(at, path);
    if (!is_text && !decides(at)) typed(at, path);
    if (!decides(at) && (!at.contains("type") || may_be(at["type"], "object"))) names(at, path);
    if (at.contains("type") && at["type"].is_array() && at["type"].empty()) refuse(path, "has an empty 'type'");
    if (at.contains("format") && at["format"].is_string() && is_in(kRawFormats, at["format"].get<std::string>()))
      refuse(path,
             "has the 'format' " + in_quotes(at["format"].get<std::string>()) + ", which answers cannot be held to");
    if (at.contains("pattern") && at.contains("format")) refuse(path, "has both 'pattern' and 'format'; keep one");
  }

 private:
  [[noreturn]] static void refuse(const std::string& path, const std::string& why) {
    throw FormError(why + (path.empty() ? "" : " at " + in_quotes(path)));
  }

  void count(const std::string& path, int depth) {
    if (++values_ > kMostValues) throw FormError("has more than " + std::to_string(kMostValues) + " values");
    if (depth > kDeepest) refuse(path.substr(0, 60), "is nested more than " + std::to_string(kDeepest) + " deep");
  }

  void any(const ordered_json& value, const std::string& path, int depth) {
    count(path, depth);
    if (value.is_structured())
      for (const ordered_json& each : value) any(each, path, depth + 1);
  }

  static bool decides(const ordered_json& at) {
    return std::any_of(std::begin(kAlone), std::end(kAlone), [&](std::string_view key) { return at.contains(key); });
  }

  /// Refuses keywords next to one of which the compiler takes no notice of them.
  static void alone(const ordered_json& at, const std::string& path) {
    const auto* const first =
        std::find_if(std::begin(kAlone), std::end(kAlone), [&](std::string_view key) { return at.contains(key); });
    if (first == std::end(kAlone)) return;
    const bool values = *first == "const" || *first == "enum";
    for (const auto& [key, value] : at.items()) {
      if (key == *first || is_in(kNotes, key)) continue;
      if (!values || key != "type")
        refuse(path, "has " + in_quotes(key) + " next to " + in_quotes(*first) + ", which answers cannot be held to");
      const ordered_json given = *first == "const" ? ordered_json::array({at["const"]}) : at["enum"];
      if (given.is_array() && !std::all_of(given.begin(), given.end(),
                                           [&types = value](const auto& each) { return is_of_types(each, types); }))
        refuse(path, "has a value of another type than 'type' in " + in_quotes(*first));
    }
  }

  /// Refuses keywords for a type that is not said.
  static void typed(const ordered_json& at, const std::string& path) {
    constexpr std::string_view kSayType[]{"type",  "properties",  "additionalProperties", "unevaluatedProperties",
                                          "items", "prefixItems", "unevaluatedItems"};
    if (std::any_of(std::begin(kSayType), std::end(kSayType), [&](std::string_view key) { return at.contains(key); }))
      return;
    for (const auto& [key, value] : at.items())
      if (is_in(kNeedType, key)) refuse(path, "has " + in_quotes(key) + " without 'type'");
  }

  /// Refuses what the compiler would take for no limit, or refuse in words of its own code.
  static void types(const ordered_json& at, const std::string& path) {
    for (const std::string_view key : kSizes)
      if (at.contains(key) && at[key].is_number() && at[key] < 0)
        refuse(path, "has a negative " + in_quotes(key) + ",");
    if (at.contains("pattern") && !at["pattern"].is_string()) refuse(path, "has a 'pattern' that is no string,");
    if (!at.contains("required") || !at["required"].is_array()) return;
    for (const ordered_json& name : at["required"])
      if (!name.is_string()) refuse(path, "has a name in 'required' that is no string,");
  }

  /// Refuses keywords about names of properties that the compiler follows only for some of the names.
  static void names(const ordered_json& at, const std::string& path) {
    const auto has = [&](const char* key) { return at.contains(key) && !at[key].empty(); };
    const auto opens = [&](const char* key) { return at.contains(key) && at[key] != false; };
    std::size_t required = 0;
    if (at.contains("required") && at["required"].is_array())
      for (const ordered_json& name : at["required"]) {
        ++required;
        if (name.is_string() && !(has("properties") && at["properties"].contains(name.get_ref<const std::string&>())))
          refuse(path,
                 "requires " + in_quotes(name.get_ref<const std::string&>()) + ", which its 'properties' do not have,");
      }
    const bool patterns = has("patternProperties"), named = at.contains("propertyNames");
    if (has("properties") && (patterns || named))
      refuse(path, std::string("has '") + (patterns ? "patternProperties" : "propertyNames") +
                       "' next to 'properties', which answers cannot be held to");
    if (patterns && named)
      refuse(path, "has 'propertyNames' next to 'patternProperties', which answers cannot be held to");
    if (patterns && at["patternProperties"].size() > 1)
      refuse(path, "has several 'patternProperties', which a name may match at once,");
    if (named && at.contains("additionalProperties") && at["additionalProperties"] == false)
      refuse(path, "has 'propertyNames' where 'additionalProperties' allows no names");
    // A name that is not said may come twice in an answer, and counts once.
    const bool open = opens("additionalProperties") || opens("unevaluatedProperties") || patterns || named;
    if (open && at.contains("minProperties") && at["minProperties"].is_number() &&
        at["minProperties"].get<double>() > static_cast<double>(required + 1))
      refuse(path, "has 'minProperties' over " + std::to_string(required + 1) +
                       " where names are free, which answers cannot be held to");
  }

  std::size_t values_ = 0;
};

void collect_patterns(const ordered_json& at, std::vector<std::string>& patterns) {
  if (at.is_array())
    for (const ordered_json& each : at) collect_patterns(each, patterns);
  if (!at.is_object()) return;
  for (const auto& [key, value] : at.items()) {
    if (key == "pattern" && value.is_string()) patterns.push_back(value);
    if (key == "patternProperties" && value.is_object())
      for (const auto& [pattern, schema] : value.items()) patterns.push_back(pattern);
    if (!is_in(kValues, key)) collect_patterns(value, patterns);
  }
}

}  // namespace

bool is_size_keyword(std::string_view key) { return is_in(kSizes, key); }

std::vector<std::string> schema_patterns(const ordered_json& schema) {
  std::vector<std::string> patterns;
  collect_patterns(schema, patterns);
  return patterns;
}

void check_schema(const ordered_json& schema) {
  if (!schema.is_object() && !schema.is_boolean())
    throw FormError("must be an object, got " + policy::describe(nlohmann::json(schema)));
  Walk().schema(schema, "", 0);
}

}  // namespace weft::runtime
