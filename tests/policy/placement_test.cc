// tests/policy/placement_test.cc: even spreads, and policies that fit what they are given.
#include "policy/layout/placement.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <optional>
#include <random>

#include "kernels/error.h"
#include "tests/support/numbers.h"

using namespace weft;
using Catch::Matchers::Contains;
using offload::Tier;
using policy::Budgets;
using policy::Fractions;
using policy::ModelSpec;
using policy::PartialPolicy;
using policy::Policy;
using policy::SizingInputs;
using policy::Unit;
using policy::Workload;
using test::kMiB;

namespace {

std::array<double, 3> random_fractions(std::mt19937& random) {
  std::array<double, 3> f{};
  for (double& x : f) x = random() % 3 == 0 ? 0 : double(random() % 1000) + 1;
  const double sum = std::accumulate(f.begin(), f.end(), 0.0);
  if (sum == 0) return {0, 0, 1};
  for (double& x : f) x /= sum;
  return f;
}

/// A model small enough that its footprint is quick to compute, with its sizing inputs.
struct Setting {
  ModelSpec model;
  std::vector<Unit> units;
  SizingInputs sizing;
  Workload work{.requests = 200, .longest_prompt = 64, .slots = 95, .longest_generation = 32};

  explicit Setting(bool disk_reads_device = true, bool in_files = false) {
    model.layers = 6;
    model.hidden = model.embed = 128;
    model.ffn = 512;
    model.heads = model.kv_heads = 4;
    model.head_dim = 32;
    model.vocab = 1000;
    model.positions = 256;
    model.position_offset = 2;
    units = policy::model_units(model);
    for (const Unit& unit : units)
      sizing.unit_bytes.push_back(static_cast<std::uint64_t>(unit.elements()) * 2 / 4096 * 4096 + 4096);
    sizing.unit_in_files.assign(units.size(), in_files);
    sizing.disk_reads_device = disk_reads_device;
  }
  std::uint64_t weights() const {
    return std::accumulate(sizing.unit_bytes.begin(), sizing.unit_bytes.end(), std::uint64_t{0});
  }
  Policy complete(const PartialPolicy& partial, const Budgets& free, bool on_host_memory = true) const {
    return policy::complete(partial, model, units, work, sizing, free, on_host_memory);
  }
  bool fits(const Policy& policy) const {
    const policy::Footprint print = policy::footprint(model, units, policy, work, sizing);
    return print[Tier::device] <= policy.budgets[Tier::device] && print[Tier::host] <= policy.budgets[Tier::host] &&
           print[Tier::disk] <= policy.budgets[Tier::disk];
  }
};

}  // namespace

TEST_CASE("every prefix of a spread has its share to within one block", "[policy]") {
  std::mt19937 random(GENERATE(range(1u, 6u)));
  for (int round = 0; round < 200; ++round) {
    const auto fractions = random_fractions(random);
    const bool equal = random() % 2 == 0;
    std::vector<std::size_t> bytes(1 + random() % 200);
    for (auto& b : bytes) b = equal ? 1 : 1 + random() % 1000;
    const auto homes = equal ? policy::spread(bytes.size(), fractions) : policy::spread(bytes, fractions);
    REQUIRE(homes.size() == bytes.size());
    const double block = double(*std::max_element(bytes.begin(), bytes.end())) * (1 + 1e-9);
    std::array<double, 3> placed{};
    double total = 0, worst = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      placed[static_cast<std::size_t>(homes[i])] += double(bytes[i]);
      total += double(bytes[i]);
      for (std::size_t t = 0; t < 3; ++t) worst = std::max(worst, std::abs(placed[t] - fractions[t] * total));
    }
    CAPTURE(fractions[0], fractions[1], fractions[2], equal, bytes.size());
    CHECK(worst <= block);
    for (std::size_t t = 0; t < 3; ++t)
      if (fractions[t] == 0) CHECK(placed[t] == 0);
  }
}

TEST_CASE("prompts are computed in chunks that fill the device, and no larger than a gpu batch", "[policy]") {
  Setting setting;
  const auto chunk = [&](std::int64_t rows, std::int64_t batch) {
    setting.sizing.rows_that_fill = rows;
    PartialPolicy partial;
    partial.gpu_batch_size = batch;
    const Policy policy = setting.complete(partial, {{1024 * kMiB, 1024 * kMiB, 1024 * kMiB}});
    const auto print = policy::footprint(setting.model, setting.units, policy, setting.work, setting.sizing);
    CHECK(print.workspace.chunk >= static_cast<std::uint64_t>(print.workspace.piece_tokens) * setting.model.ffn * 4);
    CHECK(print.workspace.piece_tokens == std::min(print.workspace.chunk_tokens, rows));
    return print.workspace.chunk_tokens;
  };
  CHECK(chunk(512, 40) == 512);
  CHECK(chunk(2048, 40) == 2048);
  CHECK(chunk(4096, 40) == 40 * 64);
  CHECK(chunk(2048, 4) == 4 * 64);
  CHECK(chunk(16, 40) == 64);  // a whole prompt
}

TEST_CASE("a long prompt takes memory for its hidden states, and for its keys and values in one layer", "[policy]") {
  Setting setting;
  const auto print_of = [&](std::int64_t prompt, int batch, std::optional<std::int64_t> tokens = {}) {
    setting.work = {.requests = batch, .longest_prompt = prompt, .slots = 100, .longest_generation = 2};
    Policy policy;
    policy.gpu_batch_size = batch;
    policy.max_batched_tokens = tokens;
    return policy::footprint(setting.model, setting.units, policy, setting.work, setting.sizing);
  };
  const auto one = print_of(100'000, 1), longer = print_of(200'000, 1);
  CHECK(one.workspace.chunk_tokens == 2048);
  CHECK_FALSE(one.shape.refills);
  // Keys and values of 128 numbers in fp16, a score for each of 4 heads.
  const double growth = double(longer.workspace.chunk) - double(one.workspace.chunk);
  CHECK(growth == Approx(100'000 * (2 * 128 * 2 + 4 * 4)).epsilon(0.001));
  CHECK(longer.prefill_hidden_bytes - one.prefill_hidden_bytes == 100'000 * 128 * 4);
  // What a chunk has beside that: queries and results, and a piece of the widest stage.
  CHECK(double(one.workspace.chunk) < 100'000 * (2 * 128 * 2 + 4 * 4) + 2048 * 128 * 4 * 4 + 512 * 512 * 4 * 2);
  CHECK(print_of(100'000, 1, 64).workspace.chunk_tokens == 64);
  CHECK(print_of(100'000, 1, 64).workspace.chunk + 2048 * 128 * 8 < one.workspace.chunk);
  // Not all prompts of a batch begin at once.
  CHECK(print_of(100'000, 8).prefill_hidden_bytes == 524'288 * 128 * 4);
  CHECK(print_of(100'000, 8).shape.refills);
  CHECK(print_of(100'000, 8, 64).prefill_hidden_bytes == 100'000 * 128 * 4);
  CHECK(print_of(1000, 8).workspace.first_tokens == 8000);
  CHECK_FALSE(print_of(1000, 8).shape.refills);
}

TEST_CASE("hidden states of prompts have room for the longest that can be in one batch", "[policy]") {
  Setting setting;
  setting.work.longest_prompt = 1000;
  const auto hidden = [&](int batch) {
    Policy policy;
    policy.gpu_batch_size = batch;
    return policy::footprint(setting.model, setting.units, policy, setting.work, setting.sizing).prefill_hidden_bytes /
           (8 * 128 * 4);  // whole pages
  };
  CHECK(hidden(4) == 500);
  setting.work.prompt_lengths = {{1000, 1}, {50, 2}, {10, 100}};
  CHECK(hidden(1) == 125);
  CHECK(hidden(2) == 132);
  CHECK(hidden(5) == 140);
  CHECK(setting.work.batch_tokens(103) == 2100);
  CHECK(setting.work.batch_tokens(110) == 2107);  // a place without a choice has a row
}

TEST_CASE("where layers keep differently, bytes are those of each layer, and homes have their share of them",
          "[policy]") {
  Setting setting;
  const auto retention = policy::Retention::from_text("h2o:0.1:0.1:layers=full,0.25,1.75,0.5,1.5,1");
  Policy policy;
  policy.gpu_batch_size = 3, policy.num_gpu_batches = 5;
  policy.retention = retention;
  policy.kv = {{0.2, 0.5, 0.3}};
  setting.work = policy::alike(200, 64, 32, retention);
  const policy::Footprint print = policy::footprint(setting.model, setting.units, policy, setting.work, setting.sizing);
  const auto plain = [&](const char* text) {  // of one buffer where all layers are as this
    Policy alone = policy;
    alone.retention = policy::Retention::from_text(text);
    return policy::footprint(setting.model, setting.units, alone, policy::alike(200, 64, 32, alone.retention),
                             setting.sizing)
        .kv_buffer_bytes(0);
  };
  CHECK(print.kv_buffer_bytes(0) == plain("full"));  // no scores where nothing is evicted
  CHECK(print.kv_buffer_bytes(2) == plain("h2o:0.175:0.175"));
  CHECK(print.kv_buffer_bytes(5) == plain("h2o:0.1:0.1"));
  std::array<std::uint64_t, 3> kv{};
  std::uint64_t moved = 0, largest = 0;
  for (int layer = 0; layer < 6; ++layer)
    for (int batch = 0; batch < 5; ++batch) {
      const Tier home = print.shape.kv_home[print.shape.kv_index(layer, batch)];
      kv[static_cast<std::size_t>(home)] += print.kv_buffer_bytes(layer);
      largest = std::max(largest, print.kv_buffer_bytes(layer));
      if (home != Tier::device) moved = std::max(moved, print.kv_buffer_bytes(layer));
    }
  CHECK(print.kv_bytes() == kv[0] + kv[1] + kv[2]);
  for (std::size_t tier = 0; tier < 3; ++tier)
    CHECK(std::abs(double(kv[tier]) - policy.kv.of[tier] * double(print.kv_bytes())) <= double(largest));
  CHECK(print.kv.slot_bytes == moved);
  // What is at home on a tier is all of its bytes but what is fixed; weights and hidden states are on the device.
  CHECK(print[Tier::host] - print.fixed[1] == kv[1]);
  CHECK(print[Tier::disk] - print.fixed[2] >= kv[2]);
  policy.retention = policy::Retention::from_text("h2o:0.1:0.1:layers=1,1");
  CHECK_THROWS_WITH(policy::footprint(setting.model, setting.units, policy, setting.work, setting.sizing),
                    Catch::Contains("'layers' has 2 entries, and the model has 6 layers"));
}

TEST_CASE("a spread refuses what is no division", "[policy]") {
  CHECK_THROWS_AS(policy::spread(3, {0.5, 0.4, 0}), UsageError);
  CHECK_THROWS_AS(policy::spread(3, {1.5, -0.5, 0}), UsageError);
  CHECK_THROWS_AS(policy::spread(3, {std::nan(""), 0, 1}), UsageError);
  CHECK(policy::spread(0, {1, 0, 0}).empty());
}

TEST_CASE("with room for all, everything is on the device in one block", "[policy]") {
  const Setting setting;
  const Policy policy = setting.complete({}, {{1024 * kMiB, 1024 * kMiB, 1024 * kMiB}});
  CHECK(policy.weights == Fractions{{1, 0, 0}});
  CHECK(policy.kv == Fractions{{1, 0, 0}});
  CHECK(policy.block_size() == 200);
  CHECK(policy.budgets[Tier::host] == 0);  // the device is the host's memory
}

TEST_CASE("what is chosen fits, and one sequence more would not", "[policy]") {
  const bool on_host = GENERATE(true, false);
  const Setting setting(on_host);
  for (std::uint64_t memory = 2 * kMiB; memory < 96 * kMiB; memory += memory / 7) {
    PartialPolicy partial;
    if (GENERATE_COPY(false, true)) partial.num_gpu_batches = 1;
    CAPTURE(memory, on_host);
    std::optional<Policy> policy;
    try {
      policy = setting.complete(partial, {{memory, memory, 1024 * kMiB}}, on_host);
    } catch (const CapacityError&) {
      continue;
    }
    CHECK(setting.fits(*policy));
    if (policy->weights.device() < 1 && policy->num_gpu_batches == 1 && policy->block_size() < 200) {
      Policy larger = *policy;  // with no weights resident, as when the block was chosen
      larger.weights = Fractions{{0, 0, 1}};
      larger.gpu_batch_size += 1;
      CHECK((!setting.fits(larger) || policy->kv.device() < 1));
    }
  }
}

TEST_CASE("the fastest tiers take what they can", "[policy]") {
  const Setting setting(false);
  PartialPolicy partial;
  partial.gpu_batch_size = 4;
  partial.num_gpu_batches = 1;
  partial.kv = Fractions{};
  const Policy streaming{.gpu_batch_size = 4,
                         .num_gpu_batches = 1,
                         .weights = {{0, 0, 1}},
                         .kv = {},
                         .activations = {},
                         .weight_format = {},
                         .kv_format = {},
                         .attention_on_host = 0,
                         .retention = {},
                         .overlap = true,
                         .budgets = {}};
  const policy::Footprint least =
      policy::footprint(setting.model, setting.units, streaming, setting.work, setting.sizing);
  const Policy policy =
      setting.complete(partial, {{least[Tier::device] + setting.weights() / 2, 1024 * kMiB, 1024 * kMiB}}, false);
  CHECK(policy.weights.device() > 0.4);
  CHECK(policy.weights.device() < 1);
  CHECK(policy.weights.disk() < 0.05);
}

TEST_CASE("what the user said is kept", "[policy]") {
  const Setting setting;
  PartialPolicy partial;
  partial.gpu_batch_size = 3;
  partial.num_gpu_batches = 5;
  partial.weights = Fractions{{0.25, 0.25, 0.5}};
  partial.kv = Fractions{{0, 1, 0}};
  partial.activations = Fractions{{0.5, 0, 0.5}};
  partial.attention_on_host = 1;
  partial.overlap = false;
  partial.budgets = {64 * kMiB, 32 * kMiB, {}};
  const Policy policy = setting.complete(partial, {{999 * kMiB, 999 * kMiB, 999 * kMiB}});
  CHECK(policy.block_size() == 15);
  CHECK(policy.weights == *partial.weights);
  CHECK(policy.kv == *partial.kv);
  CHECK(policy.activations == *partial.activations);
  CHECK(policy.attention_on_host == 1);
  CHECK_FALSE(policy.overlap);
  CHECK(policy.budgets[Tier::device] == 64 * kMiB);
  CHECK(policy.budgets[Tier::host] == 32 * kMiB);
  CHECK(policy.budgets[Tier::disk] == 999 * kMiB);
}

TEST_CASE("a block that does not fit is refused with the largest that does", "[policy]") {
  const Setting setting;
  PartialPolicy partial;
  partial.gpu_batch_size = 64;
  partial.num_gpu_batches = GENERATE(1, 2);
  partial.budgets[0] = 16 * kMiB;
  std::string message;
  try {
    setting.complete(partial, {{0, 0, 1024 * kMiB}});
  } catch (const CapacityError& error) {
    message = error.what();
  }
  CAPTURE(message);
  CHECK_THAT(message, Contains("64 x " + std::to_string(*partial.num_gpu_batches)) && Contains("on device") &&
                          Contains("16.00 MiB"));
  const auto at = message.find("largest block that fits is ");
  REQUIRE(at != std::string::npos);
  partial.gpu_batch_size = std::stoi(message.substr(at + 27));
  CHECK_NOTHROW(setting.complete(partial, {{0, 0, 1024 * kMiB}}));
  partial.gpu_batch_size = *partial.gpu_batch_size + 1;
  CHECK_THROWS_AS(setting.complete(partial, {{0, 0, 1024 * kMiB}}), CapacityError);
}

TEST_CASE("room to unpack one unit is counted, and of three where the host attends", "[policy]") {
  Setting setting(false);
  Policy policy;
  policy.gpu_batch_size = 4, policy.num_gpu_batches = 2;
  policy.kv = Fractions{{0, 1, 0}};
  const auto device = [&] {
    return policy::footprint(setting.model, setting.units, policy, setting.work, setting.sizing)[Tier::device];
  };
  const auto extra = [&] {
    setting.sizing.unpacked_bytes.clear();
    const std::uint64_t before = device();
    for (const Unit& unit : setting.units) {
      const bool of_layer = unit.kind == Unit::Kind::attention || unit.kind == Unit::Kind::mlp;
      setting.sizing.unpacked_bytes.push_back(of_layer ? static_cast<std::uint64_t>(unit.elements()) * 2 : 0);
    }
    return device() - before;
  };
  const auto pages = [](std::int64_t elements) {
    return (static_cast<std::uint64_t>(elements) * 2 + 4095) / 4096 * 4096;
  };
  std::int64_t attention = 0, mlp = 0;
  for (const Unit& unit : setting.units) {
    if (unit.kind == Unit::Kind::attention) attention = unit.elements();
    if (unit.kind == Unit::Kind::mlp) mlp = unit.elements();
  }
  CHECK(extra() == pages(std::max(attention, mlp)));
  policy.attention_on_host = 1;
  CHECK(extra() == 2 * pages(attention) + pages(mlp));
}

TEST_CASE("the tier that lacks room is named", "[policy]") {
  const Setting setting;
  PartialPolicy partial;
  partial.budgets = {kMiB / 16, {}, {}};
  CHECK_THROWS_WITH(setting.complete(partial, {{0, 0, 1024 * kMiB}}),
                    Contains("on device") && Contains("no block fits") && Contains("--device-memory"));
  partial.budgets = {1024 * kMiB, 1, {}};
  partial.weights = Fractions{{0, 1, 0}};
  CHECK_THROWS_WITH(setting.complete(partial, {{0, 0, 1024 * kMiB}}), Contains("on host") && Contains("--host-memory"));
  partial.weights = Fractions{{0, 0, 1}};
  CHECK_THROWS_WITH(setting.complete(partial, {{0, 0, kMiB}}), Contains("on disk") && Contains("--disk-memory"));
  CHECK_NOTHROW(Setting(true, true).complete(partial, {{0, 0, kMiB}}));  // the checkpoint's own files need no space
}
