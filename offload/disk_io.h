// offload/disk_io.h: the layer below the disk store: transfers handed to the kernel, and their results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace weft::offload {

/// One transfer. Its result carries the same `tag`.
struct DiskTransfer {
  int fd = -1;
  bool write = false;
  std::uint64_t offset = 0;
  std::size_t bytes = 0;
  std::byte* data = nullptr;  ///< only read from if `write`
  std::size_t tag = 0;
};
struct DiskResult {
  std::size_t tag = 0;
  std::int64_t result = 0;  ///< bytes moved, or -errno; moving fewer bytes than asked is not an error here
};

/// Called when a spill file finds no space, with what could not be written. Returns true if it may be tried again,
/// which it should wait before; it may throw. Any thread may call it, several at a time.
using OnFullDisk = std::function<bool(const std::string& what)>;

/// An engine that carries out transfers. Used by one thread at a time. Memory and file must live until the result has
/// been reaped.
class DiskIo {
 public:
  virtual ~DiskIo() = default;
  /// Starts a transfer. At most kMostInFlight may be in flight.
  virtual void submit(const DiskTransfer& transfer) = 0;
  /// Waits for any one transfer in flight and returns its result. Throws IoError if the engine itself failed.
  virtual DiskResult reap() = 0;
  /// Reserves the first `bytes` bytes of a file. Returns 0 or an errno.
  virtual int allocate(int fd, std::uint64_t bytes);

  static constexpr std::size_t kMostInFlight = 64;
};

/// Returns null if io_uring cannot be used, and sets `reason` to the cause.
std::unique_ptr<DiskIo> make_io_uring(std::string& reason);
std::unique_ptr<DiskIo> make_io_threads(int threads);

}  // namespace weft::offload
