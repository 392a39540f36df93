// runtime/grammar/form.h: the form that a request wants its answer to have.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace weft::runtime {

/// `text` is a JSON Schema, a regular expression, or a grammar in xgrammar's EBNF or in Lark's language.
struct AnswerForm {
  enum class Kind : std::uint8_t { json, schema, regex, ebnf, lark };
  Kind kind = Kind::json;
  std::string text = {};  ///< empty with Kind::json: any JSON object
  bool compact = false;   ///< JSON has no white space but a space after each comma and colon

  bool operator==(const AnswerForm&) const = default;
};

/// A form that is refused. what() says why, in one line, without the place.
struct FormError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline constexpr std::size_t kLongestForm = 256 << 10;  ///< bytes of the text

/// The form of answers that are one of these texts. Throws FormError if one is empty.
AnswerForm form_of_choices(const std::vector<std::string>& choices);
/// The form of a grammar: EBNF if a line has "::=", else Lark.
AnswerForm form_of_grammar(std::string text);

}  // namespace weft::runtime
