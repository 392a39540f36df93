// runtime/text/tokenizer_regex.h: regular expressions that cut texts, as tokenizer.json has them. The kinds of
// characters are those of Hugging Face's tokenizers, and a match takes time in proportion to what it looks at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft::runtime {

/// The kind of a character, from Unicode's general category.
enum class CharKind : std::uint8_t { other, lu, ll, lt, lm, lo, mark, number, punctuation, symbol, space };
CharKind char_kind(char32_t code);  ///< `code` is at most U+10FFFF

/// A regular expression of characters, classes, \p{...}, \s, \d, groups, alternatives, quantifiers (greedy, lazy and
/// possessive), looks ahead, looks behind at one character, \w, \b, ^ and $ (before a line end, or where the text
/// ends). Const calls may run on many threads at once.
class Regex {
 public:
  /// Throws UsageError, which says what is not supported.
  explicit Regex(std::string_view pattern);

  /// Memory for a match. Keep one per thread and pass it again.
  struct Scratch {
    struct Level {
      std::vector<std::uint64_t> seen;  // by byte: the branches that were taken there
      std::vector<std::pair<std::uint32_t, std::size_t>> todo;
    };
    std::vector<Level> levels;
    std::size_t begin = 0;  // the place of the first of levels[0].seen
  };
  /// The end of the match that begins at text[at], which is `at` if it is empty, or npos if there is none. `goes_on`
  /// says that the last call with this scratch was of this expression, for an earlier place in the same text, and found
  /// nothing: where its branches led to nothing, they are not tried again, so that a search takes time in proportion to
  /// the text.
  std::size_t match(std::string_view text, std::size_t at, Scratch& scratch, bool goes_on = false) const;

  struct Set {
    std::uint16_t kinds = 0;  // a bit for each CharKind
    std::vector<std::pair<char32_t, char32_t>> ranges;
    bool negated = false;

    bool has(char32_t code) const;
  };
  enum class Code : std::uint8_t { set, behind, refuse_behind, branch, jump, look, refuse_look, atomic, done };
  /// Places are relative to the instruction.
  struct Instruction {
    Code code = Code::done;
    std::int32_t a = 0, b = 0;  ///< a set's number; where to go first and then; a part's begin and what follows it
    std::uint32_t branch = 0;   ///< the branch's number
  };

 private:
  std::size_t run(std::size_t pc, std::string_view text, std::size_t at, Scratch& scratch, std::size_t level) const;

  std::vector<Instruction> program_;
  std::vector<Set> sets_;
};

}  // namespace weft::runtime
