#include "policy/schedule/simulate.h"

#include <algorithm>
#include <limits>
#include <utility>

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

Trace simulate(const Schedule& schedule, const SecondsOf& seconds) {
  Trace trace;
  trace.spans.reserve(schedule.ops.size());
  std::array<double, offload::kLanes.size()> free{};
  for (const Op& op : schedule.ops) {
    double& lane = free[static_cast<std::size_t>(op.lane)];
    double begin = lane;
    for (const std::uint32_t dep : schedule.deps_of(op)) begin = std::max(begin, trace.spans[dep].end);
    lane = begin + seconds(op, op.router != kNoSlot && trace.spans[op.router].end <= begin);
    trace.spans.push_back({begin, lane});
  }
  return trace;
}

namespace {

constexpr std::size_t kLaneCount = offload::kLanes.size();

/// Each lane is a queue whose first op may run. Time advances from one op's end to the next.
class Fluid {
 public:
  Fluid(const Schedule& schedule, const SecondsOf& seconds, const Together& together)
      : schedule_(schedule), seconds_(seconds), together_(together), ended_(schedule.ops.size(), false) {
    for (std::uint32_t i = 0; i < schedule.ops.size(); ++i)
      lanes_[static_cast<std::size_t>(schedule.ops[i].lane)].queue.push_back(i);
    trace_.spans.resize(schedule.ops.size());
  }

  Trace run() {
    while (start_ready()) advance();
    return std::move(trace_);
  }

 private:
  struct Running {
    std::vector<std::uint32_t> queue;
    std::size_t next = 0;
    bool busy = false;
    double left = 0, speed = 1;  // seconds of work, if alone; seconds of it done per second
    std::uint32_t op() const { return queue[next]; }
  };

  /// Starts the ops that may run. Returns whether any op runs now.
  bool start_ready() {
    bool any = false;
    for (Running& lane : lanes_) {
      if (!lane.busy && lane.next < lane.queue.size()) {
        const Op& op = schedule_.ops[lane.op()];
        const auto deps = schedule_.deps_of(op);
        if (std::all_of(deps.begin(), deps.end(), [&](std::uint32_t dep) { return ended_[dep]; })) {
          lane.busy = true;
          lane.left = seconds_(op, op.router != kNoSlot && ended_[op.router]);
          trace_.spans[lane.op()].begin = now_;
        }
      }
      any |= lane.busy;
    }
    return any;
  }

  /// Advances to the next end of an op.
  void advance() {
    double step = std::numeric_limits<double>::infinity();
    for (std::size_t a = 0; a < kLaneCount; ++a) {
      Running& lane = lanes_[a];
      if (!lane.busy) continue;
      lane.speed = 1;
      for (std::size_t b = 0; b < kLaneCount; ++b)
        if (b != a && lanes_[b].busy) lane.speed = std::min(lane.speed, together_[a][b]);
      step = std::min(step, lane.left / lane.speed);
    }
    now_ += step;
    for (Running& lane : lanes_) {
      if (!lane.busy) continue;
      if (lane.left > step * lane.speed * (1 + 1e-12)) {  // the op that set `step` ends now, whatever rounding left
        lane.left -= step * lane.speed;
        continue;
      }
      trace_.spans[lane.op()].end = now_;
      ended_[lane.op()] = true;
      lane.busy = false;
      ++lane.next;
    }
  }

  const Schedule& schedule_;
  const SecondsOf& seconds_;
  const Together& together_;
  std::vector<bool> ended_;
  std::array<Running, kLaneCount> lanes_;
  Trace trace_;
  double now_ = 0;
};

}  // namespace

Trace simulate(const Schedule& schedule, const SecondsOf& seconds, const Together& together) {
  return Fluid(schedule, seconds, together).run();
}

}  // namespace weft::policy
