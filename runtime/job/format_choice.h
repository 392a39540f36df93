// runtime/job/format_choice.h: chooses the formats of weights, keys and values for a job that allows several.
#pragma once

#include <memory>
#include <optional>

#include "policy/planner/machine.h"
#include "runtime/job/job_options.h"
#include "runtime/model/model_source.h"
#include "runtime/requests/requests.h"

namespace weft::runtime {

struct FormatChoice {
  std::unique_ptr<ModelSource> source;     ///< the model in the chosen format; null: the one that is already open
  std::optional<policy::Machine> machine;  ///< set if it had to be measured
};

/// Chooses the formats of the run that is resumed, if it has a record and `options` allow them; otherwise those of the
/// fastest plan for all requests of the shard. Puts them into options.policy and removes the alternatives from
/// `options`. `source`: the model as options.policy has it. Throws UsageError, DataError, and CapacityError if nothing
/// fits.
FormatChoice choose_formats(JobOptions& options, const ModelSource& source, const RequestFile& requests);

}  // namespace weft::runtime
