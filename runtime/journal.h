// runtime/journal.h: results out, appended line by line, so that a killed run loses and repeats nothing.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/requests.h"

namespace weft::runtime {

/// The result file. A line counts once its newline is written; what follows the last newline of an earlier run is a
/// torn tail and is cut. The file is locked by a descriptor of its own while the journal lives, so that two runs cannot
/// mix.
class Journal {
 public:
  /// Refuses an existing file unless `resume`, and locks it. Creates nothing yet. Throws UsageError or IoError.
  Journal(const std::filesystem::path& path, bool resume);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  /// Which requests an earlier run has answered. Cuts the torn tail. Throws UsageError if a line is not the answer to a
  /// request of this file, or a second answer to one; then the file is as it was.
  std::vector<bool> recover(const RequestFile& requests);
  /// Creates the file if there is none. After this append() may be called.
  void open();
  /// One line, newline added. Throws IoError; then all earlier lines are whole.
  void append(std::string_view line);
  /// On disk when it returns.
  void finish();

  std::uint64_t torn_bytes() const { return torn_bytes_; }

 private:
  void lock();

  std::filesystem::path path_;
  int fd_ = -1, lock_fd_ = -1;
  std::uint64_t torn_bytes_ = 0;
};

}  // namespace weft::runtime
