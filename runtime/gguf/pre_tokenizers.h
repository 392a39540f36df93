// runtime/gguf/pre_tokenizers.h: the ways in which texts are cut into words before their bytes are merged, by the name
// that a GGUF file has for them in tokenizer.ggml.pre (llama.cpp's src/llama-vocab.cpp).
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace weft::runtime {

struct PreTokenizer {
  std::string_view name;
  std::array<const char*, 5> patterns{};  ///< texts are cut by each in turn; none: GPT-2's, which is ByteLevel's own
  bool digits = false;                    ///< then every digit is cut off; before GPT-2's pattern
  bool nfc = false;                       ///< texts are composed first
  bool whole_words = false;               ///< a word that is a token is not merged
  bool begins = false;                    ///< the first token is put in front, unless the file says something else
};

/// Returns null if Weft does not know the name.
const PreTokenizer* pre_tokenizer(std::string_view name);
/// The names that Weft knows: "gpt-2, mellum, ..."
std::string pre_tokenizer_names();

}  // namespace weft::runtime
