// runtime/grammar/form_fields.h: the fields of a request that give its answer a form, as vLLM and OpenAI name them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "runtime/grammar/form.h"

namespace weft::runtime {

inline constexpr const char* kFormFields[]{"response_format",   "structured_outputs", "guided_json",
                                           "guided_choice",     "guided_regex",       "guided_grammar",
                                           "guided_json_object"};

/// Reads the value of such a field; nothing if it asks for no form. `name` is what messages call the value, and becomes
/// more exact inside it. Throws FormError.
std::optional<AnswerForm> form_in(const std::string& field, const nlohmann::ordered_json& value, std::string& name);

}  // namespace weft::runtime
