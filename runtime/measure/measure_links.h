// runtime/measure/measure_links.h: the lanes of a machine, each by itself and two at a time.
#pragma once

#include <cstddef>

#include "kernels/backend.h"
#include "policy/machine.h"
#include "runtime/engine/session.h"
#include "runtime/measure/measure_ops.h"

namespace weft::runtime {

struct LinkSizes {
  std::size_t file = std::size_t{1} << 30;    ///< bytes of the file to read and of the one to write
  std::size_t piece = std::size_t{16} << 20;  ///< of one request, as large as units of weights are
  std::size_t copy = std::size_t{64} << 20;   ///< of one copy between host and device
  std::size_t weights = std::size_t{512} << 20, kv = std::size_t{256} << 20;  ///< read by the engines at the same time
  Timing timing{.seconds = 0.12, .repetitions = 5};                           ///< of a lane, or of two
  Timing disk{.seconds = 0.7, .repetitions = 3};  ///< longer than what a disk or its host keeps at hand for a burst
};

/// Fills bytes_per_second, spilled_read, disk_rows_per_second and together. Where the disk directory lets no file be
/// written, the disk has 0 bytes and nominal rates that no plan will rest on. Throws CapacityError, DeviceError.
void measure_links(kernels::Backend& backend, const MachineOptions& options, const LinkSizes& sizes,
                   policy::Machine& machine);

}  // namespace weft::runtime
