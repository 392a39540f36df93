// runtime/template/filters.h: a filter of Jinja, as the tables of two sources have it.
#pragma once

#include <span>
#include <string_view>

#include "runtime/template/evaluator.h"

namespace weft::runtime::jinja {

struct Filter {
  std::string_view name, parameters;
  PyValue (*body)(Evaluator& evaluator, const PyValue& value, const Bound& given);
};
std::span<const Filter> text_filters();  ///< those that make texts and numbers

}  // namespace weft::runtime::jinja
