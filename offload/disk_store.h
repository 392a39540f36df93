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

/// automatic: io_uring, or threads where there is none. buffered: threads, and the page cache.
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

/// What was spilled cannot be read back, or is not what was written: it is lost, and nothing else.
struct LostPage : IoError {
  using IoError::IoError;
};

/// Reads and writes with O_DIRECT, in pieces of 1 MiB, 16 of them in flight, small pieces more. Every call may come
/// from any thread; calls from different threads run at the same time. A request whose address and file offset are
/// equal modulo kPage is moved without a copy, but for its unaligned ends; any other goes through bounce buffers.
class DiskStore {
 public:
  /// Wraps each DiskIo that the store makes (tests: faults).
  using Decorate = std::function<std::unique_ptr<DiskIo>(std::unique_ptr<DiskIo>)>;

  /// Throws IoError if io_uring is asked for by name and there is none.
  explicit DiskStore(DiskEngine engine = DiskEngine::automatic, Decorate decorate = {});
  ~DiskStore();
  DiskStore(const DiskStore&) = delete;
  DiskStore& operator=(const DiskStore&) = delete;

  /// "disk: io_uring, O_DIRECT, 1 MiB x 16", or what is used in its place and why.
  std::string engine_line() const;

  /// Opens a regular file for reading only. Throws IoError.
  FileId open(const std::string& path);
  std::uint64_t size(FileId file) const;
  const std::string& path(FileId file) const;

  /// A nameless file of our own in `directory` with all its space reserved; gone with the store or the process.
  /// Throws CapacityError, which says what is needed and what is free, else IoError.
  FileId create_spill(const std::string& directory, std::uint64_t bytes);

  /// Blocks until all requests are done. An extent may run past the end of the file to the next multiple of kPage; what
  /// is past the end is left as it was, or zero. Spill pages are checked against the checksum of what was written.
  /// Throws IoError, which names file and offset, LostPage for a spill file; then nothing is in flight and the
  /// destinations are undefined.
  void read(std::span<const ReadRequest> requests);
  void read(const Extent& extent, std::byte* to);

  /// Spill files only; each extent starts at a multiple of kSpillPage and replaces what its pages held.
  /// Throws CapacityError if the disk is full, else IoError; then the pages must be written again before they are read.
  void write(std::span<const WriteRequest> requests);
  void write(const Extent& extent, const std::byte* from);

  /// Moved to and from the disk so far, bounced edges included.
  std::uint64_t bytes_read() const { return bytes_read_; }
  std::uint64_t bytes_written() const { return bytes_written_; }

 private:
  DiskFile& file(FileId id) const;
  FileId keep(std::unique_ptr<DiskFile> file);
  std::unique_ptr<DiskIo> make_io() const;
  template <class Use> auto with_channel(const Use& use);

  DiskEngine engine_;
  std::string why_;  // why not io_uring
  Decorate decorate_;
  mutable std::mutex mutex_;  // guards the two containers
  std::vector<std::unique_ptr<DiskFile>> files_;
  std::vector<std::unique_ptr<DiskChannel>> idle_;  // as many as there were threads inside a call at once
  std::size_t channels_ = 0;                        // ever made
  std::atomic<std::uint64_t> bytes_read_{0}, bytes_written_{0};
};

}  // namespace weft::offload
