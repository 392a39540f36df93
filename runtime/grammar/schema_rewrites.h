// runtime/grammar/schema_rewrites.h: JSON Schemas said in the way that their compiler knows.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace weft::runtime {

/// Rewrites a schema that check_schema() took. Sizes such as 2.0 become 2. What a `$ref` with ~0, ~1 or %41 refers to
/// is copied to a name in `$defs` that needs no escapes; one to nothing, or the 33rd, stays as it is. Strings
/// of the formats date, time, date-time, ipv4 and hostname get patterns, for xgrammar's own let through other texts.
/// Returns whether anything was to be done.
bool rewrite_schema(nlohmann::ordered_json& schema);

}  // namespace weft::runtime
