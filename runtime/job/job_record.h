// runtime/job/job_record.h: a job compared with the record of the run that it continues.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "runtime/engine/model_source.h"
#include "runtime/job/job_options.h"
#include "runtime/requests/run_record.h"

namespace weft::runtime {

/// All that the job's answers depend on but the retention, which the plan may choose.
RunRecord record_of(const JobOptions& options, const ModelSource& source, const RequestFile& requests);
std::string retention_text(const policy::Retention& retention);
/// What it says of the formats of weights, keys and values; nothing where they are as the model has them.
std::optional<std::string> weights_text(const ModelSource& source);
std::optional<std::string> kv_text(const policy::KvFormat& format, DType model);

/// Which requests have a line in the output. One that has something in it is compared with its record: the job keeps
/// to the retention in there, if `options` allow it, and with Durability::power what a failed flush may have lost is
/// cut. Weights files that are not the same by name, place, size and times are read whole where the record has their
/// checksum. Throws UsageError where something differs, or where there is no record, unless options.resume accepts it;
/// Interrupted.
std::vector<bool> answered(Journal& journal, RunRecord& now, const ModelSource& source, const RequestFile& requests,
                           JobOptions& options, const std::atomic<bool>& stop);

/// The record of a run while the run goes on. Any thread.
class LiveRecord {
 public:
  LiveRecord(RunRecord record, std::string output) : record_(std::move(record)), output_(std::move(output)) {}

  void set(const std::string& name, const std::string& value);
  /// The kernels of this run join those of earlier ones. Returns one of these that may give other bits; empty if none.
  std::string add_kernels(const std::string& name);
  /// Throws IoError.
  void write();
  /// So much of the output is on disk for sure. Does not throw.
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

/// Reads weights files that are small, together, for their checksums. Throws IoError, Interrupted.
void read_small_weights(const Checkpoint& checkpoint, LiveRecord& record, const std::atomic<bool>& stop);

/// Reads all weights files once, on a thread of its own that gives way to everything else, and puts their checksums
/// into the record, so that a resume can tell a changed file from one that was copied or touched. Those whose checksum
/// is known are left out. Ends early when destroyed.
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
