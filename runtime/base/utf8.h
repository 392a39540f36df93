// runtime/base/utf8.h: UTF-8 one character at a time, safe on any bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace weft::runtime {

enum class Utf8 : std::uint8_t {
  valid,
  invalid,  ///< can become no character, whatever follows
  cut,      ///< the text ends inside what could become one
};

/// What stands at a place in a text: a character, or the longest run of bytes that begins one and fails (what Unicode
/// calls a maximal subpart; each is one U+FFFD to every careful decoder).
struct Utf8Char {
  char32_t code = 0xFFFD;
  std::uint8_t bytes = 1;
  Utf8 state = Utf8::invalid;
};

/// `at` must be less than text.size().
Utf8Char utf8_at(std::string_view text, std::size_t at);

/// Whether all of it is well-formed.
bool is_utf8(std::string_view text);

/// Passes bytes on as they come, except that a character is held back until it is whole and an ill-formed sequence
/// comes out as U+FFFD. The pieces together do not depend on how the bytes were cut.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  std::string finish();  ///< what was held back; resets the stream

 private:
  std::string held_;  // at most three bytes between calls
};

/// The text with each ill-formed sequence as U+FFFD.
std::string with_replacements(std::string_view bytes);

}  // namespace weft::runtime
