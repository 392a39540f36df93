// tests/runtime/planning/published_test.cc: the published figures that are shipped, and that FlexGen's arithmetic gives
// them.
#include "runtime/planning/published.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/error.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::runtime;
using Catch::Matchers::Contains;

namespace {

std::vector<PublishedResult> shipped(const std::string& file = "") {
  return simulate_published(test::source_path("configs/published") / file,
                            read_flexgen_machine(test::source_path("configs/machines/t4-flexgen.json")),
                            test::source_path("configs/models"));
}

/// How far off, as a factor's distance from 1.
double off(double simulated, double published) { return std::abs(simulated / published - 1); }

nlohmann::json one_row() {
  return nlohmann::json::parse(R"({"version":1,"about":"a test","rows":[{"system":"H2O","model":"opt-30b",
    "prompt_len":512,"gen_len":32,"gpu_batch_size":48,"num_gpu_batches":16,"percent":[20,80,0,100,0,100],
    "attention":"host","hh_ratio":0.1,"timed_steps":1,"tokens_per_second":14.338,"prefill_seconds":975.97,
    "decode_seconds":738.045,"kind":"projected","source":"a log"}]})");
}

std::vector<PublishedRow> read(const nlohmann::json& json) {
  const test::TemporaryFolder folder;
  test::write_text(folder / "rows.json", json.dump());
  return read_published(folder / "rows.json", test::source_path("configs/models"));
}

}  // namespace

TEST_CASE("every log of H2O on OPT-30B is reproduced: prefill within 20 %, decode within 15 %", "[runtime]") {
  const auto results = shipped("h2o-t4-logs.json");
  REQUIRE(results.size() == 7);
  for (const auto& [row, times] : results) {
    CAPTURE(row.source, times.prefill, times.decode);
    REQUIRE(row.prefill_seconds);
    REQUIRE(row.decode_seconds);
    // A log's tokens/s and its seconds are the same measurement.
    const double tokens = double(row.run.block_size()) * row.run.generation;
    REQUIRE(off(tokens / (*row.prefill_seconds + *row.decode_seconds), row.tokens_per_second) < 0.001);
    REQUIRE(off(times.prefill, *row.prefill_seconds) < 0.20);
    REQUIRE(off(times.decode, *row.decode_seconds) < 0.15);
    REQUIRE(off(times.tokens_per_second, row.tokens_per_second) < 0.15);
  }
}

TEST_CASE("every figure of FlexGen's README is reproduced within 15 %", "[runtime]") {
  const auto results = shipped("flexgen-t4.json");
  std::multiset<double> flexgen;
  for (const auto& [row, times] : results) {
    CAPTURE(row.system, row.model, row.source, row.tokens_per_second, times.tokens_per_second);
    REQUIRE(off(times.tokens_per_second, row.tokens_per_second) < 0.15);
    if (row.system == "FlexGen" && row.source == "FlexGen README") flexgen.insert(row.tokens_per_second);
  }
  REQUIRE(flexgen == std::multiset<double>{25.26, 29.12, 7.32, 8.38});
}

TEST_CASE("H2O's tables are reproduced within 15 %, but for five rows of resident OPT-6.7B within 30 %", "[runtime]") {
  const auto results = shipped("h2o-t4.json");
  REQUIRE(results.size() == 27);
  int loose = 0;
  for (const auto& [row, times] : results) {
    CAPTURE(row.system, row.model, row.run.generation, row.tokens_per_second, times.tokens_per_second);
    // Resident 6.7B at small batches: Python's launches and H2O's evictions, which the arithmetic has not, show; and
    // at 512+32 the paper's own Accelerate and FlexGen are a fifth slower than FlexGen's README has them.
    const bool launches = row.model == "opt-6.7b" && row.run.weights_on_device == 1 && row.run.weight_bits == 16 &&
                          (row.system == "H2O" || row.run.generation == 32);
    loose += launches;
    REQUIRE(off(times.tokens_per_second, row.tokens_per_second) < (launches ? 0.30 : 0.15));
  }
  CHECK(loose == 5);
}

TEST_CASE("each system of H2O's table 3 is there for both models and three lengths", "[runtime]") {
  std::set<std::string> rows;
  for (const auto& [row, times] : shipped("h2o-t4.json"))
    if (row.source == "H2O paper, table 3")
      rows.insert(row.system + " " + row.model + " " + std::to_string(row.run.generation));
  CHECK(rows.size() == 4 * 2 * 3);
  CHECK(shipped().size() == shipped("flexgen-t4.json").size() + 27 + 7);  // the folder is its files
}

TEST_CASE("a row says all of its run", "[runtime]") {
  const auto rows = read(one_row());
  REQUIRE(rows.size() == 1);
  const PublishedRow& row = rows[0];
  CHECK(row.spec.layers == 48);
  CHECK(row.run.prompt == 512);
  CHECK(row.run.block_size() == 768);
  CHECK(row.run.slots == 102);
  CHECK(row.run.weights_on_device == Approx(1 / 12.0).epsilon(0.001));  // what "20 80" really places
  CHECK(row.run.kv_on_device == 0);
  CHECK(row.run.attention_on_host);
  CHECK(row.prefill_seconds == 975.97);
}

TEST_CASE("a bad row is refused in one line that names it", "[runtime]") {
  const auto refused = [](auto change, const std::string& what) {
    nlohmann::json json = one_row();
    change(json["rows"][0]);
    CAPTURE(what);
    CHECK_THROWS_AS(read(json), UsageError);
    CHECK_THROWS_WITH(read(json), Contains("rows.json: rows[0]") && Contains(what) && !Contains("\n"));
  };
  refused([](auto& row) { row["system"] = "Petals"; }, "one of Accelerate, DeepSpeed, FlexGen, H2O");
  refused([](auto& row) { row["model"] = "opt-31b"; }, "opt-31b.json, and there is no such file");
  refused([](auto& row) { row["percent"] = {20, 70, 0, 100, 0, 100}; }, "each pair 100");
  refused([](auto& row) { row["percent"] = {20, 80, 0, 100, 0}; }, "six numbers");
  refused([](auto& row) { row["percent"] = {20, 80, 0, 100, "0", 100}; }, "six numbers");
  refused([](auto& row) { row["attention"] = "cpu"; }, "one of device, host");
  refused([](auto& row) { row.erase("hh_ratio"); }, "hh_ratio");
  refused([](auto& row) { row["hh_ratio"] = 0.0001; }, "hh_ratio");
  refused([](auto& row) { row["system"] = "FlexGen"; }, "hh_ratio");
  refused([](auto& row) { row["weight_bits"] = 8; }, "16 or 4");
  refused([](auto& row) { row["tokens_per_second"] = 0; }, "tokens_per_second");
  refused([](auto& row) { row["decode_seconds"] = nullptr; }, "decode_seconds");
  refused([](auto& row) { row["kind"] = "guessed"; }, "one of measured, projected, unknown");
  refused([](auto& row) { row["gen_lens"] = 1; }, "did you mean 'gen_len'");
  refused([](auto& row) { row["system"] = "DeepSpeed", row.erase("hh_ratio"); }, "one batch at a time");
  refused([](auto& row) { row = 1; }, "object");
}

TEST_CASE("files and folders that hold no figures are refused", "[runtime]") {
  const test::TemporaryFolder folder;
  const auto models = test::source_path("configs/models");
  CHECK_THROWS_AS(read_published(folder.path(), models), UsageError);
  CHECK_THROWS_AS(read_published(folder / "none.json", models), UsageError);
  CHECK_THROWS_AS(read_flexgen_machine(folder / "none.json"), UsageError);
  test::write_text(folder / "a.json", "{\"version\":1,");
  CHECK_THROWS_AS(read_published(folder / "a.json", models), UsageError);
  test::write_text(folder / "a.json", R"({"version":1,"about":"","rows":{}})");
  CHECK_THROWS_WITH(read_published(folder / "a.json", models), Contains("'rows' must be a list"));
  CHECK_THROWS_AS(read_flexgen_machine(folder / "a.json"), UsageError);
}

TEST_CASE("the table has a line for each row, and the seconds of logs", "[runtime]") {
  const auto results = shipped("h2o-t4-logs.json");
  const std::string text = published_table(results);
  CHECK(std::count(text.begin(), text.end(), '\n') == 2 * (1 + 7) + 1);
  CHECK_THAT(text, Contains("48x16") && Contains("512+1024") && Contains("projected") && Contains("host attention"));
  const std::string without = published_table(shipped("flexgen-t4.json"));
  CHECK_THAT(without, !Contains("prefill"));
  CHECK_THAT(without, Contains("FlexGen w4 kv4"));
}
