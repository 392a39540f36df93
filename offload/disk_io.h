// offload/disk_io.h: the layer below the disk store: transfers handed to the kernel, and their results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace weft::offload {

/// One transfer. `tag` comes back with its result.
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
  std::int64_t result = 0;  ///< bytes moved, or -errno; fewer than asked is no error here
};

/// Transfers in flight. Used by one thread at a time. Memory and file must live until the result was reaped.
class DiskIo {
 public:
  virtual ~DiskIo() = default;
  /// Never more in flight than kMostInFlight.
  virtual void submit(const DiskTransfer& transfer) = 0;
  /// Waits for any one of those in flight. Throws IoError if the engine itself failed.
  virtual DiskResult reap() = 0;
  /// Reserves the first `bytes` bytes of a file. 0 or an errno.
  virtual int allocate(int fd, std::uint64_t bytes);

  static constexpr std::size_t kMostInFlight = 64;
};

/// Null where the kernel has no io_uring for us; `reason` then says why.
std::unique_ptr<DiskIo> make_io_uring(std::string& reason);
std::unique_ptr<DiskIo> make_io_threads(int threads);

}  // namespace weft::offload
