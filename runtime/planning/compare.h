// runtime/planning/compare.h: compares this planner's predictions for a machine with published figures.
#pragma once

#include <string>
#include <vector>

#include "policy/planner/machine.h"
#include "runtime/planning/published.h"

namespace weft::runtime {

/// A table for people, from the rows in 16 bits. For each model and workload it has the published tokens/s, the
/// predictions for the fastest policies with the whole cache and with H2O at 20 %, and the ratios. Ratios of published
/// figures have those simulated by FlexGen's arithmetic next to them.
std::string comparison_table(const std::vector<PublishedResult>& results, const policy::Machine& machine);

}  // namespace weft::runtime
