// runtime/job/spill_space.h: waits while the disk of a spill file is full.
#pragma once

#include <atomic>

#include "offload/disk_io.h"

namespace weft::runtime {

/// Lets a spill file wait for space on its disk, as the answers do: for a minute, or until `stop`, which then throws
/// Interrupted. Logs that it waits.
offload::OnFullDisk wait_for_spill_space(const std::atomic<bool>& stop);

}  // namespace weft::runtime
