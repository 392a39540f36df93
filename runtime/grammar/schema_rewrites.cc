#include "runtime/grammar/schema_rewrites.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "policy/base/json.h"
#include "runtime/grammar/schema_checks.h"

namespace weft::runtime {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kMostCopies = 32;  // of parts of a schema; what more references refer to is not found

bool make_sizes_whole(ordered_json& schema) {
  constexpr double largest = 1e15;  // doubles hold whole numbers beyond it
  bool any = false;
  for (const auto& [key, value] : schema.items()) {
    if (value.is_structured()) {
      any |= make_sizes_whole(value);
    } else if (value.is_number_float() && is_size_keyword(key)) {
      const double size = value.get<double>();
      if (!(size >= 0 && size <= largest) || size != std::floor(size)) continue;
      value = static_cast<std::int64_t>(size);
      any = true;
    }
  }
  return any;
}

/// "a%41" as "aA".
std::string without_percents(std::string_view text) {
  std::string decoded;
  for (std::size_t at = 0; at < text.size(); ++at) {
    unsigned char byte = 0;
    const char* const digits = text.data() + at + 1;
    if (text[at] == '%' && at + 2 < text.size() && std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      decoded += static_cast<char>(byte);
      at += 2;
    } else {
      decoded += text[at];
    }
  }
  return decoded;
}

/// The pattern of a format whose pattern in xgrammar takes what is no value of it: 30 February, the second 60, 010 in
/// an address, labels of more than 63 letters; "" for other formats. A host has up to ten labels of 24 letters or four
/// of 62, for all of it may have 253.
std::string pattern_of(std::string_view format) {
  const auto labels = [](const std::string& inner, const std::string& more) {
    const std::string label = "[a-z0-9]([a-z0-9-]{0," + inner + "}[a-z0-9])?";
    return label + "(\\." + label + "){0," + more + "}";
  };
  const std::string leap_year = R"((\d\d(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00))";
  const std::string year = R"((\d{3}[1-9]|\d\d[1-9]\d|\d[1-9]\d\d|[1-9]\d{3}))";
  const std::string day =
      R"(((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8])))";
  const std::string date = "(" + year + "-" + day + "|" + leap_year + "-02-29)";
  const std::string time = R"(([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d))";
  const std::string byte = R"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))";
  if (format == "date") return "^" + date + "$";
  if (format == "time") return "^" + time + "$";
  if (format == "date-time") return "^" + date + "T" + time + "$";
  if (format == "ipv4") return "^(" + byte + "\\.){3}" + byte + "$";
  if (format == "hostname") return "^(" + labels("22", "9") + "|" + labels("60", "3") + ")$";
  return "";
}

/// Puts patterns in the place of formats, where a schema is of strings.
bool give_patterns(ordered_json& schema) {
  bool any = false;
  for (const auto& [key, value] : schema.items())
    if (value.is_structured() && key != "const" && key != "enum" && key != "default" && key != "examples")
      any |= give_patterns(value);
  if (!schema.is_object() || schema.value("type", ordered_json()) != "string" || schema.contains("minLength") ||
      schema.contains("maxLength"))
    return any;
  const auto format = schema.find("format");
  if (format == schema.end() || !format->is_string()) return any;
  const std::string pattern = pattern_of(format->get_ref<const std::string&>());
  if (pattern.empty()) return any;
  schema.erase(format);
  schema["pattern"] = pattern;
  return true;
}

class References {
 public:
  explicit References(ordered_json& root) : root_(root) {}

  /// Rewrites all, those of copies too.
  bool rewrite() {
    while (rewrite_in(root_)) {
      for (auto& [name, schema] : copies_) policy::object_at(root_, "$defs")[name] = std::move(schema);
      copies_.clear();
    }
    return !names_.empty();
  }

 private:
  bool rewrite_in(ordered_json& at) {
    bool any = false;
    for (const auto& [key, value] : at.items()) {
      if (value.is_structured()) {
        any |= rewrite_in(value);
        continue;
      }
      if (key != "$ref" || !value.is_string()) continue;
      const auto& reference = value.get_ref<const std::string&>();
      if (!reference.starts_with("#/") || reference.find_first_of("~%") == std::string::npos) continue;
      if (const std::string name = name_of(without_percents(std::string_view(reference).substr(1))); !name.empty()) {
        value = "#/$defs/" + name;
        any = true;
      }
    }
    return any;
  }

  /// The name of the copy of what a pointer points to, or "".
  std::string name_of(const std::string& pointer) {
    if (const auto known = names_.find(pointer); known != names_.end()) return known->second;
    if (names_.size() == kMostCopies) return "";
    try {
      const ordered_json& target = root_.at(ordered_json::json_pointer(pointer));
      const std::string name = "weft." + std::to_string(names_.size());
      copies_.emplace(name, target);
      return names_.emplace(pointer, name).first->second;
    } catch (const ordered_json::exception&) {
      return "";
    }
  }

  ordered_json& root_;
  std::map<std::string, std::string> names_;    // by pointer
  std::map<std::string, ordered_json> copies_;  // that are not in $defs yet
};

}  // namespace

bool rewrite_schema(ordered_json& schema) {
  const bool sizes = make_sizes_whole(schema);
  const bool references = References(schema).rewrite();
  return give_patterns(schema) || references || sizes;
}

}  // namespace weft::runtime
