// runtime/template/bound.cc: binds the arguments of filters, methods and functions to their parameters.
#include <sstream>

#include "runtime/template/evaluator.h"
#include "runtime/template/text.h"

namespace weft::runtime::jinja {

Bound::Bound(const std::string& what, std::string_view parameters, CallArguments arguments) : what_(what) {
  std::istringstream words{std::string(parameters)};
  std::size_t position = 0, used = 0;
  for (std::string name; words >> name; ++position) {
    const bool optional = name.back() == '?';
    if (optional) name.pop_back();
    std::optional<PyValue> value;
    if (position < arguments.positional.size()) value = arguments.positional[position];
    if (const PyValue* named = arguments.find(name)) {
      if (value) throw Stuck(what_ + " got two values for '" + name + "'");
      value = *named;
      ++used;
    }
    if (!value && !optional) throw Stuck(what_ + " needs the argument '" + name + "'");
    values_.push_back(std::move(value));
  }
  if (arguments.positional.size() > position)
    throw Stuck(what_ + " takes at most " + std::to_string(position) + " arguments, got " +
                std::to_string(arguments.positional.size()));
  if (used < arguments.named.size()) throw Stuck(what_ + " got an unexpected keyword argument");
}

std::int64_t Bound::integer(std::size_t index, std::int64_t fallback) const {
  if (!has(index)) return fallback;
  if (!at(index).is_whole()) throw Stuck(what_ + " needs an int, got '" + type_name(at(index)) + "'");
  return at(index).integer();
}

const std::string& Bound::text(std::size_t index) const {
  if (!at(index).is(Kind::text)) throw Stuck(what_ + " needs a str, got '" + type_name(at(index)) + "'");
  return at(index).str();
}

std::optional<std::string> Bound::optional_text(std::size_t index) const {
  if (!has_value(index)) return {};
  return text(index);
}

}  // namespace weft::runtime::jinja
