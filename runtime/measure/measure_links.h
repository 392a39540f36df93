// runtime/measure/measure_links.h: measures the lanes of a machine, each alone and in pairs.
#pragma once

#include <cstddef>
#include <filesystem>
#include <vector>

#include "kernels/backend.h"
#include "policy/planner/machine.h"
#include "runtime/engine/session.h"
#include "runtime/measure/measure_ops.h"

namespace weft::runtime {

struct LinkSizes {
  /// The files that weights are read from in a run; empty: reading is measured in the disk directory.
  std::vector<std::filesystem::path> weight_files = {};
  std::size_t file = std::size_t{1} << 30;    ///< bytes of the file to read and of the one to write
  std::size_t piece = std::size_t{16} << 20;  ///< bytes of one request, about as large as a weight unit
  std::size_t copy = std::size_t{64} << 20;   ///< bytes of one copy between host and device
  std::size_t host = std::size_t{64} << 20;   ///< host memory that the copies of a direction pass over, one by one
  std::size_t weights = std::size_t{512} << 20,
              kv = std::size_t{256} << 20;           ///< bytes that the engines read at the same time
  Timing timing{.seconds = 0.12, .repetitions = 5};  ///< used for a lane, or for a pair
  Timing disk{.seconds = 0.7, .repetitions = 3};     ///< outlasts the bursts that a disk or its host allows
};

/// Fills bytes_per_second, spilled_read, disk_rows_per_second and together. Weights are read from where they lie, and
/// spilled in the disk directory, which may be another disk. If no file can be written there, a warning says so, and
/// the disk gets 0 bytes, so that no plan spills. Throws CapacityError, DeviceError.
void measure_links(kernels::Backend& backend, const MachineOptions& options, const LinkSizes& sizes,
                   policy::Machine& machine);
/// Measures the disk's lanes again, each figure for as long as `sizes.disk` says, for a plan that depends on them.
void measure_disk_lanes(kernels::Backend& backend, const MachineOptions& options, const LinkSizes& sizes,
                        policy::Machine& machine);

}  // namespace weft::runtime
