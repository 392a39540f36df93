// runtime/base/utf8.h: UTF-8 one character at a time, safe on any bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace weft::runtime {

enum class Utf8 : std::uint8_t {
  valid,
  invalid,  ///< cannot become a character, whatever follows
  cut,      ///< the text ends inside what could become a character
};

/// The character at a place in a text, or the longest run of bytes that begins one and fails. Unicode calls the latter
/// a maximal subpart; every careful decoder replaces each by one U+FFFD.
struct Utf8Char {
  char32_t code = 0xFFFD;
  std::uint8_t bytes = 1;
  Utf8 state = Utf8::invalid;
};

/// Reads the character at `at`, which must be less than text.size().
Utf8Char utf8_at(std::string_view text, std::size_t at);

/// Whether all of `text` is well-formed.
bool is_utf8(std::string_view text);

/// Passes bytes on as they come, but holds a character back until it is whole and replaces an ill-formed sequence by
/// U+FFFD. The joined output does not depend on how the bytes were cut.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  std::string finish();  ///< U+FFFD if anything was held back; resets the stream
  const std::string& held() const { return held_; }

 private:
  std::string held_;  // at most three bytes between calls
};

/// The text with each ill-formed sequence replaced by U+FFFD.
std::string with_replacements(std::string_view bytes);

}  // namespace weft::runtime
