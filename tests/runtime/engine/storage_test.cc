// What is allocated is what was counted, and never more than the budgets.
#include "runtime/engine/storage.h"

#include <sys/mman.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <optional>
#include <random>
#include <vector>

#include "kernels/error.h"
#include "runtime/model/model_source.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::test;
using offload::Tier;

namespace {

/// Says anything or nothing about each part of a policy, under budgets that may be too small.
policy::PartialPolicy random_policy(std::mt19937& random, const policy::ModelSpec& model) {
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  const auto fractions = [&]() -> std::optional<policy::Fractions> {
    if (pick(0, 1) == 0) return {};
    const double device = pick(0, 4) / 4.0, host = (1 - device) * pick(0, 4) / 4.0;
    return policy::Fractions{{device, host, 1 - device - host}};
  };
  policy::PartialPolicy partial;
  partial.weights = fractions();
  partial.kv = fractions();
  partial.activations = fractions();
  if (pick(0, 1)) partial.gpu_batch_size = pick(1, 8);
  if (pick(0, 1)) partial.num_gpu_batches = pick(1, 4);
  if (pick(0, 1)) partial.attention_on_host = pick(1, 2) / 2.0;
  if (model.experts.count > 0 && pick(0, 3) > 0) partial.experts_on_host = pick(1, 4) / 4.0;
  if (pick(0, 1)) {
    const std::string rule = "h2o:0.1:0.1";
    const int how = pick(0, 3);
    partial.retention = policy::Retention::from_text(how == 0   ? by_layer(rule, model.layers)
                                                     : how == 1 ? by_head(rule, model.layers, model.kv_heads)
                                                                : rule);
  }
  std::uniform_real_distribution<double> magnitude(std::log(3e5), std::log(2e7));
  for (auto& budget : partial.budgets)
    if (pick(0, 3) > 0) budget = static_cast<std::uint64_t>(std::exp(magnitude(random)));
  return partial;
}

}  // namespace

TEST_CASE("what is allocated is what was counted, within the budgets", "[runtime]") {
  const std::string name = GENERATE("prenorm-tied-f16", "sharded-bf16", "projections-untied-f32", "moe-qwen2-f16");
  std::mt19937 random(11);
  const TemporaryFolder spill;
  const auto source = runtime::open_model(data_path("golden") / name, "auto", "");
  const std::vector<Prompt> prompts(24, {std::vector<std::int32_t>(40, 3), 20, {}});
  int fitted = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const policy::PartialPolicy partial = random_policy(random, source->spec);
    CAPTURE(name, trial);
    try {
      Engine engine(*source, partial, prompts,
                    {.backend = "cpu", .disk_directory = spill.path().string(), .threads = 1});
      const runtime::Session& session = engine.session();
      const offload::BufferStore& buffers = session.storage().buffers();
      CHECK(session.footprint()[Tier::device] == buffers.bytes(Tier::device));
      CHECK(session.footprint()[Tier::host] == buffers.bytes(Tier::host));
      CHECK(session.footprint()[Tier::disk] == buffers.spill_bytes());
      for (const Tier tier : offload::kTiers) {
        CHECK(session.footprint()[tier] <= session.policy().budgets[tier]);
        if (const auto asked = partial.budgets[static_cast<std::size_t>(tier)])
          CHECK(session.policy().budgets[tier] == *asked);
      }
      ++fitted;
    } catch (const CapacityError& error) {
      CHECK_THAT(error.what(), Catch::Contains("budget"));
    }
  }
  CHECK(fitted > 10);
  CHECK(fitted < 60);
}

TEST_CASE("all memory of a run is there once it has loaded", "[runtime]") {
  const auto source = runtime::open_model(data_path("golden") / "prenorm-tied-f16", "auto", "");
  const std::vector<Prompt> prompts(8, {std::vector<std::int32_t>(40, 3), 20, {}});
  policy::PartialPolicy partial;
  partial.kv = policy::Fractions{{0.5, 0.5, 0}};
  const TemporaryFolder spill;
  Engine engine(*source, partial, prompts, {.backend = "cpu", .disk_directory = spill.path().string(), .threads = 1});
  for (const std::span<std::byte> memory : engine.session().storage().buffers().memory()) {
    std::vector<unsigned char> resident((memory.size() + 4095) / 4096);
    REQUIRE(mincore(memory.data(), memory.size(), resident.data()) == 0);
    CHECK(std::all_of(resident.begin(), resident.end(), [](unsigned char page) { return page & 1; }));
  }
}

TEST_CASE("slow quantising is told of once, after two seconds, if over a minute is left", "[runtime]") {
  runtime::SlowQuantising slow(1000);
  CHECK_FALSE(slow.add(0, 5));    // no rate yet
  CHECK(slow.add(10, 1) == 594);  // 6 s for 10: 990 take 594 s
  CHECK_FALSE(slow.add(10, 1));
  runtime::SlowQuantising fast(1000);
  CHECK_FALSE(fast.add(1, 1.5));
  CHECK_FALSE(fast.add(40, 1));         // 61 ms each: 959 take 58.5 s
  CHECK_FALSE(fast.add(100, 7));        // 67 ms each: 859 take 57.9 s
  CHECK(fast.add(1, 10).value() > 60);  // it became slower
}
