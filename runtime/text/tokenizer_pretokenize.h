// runtime/text/tokenizer_pretokenize.h: patterns that cut a text into words, in which byte pairs are merged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace weft::runtime {

enum class CharClass : std::uint8_t { other, letter, number, space };

/// The class of a character: \p{L}, \p{N}, \s or none of them, in the Unicode version of Hugging Face's tokenizers
/// (16.0). `code` is at most U+10FFFF.
CharClass char_class(char32_t code);

/// The known patterns, each recognised by its exact text.
enum class Pattern : std::uint8_t {
  none,    ///< the text is one word
  gpt2,    ///< 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  digits,  ///< every \p{N} is one word, and gpt2 cuts the pieces between them
  llama3,  ///< (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|
           ///< \s+(?!\S)|\s+
  qwen2,   ///< the same with \p{N} for \p{N}{1,3}
};
/// The pattern of this text, or nothing if it is not known.
std::optional<Pattern> pattern_from(std::string_view text);

/// The number of bytes of the word at text[at], at least one; `at` must be less than text.size(). Takes one pass
/// without backtracking. Ill-formed UTF-8 counts as `other`.
std::size_t word_length(Pattern pattern, std::string_view text, std::size_t at);

}  // namespace weft::runtime
