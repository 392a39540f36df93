// runtime/checkpoint/packed.h: weight units that are not in a checkpoint as they are computed with, because they are
// quantised or converted, written once: a safetensors file with a tensor of bytes for each unit, and checksums.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "offload/buffer_store.h"
#include "runtime/checkpoint/checkpoint.h"

namespace weft::runtime {

/// Told from time to time while a packed file is written: its name, and how much of how much is.
using PackingProgress = std::function<void(const std::filesystem::path& file, std::uint64_t done, std::uint64_t all)>;

/// What is written of each unit: its bytes, or nothing of those that are read from elsewhere.
using UnitSizes = std::vector<std::optional<std::uint64_t>>;

/// Makes one unit's bytes.
using MakeUnit = std::function<void(std::size_t unit, std::byte* to)>;

/// Writes the `sizes[u]` bytes that make(u, to) gives for each unit that has a size, at multiples of a page. The file
/// appears whole. Takes the memory of one unit. Throws IoError, what make() throws, CapacityError where the disk is too
/// full, or Interrupted; then nothing is left behind.
void write_packed(const std::filesystem::path& file, unsigned mode, const MakeUnit& make, const UnitSizes& sizes,
                  const std::atomic<bool>& stop, const PackingProgress& progress = {});

/// Where the units are in such a file.
class PackedUnits {
 public:
  /// Throws DataError unless the file, which must outlive this, holds exactly these units and their checksums.
  PackedUnits(const Checkpoint& file, const UnitSizes& sizes);
  bool has(std::size_t unit) const { return units_[unit] != nullptr; }
  /// All of the unit. `files` [the checkpoint's]: as the disk store knows them.
  offload::FilePart part(std::size_t unit, std::span<const offload::FileId> files) const;

 private:
  std::vector<const TensorInfo*> units_;  // null: not in the file
};

/// A packed file that stands next to what a run spills.
struct PackedCopy {
  PackedCopy(Checkpoint opened, const UnitSizes& sizes) : file(std::move(opened)), units(file, sizes) {}
  Checkpoint file;
  PackedUnits units;
};

}  // namespace weft::runtime
