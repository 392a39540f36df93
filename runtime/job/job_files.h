// runtime/job/job_files.h: the files that a job is given, checked before any work.
#pragma once

#include "runtime/job/job_options.h"

namespace weft::runtime {

/// Throws UsageError if a file cannot be read or written, or if one would be written as two things, and for answers of
/// impossible lengths. Says where requests come from and answers go to, if these are no files.
void check_and_announce(const JobOptions& options);

}  // namespace weft::runtime
