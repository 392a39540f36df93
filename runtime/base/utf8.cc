// runtime/base/utf8.cc: the table of well-formed UTF-8 (Unicode 3.9, table 3-7) as code.
#include "runtime/base/utf8.h"

namespace weft::runtime {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

unsigned char byte_at(std::string_view text, std::size_t at) { return static_cast<unsigned char>(text[at]); }

}  // namespace

Utf8Char utf8_at(std::string_view text, std::size_t at) {
  const unsigned char lead = byte_at(text, at);
  if (lead < 0x80) return {lead, 1, Utf8::valid};
  if (lead < 0xC2 || lead > 0xF4) return {};
  const int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte alone rules out overlong forms, surrogates and what is past U+10FFFF.
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  char32_t code = lead & (0x7F >> length);
  for (int i = 1; i < length; ++i) {
    const auto seen = static_cast<std::uint8_t>(i);
    if (at + i >= text.size()) return {0xFFFD, seen, Utf8::cut};
    const unsigned char next = byte_at(text, at + i);
    if (i == 1 ? (next < low || next > high) : (next & 0xC0) != 0x80) return {0xFFFD, seen, Utf8::invalid};
    code = code << 6 | (next & 0x3F);
  }
  return {code, static_cast<std::uint8_t>(length), Utf8::valid};
}

std::string Utf8Stream::push(std::string_view bytes) {
  held_ += bytes;
  std::string out;
  out.reserve(held_.size());
  std::size_t at = 0;
  while (at < held_.size()) {
    const Utf8Char next = utf8_at(held_, at);
    if (next.state == Utf8::cut) break;
    if (next.state == Utf8::valid) out.append(held_, at, next.bytes);
    else out += kReplacement;
    at += next.bytes;
  }
  held_.erase(0, at);
  return out;
}

std::string Utf8Stream::finish() {
  const bool cut = !held_.empty();
  held_.clear();
  return cut ? std::string(kReplacement) : std::string();
}

std::string with_replacements(std::string_view bytes) {
  Utf8Stream stream;
  std::string out = stream.push(bytes);
  return out += stream.finish();
}

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char next = utf8_at(text, at);
    if (next.state != Utf8::valid) return false;
    at += next.bytes;
  }
  return true;
}

}  // namespace weft::runtime
