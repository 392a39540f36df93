// runtime/text/tokenizer_nfc.h: Unicode's composed form, into which tokenizers with an "NFC" normalizer bring their
// text.
#pragma once

#include <string>
#include <string_view>

namespace weft::runtime {

/// The composed form of a text. Ill-formed UTF-8 is returned unchanged.
std::string nfc(std::string_view utf8);

}  // namespace weft::runtime
