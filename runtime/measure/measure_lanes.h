// runtime/measure/measure_lanes.h: what the machine's lanes reach at best, for `weft bench --lanes`.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "runtime/engine/machine_options.h"

namespace weft::runtime {

/// The machine's ceilings: disk, memory read, matrix products, attention on the host; and where the device is not
/// the host's memory, under "device", what measure_device() says of it. `quick`: over so little and so briefly that
/// caches make every figure too good; shows in seconds that all of it works.
nlohmann::ordered_json measure_lanes(const MachineOptions& machine, bool quick);

}  // namespace weft::runtime
