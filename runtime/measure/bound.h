// runtime/measure/bound.h: how fast a run could have been at best: its longest lane, were each at the machine's own
// ceiling.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "offload/tier.h"
#include "runtime/engine/session.h"

namespace weft::runtime {

/// What a machine can do at best.
struct Ceilings {
  std::array<double, offload::kLanes.size()> bytes_per_second{};  ///< of the lanes that move bytes
  double flop_per_second = 0;                                     ///< the best of the device's matrix products
  double device_read = 0, host_read = 0;                          ///< bytes/s of each memory
};

/// Of `report`, which measure_lanes() gave. Without a device of its own (`own_device`) the DRAM is device and links.
/// `where` begins the message of the UsageError of a report that does not say enough.
Ceilings ceilings_from_report(const nlohmann::json& report, bool own_device, const std::string& where);

/// What some sweeps did, counted, and how long they took.
struct Work {
  double seconds = 0;
  std::array<double, offload::kLanes.size()> lane_bytes{};
  double flops = 0, weight_bytes = 0;             ///< of the device: products, and the weights once per sweep
  double device_kv_bytes = 0, host_kv_bytes = 0;  ///< what decode attention reads and writes on either side
};
Work operator+(const Work& a, const Work& b);
Work operator*(double factor, const Work& work);

/// Of one prompt token, on average: `totals` are those of prompts of `prompt` tokens in `blocks` blocks.
Work prefill_work(const Session& session, const Totals& totals, std::int64_t prompt, std::int64_t blocks);
/// Of one generated token, on average over `sweeps` decode sweeps that follow a context of `context` tokens.
Work decode_work(const Session& session, const Totals& totals, const LayerKeeps& keep, std::int64_t context,
                 std::int64_t sweeps, std::int64_t blocks);

/// Seconds that the work takes at least, by lane:
///   lanes that move bytes   bytes / ceiling of the lane
///   device_compute          max(flops / flop rate, weight bytes / device read) + device KV bytes / device read
///   host_compute            host KV bytes / host read
std::array<double, offload::kLanes.size()> least_seconds(const Work& work, const Ceilings& ceilings);

/// Beside the run: the least seconds per token of each lane, the longest of which is the bound, and `achieved`, the
/// bound over what was measured: 1 is as fast as the machine goes.
nlohmann::ordered_json bound_report(const Work& per_token, const Ceilings& ceilings);

}  // namespace weft::runtime
