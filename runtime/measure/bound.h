// runtime/measure/bound.h: the best speed that a run could have had: that of its longest lane if every lane ran at the
// machine's ceiling.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "offload/tier.h"
#include "runtime/engine/session.h"

namespace weft::runtime {

/// The best rates of a machine.
struct Ceilings {
  std::array<double, offload::kLanes.size()> bytes_per_second{};  ///< only lanes that move bytes
  double flop_per_second = 0;                                     ///< the fastest of the device's matrix products
  double device_read = 0, host_read = 0;                          ///< bytes/s of each memory
};

/// Reads the ceilings from a report of measure_lanes(). Without `own_device`, DRAM bandwidth is used for both device
/// and links. Throws UsageError, with a message that begins with `where`, if the report lacks a figure.
Ceilings ceilings_from_report(const nlohmann::json& report, bool own_device, const std::string& where);

/// The counted work of some sweeps, and the time that they took.
struct Work {
  double seconds = 0;
  std::array<double, offload::kLanes.size()> lane_bytes{};
  double flops = 0, weight_bytes = 0;             ///< on the device: products; the weights, once per sweep
  double device_kv_bytes = 0, host_kv_bytes = 0;  ///< bytes that decode attention reads and writes
};
Work operator+(const Work& a, const Work& b);
Work operator*(double factor, const Work& work);

/// The average work of one prompt token. `totals` are those of prompts of `prompt` tokens in `blocks` blocks.
Work prefill_work(const Session& session, const Totals& totals, std::int64_t prompt, std::int64_t blocks);
/// The average work of one generated token over `sweeps` decode sweeps that follow a context of `context` tokens.
Work decode_work(const Session& session, const Totals& totals, const LayerKeeps& keep, std::int64_t context,
                 std::int64_t sweeps, std::int64_t blocks);

/// The least seconds that the work takes, by lane:
///   lanes that move bytes   bytes / ceiling of the lane
///   device_compute          max(flops / flop rate, weight bytes / device read) + device KV bytes / device read
///   host_compute            host KV bytes / host read
std::array<double, offload::kLanes.size()> least_seconds(const Work& work, const Ceilings& ceilings);

/// The least seconds per token of each lane, the bound, which is the longest of these, and `achieved`, the bound over
/// the measured seconds. `achieved` is 1 for a run that is as fast as the machine allows.
nlohmann::ordered_json bound_report(const Work& per_token, const Ceilings& ceilings);

}  // namespace weft::runtime
