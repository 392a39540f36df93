// runtime/planning/machine_file.h: reads and checks the machine and the request lengths of a plan or a benchmark.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/backend.h"
#include "policy/layout/retention.h"
#include "policy/model/model.h"
#include "policy/planner/machine.h"

namespace weft::runtime {

/// Reads a file of configs/machines. Throws UsageError, which names the file, the key, what was wanted and what was
/// found.
policy::Machine read_machine(const std::string& path);

/// Throws UsageError unless `machine`, which the file `path` describes, is of the backend's kind: either both have a
/// device with memory of its own, or neither has.
void require_same_kind(const policy::Machine& machine, const std::string& path, const kernels::Backend& backend);

/// Throws UsageError if --prompt-len and --gen-len are not positive, if they go beyond the model's context and the
/// retention does not or cannot roll positions, or if the retention is for another number of layers.
void check_lengths(std::int64_t prompt, std::int64_t generation, const policy::ModelSpec& spec,
                   const policy::Retention& retention);

}  // namespace weft::runtime
