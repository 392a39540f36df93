// runtime/serve/batch_worker.h: batches answered one after another, each by a process of weft generate.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/serve/batch_store.h"
#include "runtime/serve/child.h"

namespace weft::runtime {

struct JobCommand {
  std::string model;
  std::vector<std::string> served_names;
  std::vector<std::string> flags;  ///< others of weft generate
  /// The arguments that answer `input`.
  std::vector<std::string> arguments(const std::string& input, const std::string& output) const;
};

/// Takes each batch of a store to its end. All that it does can be done again, so a process that is killed at any
/// moment is continued by the next. A disk that fails is tried again.
class BatchWorker {
 public:
  BatchWorker(BatchStore& store, JobCommand command) : store_(store), command_(std::move(command)) {}

  /// Works until `stop` is set; then the batch that is under way stays as it is.
  void run(const std::atomic<bool>& stop);
  /// Says that there may be a batch to begin or to end.
  void wake();

 private:
  void work_on(const Batch& batch, const std::atomic<bool>& stop);
  bool validate(const Batch& batch, const std::atomic<bool>& stop);
  void answer(const Batch& batch, const std::atomic<bool>& stop);
  void count_lines(const Batch& batch);
  void finalise(const Batch& batch);
  void fail(const Batch& batch, std::vector<BatchError> errors);
  void move_to(const Batch& batch, BatchStatus status);
  void sleep(double seconds);
  std::filesystem::path output_of(const Batch& batch) const;

  BatchStore& store_;
  const JobCommand command_;
  std::mutex mutex_;
  std::condition_variable woken_;
  bool wake_ = false;
  std::uint64_t counted_bytes_ = 0, completed_ = 0, failed_ = 0;  // of the batch that is answered
};

}  // namespace weft::runtime
