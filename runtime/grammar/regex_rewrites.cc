#include "runtime/grammar/regex_rewrites.h"

#include <algorithm>
#include <charconv>

#include "runtime/template/text.h"

namespace weft::runtime {
namespace {

constexpr std::size_t kMostDigits = 16;  // of a repetition's bounds

/// Whether all that matches this class, `[...]` without its brackets, stands for itself in JSON.
bool is_plain_class(std::string text) {
  if (text.ends_with('-')) text.pop_back();  // no range
  for (const std::string_view range : {"a-z", "A-Z", "0-9", "\\d", "\\w"})
    for (std::size_t at = text.find(range); at != std::string::npos; at = text.find(range))
      text.erase(at, range.size());
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _.,:;/+*()'!?@#%&=";
  return text.find_first_not_of(kPlain) == std::string::npos;
}

/// Whether the last thing that `before` matches, which is to be repeated, stands for itself in JSON.
bool ends_plainly(std::string_view before) {
  if (before.ends_with("\\d") || before.ends_with("\\w")) return true;
  if (before.ends_with(']')) {
    const std::size_t begin = before.rfind('[');
    return begin != std::string_view::npos &&
           is_plain_class(std::string(before.substr(begin + 1, before.size() - begin - 2)));
  }
  const auto is_letter = [](char c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; };
  return before.size() > 1 && is_letter(before.back()) && before[before.size() - 2] != '\\';
}

}  // namespace

std::int64_t most_repetitions(std::string_view pattern, bool of_escaped) {
  std::int64_t most = 0;
  for (std::size_t at = pattern.find('{'); at != std::string_view::npos; at = pattern.find('{', at + 1)) {
    const std::string_view bounds = pattern.substr(at + 1, pattern.find('}', at) - at - 1);
    if (bounds.find_first_not_of("0123456789,") != std::string_view::npos) continue;
    if (of_escaped && ends_plainly(pattern.substr(0, at))) continue;
    std::int64_t number = 0;
    for (const char c : bounds.substr(0, kMostDigits)) {
      number = c == ',' ? 0 : number * 10 + (c - '0');
      most = std::max(most, number);
    }
  }
  return most;
}

std::string in_its_letters(const std::string& regex) {
  std::string written;
  bool begun = false;  // by a backslash
  for (std::size_t at = 0; at < regex.size(); ++at) {
    const char c = regex[at];
    const bool ends_line = c == '\n' || c == '\r';
    if (ends_line && !begun) written += '\\';
    std::uint32_t code = 0;
    const char* const digits = regex.data() + at + 1;
    if (begun && c == 'u' && at + 4 < regex.size() && std::from_chars(digits, digits + 4, code, 16).ptr == digits + 4 &&
        code >= 0x80 && (code < 0xD800 || code > 0xDFFF)) {
      written.pop_back();
      jinja::append_utf8(written, code);
      at += 4;
    } else {
      written += !ends_line ? c : c == '\n' ? 'n' : 'r';
    }
    begun = c == '\\' && !begun;
  }
  return written;
}

std::optional<std::string> for_automaton(const std::string& regex) {
  constexpr std::string_view spaces = "\\f\\n\\r\\t\\v \u00a0";
  if (most_repetitions(regex) > kOftenRepeated) return std::nullopt;
  std::string rewritten;
  bool in_class = false;
  for (std::size_t at = 0; at < regex.size(); ++at) {
    const char c = regex[at], next = at + 1 < regex.size() ? regex[at + 1] : 0;
    if (c != '\\') {
      in_class = c == '[' || (in_class && c != ']');
      rewritten += c;
      continue;
    }
    ++at;
    if (in_class && next == 'S') return std::nullopt;
    if (next != 's' && next != 'S') rewritten.append({c, next});
    else if (in_class) rewritten += spaces;
    else rewritten.append(next == 's' ? "[" : "[^").append(spaces) += ']';
  }
  return rewritten;
}

}  // namespace weft::runtime
