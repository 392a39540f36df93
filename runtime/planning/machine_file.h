// runtime/planning/machine_file.h: the machine and the request lengths that a plan or a benchmark is made for.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/backend.h"
#include "policy/machine.h"
#include "policy/model.h"
#include "policy/retention.h"

namespace weft::runtime {

/// A file of configs/machines. Throws UsageError, which names the file, the key, what was wanted and what was found.
policy::Machine read_machine(const std::string& path);

/// Throws UsageError if `machine`, which the file `path` describes, is not of the backend's kind: with a device of its
/// own or not.
void require_same_kind(const policy::Machine& machine, const std::string& path, const kernels::Backend& backend);

/// Throws UsageError if --prompt-len and --gen-len are not positive or go beyond the model's context, though the
/// retention does not roll positions or cannot, or if the retention is for another number of layers.
void check_lengths(std::int64_t prompt, std::int64_t generation, const policy::ModelSpec& spec,
                   const policy::Retention& retention);

}  // namespace weft::runtime
