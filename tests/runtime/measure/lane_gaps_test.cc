#include "runtime/measure/lane_gaps.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <utility>

using namespace weft;
using offload::Lane;
using policy::Op;

namespace {

/// A schedule of one op, its time and the bytes that it moved.
struct Segment {
  policy::Schedule schedule;
  policy::Trace trace;
  void add(Lane lane, double begin, double end, std::uint64_t bytes = 0) {
    schedule.ops.push_back(Op{.kind = bytes > 0 ? Op::Kind::load : Op::Kind::compute, .lane = lane});
    trace.spans.push_back({begin, end});
    trace.bytes.push_back(bytes);
  }
};

}  // namespace

TEST_CASE("gaps are those between the ops of a lane within a segment", "[runtime]") {
  constexpr std::uint64_t kUnit = 100 << 20;
  runtime::LaneGaps gaps;
  CHECK(gaps.report().empty());
  Segment first, second;
  first.add(Lane::host_to_device, 1.0, 1.5, kUnit);
  first.add(Lane::device_compute, 1.5, 1.6);
  first.add(Lane::host_to_device, 1.75, 2.75, kUnit);    // after a gap, and at half the rate
  first.add(Lane::host_to_device, 2.75001, 2.76, 1000);  // small, and faster than the link is; no gap
  first.add(Lane::device_compute, 0, 0);                 // did not run
  gaps.add(first.schedule, first.trace);
  second.add(Lane::host_to_device, 9.0, 10.0, kUnit);  // what lies between segments is no gap
  gaps.add(second.schedule, second.trace);
  const auto report = gaps.report();
  CHECK(report.size() == 2);
  const auto& link = report["host_to_device"];
  CHECK(link["ops"] == 4);
  CHECK(link["gaps"] == 1);
  CHECK(link["longest_gap_seconds"].get<double>() == Approx(0.25));
  CHECK(link["seconds"].get<double>() == Approx(2.76));
  CHECK(link["busy_seconds"].get<double>() == Approx(2.50999));
  CHECK(link["bytes_per_second"].get<double>() == Approx((3.0 * kUnit + 1000) / 2.76));
  CHECK(link["best_bytes_per_second"].get<double>() == Approx(2.0 * kUnit));
  CHECK(link["of_best"].get<double>() == Approx((3.0 * kUnit + 1000) / 2.76 / (2.0 * kUnit)));
  const auto& device = report["device_compute"];
  CHECK(device["ops"] == 1);
  CHECK(device["gaps"] == 0);
  CHECK_FALSE(device.contains("bytes_per_second"));
}
