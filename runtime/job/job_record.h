// runtime/job/job_record.h: compares a job with the record of the run that it continues.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "runtime/job/job_options.h"
#include "runtime/model/model_source.h"
#include "runtime/results/run_record.h"

namespace weft::runtime {

/// Everything that the job's answers depend on, except the retention, which the plan may choose.
RunRecord record_of(const JobOptions& options, const ModelSource& source, const RequestFile& requests);
std::string retention_text(const policy::Retention& retention);
/// The record's words for the format of weights, and of keys and values. Empty if the format is the model's own.
std::optional<std::string> weights_text(const ModelSource& source);
std::optional<std::string> kv_text(const policy::KvFormat& format, DType model);

/// Returns which requests have a line in the output. An output that is not empty is compared with its record. The job
/// keeps the record's retention if `options` allow it. With Durability::power, what a failed flush may have lost is
/// cut. Weights files that are not the same by name, place, size and times are read whole if the record has their
/// checksum. Throws UsageError if something differs, or if there is no record, unless options.resume accepts that;
/// Interrupted.
std::vector<bool> answered(Journal& journal, RunRecord& now, const ModelSource& source, const RequestFile& requests,
                           JobOptions& options, const std::atomic<bool>& stop);

/// The record of a run during the run. Any thread.
class LiveRecord {
 public:
  LiveRecord(RunRecord record, std::string output) : record_(std::move(record)), output_(std::move(output)) {}

  void set(const std::string& name, const std::string& value);
  /// Adds the kernels of this run to those of earlier runs. Returns earlier kernels that may give other bits; empty if
  /// there are none.
  std::string add_kernels(const std::string& name);
  /// Throws IoError.
  void write();
  /// Records that `bytes` of the output are on disk for sure. Does not throw.
  void set_durable(std::uint64_t bytes);
  void set_checksum(std::size_t weights_file, std::uint32_t checksum);
  RunRecord copy() const;

 private:
  mutable std::mutex mutex_;
  RunRecord record_;
  const std::string output_;
};

/// Creates the output and its record if there are none. `record` must outlive `results`.
void begin_output(ResultSink& results, LiveRecord& record);

/// Reads the weights files for their checksums if they are small in total. Throws IoError, Interrupted.
void read_small_weights(const Checkpoint& checkpoint, LiveRecord& record, const std::atomic<bool>& stop);

/// Reads all weights files once, on a thread of the lowest priority, and puts their checksums into the record. A resume
/// can then tell a changed file from one that was copied or touched. Files whose checksum is known are left out. Ends
/// early when destroyed.
class WeightsReader {
 public:
  WeightsReader(const Checkpoint& checkpoint, LiveRecord& record);
  ~WeightsReader();
  WeightsReader(const WeightsReader&) = delete;
  WeightsReader& operator=(const WeightsReader&) = delete;

 private:
  void read(const Checkpoint& checkpoint, LiveRecord& record);

  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable ended_;
  bool has_ended_ = false;
  std::thread thread_;
};

}  // namespace weft::runtime
