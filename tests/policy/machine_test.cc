// tests/policy/machine_test.cc: rates between the points that are known, and machines in and out of JSON.
#include "policy/planner/machine.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "tests/support/files.h"

using namespace weft;
using nlohmann::json;
using policy::Machine;
using policy::RateTable;

namespace {

constexpr const char* kMachine = R"({"name": "m", "source": "made up", "measured": false,
  "device_is_host_memory": false,
  "memory": {"device": "16GiB", "host": 64000000000, "disk": "1.5TiB", "device_overhead": 1024},
  "lanes": {"disk_read": 2e9, "disk_write": 1e9, "host_to_device": 1.2e10, "device_to_host": 1.3e10},
  "disk_rows_per_second": 12345.678,
  "together": {"disk_read": {"disk_write": 0.6, "device_compute": 0.9}},
  "device": {
    "linear": {"float16": [{"rows": 8, "width": 4096, "flop_per_second": 3e12},
                           {"rows": 1, "width": 1024, "flop_per_second": 1e11},
                           {"rows": 8, "width": 1024, "flop_per_second": 1e12},
                           {"rows": 1, "width": 4096, "flop_per_second": 2e11}]},
    "prefill_attention": [{"prompt": 512, "head_dim": 128, "flop_per_second": 1e13}],
    "column_sums": [{"prompt": 512, "head_dim": 128, "flop_per_second": 0.1}],
    "decode_attention": [{"slots": 512, "head_dim": 128, "bytes_per_second": 2e11}],
    "pointwise_bytes_per_second": 1e11, "launch_seconds": 1e-6},
  "host": {"decode_attention": [{"slots": 512, "head_dim": 128, "bytes_per_second": 6e10}], "launch_seconds": 1e-6}})";

Machine machine() { return Machine::from_json(json::parse(kMachine), "m.json"); }

/// The machine with `value` at `pointer`, or without anything there.
json with(const std::string& pointer, const char* value) {
  const json text = json::parse(kMachine);
  if (value) return text.patch(json::parse(R"([{"op": "add", "path": ")" + pointer + R"(", "value": )" + value + "}]"));
  return text.patch(json::parse(R"([{"op": "remove", "path": ")" + pointer + R"("}])"));
}

constexpr auto at(offload::Lane lane) { return static_cast<std::size_t>(lane); }

}  // namespace

TEST_CASE("a table is exact at its points, monotone between them and flat beyond", "[policy]") {
  const RateTable table{
      {{1, 1024, 1e11}, {1, 4096, 2e11}, {8, 1024, 1e12}, {8, 4096, 3e12}, {64, 1024, 5e12}, {64, 4096, 5.5e12}}};
  for (const RateTable::Point& point : table.points) CHECK(table.at(point.size, point.width) == point.rate);
  for (const double width : {1024.0, 1500.0, 4096.0}) {
    double last = 0;
    for (double rows = 1; rows <= 64; rows *= 1.05) {
      CAPTURE(width, rows);
      CHECK(table.at(rows, width) > last);
      last = table.at(rows, width);
    }
  }
  CHECK(table.at(1, 2048) == Approx(std::sqrt(1e11 * 2e11)));
  CHECK(table.at(0, 1) == 1e11);
  CHECK(table.at(0.5, 1e9) == 2e11);
  CHECK(table.at(1e9, 1e9) == 5.5e12);
  CHECK(table.at(1e9, 0) == 5e12);
}

TEST_CASE("a table of one point, one row or one column is a table", "[policy]") {
  CHECK(RateTable{{{512, 128, 3}}}.at(7, 9) == 3);
  CHECK(RateTable{{{512, 64, 1}, {512, 256, 4}}}.at(1, 128) == Approx(2));
  CHECK(RateTable{{{1, 128, 1}, {100, 128, 4}}}.at(10, 1) == Approx(2));
}

TEST_CASE("a machine is read as it says, its points in any order", "[policy]") {
  const Machine read = machine();
  CHECK(read.name == "m");
  CHECK_FALSE(read.measured);
  CHECK(read[offload::Tier::device] == std::uint64_t{16} << 30);
  CHECK(read[offload::Tier::host] == 64000000000);
  CHECK(read[offload::Tier::disk] == std::uint64_t{3} << 39);
  CHECK(read.device_overhead == 1024);
  CHECK(read.bytes_per_second[at(offload::Lane::host_to_device)] == 1.2e10);
  CHECK(read.together[at(offload::Lane::disk_read)][at(offload::Lane::disk_write)] == 0.6);
  CHECK(read.together[at(offload::Lane::disk_write)][at(offload::Lane::disk_read)] == 1);
  CHECK(read.linear(DType::f16, 8, 1024) == 1e12);
  CHECK(read.linear(DType::bf16, 1, 4096) == 2e11);
  CHECK(read.linear(DType::f32, 1, 4096) == 1e11);
  CHECK(read.host.decode_attention.at(512, 128) == 6e10);
  CHECK(read.rows_that_fill == 512);  // not said
  CHECK(read.unpacks_weights);        // not said: a GPU does
  CHECK_FALSE(Machine::from_json(with("/device_is_host_memory", "true"), "m.json").unpacks_weights);
  CHECK_FALSE(Machine::from_json(with("/unpacks_weights", "false"), "m.json").unpacks_weights);
  CHECK(read.packed_rows == 64);
  CHECK(Machine::from_json(with("/unpacks_weights", "false"), "m.json").packed_rows == 0);
  CHECK(Machine::from_json(with("/packed_rows", "16"), "m.json").packed_rows == 16);
}

TEST_CASE("a machine's JSON reads back as itself", "[policy]") {
  const Machine read = machine();
  const std::string text = policy::to_line(read.to_json());
  const Machine again = Machine::from_json(json::parse(text), "again");
  CHECK(policy::to_line(again.to_json()) == text);
  CHECK(again.bytes == read.bytes);
  CHECK(again.unpacks_weights);
  CHECK(again.packed_rows == read.packed_rows);
  CHECK(again.together == read.together);
  CHECK(again.bytes_per_second == read.bytes_per_second);
  CHECK(again.disk_rows_per_second == read.disk_rows_per_second);
  CHECK(again.device.column_sums.at(1, 1) == 0.1);
  CHECK(again.linear(DType::f16, 3, 2000) == read.linear(DType::f16, 3, 2000));
}

TEST_CASE("attention in bfloat16 has a table of its own where it was measured", "[policy]") {
  CHECK(machine().device.prefill_bfloat16.empty());
  const json text =
      with("/device/prefill_attention_bfloat16", R"([{"prompt": 512, "head_dim": 128, "flop_per_second": 4e13}])");
  const Machine read = Machine::from_json(text, "m.json");
  CHECK(read.device.prefill_bfloat16.at(512, 128) == 4e13);
  CHECK(Machine::from_json(json::parse(policy::to_line(read.to_json())), "again").device.prefill_bfloat16.at(1, 1) ==
        4e13);
}

TEST_CASE("a bad machine is refused in one line that says where and what", "[policy]") {
  const auto [pointer, value, message] = GENERATE(table<const char*, const char*, const char*>({
      {"/name", nullptr, "m.json: 'name' is missing"},
      {"/measured", "1", "m.json: 'measured' must be true or false, got 1"},
      {"/memory/device", "\"16XB\"",
       "m.json: memory: 'device' must be bytes or a size such as 4GiB, 512MiB, 1.5G or 16GB, got '16XB'"},
      {"/disk_rows_per_second", "1e-300", "m.json: 'disk_rows_per_second' must be a number above 0, got 1e-300"},
      {"/memory/device", "0", "m.json: memory: 'device' must be more than 0 bytes, got 0"},
      {"/memory/host", "-1", "m.json: memory: 'host' must be bytes or a size such as \"16GiB\", got -1"},
      {"/lanes/disk_write", nullptr, "m.json: lanes: 'disk_write' is missing"},
      {"/lanes/disk_raed", "1", "m.json: lanes: unknown key 'disk_raed'; did you mean 'disk_read'?"},
      {"/lanes/disk_read", "0", "m.json: lanes: 'disk_read' must be a number above 0, got 0"},
      {"/together/disk_read/disk_write", "1.5",
       "m.json: together.disk_read: 'disk_write' must be a number from 0.01 to 1.0, got 1.5"},
      {"/device/launch_seconds", "\"1e-6\"",
       "m.json: device: 'launch_seconds' must be a number above 0, got the string \"1e-6\""},
      {"/device/linear/float16", nullptr, "m.json: device.linear: 'float16' is missing"},
      {"/device/linear/float16", "[]",
       "m.json: device.linear.float16: must be an array of at least one point, got an "
       "array of 0"},
      {"/device/linear/float16/3/rows", "2",
       "m.json: device.linear.float16: must have each 'rows' with each 'width' once, found no such grid around 'rows' "
       "2.0, 'width' 4096.0"},
      {"/device/linear/float16/3/width", "1024",
       "m.json: device.linear.float16: must have each 'rows' with each 'width' once, found no such grid around 'rows' "
       "1.0, 'width' 1024.0"},
      {"/device/linear/float16/3", nullptr,
       "m.json: device.linear.float16: must have each 'rows' with each 'width' once, found no such grid around 'rows' "
       "8.0, 'width' 4096.0"},
      {"/device/decode_attention/0/bytes_per_second", "-2",
       "m.json: device.decode_attention[0]: 'bytes_per_second' must be a number above 0, got -2"},
      {"/host/pointwise_bytes_per_second", "1",
       "m.json: host: unknown key 'pointwise_bytes_per_second'; known are "
       "'decode_attention' 'decode_attention_int4' 'decode_attention_int8' 'launch_seconds'"},
  }));
  CAPTURE(pointer);
  try {
    Machine::from_json(with(pointer, value), "m.json");
    FAIL("was accepted");
  } catch (const UsageError& error) {
    CHECK(std::string(error.what()) == message);
  }
}

TEST_CASE("every machine of configs/machines is one", "[policy]") {
  int count = 0;
  for (const auto& file : std::filesystem::directory_iterator(test::source_path("configs/machines"))) {
    const std::string name = file.path().filename().string();
    CAPTURE(name);
    const json text = policy::parse_json(test::read_text(file.path()), name, policy::Blame::usage);
    if (text.contains("fitted")) continue;  // the constants of FlexGen's arithmetic, which are no rates of ops
    const Machine read = Machine::from_json(text, name);
    CHECK_FALSE(read.source.empty());
    CHECK(read.linear(DType::f16, 512, 4096) >= read.linear(DType::f16, 1, 4096));
    // A context and libraries took 928 MB of an H100. Without them a plan fills memory that a run does not get.
    if (!read.device_is_host_memory) CHECK(read.device_overhead >= std::uint64_t{512} << 20);
    ++count;
  }
  CHECK(count >= 5);
}
