// runtime/template/special_case.h: characters whose upper case has several characters.
#pragma once

namespace weft::runtime::jinja {

struct SpecialCase {
  char32_t code;
  const char *upper, *title;  ///< in UTF-8
};
/// Returns the entry of a character, or null if its upper case is one character.
const SpecialCase* special_case(char32_t code);

}  // namespace weft::runtime::jinja
