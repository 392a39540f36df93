// policy/schedule/simulate.h: simulates a schedule over time without running it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "policy/schedule/schedule.h"

namespace weft::policy {

/// When each op of a schedule ran, in seconds from the start; the executor records the same.
struct Trace {
  struct Span {
    double begin = 0, end = 0;
  };
  std::vector<Span> spans;           ///< [ops]
  std::vector<std::uint64_t> bytes;  ///< [ops]: what a load or store moved; empty if simulated
  double seconds() const;            ///< until the last op ended
  std::array<double, offload::kLanes.size()> busy(const Schedule& schedule) const;  ///< seconds of work per lane
};

/// Seconds of an op, asked once for each when it begins. `routed`: its Op::router has ended.
using SecondsOf = std::function<double(const Op& op, bool routed)>;

/// Every op begins when its lane is free and its dependencies have ended.
Trace simulate(const Schedule& schedule, const SecondsOf& seconds);

/// The share of a lane's speed (first) that remains while another lane (second) is busy, above 0 and at most 1.
using Together = std::array<std::array<double, offload::kLanes.size()>, offload::kLanes.size()>;

/// The same for lanes that slow each other down: an op runs at the lowest speed that any busy lane leaves it.
Trace simulate(const Schedule& schedule, const SecondsOf& seconds, const Together& together);

}  // namespace weft::policy
