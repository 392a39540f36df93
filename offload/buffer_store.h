// offload/buffer_store.h: everything that moves is a buffer with a home: weight units, KV buffers and activations
// alike.
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

/// What a buffer holds; for reports only.
enum class Kind : std::uint8_t { weights, kv, activations, workspace };
inline constexpr std::array kKinds{Kind::weights, Kind::kv, Kind::activations, Kind::workspace};
constexpr const char* name_of(Kind kind) {
  constexpr std::array names{"weights", "kv", "activations", "workspace"};
  return names[static_cast<std::size_t>(kind)];
}

/// A range of a checkpoint file and where it belongs inside a buffer. Moved without a copy if extent.offset and offset
/// are equal modulo kPage.
struct FilePart {
  Extent extent;
  std::size_t offset = 0;
};

/// Buffers are added first, which only counts; allocate() then makes room for exactly what was counted. After that all
/// calls but add*() may come from any thread; two that touch one buffer, or one window slot, are the caller's to order.
class BufferStore {
 public:
  /// `bytes` at home on `home`. With `parts`, a buffer on disk is those ranges, read-only; a buffer in memory can be
  /// filled from them. Without, a buffer on disk gets room in the spill file.
  /// Throws UsageError if a part leaves the buffer.
  BufferId add(Kind kind, std::size_t bytes, Tier home, std::vector<FilePart> parts = {});
  /// `slots` places of `slot_bytes` each for streamed buffers, in memory (device or host).
  WindowId add_window(Tier tier, int slots, std::size_t slot_bytes);

  /// What is needed on a tier, padding included; on disk spill space and the bytes of buffers read from their files.
  std::size_t bytes(Tier tier) const;
  /// The buffers of one kind at home there, without windows and padding: what a placement achieved.
  std::size_t bytes(Tier tier, Kind kind) const;
  std::size_t window_bytes(Tier tier) const;  ///< the part of bytes(tier) that windows take
  std::size_t spill_bytes() const { return spill_.peak(); }

  /// Once, after the last add*(). Both references must outlive the store. `spill_directory` is used only if
  /// spill_bytes() > 0. Throws CapacityError or IoError; then the store can only be destroyed.
  void allocate(kernels::Backend& backend, DiskStore& disk, const std::string& spill_directory);

  Tier home(BufferId buffer) const { return entry(buffer).home; }
  Kind kind(BufferId buffer) const { return entry(buffer).kind; }
  std::size_t bytes(BufferId buffer) const { return entry(buffer).bytes; }
  std::size_t buffers() const { return buffers_.size(); }
  bool read_only(BufferId buffer) const { return home(buffer) == Tier::disk && !entry(buffer).parts.empty(); }

  /// Where the buffer lives in memory; null for a buffer on disk. kPage aligned.
  std::byte* home_data(BufferId buffer) const;
  std::byte* slot(WindowId window, int index) const;
  int slots(WindowId window) const { return windows_[static_cast<std::size_t>(window)].slots; }

  /// Blocks until the buffer's bytes are at `to`, host memory: from its file parts, else from the spill file. A part of
  /// the buffer that no file part covers is left as it is.
  void read_from_disk(BufferId buffer, std::byte* to) const { read_from_disk(buffer, to, bytes(buffer)); }
  /// Blocks until the spilled buffer is on disk. Throws UsageError if the buffer's home is not the spill file.
  void write_to_disk(BufferId buffer, const std::byte* from) const { write_to_disk(buffer, from, bytes(buffer)); }
  /// The same for the first `bytes` bytes of a spilled buffer, whose work space is as large as the buffer; what is read
  /// must have been written with at least as many.
  void read_from_disk(BufferId buffer, std::byte* to, std::size_t bytes) const;
  void write_to_disk(BufferId buffer, const std::byte* from, std::size_t bytes) const;

  /// A range of a buffer that is wanted by itself, such as one row of an embedding.
  struct PartRead {
    std::size_t offset = 0, bytes = 0;
    std::byte* to = nullptr;
  };
  /// Blocks until all ranges of a buffer on disk are read. The ranges are in order of offset; one that is in a single
  /// file part is read from there.
  void read_parts(BufferId buffer, std::span<const PartRead> parts) const;

 private:
  struct Entry {
    Kind kind{};
    Tier home{};
    std::size_t bytes = 0, offset = 0;  // in the tier's arena, or in the spill file
    std::vector<FilePart> parts;
  };
  struct Window {
    Tier tier{};
    int slots = 0;
    std::size_t stride = 0, offset = 0;
  };
  const Entry& entry(BufferId buffer) const { return buffers_[static_cast<std::size_t>(buffer)]; }
  std::byte* base(Tier tier) const;
  static std::size_t spilled(const Entry& e, std::size_t bytes);
  void read_spilled(const Entry& e, std::span<const PartRead> parts) const;

  std::vector<Entry> buffers_;
  std::vector<Window> windows_;
  std::array<Arena, 2> memory_;  // counting: device, host
  Arena spill_;
  std::array<std::array<std::size_t, kKinds.size()>, kTiers.size()> by_kind_{};
  std::array<std::size_t, kTiers.size()> in_windows_{};
  std::size_t file_bytes_ = 0;

  DiskStore* disk_ = nullptr;
  FileId spill_file_{};
  std::array<std::unique_ptr<kernels::Memory>, 2> allocated_;
};

}  // namespace weft::offload
