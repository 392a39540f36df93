// runtime/job/format_choice.h: of several formats of weights, keys and values that a job allows, the one it is computed
// in.
#pragma once

#include <memory>
#include <optional>

#include "policy/machine.h"
#include "runtime/engine/model_source.h"
#include "runtime/job/job_options.h"
#include "runtime/requests/requests.h"

namespace weft::runtime {

struct FormatChoice {
  std::unique_ptr<ModelSource> source;     ///< the model with its weights in it; null: the one that is open already
  std::optional<policy::Machine> machine;  ///< if it had to be measured
};

/// The formats of the run that is resumed, where it has a record and `options` allow them; else those of the fastest
/// plan for all requests of the shard. Puts them into options.policy and leaves no others. `source`: the model as
/// options.policy has it. Throws UsageError, DataError, CapacityError where nothing fits.
FormatChoice choose_formats(JobOptions& options, const ModelSource& source, const RequestFile& requests);

}  // namespace weft::runtime
