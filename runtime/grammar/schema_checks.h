// runtime/grammar/schema_checks.h: the JSON Schemas that are refused before they are compiled.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace weft::runtime {

/// Throws FormError for a schema with over 20000 values, for one nested over 64 deep, and for keywords that the
/// compiler would ignore, so that answers need not have the form: "has 'not' at /properties/a, ...".
void check_schema(const nlohmann::ordered_json& schema);

/// Whether it is minLength, maxItems or another of the six.
bool is_size_keyword(std::string_view key);

/// The regular expressions in a schema that was checked, of strings and of names.
std::vector<std::string> schema_patterns(const nlohmann::ordered_json& schema);

}  // namespace weft::runtime
