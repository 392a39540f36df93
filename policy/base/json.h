// policy/base/json.h: strict JSON. All files and requests share one reader, so that nothing is silently dropped or
// rounded.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/error.h"

namespace weft::policy {

/// The error that a bad document raises: a UsageError (flags, policies, requests) or a DataError (checkpoints,
/// tokenizers).
enum class Blame : std::uint8_t { usage, data };
[[noreturn]] void refuse(Blame blame, const std::string& message);
/// A UsageError for one field of an object.
class FieldError : public UsageError {
 public:
  FieldError(const std::string& message, std::string field) : UsageError(message), field_(std::move(field)) {}
  const std::string& field() const { return field_; }  ///< its key, cut short if it is long

 private:
  std::string field_;
};

struct JsonLimits {
  int depth = 64;
  bool byte_order_mark = false;  ///< accept one at the start
  bool large_integers = false;   ///< integers that do not fit 64 bits become floating-point numbers
};

/// The value that `text` holds. Refuses invalid UTF-8, NUL, comments, trailing text, duplicate keys (after unescaping),
/// lone surrogates, integers that do not fit 64 bits, non-finite numbers and too much depth. `where` begins the
/// message.
nlohmann::json parse_json(std::string_view text, const std::string& where, Blame blame, const JsonLimits& limits = {});

/// Returns a text piece by piece; an empty piece ends it. A piece stays valid until the next nonempty one.
using TextPieces = std::function<std::string_view()>;
/// The value that the pieces hold, under the same rules, but with every array empty: elements are checked and dropped.
/// So memory grows with the longest string and not with the text.
nlohmann::json skim_json(const TextPieces& pieces, const std::string& where, Blame blame,
                         const JsonLimits& limits = {});

/// The object under `key` of an object, made if there is none. Use it in place of parent[key][...]: if memory is short,
/// nlohmann turns a null into a broken object, which crashes when it is destroyed.
nlohmann::ordered_json& object_at(nlohmann::ordered_json& parent, const std::string& key);
/// The list under `key`, made if there is none; in place of parent[key].push_back(...) for the same reason.
nlohmann::ordered_json& array_at(nlohmann::ordered_json& parent, const std::string& key);

/// One line, with the keys in the value's order. Invalid UTF-8 becomes U+FFFD, so no text makes it throw. Characters
/// that some readers take for the end of a line (U+0085, U+2028, U+2029) are escaped.
std::string to_line(const nlohmann::json& value);
std::string to_line(const nlohmann::ordered_json& value);
/// The same over several indented lines.
std::string to_pretty(const nlohmann::ordered_json& value);
/// The same, but each row of a table (an object of plain values in an array) takes one line.
std::string to_rows(const nlohmann::ordered_json& value);

/// The known word nearest to `word` by edit distance, if it is near enough for `word` to be a typing error.
std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& known);

/// Reads the fields of one object by name and type. Each getter refuses a value of another type or out of range, and
/// names the place, the wanted and the found value. An absent key gives the fallback, if there is one. With
/// Blame::usage the error is a FieldError. Keeps a reference to `object`.
class Fields {
 public:
  Fields(const nlohmann::json& object, std::string where, Blame blame);  ///< refuses anything but an object

  bool has(const std::string& key);                  ///< also marks the key as known
  bool is_null(const std::string& key);              ///< present and null
  const nlohmann::json& at(const std::string& key);  ///< refuses an absent key

  std::string text(const std::string& key, std::optional<std::string> fallback = {});
  bool boolean(const std::string& key, std::optional<bool> fallback = {});
  /// An integer token: 1.0, 1e3 and "1" are refused.
  std::int64_t integer(const std::string& key, std::int64_t low, std::int64_t high,
                       std::optional<std::int64_t> fallback = {});
  double number(const std::string& key, double low, double high, std::optional<double> fallback = {});

  /// Refuses the first key that no getter has read, and names the nearest one that was.
  void refuse_unknown();
  [[noreturn]] void refuse_field(const std::string& key, const std::string& wanted);

 private:
  [[noreturn]] void refuse_key(const std::string& key, const std::string& reason) const;

  const nlohmann::json& object_;
  std::string where_;
  Blame blame_;
  std::set<std::string> known_;
};

std::string describe(const nlohmann::json& value);  ///< the type and, if it is short, the value: for messages

}  // namespace weft::policy
