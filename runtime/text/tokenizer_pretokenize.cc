// runtime/text/tokenizer_pretokenize.cc: the known patterns, written out as code. PCRE2 could run them, but that of
// Debian 12 knows Unicode 14 and so puts 9,393 characters into other classes than Hugging Face's library.
#include "runtime/text/tokenizer_pretokenize.h"

#include <string>

#include "runtime/base/utf8.h"

namespace weft::runtime {

namespace {

struct Char {
  CharClass kind;
  std::size_t bytes;
};

CharClass ascii_class(unsigned char c) {
  if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') return CharClass::letter;
  if (c >= '0' && c <= '9') return CharClass::number;
  if (c == ' ' || (c >= '\t' && c <= '\r')) return CharClass::space;
  return CharClass::other;
}

Char char_at(std::string_view text, std::size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  if (lead < 0x80) return {ascii_class(lead), 1};
  const Utf8Char found = utf8_at(text, at);
  return {found.state == Utf8::valid ? char_class(found.code) : CharClass::other, found.bytes};
}

/// The length of 's, 't, 're, 've, 'm, 'll or 'd at text[at]; 0 if there is none.
std::size_t contraction_length(std::string_view text, std::size_t at) {
  const std::string_view after = text.substr(at + 1, 2);
  if (after.empty()) return 0;
  if (after[0] == 's' || after[0] == 't' || after[0] == 'm' || after[0] == 'd') return 2;
  return after == "re" || after == "ve" || after == "ll" ? 3 : 0;
}

/// The length of the white space at `at`. Before a word its last character is left out, because that may belong to the
/// word, unless it is the only one.
std::size_t space_length(std::string_view text, std::size_t at) {
  std::size_t end = at, last = at;
  while (end < text.size()) {
    const Char next = char_at(text, end);
    if (next.kind != CharClass::space) return (last > at ? last : end) - at;
    last = end;
    end += next.bytes;
  }
  return end - at;
}

/// The end of the run of one class from `at`, of at most `most` characters.
std::size_t run_end(std::string_view text, std::size_t at, CharClass kind, int most = INT32_MAX) {
  for (; at < text.size() && most > 0; --most) {
    const Char next = char_at(text, at);
    if (next.kind != kind) break;
    at += next.bytes;
  }
  return at;
}

bool is_newline(char c) { return c == '\r' || c == '\n'; }

std::size_t gpt2_word(std::string_view text, std::size_t at) {
  if (text[at] == '\'')
    if (const std::size_t length = contraction_length(text, at)) return length;

  std::size_t begin = at;
  if (text[at] == ' ' && at + 1 < text.size()) ++begin;
  const CharClass kind = char_at(text, begin).kind;
  if (kind == CharClass::space) return space_length(text, at);
  return run_end(text, begin, kind) - at;
}

/// Every digit is a word. For the text before a digit, the text ends there.
std::size_t digits_word(std::string_view text, std::size_t at) {
  const Char first = char_at(text, at);
  if (first.kind == CharClass::number) return first.bytes;
  if (first.kind == CharClass::space) {
    const std::size_t end = run_end(text, at, CharClass::space);
    if (end < text.size() && char_at(text, end).kind == CharClass::number) return end - at;
  }
  return gpt2_word(text, at);
}

/// Like contraction_length(), but in either case. Of all other characters, only U+017F, the long s, folds to one of
/// these letters.
std::size_t any_case_contraction_length(std::string_view text, std::size_t at) {
  constexpr std::string_view long_s = "\u017F";
  if (text.substr(at + 1).starts_with(long_s)) return 1 + long_s.size();
  std::string lower = "'";
  for (const char c : text.substr(at + 1, 2)) lower += c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  return contraction_length(lower, 0);
}

/// The length of the white space at `at`: up to its last line break if it has one, else as GPT-2 cuts it.
std::size_t breaking_space_length(std::string_view text, std::size_t at) {
  const std::size_t end = run_end(text, at, CharClass::space);
  for (std::size_t last = end; last > at; --last)
    if (is_newline(text[last - 1])) return last - at;
  return space_length(text, at);
}

/// The word of llama3 or qwen2 at `at`. Numbers are cut after `most_digits`.
std::size_t llama3_word(std::string_view text, std::size_t at, int most_digits) {
  if (text[at] == '\'')
    if (const std::size_t length = any_case_contraction_length(text, at)) return length;

  const Char first = char_at(text, at);
  if (first.kind == CharClass::letter) return run_end(text, at, CharClass::letter) - at;
  if (first.kind == CharClass::number) return run_end(text, at, CharClass::number, most_digits) - at;
  const std::size_t second = at + first.bytes;
  const CharClass next = second < text.size() ? char_at(text, second).kind : CharClass::space;
  if (next == CharClass::letter && !is_newline(text[at])) return run_end(text, second, CharClass::letter) - at;
  if (first.kind == CharClass::space && !(text[at] == ' ' && next == CharClass::other))
    return breaking_space_length(text, at);
  std::size_t end = run_end(text, first.kind == CharClass::space ? second : at, CharClass::other);
  while (end < text.size() && is_newline(text[end])) ++end;
  return end - at;
}

constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace

std::optional<Pattern> pattern_from(std::string_view text) {
  if (text == kGpt2) return Pattern::gpt2;
  if (text == kLlama3) return Pattern::llama3;
  if (text == kQwen2) return Pattern::qwen2;
  return {};
}

std::size_t word_length(Pattern pattern, std::string_view text, std::size_t at) {
  switch (pattern) {
    case Pattern::none: return text.size() - at;
    case Pattern::gpt2: return gpt2_word(text, at);
    case Pattern::digits: return digits_word(text, at);
    case Pattern::llama3: return llama3_word(text, at, 3);
    case Pattern::qwen2: return llama3_word(text, at, 1);
  }
  return 1;
}

}  // namespace weft::runtime
