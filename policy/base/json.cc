// policy/base/json.cc: strict JSON over nlohmann's lexer, and the reader of an object's fields.
#include "policy/base/json.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

namespace weft::policy {

using nlohmann::json;

namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::size_t kShort = 40;  // most bytes of a file's text in a message

/// `text` between single quotes, on one line and short enough for a message.
std::string in_quotes(std::string_view text) {
  std::string shown = json(std::string(text.substr(0, kShort))).dump(-1, ' ', false, json::error_handler_t::replace);
  shown = "'" + shown.substr(1, shown.size() - 2) + "'";
  return text.size() > kShort ? shown + "..." : shown;
}

/// The text, one piece at a time, and the position of the lexer, which nlohmann's callbacks do not report.
class Text {
 public:
  /// Calls `on_nul`, which throws, when the byte before the present one is NUL, because nlohmann would take it for the
  /// end.
  Text(const TextPieces& more, std::function<void()> on_nul) : more_(more), on_nul_(std::move(on_nul)) {}

  void next_piece() {
    const std::string_view next = more_();
    if (next.empty()) return;  // the last piece stays, for place()
    blank_ = blank_ && next.find_first_not_of(" \t\r\n") == std::string_view::npos;
    if (!piece_.empty()) {
      last_ = after(piece_.substr(0, piece_.size() - 1));
      begin_ += piece_.size();
      start_ = after(piece_);
    }
    piece_ = next;
    at_ = 0;
    if (const auto nul = piece_.find('\0'); nul != std::string_view::npos) {
      at_ = nul + 1;
      on_nul_();
    }
  }
  bool at_end() const { return at_ == piece_.size(); }
  bool blank() const { return blank_; }  ///< whether the text so far is white space
  const char& byte() const { return piece_[at_]; }
  void advance() {
    if (++at_ == piece_.size()) next_piece();
  }
  void go_to(std::size_t position) { at_ = std::min(position - std::min(position, begin_), piece_.size()); }
  std::string_view piece() const { return piece_; }

  /// The place of the last byte read: "byte 7", and its line if the text has several.
  std::string place() const {
    const Place last = at_ > 0 ? after(piece_.substr(0, at_ - 1)) : last_;
    const bool several =
        last.lines > 0 || piece_.substr(0, piece_.find_last_not_of("\r\n") + 1).find('\n') != std::string_view::npos;
    return (several ? "line " + std::to_string(last.lines + 1) + ", " : "") + "byte " + std::to_string(last.column + 1);
  }

 private:
  struct Place {
    std::size_t lines = 0, column = 0;  // newlines, and bytes since the last of them
  };
  /// The place after a part of the piece, from its start.
  Place after(std::string_view part) const {
    const auto newline = part.rfind('\n');
    return {start_.lines + static_cast<std::size_t>(std::count(part.begin(), part.end(), '\n')),
            newline == std::string_view::npos ? start_.column + part.size() : part.size() - newline - 1};
  }

  const TextPieces& more_;
  const std::function<void()> on_nul_;
  std::string_view piece_;
  bool blank_ = true;
  std::size_t at_ = 0, begin_ = 0;  // position in the piece; bytes before the piece
  Place start_, last_;              // start of the piece; last byte before it
};

/// The iterator with which nlohmann reads the text; without a text, the end.
class Cursor {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  explicit Cursor(Text* text = nullptr) : text_(text) {}
  reference operator*() const { return text_->byte(); }
  Cursor& operator++() {
    text_->advance();
    return *this;
  }
  Cursor operator++(int) {
    const Cursor before = *this;
    ++*this;
    return before;
  }
  bool operator==(const Cursor& other) const { return at_end() == other.at_end(); }
  bool operator!=(const Cursor& other) const { return at_end() != other.at_end(); }

 private:
  bool at_end() const { return !text_ || text_->at_end(); }
  Text* text_;
};

/// Builds the value and refuses what nlohmann would let through. The names of the callbacks are nlohmann's.
class Builder {
 public:
  Builder(const TextPieces& pieces, const std::string& where, Blame blame, const JsonLimits& limits, bool skim)
      : text_(pieces, [this] { fail("not valid JSON: NUL byte"); }), where_(where), blame_(blame), limits_(limits),
        skim_(skim) {}

  json build() {
    text_.next_piece();
    // nlohmann would skip a byte order mark.
    if (text_.piece().starts_with(kByteOrderMark)) {
      if (!limits_.byte_order_mark) fail("not valid JSON: it starts with a byte order mark");
      text_.go_to(kByteOrderMark.size());
    }
    json::sax_parse(Cursor(&text_), Cursor(), this);
    return std::move(root_);
  }

  bool null() { return put(nullptr); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(std::int64_t value) { return put(value); }
  bool number_unsigned(std::uint64_t value) { return put(value); }
  bool number_float(double value, const std::string& token) {
    if (!limits_.large_integers && token.find_first_of(".eE") == std::string::npos)
      fail("an integer does not fit 64 bits");
    if (!std::isfinite(value)) fail("a number is too large");
    return put(value);
  }
  bool string(std::string& value) { return put(std::move(value)); }
  bool binary(json::binary_t&) { return false; }  // no JSON text reaches this

  bool start_object(std::size_t) { return open(json::object()); }
  bool start_array(std::size_t) { return open(json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    auto& members = open_.back()->get_ref<json::object_t&>();
    const auto [place, is_new] = members.emplace(name, nullptr);
    if (!is_new) fail("the key " + in_quotes(name) + " appears twice");
    member_ = &place->second;
    return true;
  }

  /// nlohmann's message without "; last read: ...", which would show the file.
  bool parse_error(std::size_t position, const std::string&, const json::exception& error) {
    if (text_.blank()) refuse(blame_, where_ + ": is empty, wanted JSON");
    text_.go_to(position);
    if (error.id == 406) fail("a number is too large");
    std::string reason = error.what();
    const auto begin = reason.find(" - ");
    if (begin != std::string::npos) reason = reason.substr(begin + 3);
    fail("not valid JSON: " + reason.substr(0, reason.find("; last read")));
  }

 private:
  template <class Value> bool put(Value&& value) {
    *place() = std::forward<Value>(value);
    return true;
  }

  bool open(json&& container) {
    if (open_.size() >= static_cast<std::size_t>(limits_.depth))
      fail("nested deeper than " + std::to_string(limits_.depth) + " levels");
    json* at = place();
    *at = std::move(container);
    open_.push_back(at);
    return true;
  }

  bool close() {
    if (skim_ && open_.back()->is_array()) open_.back()->clear();
    open_.pop_back();
    return true;
  }

  /// The place for the next value. An open container does not move, because only the innermost one grows.
  json* place() {
    if (open_.empty()) return &root_;
    if (open_.back()->is_object()) return member_;
    auto& elements = open_.back()->get_ref<json::array_t&>();
    if (skim_) elements.clear();
    return &elements.emplace_back();
  }

  [[noreturn]] void fail(const std::string& reason) const {
    refuse(blame_, where_ + ": " + text_.place() + ": " + reason);
  }

  Text text_;
  const std::string& where_;
  Blame blame_;
  JsonLimits limits_;
  bool skim_;  // elements of arrays are not kept
  json root_;
  std::vector<json*> open_;
  json* member_ = nullptr;
};

/// Edits between two words: insert, delete, replace, or swap two neighbours (optimal string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before.swap(above);
    above.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::string number_text(double value) {
  return json(value).dump();  // the shortest text that reads back as the value
}

/// JSON with U+0085, U+2028 and U+2029 escaped: they end a line for Python's str.splitlines() and for others.
std::string without_line_ends(std::string json) {
  for (const auto& [bytes, escape] :
       {std::pair{"\xC2\x85", "\\u0085"}, {"\xE2\x80\xA8", "\\u2028"}, {"\xE2\x80\xA9", "\\u2029"}})
    for (std::size_t at = json.find(bytes); at != std::string::npos; at = json.find(bytes, at))
      json.replace(at, std::strlen(bytes), escape);
  return json;
}

/// `line` begins each line.
std::string indented(const nlohmann::ordered_json& value, const std::string& line, bool in_array) {
  const bool plain = std::none_of(value.begin(), value.end(), [](const auto& item) { return item.is_structured(); });
  if (!value.is_structured() || value.empty() || (in_array && plain)) return to_line(value);
  std::string text;
  for (const auto& item : value.items()) {
    text += (text.empty() ? "" : ",") + line + "  ";
    if (value.is_object()) text += to_line(nlohmann::ordered_json(item.key())) + ": ";
    text += indented(item.value(), line + "  ", value.is_array());
  }
  return value.is_object() ? "{" + text + line + "}" : "[" + text + line + "]";
}

}  // namespace

void refuse(Blame blame, const std::string& message) {
  if (blame == Blame::usage) throw UsageError(message);
  throw DataError(message);
}

json parse_json(std::string_view text, const std::string& where, Blame blame, const JsonLimits& limits) {
  std::string_view rest = text;
  if (limits.byte_order_mark && rest.starts_with(kByteOrderMark)) rest.remove_prefix(kByteOrderMark.size());
  JsonLimits others = limits;
  others.byte_order_mark = false;
  return Builder([&rest] { return std::exchange(rest, {}); }, where, blame, others, false).build();
}

json skim_json(const TextPieces& pieces, const std::string& where, Blame blame, const JsonLimits& limits) {
  return Builder(pieces, where, blame, limits, true).build();
}

nlohmann::ordered_json& object_at(nlohmann::ordered_json& parent, const std::string& key) {
  nlohmann::ordered_json& child = parent[key];
  if (child.is_null()) child = nlohmann::ordered_json::object();
  return child;
}

nlohmann::ordered_json& array_at(nlohmann::ordered_json& parent, const std::string& key) {
  nlohmann::ordered_json& child = parent[key];
  if (child.is_null()) child = nlohmann::ordered_json::array();
  return child;
}

std::string to_line(const json& value) {
  return without_line_ends(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

std::string to_line(const nlohmann::ordered_json& value) {
  return without_line_ends(value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

std::string to_pretty(const nlohmann::ordered_json& value) {
  return value.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string to_rows(const nlohmann::ordered_json& value) { return indented(value, "\n", false); }

std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& known) {
  constexpr std::size_t kLongest = 64, kMostEdits = 4;
  std::optional<std::string> best;
  std::size_t best_edits = kMostEdits + 1;
  if (word.size() > kLongest) return best;
  for (const std::string& candidate : known) {
    if (candidate.size() > kLongest) continue;
    const std::size_t edits = edit_distance(word, candidate);
    // One slip per three letters; more would be another word.
    if (edits <= std::max(word.size(), candidate.size()) / 3 && edits < best_edits) {
      best = candidate;
      best_edits = edits;
    }
  }
  return best;
}

std::string describe(const json& value) {
  switch (value.type()) {
    case json::value_t::null: return "null";
    case json::value_t::object:
      return "an object of " + std::to_string(value.size()) + (value.size() == 1 ? " key" : " keys");
    case json::value_t::array: return "an array of " + std::to_string(value.size());
    case json::value_t::string: {
      const auto& text = value.get_ref<const std::string&>();
      if (text.size() > kShort) return "a string of " + std::to_string(text.size()) + " bytes";
      return "the string " + to_line(value);
    }
    default: return value.dump();
  }
}

Fields::Fields(const json& object, std::string where, Blame blame)
    : object_(object), where_(std::move(where)), blame_(blame) {
  if (!object.is_object()) refuse(blame_, where_ + ": must be an object, got " + describe(object));
}

bool Fields::has(const std::string& key) {
  known_.insert(key);
  return object_.contains(key);
}

bool Fields::is_null(const std::string& key) { return has(key) && object_[key].is_null(); }

const json& Fields::at(const std::string& key) {
  if (!has(key)) refuse_key(key, in_quotes(key) + " is missing");
  return object_[key];
}

std::string Fields::text(const std::string& key, std::optional<std::string> fallback) {
  if (fallback && !has(key)) return *std::move(fallback);
  const json& value = at(key);
  if (!value.is_string()) refuse_field(key, "a string");
  return value.get_ref<const std::string&>();
}

bool Fields::boolean(const std::string& key, std::optional<bool> fallback) {
  if (fallback && !has(key)) return *fallback;
  const json& value = at(key);
  if (!value.is_boolean()) refuse_field(key, "true or false");
  return value.get<bool>();
}

std::int64_t Fields::integer(const std::string& key, std::int64_t low, std::int64_t high,
                             std::optional<std::int64_t> fallback) {
  if (fallback && !has(key)) return *fallback;
  const json& value = at(key);
  const bool fits =
      value.is_number_integer() &&
      !(value.is_number_unsigned() &&
        value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
  if (!fits || value.get<std::int64_t>() < low || value.get<std::int64_t>() > high)
    refuse_field(key, "an integer from " + std::to_string(low) + " to " + std::to_string(high));
  return value.get<std::int64_t>();
}

double Fields::number(const std::string& key, double low, double high, std::optional<double> fallback) {
  if (fallback && !has(key)) return *fallback;
  const json& value = at(key);
  // The comparison is written so that NaN, which a hand-built value may hold, fails it.
  if (!value.is_number() || !(value.get<double>() >= low && value.get<double>() <= high))
    refuse_field(key, "a number from " + number_text(low) + " to " + number_text(high));
  return value.get<double>();
}

void Fields::refuse_unknown() {
  for (const auto& item : object_.items()) {
    if (known_.count(item.key()) != 0) continue;
    std::string reason = "unknown key " + in_quotes(item.key());
    if (const auto near = nearest(item.key(), {known_.begin(), known_.end()})) {
      reason += "; did you mean '" + *near + "'?";
    } else {
      reason += "; known are";
      for (const std::string& known : known_) reason += " '" + known + "'";
    }
    refuse_key(item.key(), reason);
  }
}

void Fields::refuse_field(const std::string& key, const std::string& wanted) {
  if (!has(key)) refuse_key(key, in_quotes(key) + " is missing, must be " + wanted);
  refuse_key(key, in_quotes(key) + " must be " + wanted + ", got " + describe(object_[key]));
}

void Fields::refuse_key(const std::string& key, const std::string& reason) const {
  const std::string message = where_ + ": " + reason;
  if (blame_ == Blame::usage) throw FieldError(message, key.substr(0, kShort));
  throw DataError(message);
}

}  // namespace weft::policy
