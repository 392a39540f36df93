// runtime/model/packed_copy.h: the packed copy of a model's weights next to a run's spill file: made once, used again
// by later runs, and made anew if it is not of these weights any more.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "runtime/model/model_source.h"

namespace weft::runtime {

/// Opens the copy, in `folder`, of the units that the checkpoint does not have as they are used. It is named after the
/// model and its format, says what it is of, and is readable by this user alone. A copy that is there is used if it is
/// this user's own file, is of these weights, and holds what its checksums say. Otherwise source.warn gets a line, and
/// it is made anew: in its place, or without a name if something that is not this user's has the name. Throws
/// CapacityError, IoError, DataError, or Interrupted; nothing is left behind then.
std::unique_ptr<PackedCopy> open_packed_copy(const ModelSource& source, const std::filesystem::path& folder,
                                             const std::atomic<bool>& stop);

/// The bytes of the copy that open_packed_copy() would make.
std::uint64_t packed_copy_bytes(const ModelSource& source);
/// The bytes that the file of its name has on the disk already; 0 if there is none of this user's.
std::uint64_t packed_copy_there(const ModelSource& source, const std::filesystem::path& folder);

/// A packed copy that a run has left in a folder.
struct FoundCopy {
  std::filesystem::path file;
  std::uint64_t bytes = 0;
};
/// This user's copies in `folder` that were made of the model at `path`, by name. Throws IoError if the folder cannot
/// be read.
std::vector<FoundCopy> packed_copies(const std::filesystem::path& path, const std::filesystem::path& folder);

}  // namespace weft::runtime
