// runtime/template/letters.cc: letter case and classes of characters, by utf8proc.
#include <utf8proc.h>

#include <algorithm>

#include "runtime/base/utf8.h"
#include "runtime/template/special_case.h"
#include "runtime/template/text.h"

namespace weft::runtime::jinja {

namespace {

utf8proc_category_t category(char32_t code) { return utf8proc_category(static_cast<utf8proc_int32_t>(code)); }

bool is_letter(char32_t code) {
  const auto found = category(code);
  return found >= UTF8PROC_CATEGORY_LU && found <= UTF8PROC_CATEGORY_LO;
}
bool is_upper(char32_t code) { return category(code) == UTF8PROC_CATEGORY_LU || (code >= 0x24B6 && code <= 0x24CF); }
bool is_lower(char32_t code) {
  return category(code) == UTF8PROC_CATEGORY_LL || code == 0xAA || code == 0xBA || (code >= 0x24D0 && code <= 0x24E9) ||
         (code >= 0x2B0 && code <= 0x2B8);
}
bool is_cased(char32_t code) { return is_upper(code) || is_lower(code) || category(code) == UTF8PROC_CATEGORY_LT; }
bool is_case_ignorable(char32_t code) {
  const auto found = category(code);
  return found == UTF8PROC_CATEGORY_MN || found == UTF8PROC_CATEGORY_ME || found == UTF8PROC_CATEGORY_CF ||
         found == UTF8PROC_CATEGORY_LM || found == UTF8PROC_CATEGORY_SK || code == '\'' || code == '.' || code == ':' ||
         code == 0xB7 || code == 0x2018 || code == 0x2019;
}

void put_upper(std::string& out, char32_t code) {
  if (const SpecialCase* special = special_case(code)) out += special->upper;
  else append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code))));
}
void put_title(std::string& out, char32_t code) {
  if (const SpecialCase* special = special_case(code)) out += special->title;
  else append_utf8(out, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(code))));
}

/// Whether the sigma at `at` ends a word, so that its lower case is another letter.
bool ends_word(const std::vector<char32_t>& codes, std::size_t at) {
  std::size_t before = at, after = at + 1;
  while (before > 0 && is_case_ignorable(codes[before - 1])) --before;
  while (after < codes.size() && is_case_ignorable(codes[after])) ++after;
  return before > 0 && is_cased(codes[before - 1]) && !(after < codes.size() && is_cased(codes[after]));
}

void put_lower(std::string& out, const std::vector<char32_t>& codes, std::size_t at) {
  const char32_t code = codes[at];
  if (code == 0x130) out += "i\u0307";
  else if (code == 0x3A3) append_utf8(out, ends_word(codes, at) ? 0x3C2 : 0x3C3);
  else append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
}

bool in_class(char32_t code, Class wanted) {
  const auto found = category(code);
  const bool superscript = (code >= 0xB2 && code <= 0xB3) || code == 0xB9 || code == 0x2070 ||
                           (code >= 0x2074 && code <= 0x2079) || (code >= 0x2080 && code <= 0x2089);
  const bool numeric = found == UTF8PROC_CATEGORY_ND || found == UTF8PROC_CATEGORY_NL || found == UTF8PROC_CATEGORY_NO;
  switch (wanted) {
    case Class::alpha: return is_letter(code);
    case Class::digit: return found == UTF8PROC_CATEGORY_ND || superscript;
    case Class::numeric: return numeric;
    case Class::alnum: return is_letter(code) || numeric;
    case Class::space: return is_space(code);
    case Class::upper: return is_upper(code) || !is_cased(code);
    case Class::lower: return is_lower(code) || !is_cased(code);
  }
  return false;
}

}  // namespace

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_printable(char32_t code) {
  if (code == ' ') return true;
  const auto found = category(code);
  return found != UTF8PROC_CATEGORY_CN && (found < UTF8PROC_CATEGORY_ZS || found > UTF8PROC_CATEGORY_CO);
}

bool all_of_class(std::string_view text, Class wanted) {
  const std::vector<char32_t> codes = code_points(text);
  const bool some = wanted == Class::upper || wanted == Class::lower ? std::any_of(codes.begin(), codes.end(), is_cased)
                                                                     : !codes.empty();
  return some && std::all_of(codes.begin(), codes.end(), [&](char32_t code) { return in_class(code, wanted); });
}

std::string upper(std::string_view text) {
  std::string out;
  for (const char32_t code : code_points(text)) put_upper(out, code);
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  const std::vector<char32_t> codes = code_points(text);
  for (std::size_t i = 0; i < codes.size(); ++i) put_lower(out, codes, i);
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  const std::vector<char32_t> codes = code_points(text);
  for (std::size_t i = 0; i < codes.size(); ++i)
    if (i == 0) put_title(out, codes[i]);
    else put_lower(out, codes, i);
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  const std::vector<char32_t> codes = code_points(text);
  bool inside = false;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    if (inside) put_lower(out, codes, i);
    else put_title(out, codes[i]);
    inside = is_cased(codes[i]);
  }
  return out;
}

std::string titled(std::string_view text) {
  std::string out, word;
  const auto flush = [&] {
    // The first character in upper case, the others in lower case.
    if (word.empty()) return;
    const std::size_t first = utf8_at(word, 0).bytes;
    out += upper(word.substr(0, first)) + lower(word.substr(first));
    word.clear();
  };
  for (const char32_t code : code_points(text)) {
    const bool begins = code == '-' || code == '(' || code == '{' || code == '[' || code == '<' || is_space(code);
    if (begins) {
      flush();
      append_utf8(out, code);
    } else {
      append_utf8(word, code);
    }
  }
  flush();
  return out;
}

std::string swapcase(std::string_view text) {
  std::string out;
  const std::vector<char32_t> codes = code_points(text);
  for (std::size_t i = 0; i < codes.size(); ++i)
    if (is_upper(codes[i])) put_lower(out, codes, i);
    else if (is_lower(codes[i])) put_upper(out, codes[i]);
    else append_utf8(out, codes[i]);
  return out;
}

}  // namespace weft::runtime::jinja
