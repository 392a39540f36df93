// tests/runtime/measure/report_test.cc: the names that traces give to units.
#include "runtime/measure/report.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "runtime/model/model_source.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::test;

TEST_CASE("every unit has a name of its own, and that of its kind", "[runtime][report]") {
  const char* const model = GENERATE("moe-olmoe-f32", "moe-qwen3-f16", "llama-f32");
  CAPTURE(model);
  const auto source = runtime::open_model(data_path("golden") / model, "auto", "");
  std::vector<std::string> names = runtime::unit_names(source->units);
  REQUIRE(names.size() == source->units.size());
  for (std::size_t u = 0; u < names.size(); ++u) {
    const policy::Unit& unit = source->units[u];
    CAPTURE(names[u]);
    if (unit.kind == policy::Unit::Kind::head) CHECK(names[u].starts_with("head"));
    if (unit.kind == policy::Unit::Kind::output) CHECK(names[u] == "output");
    if (unit.kind == policy::Unit::Kind::experts)
      CHECK(names[u].starts_with("layer " + std::to_string(unit.layer) + " experts " +
                                 std::to_string(unit.first_expert)));
  }
  std::sort(names.begin(), names.end());
  CHECK(std::adjacent_find(names.begin(), names.end()) == names.end());
}
