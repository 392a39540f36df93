#include "policy/simulate.h"

#include <algorithm>

namespace weft::policy {

double Trace::seconds() const {
  double end = 0;
  for (const Span& span : spans) end = std::max(end, span.end);
  return end;
}

std::array<double, offload::kLanes.size()> Trace::busy(const Schedule& schedule) const {
  std::array<double, offload::kLanes.size()> busy{};
  for (std::size_t i = 0; i < spans.size(); ++i)
    busy[static_cast<std::size_t>(schedule.ops[i].lane)] += spans[i].end - spans[i].begin;
  return busy;
}

Trace simulate(const Schedule& schedule, const std::function<double(const Op&)>& seconds) {
  Trace trace;
  trace.spans.reserve(schedule.ops.size());
  std::array<double, offload::kLanes.size()> free{};
  for (const Op& op : schedule.ops) {
    double& lane = free[static_cast<std::size_t>(op.lane)];
    double begin = lane;
    for (const std::uint32_t dep : schedule.deps_of(op)) begin = std::max(begin, trace.spans[dep].end);
    lane = begin + seconds(op);
    trace.spans.push_back({begin, lane});
  }
  return trace;
}

}  // namespace weft::policy
