// runtime/text/tokenizer_split.h: the steps of a pre-tokenizer that is a sequence, each of which cuts pieces of text
// further.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

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
    punctuation,  ///< one character of ASCII's punctuation or \p{P}
    bytes,        ///< writes the pieces in GPT-2's alphabet, in which the steps that follow see them
    gpt2_bytes,   ///< the same after GPT-2's pattern has cut them
  };
  Kind kind = Kind::pattern;
  Cut cut = Cut::isolated;
  bool invert = false;  ///< the text between matches counts as matches
  std::shared_ptr<const Regex> regex = {};
  std::string text = {};
};

/// Cuts a text by all steps. The pieces are bytes of the text again, not the alphabet.
std::vector<std::string> split_by(const std::vector<SplitStep>& steps, std::string_view text, Regex::Scratch& scratch);

}  // namespace weft::runtime
