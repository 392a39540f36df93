#include "runtime/measure/bound.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "kernels/error.h"

using namespace weft;
using namespace weft::runtime;
using Catch::Matchers::Contains;
using offload::Lane;

namespace {

constexpr const char* kReport = R"({
  "disk": {"read_bytes_per_second": 4e9, "write_bytes_per_second": 2e9},
  "dram_read_bytes_per_second": 5e10,
  "linear_f16_4096": {"1": {"flop_per_second": 3e10}, "256": {"flop_per_second": 2e11}},
  "device": {
    "host_to_device": {"bytes_per_second": 2.5e10}, "device_to_host": {"bytes_per_second": 2e10},
    "read": {"bytes_per_second": 1e12},
    "linear": {"float16": {"a": {"flop_per_second": 4e14}, "b": {"flop_per_second": 5e14}}}}})";

double of(const std::array<double, offload::kLanes.size()>& seconds, Lane lane) {
  return seconds[static_cast<std::size_t>(lane)];
}

Work some_work() {
  Work work{.seconds = 5, .flops = 1e15, .weight_bytes = 1e12, .device_kv_bytes = 5e11, .host_kv_bytes = 1e11};
  work.lane_bytes = {8e9, 2e9, 1e11, 1e10, 0, 0};
  return work;
}

}  // namespace

TEST_CASE("a bound is each lane's work at the ceiling of a GPU", "[runtime]") {
  const Ceilings ceilings = ceilings_from_report(nlohmann::json::parse(kReport), true, "c.json");
  const auto seconds = least_seconds(some_work(), ceilings);
  CHECK(of(seconds, Lane::disk_read) == Approx(2));
  CHECK(of(seconds, Lane::disk_write) == Approx(1));
  CHECK(of(seconds, Lane::host_to_device) == Approx(4));
  CHECK(of(seconds, Lane::device_to_host) == Approx(0.5));
  CHECK(of(seconds, Lane::device_compute) == Approx(2 + 0.5));  // products outlast reading the weights: 1 s
  CHECK(of(seconds, Lane::host_compute) == Approx(2));
  const auto report = bound_report(some_work(), ceilings);
  CHECK(report["longest_lane"] == "host_to_device");
  CHECK(report["tokens_per_second"].get<double>() == Approx(0.25));
  CHECK(report["achieved"].get<double>() == Approx(0.8));
}

TEST_CASE("on the CPU the device and its links are the machine's memory", "[runtime]") {
  const Ceilings ceilings = ceilings_from_report(nlohmann::json::parse(kReport), false, "c.json");
  const auto seconds = least_seconds(some_work(), ceilings);
  CHECK(of(seconds, Lane::host_to_device) == Approx(2));
  CHECK(of(seconds, Lane::device_compute) == Approx(1e15 / 2e11 + 10));
}

TEST_CASE("a report without a ceiling is refused by the name of what it lacks", "[runtime]") {
  auto report = nlohmann::json::parse(kReport);
  report.erase("device");
  CHECK_NOTHROW(ceilings_from_report(report, false, "c.json"));
  CHECK_THROWS_WITH(ceilings_from_report(report, true, "c.json"),
                    Contains("c.json: wanted a positive number at 'device/read/bytes_per_second'"));
  report["disk"]["write_bytes_per_second"] = 0;
  CHECK_THROWS_AS(ceilings_from_report(report, false, "c.json"), UsageError);
  CHECK_THROWS_AS(ceilings_from_report(nlohmann::json::array(), false, "c.json"), UsageError);
}

TEST_CASE("work adds up and scales", "[runtime]") {
  const Work work = 0.5 * (some_work() + some_work());
  CHECK(work.seconds == Approx(5));
  CHECK(work.lane_bytes == some_work().lane_bytes);
  CHECK(work.flops == Approx(1e15));
  CHECK(work.host_kv_bytes == Approx(1e11));
}
