// runtime/requests/journal.h: results out, appended line by line, so that a killed run loses and repeats nothing.
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

#include "runtime/requests/group_sync.h"
#include "runtime/requests/line_sums.h"
#include "runtime/requests/requests.h"
#include "runtime/requests/result_sink.h"

namespace weft::runtime {

/// What a finished answer survives: the death of the process, or a power cut too.
enum class Durability : std::uint8_t { process, power };
/// "process" or "power". Throws UsageError.
Durability durability_from_text(std::string_view text);

struct JournalOptions {
  Durability durability = Durability::process;
  /// A full disk is tried again every `pause` for `patience`; `stop` ends that with Interrupted.
  std::chrono::milliseconds pause{5000}, patience{60000};
  const std::atomic<bool>* stop = nullptr;
  std::function<void(const std::string&)> warn = {};  ///< called when a full disk is tried again
  /// As the system's calls of these names; for tests.
  std::function<ssize_t(int, const void*, std::size_t)> write = {};
  std::function<int(int)> fdatasync = {};
};

/// The result file. A line counts once its newline is written; what follows the last newline of an earlier run is a
/// torn tail and is cut. Next to it is OUTPUT.sums with a checksum of every line; its lock, held while the journal
/// lives, keeps two runs from mixing.
class Journal : public ResultSink {
 public:
  /// Refuses an existing file unless `resume`, and locks it. Creates nothing yet. Throws UsageError or IoError.
  Journal(const std::filesystem::path& path, bool resume, JournalOptions options = {});
  ~Journal() override;
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  /// The file exists and is locked: no other run writes it or the files that belong to it.
  bool held() const override { return fd_ >= 0; }
  /// Nothing was ever written to the file, or there is none.
  bool empty() const { return end_ == 0; }
  /// Cuts the file after byte `end`, because the rest may not be on disk. Throws IoError.
  void cut(std::uint64_t end);
  /// Which requests an earlier run has answered. Cuts the torn tail. Throws UsageError if a line is not the answer to a
  /// request of this file, a second answer to one, or not what was written; then the file is as it was. With `repair`
  /// such lines go to PATH.bad instead.
  std::vector<bool> recover(const RequestFile& requests, bool repair = false);
  /// Creates the file, for its owner alone, if there is none. Call it before append(). `first` is called before that,
  /// under the lock; where it throws, nothing is created. `on_lost` is called when a flush fails, with the number of
  /// bytes that are on disk for sure.
  void open(const std::function<void()>& first = {}, std::function<void(std::uint64_t durable)> on_lost = {}) override;
  /// One line, newline added. Throws IoError; then all earlier lines are whole. If the file has been deleted, they are
  /// in PATH.recovered, or in PATH.recovered.2 and so on where that exists.
  void append(std::string_view line) override;
  /// All is on disk when it returns. Throws IoError.
  void finish() override;
  /// The same, and the file is read back as a resume would: it is still the one of its name, and has `count` lines,
  /// each an answer to another one of the requests and as it was written. Throws IoError where that is not so,
  /// Interrupted. Returns how many of the lines say why there is no answer.
  std::size_t finish(const RequestFile& requests, std::size_t count) override;

  std::uint64_t torn_bytes() const { return torn_bytes_; }
  std::size_t set_aside() const { return set_aside_; }  ///< lines moved to PATH.bad

 private:
  [[noreturn]] void fail(const std::string& what, int error) const;
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
  std::unique_ptr<LineSums> sums_;  // null until the file is held
  int fd_ = -1;
  std::uint64_t end_ = 0;      // of the whole lines
  std::uint64_t durable_ = 0;  // of what is on disk for sure, as far as this run knows
  std::uint64_t torn_bytes_ = 0;
  std::size_t set_aside_ = 0;
  bool broken_ = false;  // a torn line could not be cut: nothing may follow it
  std::function<void(std::uint64_t)> on_lost_;
  std::unique_ptr<GroupSync> groups_;  // null unless Durability::power
};

}  // namespace weft::runtime
