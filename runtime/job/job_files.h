// runtime/job/job_files.h: the files that a job is given, checked before any work.
#pragma once

#include <atomic>

#include "runtime/job/job_options.h"
#include "runtime/model/model_source.h"
#include "runtime/requests/requests.h"

namespace weft::runtime {

/// Throws UsageError if a file cannot be read or written, or if one would be written as two things, and for answers of
/// impossible lengths. Says where requests come from and answers go to, if these are no files.
void check_and_announce(const JobOptions& options);

/// Reads and checks the requests. Throws UsageError if they, or an option, do not fit the model or each other. Warns of
/// prompts that begin with a token that the tokenizer adds.
RequestFile checked_requests(const JobOptions& options, const ModelSource& source, const std::atomic<bool>& stop);

}  // namespace weft::runtime
