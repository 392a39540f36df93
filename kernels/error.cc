#include "kernels/error.h"

#include <array>
#include <cstdio>

namespace weft {
namespace {

constexpr std::size_t kLongest = 8 << 10;

/// A character that must not reach a terminal: its bytes and its number. A harmless one has 0 bytes.
struct Unsafe {
  std::size_t bytes;
  unsigned code;
};

Unsafe unsafe_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u; };
  if (byte(0) < 0x20 || byte(0) == 0x7F) return {1, byte(0)};
  if (byte(0) == 0xC2 && byte(1) >= 0x80 && byte(1) < 0xA0) return {2, byte(1)};  // C1
  if (byte(0) != 0xE2 || (byte(1) != 0x80 && byte(1) != 0x81)) return {0, 0};
  const unsigned code = 0x2000 + (byte(1) - 0x80) * 0x40 + (byte(2) & 0x3F);
  const bool turns =
      (code >= 0x200E && code <= 0x200F) || (code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
  return {turns ? 3u : 0u, code};
}

std::string joined(const std::string& message, const std::vector<std::string>& more) {
  std::string text = printable(message);
  for (const std::string& line : more) text += "\n" + printable(line);
  return text;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size() && out.size() < kLongest;) {
    const auto [bytes, code] = unsafe_at(text, at);
    if (bytes == 0) {
      out += text[at++];
      continue;
    }
    std::array<char, 8> escaped{};
    std::snprintf(escaped.data(), escaped.size(), "\\u%04x", code);
    out += escaped.data();
    at += bytes;
  }
  return out.size() < kLongest ? out : out + "...";
}

Error::Error(int exit_code, const std::string& message, const std::vector<std::string>& more)
    : std::runtime_error(joined(message, more)), exit_code_(exit_code) {}

}  // namespace weft
