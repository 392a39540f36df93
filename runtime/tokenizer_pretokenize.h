// runtime/tokenizer_pretokenize.h: how GPT-2's pattern cuts a text into the words that byte pairs are merged in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace weft::runtime {

enum class CharClass : std::uint8_t { other, letter, number, space };

/// \p{L}, \p{N}, \s or none of them, in the Unicode version of Hugging Face's tokenizers (16.0). `code` up to U+10FFFF.
CharClass char_class(char32_t code);

/// The bytes of the word at text[at], at least one; `at` must be less than text.size(). Follows
///   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
/// in one pass without backtracking. Ill-formed UTF-8 counts as `other`.
std::size_t word_length(std::string_view text, std::size_t at);

}  // namespace weft::runtime
