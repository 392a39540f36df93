#include "runtime/text/tokenizer_nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "runtime/base/utf8.h"
#include "runtime/text/tokenizer_regex.h"

namespace weft::runtime {
namespace {

/// Marks that Unicode 11 and later added. Hugging Face's library normalises with older tables, in which these are
/// characters like any other: nothing moves past them or joins them.
constexpr std::array<std::pair<char32_t, char32_t>, 37> kLaterMarks{
    {{0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
     {0xA82C, 0xA82C},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50},
     {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
     {0x11930, 0x11930}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
     {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97},
     {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE},
     {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}}};

bool is_later_mark(char32_t code) {
  const auto* const range = std::lower_bound(kLaterMarks.begin(), kLaterMarks.end(), code,
                                             [](const auto& marks, char32_t c) { return marks.second < c; });
  return range != kLaterMarks.end() && range->first <= code;
}

std::int16_t combining_class(utf8proc_int32_t code) { return utf8proc_get_property(code)->combining_class; }

/// Whether so many marks follow each other that utf8proc, which sorts them by exchanging neighbours, would take long.
bool has_many_marks(std::string_view utf8) {
  constexpr int most = 64;
  int run = 0;
  for (std::size_t at = 0; at < utf8.size() && run <= most;) {
    const Utf8Char next = utf8_at(utf8, at);
    run = next.state == Utf8::valid && combining_class(static_cast<utf8proc_int32_t>(next.code)) != 0 ? run + 1 : 0;
    at += next.bytes;
  }
  return run > most;
}

/// The canonical decomposition with its marks in canonical order.
std::string decomposed(std::string_view utf8) {
  std::vector<utf8proc_int32_t> codes;
  for (std::size_t at = 0; at < utf8.size();) {
    const Utf8Char next = utf8_at(utf8, at);
    at += next.bytes;
    std::array<utf8proc_int32_t, 32> parts{};
    int boundary = 0;
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(next.code), parts.data(),
                                static_cast<utf8proc_ssize_t>(parts.size()), UTF8PROC_DECOMPOSE, &boundary);
    for (utf8proc_ssize_t i = 0; i < count; ++i) codes.push_back(parts[static_cast<std::size_t>(i)]);
  }
  for (auto begin = codes.begin(); begin != codes.end();) {
    const auto end = std::find_if(begin, codes.end(), [](auto code) { return combining_class(code) == 0; });
    std::stable_sort(begin, end, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    begin = end == codes.end() ? end : end + 1;
  }
  std::string out;
  for (const utf8proc_int32_t code : codes) {
    std::array<utf8proc_uint8_t, 4> bytes{};
    const utf8proc_ssize_t count = utf8proc_encode_char(code, bytes.data());
    out.append(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(count));
  }
  return out;
}

std::string composed(std::string_view utf8) {
  utf8proc_uint8_t* text = nullptr;
  const utf8proc_ssize_t bytes =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(utf8.data()), static_cast<utf8proc_ssize_t>(utf8.size()),
                   &text, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(text, std::free);
  if (bytes == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  if (bytes < 0) return std::string(utf8);
  return {reinterpret_cast<const char*>(text), static_cast<std::size_t>(bytes)};
}

/// The composed form of a piece. utf8proc does not change ill-formed text, so it is not decomposed here either.
std::string composed_piece(std::string_view utf8) {
  if (!has_many_marks(utf8) || !is_utf8(utf8)) return composed(utf8);
  return composed(decomposed(utf8));
}

}  // namespace

std::string nfc(std::string_view utf8) {
  // Characters below U+0300, whose first byte is 0xCC, are composed already and do not compose with each other.
  if (std::none_of(utf8.begin(), utf8.end(), [](char c) { return static_cast<unsigned char>(c) >= 0xCC; }))
    return std::string(utf8);
  std::string out;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < utf8.size();) {
    const Utf8Char next = utf8_at(utf8, at);
    if (is_later_mark(next.code)) {
      out += composed_piece(utf8.substr(begin, at - begin));
      out += utf8.substr(at, next.bytes);
      begin = at + next.bytes;
    }
    at += next.bytes;
  }
  return out + composed_piece(utf8.substr(begin));
}

bool is_word(char32_t code) {
  const CharKind kind = char_kind(code);
  if (kind <= CharKind::mark && kind != CharKind::other) return true;
  if (code == 0x200C || code == 0x200D) return true;
  // Letters in circles and squares are symbols, but alphabetic.
  if ((code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
      (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189))
    return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    // A number that utf8proc does not know yet; of those, U+1D2C0 to U+1D2D3 are no digits.
    case UTF8PROC_CATEGORY_CN: return kind == CharKind::number && (code < 0x1D2C0 || code > 0x1D2D3);
    default: return false;
  }
}

}  // namespace weft::runtime
