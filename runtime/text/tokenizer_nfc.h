// runtime/text/tokenizer_nfc.h: Unicode's composed form, into which tokenizers with an "NFC" normalizer bring their
// text, and the characters of words.
#pragma once

#include <string>
#include <string_view>

namespace weft::runtime {

/// The composed form of a text. Ill-formed UTF-8 is returned unchanged.
std::string nfc(std::string_view utf8);

/// Whether a character is of \w in Rust's regular expressions: a letter, a mark, a decimal digit, a connector such as
/// _, or a joiner. `code` is at most U+10FFFF.
bool is_word(char32_t code);

}  // namespace weft::runtime
