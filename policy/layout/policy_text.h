// policy/layout/policy_text.h: a policy in one readable line.
#pragma once

#include <string>

#include "policy/layout/policy.h"

namespace weft::policy {

std::string percentages(const Fractions& shares);        ///< "20/80/0"
std::string retention_name(const Retention& retention);  ///< "h2o", "h2o by layer", "h2o by head"
std::string policy_line(const Policy& policy);

}  // namespace weft::policy
