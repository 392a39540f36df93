// offload/block_store.h: everything that moves is a block with a home: weight units, KV blocks and activations alike.
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

enum class BlockId : std::uint32_t {};
enum class WindowId : std::uint32_t {};

/// What a block holds; for reports only.
enum class Kind : std::uint8_t { weights, kv, activations, workspace };
inline constexpr std::array kKinds{Kind::weights, Kind::kv, Kind::activations, Kind::workspace};
constexpr const char* name_of(Kind kind) {
  constexpr std::array names{"weights", "kv", "activations", "workspace"};
  return names[static_cast<std::size_t>(kind)];
}

/// A range of a checkpoint file and where it belongs inside a block. Moved without a copy if extent.offset and offset
/// are equal modulo kPage.
struct FilePart {
  Extent extent;
  std::size_t offset = 0;
};

/// Blocks are added first, which only counts; allocate() then makes room for exactly what was counted. After that all
/// calls but add*() may come from any thread; two that touch one block, or one window slot, are the caller's to order.
class BlockStore {
 public:
  /// `bytes` at home on `home`. With `parts`, a block on disk is those ranges, read-only; a block in memory can be
  /// filled from them. Without, a block on disk gets room in the spill file.
  /// Throws UsageError if a part leaves the block.
  BlockId add(Kind kind, std::size_t bytes, Tier home, std::vector<FilePart> parts = {});
  /// `slots` places of `slot_bytes` each for streamed blocks, in memory (device or host).
  WindowId add_window(Tier tier, int slots, std::size_t slot_bytes);

  /// What is needed on a tier, padding included; on disk spill space and the bytes of blocks read from their files.
  std::size_t bytes(Tier tier) const;
  /// The blocks of one kind at home there, without windows and padding: what a placement achieved.
  std::size_t bytes(Tier tier, Kind kind) const;
  std::size_t window_bytes(Tier tier) const;  ///< the part of bytes(tier) that windows take
  std::size_t spill_bytes() const { return spill_.peak(); }

  /// Once, after the last add*(). Both references must outlive the store. `spill_directory` is used only if
  /// spill_bytes() > 0. Throws CapacityError or IoError; then the store can only be destroyed.
  void allocate(kernels::Backend& backend, DiskStore& disk, const std::string& spill_directory);

  Tier home(BlockId block) const { return entry(block).home; }
  Kind kind(BlockId block) const { return entry(block).kind; }
  std::size_t bytes(BlockId block) const { return entry(block).bytes; }
  std::size_t blocks() const { return blocks_.size(); }
  bool read_only(BlockId block) const { return home(block) == Tier::disk && !entry(block).parts.empty(); }

  /// Where the block lives in memory; null for a block on disk. kPage aligned.
  std::byte* home_data(BlockId block) const;
  std::byte* slot(WindowId window, int index) const;
  int slots(WindowId window) const { return windows_[static_cast<std::size_t>(window)].slots; }

  /// Blocks until the block's bytes are at `to`, host memory: from its file parts, else from the spill file. A part of
  /// the block that no file part covers is left as it is.
  void read_from_disk(BlockId block, std::byte* to) const { read_from_disk(block, to, bytes(block)); }
  /// Blocks until the spilled block is on disk. Throws UsageError if the block's home is not the spill file.
  void write_to_disk(BlockId block, const std::byte* from) const { write_to_disk(block, from, bytes(block)); }
  /// The same for the first `bytes` bytes of a spilled block, whose work space is as large as the block; what is read
  /// must have been written with at least as many.
  void read_from_disk(BlockId block, std::byte* to, std::size_t bytes) const;
  void write_to_disk(BlockId block, const std::byte* from, std::size_t bytes) const;

  /// A range of a block that is wanted by itself, such as one row of an embedding.
  struct PartRead {
    std::size_t offset = 0, bytes = 0;
    std::byte* to = nullptr;
  };
  /// Blocks until all ranges of a block on disk are read. The ranges are in order of offset; one that lies in a single
  /// file part is read from there.
  void read_parts(BlockId block, std::span<const PartRead> parts) const;

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
  const Entry& entry(BlockId block) const { return blocks_[static_cast<std::size_t>(block)]; }
  std::byte* base(Tier tier) const;
  static std::size_t spilled(const Entry& e, std::size_t bytes);
  void read_spilled(const Entry& e, std::span<const PartRead> parts) const;

  std::vector<Entry> blocks_;
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
