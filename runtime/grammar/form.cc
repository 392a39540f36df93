#include "runtime/grammar/form.h"

#include <array>
#include <cstdio>

namespace weft::runtime {
namespace {

/// A text between the quotes of EBNF. All but printable ASCII and parts of characters is escaped.
std::string literal(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      std::array<char, 8> escaped{};
      std::snprintf(escaped.data(), escaped.size(), "\\u%04x", static_cast<unsigned>(byte));
      out += escaped.data();
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace

AnswerForm form_of_choices(const std::vector<std::string>& choices) {
  std::string text = "root ::= ";
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].empty()) throw FormError("has an empty choice");
    text += (i > 0 ? " | " : "") + literal(choices[i]);
  }
  return {AnswerForm::Kind::ebnf, std::move(text)};
}

AnswerForm form_of_grammar(std::string text) {
  const bool ebnf = text.find("::=") != std::string::npos;
  return {ebnf ? AnswerForm::Kind::ebnf : AnswerForm::Kind::lark, std::move(text)};
}

}  // namespace weft::runtime
