// runtime/checkpoint/packed.h: packed copies. Weight units that a run quantises or converts before it computes with
// them are written once to a safetensors file: a tensor of bytes for each unit, and checksums.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "offload/buffer_store.h"
#include "runtime/base/files.h"
#include "runtime/checkpoint/checkpoint.h"

namespace weft::runtime {

/// Called from time to time while a packed file is written, with its name, the bytes done so far and all bytes.
using PackingProgress = std::function<void(const std::filesystem::path& file, std::uint64_t done, std::uint64_t all)>;

/// The number of bytes to write for each unit, or nothing for a unit that is read from elsewhere.
using UnitSizes = std::vector<std::optional<std::uint64_t>>;

/// Makes one unit's bytes.
using MakeUnit = std::function<void(std::size_t unit, std::byte* to)>;

/// Writes the `sizes[u]` bytes that make(u, bytes) produces for each unit that has a size to `to`, at multiples of a
/// page, and `said` as metadata. The caller commits. Needs memory for two units: one is summed and written while the
/// next is made. `name` is the file's for people. Throws IoError, what make() throws, CapacityError if the disk is too
/// full, or Interrupted.
void write_packed(AtomicFile& to, const std::filesystem::path& name, const MakeUnit& make, const UnitSizes& sizes,
                  const Metadata& said, const std::atomic<bool>& stop, const PackingProgress& progress = {});

/// The places of the units in a packed file.
class PackedUnits {
 public:
  /// Throws DataError unless the file, which must outlive this, holds exactly these units and their checksums.
  PackedUnits(const Checkpoint& file, const UnitSizes& sizes);
  bool has(std::size_t unit) const { return units_[unit] != nullptr; }
  /// The whole unit as a file part. `files` are the disk store's ids of the checkpoint's files, in their order.
  offload::FilePart part(std::size_t unit, std::span<const offload::FileId> files) const;

 private:
  std::vector<const TensorInfo*> units_;  // null for a unit that is not in the file
};

/// A packed file next to a run's spill file.
struct PackedCopy {
  PackedCopy(Checkpoint opened, const UnitSizes& sizes) : file(std::move(opened)), units(file, sizes) {}
  Checkpoint file;
  PackedUnits units;
};

}  // namespace weft::runtime
