// runtime/results/line_sums.h: the file OUTPUT.sums, which shows whether a result has changed since it was written.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/stop.h"

namespace weft::runtime {

/// The checksum of one line, newline included: its CRC-32C and its length.
class LineSum {
 public:
  void add(std::string_view piece);
  std::uint64_t value() const { return std::uint64_t{crc_} << 32 | (bytes_ & 0xFFFFFFFFu); }
  static std::uint64_t of(std::string_view line);

 private:
  std::uint32_t crc_ = 0;
  std::uint64_t bytes_ = 0;
};

/// A set of checksums.
class SumSet {
 public:
  void add(std::uint64_t sum) { sums_.push_back(sum); }
  void clear() { sums_.clear(), sorted_ = 0; }
  bool contains(std::uint64_t sum) const;
  std::size_t size() const;  ///< without repetitions

 private:
  void sort() const;

  mutable std::vector<std::uint64_t> sums_;
  mutable std::size_t sorted_ = 0;  // the number of sums that are in order
};

/// A text file next to a result file, with a checksum for every line. It only grows. A checksum is written before its
/// line, so a line without one is not what was written. The order of the lines does not matter, and there may be
/// checksums of lines that are gone. The file belongs to one user and is locked while this lives. Its lock is the
/// output's, because only its owner can open it. One descriptor locks, reads and writes it, as NFS and SMB demand.
class SumFile {
 public:
  /// The path of the file. Links are resolved, so that each name of an output leads to the same file.
  static std::filesystem::path place(const std::filesystem::path& output);

  /// Opens or creates the file. Throws NotOwn if it is another user's, a link or something else, IoError if another run
  /// keeps its lock, Interrupted if `stop` is set while it waits for that.
  explicit SumFile(const std::filesystem::path& output, const std::atomic<bool>& stop = kNeverStopped);
  /// Removes the file if this has created it and nothing was added.
  ~SumFile();
  SumFile(const SumFile&) = delete;
  SumFile& operator=(const SumFile&) = delete;

  /// The checksums in the file at place(output); none if there is no file. For callers that only read.
  static SumSet read(const std::filesystem::path& output);

  const SumSet& sums() const { return sums_; }
  /// Names what the file system does not do, and what follows from that, in a line; empty if it does all.
  const std::string& warning() const { return warning_; }
  /// Removes all checksums, for an output that begins again. Throws IoError.
  void clear();
  /// Adds a checksum. Returns 0, or the error; then the file is unchanged.
  int add(std::uint64_t sum);
  int fd() const { return fd_; }

 private:
  void open_and_lock(const std::filesystem::path& output, const std::atomic<bool>& stop);
  bool open_named();
  void note_lacks(bool locks, bool modes);
  [[noreturn]] void fail(const std::string& what, int error) const;

  std::filesystem::path path_;
  std::string warning_;
  int fd_ = -1;
  bool created_ = false;
  std::uint64_t end_ = 0;  // end of the whole lines
  SumSet sums_;
};

}  // namespace weft::runtime
