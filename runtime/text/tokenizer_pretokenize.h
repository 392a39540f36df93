// runtime/text/tokenizer_pretokenize.h: how patterns cut a text into the words that byte pairs are merged in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace weft::runtime {

enum class CharClass : std::uint8_t { other, letter, number, space };

/// \p{L}, \p{N}, \s or none of them, in the Unicode version of Hugging Face's tokenizers (16.0). `code` up to U+10FFFF.
CharClass char_class(char32_t code);

/// The patterns that are known, each by its exact text.
enum class Pattern : std::uint8_t {
  none,    ///< the text is one word
  gpt2,    ///< 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  digits,  ///< gpt2 over the pieces that are left when every \p{N} is a word of its own
  llama3,  ///< (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|
           ///< \s+(?!\S)|\s+
  qwen2,   ///< the same with \p{N} for \p{N}{1,3}
};
/// Nothing if the text is none of these.
std::optional<Pattern> pattern_from(std::string_view text);

/// The bytes of the word at text[at], at least one; `at` must be less than text.size(). One pass without backtracking.
/// Ill-formed UTF-8 counts as `other`.
std::size_t word_length(Pattern pattern, std::string_view text, std::size_t at);

}  // namespace weft::runtime
