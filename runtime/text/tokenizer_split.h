// runtime/text/tokenizer_split.h: the steps of a pre-tokenizer that is a sequence, each of which cuts pieces of text
// further.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/pieces/text_index.h"
#include "runtime/text/tokenizer_normalize.h"
#include "runtime/text/tokenizer_regex.h"

namespace weft::runtime {

/// The place of a match when a text is cut at it.
enum class Cut : std::uint8_t {
  isolated,    ///< it is a piece
  removed,     ///< it is left out
  contiguous,  ///< matches next to each other are a piece
  to_previous,
  to_next,
};

/// A step of a pre-tokenizer.
struct SplitStep {
  enum class Kind : std::uint8_t {
    pattern,      ///< `regex`
    text,         ///< `text` itself
    digit,        ///< one number (\p{N})
    punctuation,  ///< one character of ASCII's punctuation, or of Unicode 8's
    bytes,        ///< writes the pieces in GPT-2's alphabet, in which the steps that follow see them
    gpt2_bytes,   ///< the same after GPT-2's pattern has cut them
    words,        ///< leaves white space out
    spaces,       ///< writes `text` for a space and in front, by `prefix`, and cuts before every `text` if `split`
    pieces,       ///< one of `pieces`, the longest
  };
  enum class Prefix : std::uint8_t { never, always, first };  ///< first: only where the whole text begins
  Kind kind = Kind::pattern;
  Cut cut = Cut::isolated;
  bool invert = false;  ///< the text between matches counts as matches
  std::shared_ptr<const Regex> regex = {};
  std::string text = {};
  Prefix prefix = Prefix::never;
  bool split = false;
  std::shared_ptr<const TextIndex> pieces = {};
};

/// Cuts a text by all steps. The pieces are bytes of the text again, not the alphabet. Text that follows other text
/// gets nothing in front.
std::vector<std::string> split_by(const std::vector<SplitStep>& steps, std::string_view text, Start start,
                                  Regex::Scratch& scratch);

}  // namespace weft::runtime
