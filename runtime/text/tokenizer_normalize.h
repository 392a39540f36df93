// runtime/text/tokenizer_normalize.h: changes to a text before its words are looked for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/pieces/charsmap.h"

namespace weft::runtime {

/// A piece of text begins at the whole text's start, after an added token or what was left out, or after other text.
enum class Start : std::uint8_t { text, segment, middle };

struct NormalizeStep {
  enum class Kind : std::uint8_t {
    nfc,          ///< Unicode's composed form
    charsmap,     ///< SentencePiece's compiled rules
    prepend,      ///< puts `to` in front, unless the text follows other text
    replace,      ///< every `from` becomes `to`
    spaces_in,    ///< two spaces (U+0020) and more become `to`
    spaces_out,   ///< no spaces (U+0020) at the beginning and the end
    begin,        ///< writes `to` for a `from` at the beginning, unless the text follows other text
    white_space,  ///< no white space at the beginning if `left`, and at the end if `right`
  };
  Kind kind = Kind::nfc;
  std::string from = {}, to = {};
  bool left = false, right = false;
  std::shared_ptr<const Charsmap> charsmap = {};
};

/// The text after all steps. A step that takes something away from its beginning makes Start::text a segment, as in
/// Hugging Face's library.
std::string normalized(const std::vector<NormalizeStep>& steps, std::string_view text, Start& start);

/// The beginning of the white space that ends at `end`, but not before `floor`.
std::size_t space_begin(std::string_view text, std::size_t floor, std::size_t end);
/// The end of the white space at `at`.
std::size_t space_end(std::string_view text, std::size_t at);

/// The text with every `from`, which is not empty, replaced.
std::string replaced(std::string_view text, std::string_view from, std::string_view to);

}  // namespace weft::runtime
