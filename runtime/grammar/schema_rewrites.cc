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
  return References(schema).rewrite() || sizes;
}

}  // namespace weft::runtime
