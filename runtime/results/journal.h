// runtime/results/journal.h: appends results line by line, so that a killed run loses and repeats nothing.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/requests/requests.h"
#include "runtime/results/group_sync.h"
#include "runtime/results/line_sums.h"
#include "runtime/results/result_sink.h"

namespace weft::runtime {

/// The event that a finished answer survives: the death of the process, or also a power cut.
enum class Durability : std::uint8_t { process, power };
/// Reads "process" or "power". Throws UsageError for anything else.
Durability durability_from_text(std::string_view text);

struct JournalOptions {
  Durability durability = Durability::process;
  /// On a full disk, writing is tried again every `pause` for `patience`; `stop` ends that with Interrupted.
  std::chrono::milliseconds pause{5000}, patience{60000};
  const std::atomic<bool>* stop = nullptr;
  std::function<void(const std::string&)> warn = {};  ///< called when a full disk is tried again
  /// Replacements of the system calls of these names, for tests.
  std::function<ssize_t(int, const void*, std::size_t)> write = {};
  std::function<int(int)> fdatasync = {};
};

/// The result file. A line counts once its newline is written; whatever follows the last newline of an earlier run is a
/// torn tail and is cut. OUTPUT.sums, next to it, has a checksum of every line. The lock of that file is held while the
/// journal lives and keeps two runs from mixing.
class Journal : public ResultSink {
 public:
  /// Refuses an existing file unless `resume` and it is this user's own, and locks it; `path` may be a link of this
  /// user's. Creates nothing yet. Throws UsageError, IoError or Interrupted.
  Journal(const std::filesystem::path& path, bool resume, JournalOptions options = {});
  ~Journal() override;
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  /// True if the file exists and is locked; then no other run writes it or the files that belong to it.
  bool held() const override { return fd_ >= 0; }
  /// True if nothing was ever written to the file, or there is none.
  bool empty() const { return end_ == 0; }
  /// Cuts the file after byte `end`, because the rest may not be on disk. Throws IoError.
  void cut(std::uint64_t end);
  /// Returns which requests an earlier run has answered, and cuts the torn tail. Throws UsageError if a line is not the
  /// answer to a request of this file, a second answer to one, or not what was written; then the file is unchanged.
  /// With `repair`, such lines go to PATH.bad instead. With `retry`, refusals go there too, and their requests count as
  /// not answered.
  std::vector<bool> recover(const RequestFile& requests, bool repair = false, bool retry = false);
  /// Creates the file, for its owner alone, if there is none. Call it before append(). `first` is called before the
  /// file is created, under the lock; if it throws, nothing is created. `on_lost` is called when a flush fails, with
  /// the number of bytes that are on disk for sure.
  void open(const std::function<void()>& first = {}, std::function<void(std::uint64_t durable)> on_lost = {}) override;
  /// Appends one line and a newline. Throws IoError; then all earlier lines are whole. If the file has been deleted,
  /// they are in PATH.recovered, or, if that exists, in PATH.recovered.2 and so on.
  void append(std::string_view line) override;
  /// Flushes and closes the file. All lines are on disk when it returns. Throws IoError.
  void finish() override;
  /// Does the same, and reads the file back as a resume would. It must still be the file of its name, and have `count`
  /// lines, each an answer to a different request and as it was written. Throws IoError if that is not so, or
  /// Interrupted. Returns how many of the lines are refusals.
  std::size_t finish(const RequestFile& requests, std::size_t count) override;

  std::uint64_t torn_bytes() const { return torn_bytes_; }
  std::size_t set_aside() const { return set_aside_; }  ///< damaged lines moved to PATH.bad
  std::size_t retried() const { return retried_; }      ///< refusals moved to PATH.bad

 private:
  [[noreturn]] void fail(const std::string& what, int error) const;
  std::unique_ptr<SumFile> lock() const;
  void attach();
  void create(const std::function<void()>& first);
  void flush();
  void require_there() const;
  void require_named() const;
  [[noreturn]] void copy_deleted() const;
  [[noreturn]] void lost(int error, std::uint64_t durable);
  int write_or_cut(std::string_view line);
  void wait_for_space(int error, std::chrono::steady_clock::time_point give_up);

  std::filesystem::path path_;
  JournalOptions options_;
  std::unique_ptr<SumFile> sums_;  // null until the file is held
  int fd_ = -1;
  std::uint64_t end_ = 0;      // end of the whole lines
  std::uint64_t durable_ = 0;  // end of the bytes that are on disk for sure, as far as this run knows
  std::uint64_t torn_bytes_ = 0;
  std::size_t set_aside_ = 0, retried_ = 0;
  bool broken_ = false;  // a torn line could not be cut, so nothing may follow it
  std::function<void(std::uint64_t)> on_lost_;
  std::unique_ptr<GroupSync> groups_;  // null unless Durability::power
};

}  // namespace weft::runtime
