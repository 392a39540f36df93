// offload/disk_channel.h: cuts requests into transfers, keeps many in flight, and retries and checks each one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "offload/disk_io.h"

namespace weft::offload {

/// A file of the disk store. It owns `fd`.
struct DiskFile {
  /// The last write to a page of a spill file. Only one thread at a time touches a page.
  struct Page {
    std::uint32_t crc = 0, bytes = 0;  // bytes is 0 if nothing can be read
    std::uint32_t generation = 0;      // counts the writes
  };

  DiskFile(std::string name, int descriptor) : path(std::move(name)), fd(descriptor) {}
  ~DiskFile();
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  /// Tries to switch O_DIRECT on or off, and sets `direct` to the outcome.
  void set_direct(bool on);
  /// Switches it on if a read then works: some file systems take the flag and refuse the transfers.
  void try_direct();

  const std::string path;
  const int fd;
  std::uint64_t size = 0;
  bool spill = false;
  std::atomic<bool> direct{false};
  std::vector<Page> pages;  ///< empty unless `spill`
};

/// The transfers of one caller: an engine, and bounce buffers for bytes that O_DIRECT cannot move in place. Used by one
/// thread at a time.
class DiskChannel {
 public:
  static constexpr std::size_t kPiece = std::size_t{1} << 20;  ///< the most that one transfer moves
  static constexpr std::size_t kLarge = 16;                    ///< pieces in flight
  static constexpr std::size_t kSmallPiece = std::size_t{64} << 10;
  static constexpr std::size_t kSmall = DiskIo::kMostInFlight - kLarge;  ///< small pieces in flight in addition

  DiskChannel(std::unique_ptr<DiskIo> io, OnFullDisk on_full) : io_(std::move(io)), on_full_(std::move(on_full)) {}

  /// Adds a request to the next run(). The caller has checked its range.
  void add(DiskFile& file, bool write, std::uint64_t offset, std::uint64_t bytes, std::byte* memory);
  /// Carries out the added requests. If one fails, it throws after all transfers in flight have ended.
  void run();
  /// Drops requests that were added but not run.
  void forget() { pieces_.clear(); }
  /// False once the engine itself has failed; then the channel must be discarded.
  bool usable() const { return usable_; }
  DiskIo& io() { return *io_; }

  std::uint64_t take_bytes_read() { return std::exchange(bytes_read_, 0); }
  std::uint64_t take_bytes_written() { return std::exchange(bytes_written_, 0); }

 private:
  /// The requested range, [offset, offset + bytes) <-> memory, and the transfer that covers it, [begin, begin + length)
  /// <-> data.
  struct Piece {
    DiskFile* file = nullptr;
    bool write = false, bounce = false, direct = false, reread = false;
    std::uint64_t offset = 0, begin = 0;
    std::size_t bytes = 0, length = 0;
    std::size_t required = 0;  // the part of length that is not past the end of the file
    std::size_t moved = 0;
    std::byte *memory = nullptr, *data = nullptr;
    int failures = 0;
    std::size_t slot = 0;
  };
  struct FreeAligned {
    void operator()(std::byte* memory) const;
  };

  void start(Piece& piece);
  void submit(Piece& piece);
  bool settle(Piece& piece, std::int64_t result);
  void retry(Piece& piece, const std::string& reason);
  bool finish(Piece& piece);
  void write_checksums(Piece& piece);
  std::optional<std::size_t> bad_page(const Piece& piece) const;
  std::vector<std::size_t>& slots_for(const Piece& piece);

  std::unique_ptr<std::byte, FreeAligned> bounce_;  // kLarge pieces, then kSmall small ones
  std::unique_ptr<DiskIo> io_;                      // destroyed before its buffers
  OnFullDisk on_full_;
  std::vector<Piece> pieces_;
  std::vector<std::size_t> large_, small_;  // free slots
  bool usable_ = true;
  std::uint64_t bytes_read_ = 0, bytes_written_ = 0;
};

}  // namespace weft::offload
