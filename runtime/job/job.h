// runtime/job/job.h: answers a request file to its end, block after block, resumable at any moment.
#pragma once

#include <atomic>

#include "runtime/job/job_options.h"

namespace weft::runtime {

/// Returns the exit code: 0, 1 if all is done and some requests were refused, or 130 if `stop` was set. After 130 the
/// same call with `resume` continues. Throws the typed errors.
int run_job(const JobOptions& options, const std::atomic<bool>& stop);

}  // namespace weft::runtime
