// runtime/text/tokenizer_nfc.h: Unicode's composed form, the form into which tokenizers with an "NFC" normalizer bring
// their text.
#pragma once

#include <string>
#include <string_view>

namespace weft::runtime {

/// Ill-formed UTF-8 comes back as it is.
std::string nfc(std::string_view utf8);

}  // namespace weft::runtime
