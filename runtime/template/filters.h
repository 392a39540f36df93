// runtime/template/filters.h: the filters of Jinja, in the tables of three sources.
#pragma once

#include <string>
#include <string_view>

#include "runtime/template/evaluator.h"

namespace weft::runtime::jinja {

struct Filter {
  std::string_view name, parameters;
  PyValue (*body)(Evaluator& evaluator, const PyValue& value, const Bound& given);
};
/// Returns the filter of a name, or null.
const Filter* text_filter(const std::string& name);
const Filter* list_filter(const std::string& name);

/// map, select, reject, selectattr and rejectattr, which take another filter's or test's arguments; nothing for
/// another name.
std::optional<PyValue> choosing_filter(Evaluator& evaluator, const std::string& name, const PyValue& value,
                                       CallArguments given);
/// Follows a path such as "function.name"; None leads to the value itself. An undefined step on the way becomes
/// `fallback`, if that is not null.
PyValue at_path(Evaluator& evaluator, const PyValue& value, const PyValue& path, const PyValue* fallback = nullptr);

}  // namespace weft::runtime::jinja
