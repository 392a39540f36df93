// offload/disk_store.h: byte ranges of files: read-only checkpoint files, and checksummed spill files.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "kernels/error.h"
#include "offload/disk_io.h"
#include "offload/memory.h"

namespace weft::offload {

struct DiskFile;  // offload/disk_channel.h
class DiskChannel;

/// automatic: io_uring, or threads if it is not available. buffered: threads and the page cache.
enum class DiskEngine : std::uint8_t { automatic, io_uring, threads, buffered };

enum class FileId : std::uint32_t {};

struct Extent {
  FileId file{};
  std::uint64_t offset = 0, bytes = 0;
};
struct ReadRequest {
  Extent extent;
  std::byte* to = nullptr;
};
struct WriteRequest {
  Extent extent;
  const std::byte* from = nullptr;
};

/// Thrown if a spilled page cannot be read back or does not hold what was written. Its contents are lost, and nothing
/// else is.
struct LostPage : IoError {
  using IoError::IoError;
};

/// Thrown if the disk of a spill file is full although its space was reserved, as on file systems whose reservations do
/// not hold.
struct FullDisk : IoError {
  using IoError::IoError;
};

/// Reads and writes with O_DIRECT in pieces of 1 MiB: 16 of them in flight, and small pieces in addition. Any thread
/// may make any call, and calls from different threads run at the same time. A request whose address and file offset
/// are equal modulo kPage moves without a copy, except for its unaligned ends; any other goes through bounce buffers.
class DiskStore {
 public:
  /// Wraps each DiskIo that the store makes. Tests use it to inject faults.
  using Decorate = std::function<std::unique_ptr<DiskIo>(std::unique_ptr<DiskIo>)>;

  /// Throws IoError if `engine` is io_uring and it is not available.
  explicit DiskStore(DiskEngine engine = DiskEngine::automatic, Decorate decorate = {}, OnFullDisk on_full = {});
  ~DiskStore();
  DiskStore(const DiskStore&) = delete;
  DiskStore& operator=(const DiskStore&) = delete;

  /// A line such as "disk: io_uring, O_DIRECT, 1 MiB x 16", or what is used instead and why.
  std::string engine_line() const;

  /// Opens a regular file for reading only. Throws IoError.
  FileId open(const std::string& path);
  /// Takes over the descriptor of a regular file, which nothing else reads. Messages call it `name`.
  FileId adopt(int fd, const std::string& name);
  std::uint64_t size(FileId file) const;
  const std::string& path(FileId file) const;

  /// Creates a nameless file in `directory` with all its space reserved. It disappears with the store or the process.
  /// Throws CapacityError, which states how much is needed and how much is free, or IoError.
  FileId create_spill(const std::string& directory, std::uint64_t bytes);

  /// Blocks until all requests are done. An extent may run past the end of the file to the next multiple of kPage; the
  /// bytes past the end are left as they were or are zero. Spill pages are checked against the checksum of what was
  /// written. Throws IoError, which names file and offset, or LostPage for a spill file. Then nothing is in flight, and
  /// the contents of the destinations are undefined.
  void read(std::span<const ReadRequest> requests);
  void read(const Extent& extent, std::byte* to);

  /// Writes to spill files only. Each extent starts at a multiple of kSpillPage and replaces the contents of its pages.
  /// Throws FullDisk if the disk is full and stays so, otherwise IoError; then the pages must be written again before
  /// they are read.
  void write(std::span<const WriteRequest> requests);
  void write(const Extent& extent, const std::byte* from);

  /// Bytes moved from and to the disk so far, bounced edges included.
  std::uint64_t bytes_read() const { return bytes_read_; }
  std::uint64_t bytes_written() const { return bytes_written_; }

 private:
  DiskFile& file(FileId id) const;
  FileId keep(std::unique_ptr<DiskFile> file);
  std::unique_ptr<DiskIo> make_io() const;
  template <class Use> auto with_channel(const Use& use);

  DiskEngine engine_;
  std::string why_;  // why io_uring is not used
  Decorate decorate_;
  OnFullDisk on_full_;
  mutable std::mutex mutex_;  // guards the two containers
  std::vector<std::unique_ptr<DiskFile>> files_;
  std::vector<std::unique_ptr<DiskChannel>> idle_;  // as many as threads were ever inside a call at once
  std::size_t channels_ = 0;                        // number made so far
  std::atomic<std::uint64_t> bytes_read_{0}, bytes_written_{0};
};

}  // namespace weft::offload
