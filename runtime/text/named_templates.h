// runtime/text/named_templates.h: chat templates by name, for models that come without one: what the templates that
// published models of a family have in common, in Weft's own words.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace weft::runtime {

struct NamedTemplate {
  std::string_view name;
  std::string source;  ///< in Jinja
};
std::span<const NamedTemplate> named_templates();
std::string template_names();  ///< "chatml, qwen1.5, ..."

}  // namespace weft::runtime
