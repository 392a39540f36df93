// runtime/measure/measure_lanes.h: measures the ceilings of the machine's lanes, for `weft bench --lanes`.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "runtime/engine/machine_options.h"

namespace weft::runtime {

/// Measures the machine's ceilings: disk, memory reads, matrix products and attention on the host, and what a second
/// thread gains each op. If the device has memory of its own, "device" holds the report of measure_device(). `quick`
/// shows in seconds that everything works, but measures so little, and so briefly, that caches make every figure too
/// good.
nlohmann::ordered_json measure_lanes(const MachineOptions& machine, bool quick);

}  // namespace weft::runtime
