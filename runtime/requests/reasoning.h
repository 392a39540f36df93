// runtime/requests/reasoning.h: takes the reasoning out of an answer's text.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "runtime/requests/request_defaults.h"

namespace weft::runtime {

/// The reasoning in an answer's text, if it has any by this rule, and the rest of the text.
std::pair<std::optional<std::string>, std::string> split_reasoning(Reasoning rule, std::string text);

}  // namespace weft::runtime
