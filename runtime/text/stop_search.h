// runtime/text/stop_search.h: finds stop strings in the text of an answer while it grows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/text/tokenizer.h"

namespace weft::runtime {

/// Searches the text of an answer's tokens, in which special tokens are shown, so that a stop string may be one of
/// them, as in transformers' stop_strings. Keeps a reference to the tokenizer.
class StopSearch {
 public:
  /// `prompt`: the tokens that the answer follows. `stops` are not empty. `special`: whether the answer's own text
  /// shows special tokens; where it does not, a space that it does not have in front is not found either.
  StopSearch(const Tokenizer& tokenizer, std::span<const std::int32_t> prompt, std::vector<std::string> stops,
             SpecialTokens special = SpecialTokens::skipped);
  /// Adds a token. With `look`, returns whether a stop string ends in its text; a token without may not end one later.
  bool push(std::int32_t id, bool look);
  bool found() const { return at_ != std::string::npos; }
  /// The answer's text up to the stop string that was found, or `with_stop` to its end. `ids` are those that were
  /// pushed. It begins Tokenizer::decode_after(prompt, ids, special).
  std::string text_before(std::span<const std::int32_t> prompt, std::span<const std::int32_t> ids,
                          bool with_stop = false) const;
  /// Forgets the tokens that were pushed.
  void restart();

 private:
  const Tokenizer* tokenizer_;
  SpecialTokens special_;
  IncrementalDecoder start_, decoder_;  // after the prompt; after the tokens that were pushed
  std::vector<std::string> stops_;
  std::string text_;      // of all tokens, less what the decoder holds back
  std::size_t seen_ = 0;  // bytes of `text_` and the decoder's pending() after the last push
  // Offsets in both at which a stop string begins and ends.
  std::size_t at_ = std::string::npos, end_ = 0;
};

}  // namespace weft::runtime
