// runtime/template/lexer.h: cuts the source of a template into tokens, and removes white space around its tags as
// transformers' settings (trim_blocks, lstrip_blocks) do.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/error.h"
#include "runtime/template/value.h"

namespace weft::runtime::jinja {

/// A place in the source, counted from 1; columns count characters.
struct SourcePlace {
  int line = 1, column = 1;
};

/// Thrown if a template cannot be read or cannot go on: "3:14: ...", one line.
struct TemplateError : UsageError {
  TemplateError(SourcePlace place, const std::string& what);
};
/// Thrown if a template itself refuses what it was given, by raise_exception. `said` are its words.
struct TemplateRefusal : TemplateError {
  TemplateRefusal(SourcePlace place, const std::string& words);
  std::string said;
};

enum class Token : std::uint8_t {
  data,   ///< text outside tags
  begin,  ///< {{
  end,    ///< }}
  block_begin,
  block_end,
  name,
  text,
  number,
  sign,  ///< an operator or a bracket
  eof,
};
struct Lexeme {
  Token token = Token::eof;
  std::string text;  ///< a name, a sign, what a text or data holds
  PyValue number;
  SourcePlace place;
};

/// The tokens of a template; the last is eof. Throws TemplateError.
std::vector<Lexeme> tokens_of(std::string_view source);

}  // namespace weft::runtime::jinja
