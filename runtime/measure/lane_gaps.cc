#include "runtime/measure/lane_gaps.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace weft::runtime {

void LaneGaps::add(const policy::Schedule& schedule, const policy::Trace& trace) {
  struct Reached {
    double begin = 0, end = 0;
    bool any = false;
  };
  std::array<Reached, offload::kLanes.size()> reached{};
  for (std::size_t i = 0; i < schedule.ops.size(); ++i) {
    const auto [begin, end] = trace.spans[i];
    if (end <= 0) continue;  // it did not run
    const std::size_t lane = index(schedule.ops[i].lane);
    Of& of = lanes_[lane];
    Reached& last = reached[lane];
    if (!last.any) last = {begin, begin, true};
    if (const double gap = begin - last.end; gap > kLeast) {
      ++of.gaps;
      of.longest = std::max(of.longest, gap);
    }
    last.end = std::max(last.end, end);
    ++of.ops;
    of.busy += end - begin;
    const std::uint64_t bytes = trace.bytes.empty() ? 0 : trace.bytes[i];
    of.bytes += bytes;
    if (bytes >= kLargeOp && end > begin) of.best_rate = std::max(of.best_rate, double(bytes) / (end - begin));
  }
  for (std::size_t lane = 0; lane < reached.size(); ++lane)
    lanes_[lane].seconds += reached[lane].end - reached[lane].begin;
}

nlohmann::ordered_json LaneGaps::report() const {
  nlohmann::ordered_json report = nlohmann::ordered_json::object();
  for (const offload::Lane lane : offload::kLanes) {
    const Of& of = lanes_[index(lane)];
    if (of.ops == 0) continue;
    nlohmann::ordered_json& to = report[name_of(lane)];
    to = {{"ops", of.ops},
          {"seconds", of.seconds},
          {"busy_seconds", of.busy},
          {"gaps", of.gaps},
          {"longest_gap_seconds", of.longest}};
    if (of.bytes == 0 || of.seconds <= 0) continue;
    const double rate = double(of.bytes) / of.seconds;
    to["bytes_per_second"] = rate;
    to["best_bytes_per_second"] = of.best_rate;
    if (of.best_rate > 0) to["of_best"] = rate / of.best_rate;
  }
  return report;
}

}  // namespace weft::runtime
