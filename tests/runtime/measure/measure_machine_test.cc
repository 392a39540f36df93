// tests/runtime/measure/measure_machine_test.cc: the machine at hand has every figure that a plan needs.
#include "runtime/measure/measure_machine.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/linear/linear_cpu.h"
#include "policy/base/json.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"

using namespace weft;
using offload::Lane;

namespace {

void check_table(const policy::RateTable& table, const std::string& name) {
  INFO(name);
  CHECK_FALSE(table.empty());
  for (const auto& point : table.points) CHECK((point.size > 0 && point.width > 0 && point.rate > 0));
}

void check_figures(const policy::Machine& machine) {
  for (const offload::Tier tier : offload::kTiers) CHECK(machine[tier] > 0);
  for (const Lane lane : {Lane::disk_read, Lane::disk_write, Lane::host_to_device, Lane::device_to_host}) {
    INFO(name_of(lane));
    CHECK(machine.bytes_per_second[static_cast<std::size_t>(lane)] > 0);
  }
  CHECK(machine.disk_rows_per_second > 0);
  for (const auto& others : machine.together)
    for (const double left : others) CHECK((left > 0 && left <= 1));
  check_table(machine.device.linear[static_cast<std::size_t>(DType::f16)], "linear");
  check_table(machine.device.prefill_attention, "prefill_attention");
  check_table(machine.device.column_sums, "column_sums");
  for (const policy::RateTable* table : {&machine.device.prefill_bfloat16, &machine.device.column_sums_bfloat16}) {
    if (kernels::multiplies_by_tiles()) check_table(*table, "of bfloat16");
    else CHECK(table->empty());
  }
  check_table(machine.device.decode_attention, "decode_attention");
  check_table(machine.host.decode_attention, "decode_attention of the host");
  CHECK(machine.device.pointwise > 0);
  CHECK(machine.device.launch > 0);
  CHECK(machine.host.launch > 0);
}

}  // namespace

TEST_CASE("a machine measured briefly has every figure, and its JSON reads back as itself", "[lanes]") {
  const bool separate = GENERATE(false, true);
  CAPTURE(separate);
  const test::TemporaryFolder folder;
  const policy::Machine machine = runtime::measure_machine(
      {.backend = "cpu", .disk_directory = folder.path().string(), .separate_device = separate},
      runtime::Effort::brief);
  CHECK(machine.measured);
  CHECK(machine.device_is_host_memory != separate);
  check_figures(machine);
  const auto& linear = machine.device.linear[static_cast<std::size_t>(DType::f16)].points;
  for (const double rows : {16, 17, 32, 33})  // between which products of a processor take longer by a step
    CHECK(std::any_of(linear.begin(), linear.end(), [&](const auto& point) { return point.size == rows; }));
  const std::string text = policy::to_line(machine.to_json());
  const auto again = policy::Machine::from_json(nlohmann::json::parse(text), "again");
  CHECK(policy::to_line(again.to_json()) == text);
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("with little memory every figure is measured too", "[lanes]") {
  const test::TemporaryFolder folder;
  const runtime::MachineOptions options{.backend = "cpu", .disk_directory = folder.path().string(), .threads = 1};
  const auto backend = runtime::make_backend(options);
  const policy::Machine machine =
      runtime::measure_machine(*backend, options, runtime::Effort::brief, {.memory = 1 << 20});
  CHECK(machine.measured);
  for (const policy::RateTable* table : {&machine.device.linear[std::size_t(DType::f16)],
                                         &machine.device.decode_attention, &machine.device.prefill_attention})
    CHECK_FALSE(table->empty());
}

TEST_CASE("products with quantised weights are measured where they are asked for", "[lanes]") {
  const test::TemporaryFolder folder;
  const runtime::MachineOptions options{.backend = "cpu", .disk_directory = folder.path().string(), .threads = 1};
  const auto backend = runtime::make_backend(options);
  const auto machine = runtime::measure_machine(*backend, options, runtime::Effort::brief,
                                                {.memory = 1 << 20, .quantised = {DType::i4, DType::i8, DType::i4}});
  for (const DType type : {DType::i8, DType::i4})
    check_table(machine.device.linear[static_cast<std::size_t>(type)], name_of(type));
  CHECK(machine.device.linear[static_cast<std::size_t>(DType::bf16)].empty());
  const auto again = policy::Machine::from_json(nlohmann::json::parse(machine.to_json().dump()), "again");
  CHECK(again.linear(DType::i4, 4, 256) == machine.linear(DType::i4, 4, 256));
}

TEST_CASE("where the disk cannot be written to, nothing is planned to be there", "[lanes]") {
  const policy::Machine machine = runtime::measure_machine(
      {.backend = "cpu", .disk_directory = "/proc/self", .threads = 1}, runtime::Effort::brief);
  CHECK(machine[offload::Tier::disk] == 0);
  CHECK(policy::Machine::from_json(nlohmann::json::parse(machine.to_json().dump()), "again").measured);
}
