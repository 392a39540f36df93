// offload/buffer_store.h: buffers, each with a home tier: weight units, KV buffers and activations alike.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "offload/disk_store.h"
#include "offload/memory.h"
#include "offload/tier.h"

namespace weft::offload {

enum class BufferId : std::uint32_t {};
enum class WindowId : std::uint32_t {};

/// The device's use of host memory. All that ops use where it lies is one allocation, and the first, because it
/// must be pinned, which a system may allow for a part only. What is copied may lie in pageable memory too.
enum class Use : std::uint8_t { copied, in_place };

/// The contents of a buffer, for reports only.
enum class Kind : std::uint8_t { weights, kv, activations, workspace };
inline constexpr std::array kKinds{Kind::weights, Kind::kv, Kind::activations, Kind::workspace};
constexpr const char* name_of(Kind kind) {
  constexpr std::array names{"weights", "kv", "activations", "workspace"};
  return names[static_cast<std::size_t>(kind)];
}

/// A range of a checkpoint file and its offset in a buffer. It moves without a copy if extent.offset and offset are
/// equal modulo kPage.
struct FilePart {
  Extent extent;
  std::size_t offset = 0;
};

/// Holds all buffers. They are added first, which only counts their bytes; allocate() then allocates exactly that many.
/// Afterwards all calls except add*() may come from any thread. The caller must order calls that touch the same buffer
/// or the same window slot.
class BufferStore {
 public:
  /// Adds a buffer of `bytes` bytes whose home is `home`. With `parts`, a buffer on disk consists of those ranges and
  /// is read-only; a buffer in memory can be filled from them. Without `parts`, a buffer on disk gets room in the spill
  /// file. Throws UsageError if a part reaches past the end of the buffer.
  BufferId add(Kind kind, std::size_t bytes, Tier home, std::vector<FilePart> parts = {}, Use use = Use::copied);
  /// Adds a window: `slots` places of `slot_bytes` each for streamed buffers, in device or host memory.
  WindowId add_window(Tier tier, int slots, std::size_t slot_bytes, Use use = Use::copied);

  /// The bytes needed on a tier, padding included. On disk these are the spill space and the buffers that are read from
  /// their files.
  std::size_t bytes(Tier tier) const;
  /// The bytes of the buffers of one kind whose home is `tier`, without windows and padding: what a placement achieved.
  std::size_t bytes(Tier tier, Kind kind) const;
  std::size_t window_bytes(Tier tier) const;  ///< the part of bytes(tier) that windows take
  std::size_t spill_bytes() const { return spill_.peak(); }

  /// Allocates memory and the spill file. Call it once, after the last add*(). Both references must outlive the store.
  /// `spill_directory` is used only if spill_bytes() > 0. Throws CapacityError or IoError; then the store can only be
  /// destroyed.
  void allocate(kernels::Backend& backend, DiskStore& disk, const std::string& spill_directory);

  /// All memory that allocate() has taken on device and host.
  std::vector<std::span<std::byte>> memory() const;

  Tier home(BufferId buffer) const { return entry(buffer).home; }
  Kind kind(BufferId buffer) const { return entry(buffer).kind; }
  std::size_t bytes(BufferId buffer) const { return entry(buffer).bytes; }
  std::size_t buffers() const { return buffers_.size(); }
  bool read_only(BufferId buffer) const { return home(buffer) == Tier::disk && !entry(buffer).parts.empty(); }

  /// The buffer's address in memory, aligned to kPage; null if its home is the disk.
  std::byte* home_data(BufferId buffer) const;
  std::byte* slot(WindowId window, int index) const;
  int slots(WindowId window) const { return windows_[static_cast<std::size_t>(window)].slots; }

  /// Blocks until the buffer has been read to `to`, in host memory, from its file parts or else from the spill file.
  /// Bytes that no file part covers are left unchanged.
  void read_from_disk(BufferId buffer, std::byte* to) const { read_from_disk(buffer, to, bytes(buffer)); }
  /// Blocks until the spilled buffer is on disk. Throws UsageError if the buffer's home is not the spill file.
  void write_to_disk(BufferId buffer, const std::byte* from) const { write_to_disk(buffer, from, bytes(buffer)); }
  /// Like the calls above, but for the first `bytes` bytes of a spilled buffer. `to` and `from` must be as large as the
  /// whole buffer, because whole pages move. The last write must have written at least as many bytes as are read.
  void read_from_disk(BufferId buffer, std::byte* to, std::size_t bytes) const;
  void write_to_disk(BufferId buffer, const std::byte* from, std::size_t bytes) const;

  /// A range of a buffer to be read by itself, such as one row of an embedding.
  struct PartRead {
    std::size_t offset = 0, bytes = 0;
    std::byte* to = nullptr;
  };
  /// Blocks until all ranges of a buffer on disk have been read. They must be in order of offset. What file parts cover
  /// is read directly from there.
  void read_parts(BufferId buffer, std::span<const PartRead> parts) const;

 private:
  struct Entry {
    Kind kind{};
    Tier home{};
    Use use{};
    std::size_t bytes = 0, offset = 0;  // in its arena, or in the spill file
    std::vector<FilePart> parts;
  };
  struct Window {
    Tier tier{};
    Use use{};
    int slots = 0;
    std::size_t stride = 0, offset = 0;
  };
  const Entry& entry(BufferId buffer) const { return buffers_[static_cast<std::size_t>(buffer)]; }
  /// The place in memory_ and allocated_ of what is on device or host.
  static std::size_t arena(Tier tier, Use use);
  std::byte* base(Tier tier, Use use) const;
  static std::size_t spilled(const Entry& e, std::size_t bytes);
  void read_spilled(const Entry& e, std::span<const PartRead> parts) const;

  std::vector<Entry> buffers_;
  std::vector<Window> windows_;
  std::array<Arena, 3> memory_;  // counting arenas: device, host in place, host copied
  Arena spill_;
  std::array<std::array<std::size_t, kKinds.size()>, kTiers.size()> by_kind_{};
  std::array<std::size_t, kTiers.size()> in_windows_{};
  std::size_t file_bytes_ = 0;

  DiskStore* disk_ = nullptr;
  FileId spill_file_{};
  std::array<std::unique_ptr<kernels::Memory>, 3> allocated_;
};

}  // namespace weft::offload
