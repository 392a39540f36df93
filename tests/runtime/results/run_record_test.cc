// tests/runtime/results/run_record_test.cc: what a run was begun with, kept whole or refused.
#include "runtime/results/run_record.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>

#include "kernels/error.h"
#include "runtime/results/result_lines.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::runtime;
using namespace weft::test;
using Catch::Matchers::Contains;

namespace {

RunRecord example() {
  RunRecord record;
  record.created = utc_time();
  record.set("dtype", "float16");
  record.set("model/\"a\"\n", "é");
  record.set("dtype", "bfloat16");
  return record;
}

}  // namespace

TEST_CASE("a record reads as it was written", "[runtime]") {
  const TemporaryFolder folder;
  const auto output = folder / "out.jsonl";
  CHECK_FALSE(RunRecord::read(output));
  RunRecord record = example();
  for (int again = 0; again < 2; ++again) {
    record.write(output);
    const auto read = RunRecord::read(output);
    REQUIRE(read);
    CHECK(read->fields == record.fields);
    CHECK(read->created == record.created);
    CHECK(read->durable_bytes == record.durable_bytes);
    CHECK(read->kernels == record.kernels);
    CHECK(record.difference(*read) == "");
    record.durable_bytes = 7;
    record.kernels = {"AVX2", "CUDA on \"x\""};
  }
  struct stat status {};
  REQUIRE(stat((folder / "out.jsonl.run.json").c_str(), &status) == 0);
  CHECK((status.st_mode & 07777) == 0600);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("a record cut anywhere is refused", "[runtime]") {
  const TemporaryFolder folder;
  const auto output = folder / "out.jsonl", place = RunRecord::place(output);
  example().write(output);
  const std::string text = read_text(place);
  for (std::size_t cut = 0; cut + 1 < text.size(); ++cut) {
    CAPTURE(cut);
    write_text(place, text.substr(0, cut));
    CHECK_THROWS_AS(RunRecord::read(output), UsageError);
    CHECK_THROWS_WITH(RunRecord::read(output), Contains("out.jsonl.run.json") && Contains("--resume=adopt"));
  }
  write_text(place, R"({"format": 2, "something": "new"})");
  CHECK_THROWS_WITH(RunRecord::read(output), Contains("is of format 2") && Contains("the version that wrote it"));
}

TEST_CASE("a difference is named, with what was and what is", "[runtime]") {
  const RunRecord before = example();
  RunRecord now = example();
  CHECK(before.difference(now) == "");
  now.set("dtype", "float32");
  CHECK(before.difference(now) == "'dtype' was 'bfloat16' and is now 'float32'");
  now = example();
  now.set("seed", "1");
  CHECK(before.difference(now) == "'seed' was not said and is now '1'");
  CHECK(now.difference(before) == "'seed' was '1' and is now not said");
  now = example();
  now.created = "yesterday", now.durable_bytes = 3;
  CHECK(before.difference(now) == "");
}

TEST_CASE("sorted answers go into the folder of the output", "[runtime]") {
  CHECK(sorted_place("a/results.jsonl") == "a/results.sorted.jsonl");
  CHECK(sorted_place("results") == "results.sorted.jsonl");
}
