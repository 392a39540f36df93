#include "runtime/measure/measure_device.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/engine.h"

using namespace weft;

namespace {

/// Every number below, all of which must be finite and positive; a median lies between its least and most.
int count_figures(const nlohmann::ordered_json& json, const std::string& where) {
  int count = 0;
  for (const auto& [key, value] : json.items()) {
    INFO(where << " / " << key << " = " << value.dump());
    if (value.is_object()) {
      count += count_figures(value, where + " / " + key);
    } else if (value.is_number()) {
      CHECK(value.get<double>() > 0);
      ++count;
    }
  }
  if (json.contains("min")) {
    const double median = json.begin()->get<double>();
    INFO(where << " = " << json.dump());
    CHECK((json["min"] <= median && median <= json["max"]));
  }
  return count;
}

}  // namespace

TEST_CASE("a device's ceilings are all there and positive", "[gpu][lanes]") {
  const auto backend = runtime::make_backend({.backend = test::backend_name(), .threads = 1, .separate_device = true});
  runtime::DeviceSizes sizes;
  sizes.bytes = 64 << 10, sizes.seconds = 1e-6, sizes.repetitions = 3;
  sizes.products = {{4, 32, 48}, {2, 64, 16}};
  sizes.caches = {{20, 32}, {12, 64}};
  sizes.prompts = {16, 40};
  sizes.heads = 2, sizes.prefill_tokens = 40, sizes.sampled_rows = 3, sizes.vocab = 500;
  const auto report = runtime::measure_device(*backend, sizes);
  CHECK(report["name"] == backend->description());
  constexpr int rate = 3;  // median, least, most
  CHECK(count_figures(report, "device") == rate * (2 + 2 + 2 + 2 * 2 + 2 * 2 + 2) + (rate + 1) * 2);
  CHECK(report["linear"]["bfloat16"].contains("4 x 32 x 48"));
  CHECK(report["decode_attention"]["20 slots of 32"].contains("of_read"));
  CHECK(report["prefill_attention"]["40 tokens"]["with_column_sums"].contains("flop_per_second"));
}
