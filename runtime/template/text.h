// runtime/template/text.h: the work of Python's str, on UTF-8. Places and lengths count characters unless they say
// bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/template/value.h"

namespace weft::runtime::jinja {

bool is_ascii(std::string_view text);
/// The place of the first `wanted` at byte `from` or later, or npos. Takes time in proportion to the bytes.
std::size_t find_bytes(std::string_view text, std::string_view wanted, std::size_t from);
/// The place of the last `wanted`, or npos, in the same time.
std::size_t find_last_bytes(std::string_view text, std::string_view wanted);
std::size_t count_bytes(std::string_view text, std::string_view wanted);  ///< counts it side by side

std::size_t character_count(const Text& text);
/// The byte at which character `index` begins; the text's size if it has no more.
std::size_t byte_of(const Text& text, std::size_t index);
Values characters(const Text& text, Meter& meter);
void append_utf8(std::string& text, char32_t code);
std::vector<char32_t> code_points(std::string_view text);

bool is_space(char32_t code);  ///< as str.isspace() has it, and so str.strip()
bool is_printable(char32_t code);
enum class Class : std::uint8_t { alpha, digit, numeric, upper, lower, space, alnum };
/// Whether all characters are of a class and there is one at least, as str.isalpha() and its siblings have it.
bool all_of_class(std::string_view text, Class wanted);

/// `chars` names the characters to strip; none: white space.
std::string strip(std::string_view text, const std::optional<std::string>& chars, bool left, bool right);
std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string title(std::string_view text);   ///< str.title()
std::string titled(std::string_view text);  ///< Jinja's filter `title`, which begins words in fewer places
std::string swapcase(std::string_view text);
/// At most `most` replacements; -1 for all.
std::string replaced(std::string_view text, std::string_view old, std::string_view with, std::int64_t most,
                     Meter& meter);
/// `separator` none: at white space. At most `most` cuts; -1 for all. `from_right`: the cuts are the last ones.
std::vector<std::string> split(std::string_view text, const std::optional<std::string>& separator, std::int64_t most,
                               bool from_right);
std::vector<std::string> split_lines(std::string_view text, bool keep_ends);
std::string escaped(std::string_view text);  ///< replaces what HTML reads, as MarkupSafe does
/// `text` times `count`. Throws Stuck if that is too long.
std::string repeated(std::string_view text, std::int64_t count, Meter& meter);
/// Python's `text % values`.
std::string formatted(const std::string& text, const Values& values, Meter& meter);

}  // namespace weft::runtime::jinja
