// runtime/planning/compare.h: compares what this planner predicts on a machine with what others published for it.
#pragma once

#include <string>
#include <vector>

#include "policy/machine.h"
#include "runtime/planning/published.h"

namespace weft::runtime {

/// For people: per model and workload of the rows in 16 bits, tokens/s as published (simulated where `simulated`), what
/// the fastest policies with the whole cache and with H2O at 20 % are predicted to reach, and the ratios.
std::string comparison_table(const std::vector<PublishedResult>& results, const policy::Machine& machine);

}  // namespace weft::runtime
