// runtime/results/group_sync.h: a thread that puts lines on disk group by group.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

namespace weft::runtime {

/// Flushes a file 200 ms after the first line that is not flushed yet, or once there are 64 of them. A failed flush is
/// never tried again, because the kernel may have dropped the pages and would then report success (PostgreSQL's fsync
/// errors).
class GroupSync {
 public:
  static constexpr std::size_t kLines = 64;
  static constexpr std::chrono::milliseconds kDelay{200};

  /// `sync` is fdatasync of the file; it returns 0, or -1 and sets errno. The first `durable` bytes are on disk
  /// already.
  GroupSync(std::function<int()> sync, std::uint64_t durable);
  ~GroupSync() { stop(); }  ///< flushes what is left
  GroupSync(const GroupSync&) = delete;
  GroupSync& operator=(const GroupSync&) = delete;

  /// Counts one more line, which ends at byte `end`. Waits while a group is full.
  void wrote(std::uint64_t end);
  /// Flushes what is left. wrote() must not be called after it.
  void stop();
  int error() const;              ///< errno of the flush that failed; 0 if none did
  std::uint64_t durable() const;  ///< bytes on disk for sure

 private:
  void run();

  const std::function<int()> sync_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t end_, durable_;
  std::size_t lines_ = 0;  // lines not yet given to a flush
  int error_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace weft::runtime
