// runtime/tokenizer_pretokenize.cc: GPT-2's pattern, written out. PCRE2 would do, but that of Debian 12 knows Unicode
// 14 and so puts 9,393 characters into other classes than Hugging Face's library.
#include "runtime/tokenizer_pretokenize.h"

#include "runtime/utf8.h"

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

/// 's, 't, 're, 've, 'm, 'll or 'd, which is at text[at]; 0 if none is.
std::size_t contraction_length(std::string_view text, std::size_t at) {
  const std::string_view after = text.substr(at + 1, 2);
  if (after.empty()) return 0;
  if (after[0] == 's' || after[0] == 't' || after[0] == 'm' || after[0] == 'd') return 2;
  return after == "re" || after == "ve" || after == "ll" ? 3 : 0;
}

/// White space from `at`. Before a word the last of it is left out, for that may belong to the word; unless it is all.
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

}  // namespace

std::size_t word_length(std::string_view text, std::size_t at) {
  if (text[at] == '\'')
    if (const std::size_t length = contraction_length(text, at)) return length;

  std::size_t end = at;
  if (text[at] == ' ' && at + 1 < text.size()) ++end;
  const CharClass kind = char_at(text, end).kind;
  if (kind == CharClass::space) return space_length(text, at);
  while (end < text.size()) {
    const Char next = char_at(text, end);
    if (next.kind != kind) break;
    end += next.bytes;
  }
  return end - at;
}

}  // namespace weft::runtime
