// runtime/job/job_record.h: a job held against the record of the run that it continues.
#pragma once

#include "runtime/engine/model_source.h"
#include "runtime/job/job_options.h"
#include "runtime/requests/run_record.h"

namespace weft::runtime {

/// All that the job's answers depend on but the retention, which the plan may choose.
RunRecord record_of(const JobOptions& options, const ModelSource& source, const RequestFile& requests);
std::string retention_text(const policy::Retention& retention);

/// Which requests have a line in the output. One that has something in it is held against its record: the job keeps
/// to the retention in there, if `options` allow it, and with Durability::power what a failed flush may have lost is
/// cut. Throws UsageError where something differs, or where there is no record, unless options.resume accepts it.
std::vector<bool> answered(Journal& journal, RunRecord& now, const RequestFile& requests, JobOptions& options);

/// Creates the output and its record if there are none. `record` must outlive the journal.
void begin_output(Journal& journal, RunRecord& record, const std::string& output);

}  // namespace weft::runtime
