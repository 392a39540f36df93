// runtime/measure/lane_gaps.h: the times at which lanes stood still in a traced run.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "policy/schedule/simulate.h"

namespace weft::runtime {

/// Sums up the traces of segments. Times are the host's: that an op of a GPU has ended is seen a wake-up later.
class LaneGaps {
 public:
  void add(const policy::Schedule& schedule, const policy::Trace& trace);

  /// Returns for each lane that had ops: "seconds" from its first op of a segment to its last, "busy_seconds" in ops,
  /// the number of "gaps" of more than kLeast seconds between two ops and the "longest_gap_seconds"; and if it moved
  /// bytes, "bytes_per_second" over these seconds, "best_bytes_per_second" of one op of kLargeOp bytes or more (0 if
  /// none was so large), and "of_best", their ratio: what is missing from 1 was lost in gaps and in slower ops.
  nlohmann::ordered_json report() const;

  static constexpr double kLeast = 50e-6;
  static constexpr std::uint64_t kLargeOp = 64 << 20;

 private:
  struct Of {
    double seconds = 0, busy = 0, longest = 0, best_rate = 0;
    std::int64_t ops = 0, gaps = 0;
    std::uint64_t bytes = 0;
  };
  std::array<Of, offload::kLanes.size()> lanes_{};
};

}  // namespace weft::runtime
