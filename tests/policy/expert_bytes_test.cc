// tests/policy/expert_bytes_test.cc: the experts that a sweep loads, as schedules and predictions count them.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "policy/planner/predict.h"
#include "tests/policy/machines.h"
#include "tests/policy/shapes.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::policy;
using offload::Lane;
using test::kGiB;
using test::Made;
using test::predicted;

namespace {

constexpr std::int64_t kPrompt = 3, kSweeps = 8;

/// 64 experts a layer in 13 units, of which a token chooses 8.
ModelSpec sparse_decoder() {
  ModelSpec model = test::decoder(4, 512, 8, 1000);
  model.architecture = "qwen3_moe";
  model.rotary = {1};
  model.position_offset = 0;
  model.experts = {.count = 64, .chosen = 8, .ffn = 128};
  return model;
}

Made made_of(const test::Rates& rates, std::optional<std::int64_t> requests) {
  return Made(sparse_decoder(), kPrompt, kSweeps + 1, requests,
              test::machine_of(rates, {64 * kGiB, 64 * kGiB, 64 * kGiB}));
}

Policy on_host(int size, int batches, bool overlap) {
  Policy policy;
  policy.gpu_batch_size = size;
  policy.num_gpu_batches = batches;
  policy.weights = {{0, 1, 0}};
  policy.overlap = overlap;
  policy.budgets.bytes = {64 * kGiB, 64 * kGiB, 64 * kGiB};
  return policy;
}

double loaded(const Phase& phase) { return phase.bytes[static_cast<std::size_t>(Lane::host_to_device)]; }

/// Bytes of the streamed units: those of experts, and all others.
struct Bytes {
  double experts = 0, others = 0, first_of_layers = 0, second_of_layers = 0;
};
Bytes bytes_of(const Made& made) {
  Bytes bytes;
  for (std::size_t u = 0; u < made.units.size(); ++u) {
    const Unit& unit = made.units[u];
    if (!unit.streamed) continue;
    const auto size = double(made.sizing.unit_bytes[u]);
    (unit.kind == Unit::Kind::experts ? bytes.experts : bytes.others) += size;
    if (unit.kind != Unit::Kind::experts) continue;
    if (unit.first_expert == 0) bytes.first_of_layers += size;
    if (unit.first_expert == unit.experts) bytes.second_of_layers += size;
  }
  return bytes;
}

}  // namespace

TEST_CASE("a load of experts names the last op that chooses among them", "[policy][experts]") {
  std::mt19937 random(GENERATE(range(1, 61)));
  const ScheduleShape shape = test::random_shape(random);
  const Schedule schedule = zigzag(shape, 0, 3);
  for (std::uint32_t i = 0; i < schedule.ops.size(); ++i) {
    const Op& op = schedule.ops[i];
    const auto sub = std::find_if(shape.sublayers.begin(), shape.sublayers.end(), [&](const Sublayer& s) {
      return s.kind == Sublayer::Kind::experts && s.unit == static_cast<int>(op.subject);
    });
    if (op.kind != Op::Kind::load || sub == shape.sublayers.end()) {
      CHECK(op.router == kNoSlot);
      continue;
    }
    REQUIRE(op.router < i);
    const Op& router = schedule.ops[op.router];
    const Sublayer& chooses = shape.sublayers[router.subject];
    CHECK(router.kind == Op::Kind::compute);
    CHECK(chooses.kind == Sublayer::Kind::mlp);
    CHECK(chooses.layer == sub->layer);
    CHECK(router.sweep == op.sweep);
    CHECK(router.batch == std::min(op.batch + shape.batches_of_pass(op.prefill), shape.batches) - 1);
  }
}

TEST_CASE("predict: a sweep loads the experts that its rows are expected to choose", "[predict][experts]") {
  for (const auto& [size, batches] : {std::pair{1, 1}, {4, 1}, {2, 2}, {64, 1}, {16, 4}}) {
    CAPTURE(size, batches);
    const int block = size * batches;
    const Made made = made_of({}, block);
    const Bytes bytes = bytes_of(made);
    const auto expected = [&](double rows) { return bytes.others + bytes.experts * (1 - std::pow(7.0 / 8, rows)); };
    // One op after the other, so every router has run.
    const Prediction result = predicted(made, on_host(size, batches, false));
    CHECK(loaded(result.decode) == Approx(kSweeps * expected(block)).epsilon(1e-9));
    CHECK(result.decode.busy[static_cast<std::size_t>(Lane::host_to_device)] ==
          Approx(loaded(result.decode) / 12e9).epsilon(1e-9));
    const int passes =
        batches / footprint(made.model, made.units, on_host(size, batches, false), made.work, made.sizing)
                      .shape.batches_of_pass(true);
    CHECK(loaded(result.prefill) == Approx(passes * expected(double(block * kPrompt) / passes)).epsilon(1e-9));
    // What is allocated holds them all.
    CHECK(double(result.bytes[1]) >= bytes.experts + bytes.others);
  }
}

TEST_CASE("predict: experts that are loaded before their router has run are loaded whole", "[predict][experts]") {
  const auto of_rates = [](const test::Rates& rates) {
    const Made made = made_of(rates, 1);
    return loaded(predicted(made, on_host(1, 1, true)).decode) / kSweeps;
  };
  const Bytes bytes = bytes_of(made_of({}, 1));
  const auto expected = [&](double ahead) { return bytes.others + ahead + (bytes.experts - ahead) / 8; };
  // A slow link: while a layer's first unit of experts is loaded, its router runs. A slow device: two units are loaded
  // ahead, as many as there are window slots.
  CHECK(of_rates({.link = 1e7}) == Approx(expected(bytes.first_of_layers)).epsilon(0.01));
  CHECK(of_rates({.link = 1e13, .memory = 1e6}) ==
        Approx(expected(bytes.first_of_layers + bytes.second_of_layers)).epsilon(0.01));
}

TEST_CASE("predict: prompts that join a sweep add the experts that they alone choose", "[predict][experts]") {
  const Policy policy = on_host(4, 1, false);
  const Made once = made_of({}, 4), often = made_of({}, 40);
  const double each = loaded(predicted(once, policy).decode) / kSweeps;
  Policy refilled = policy;
  refilled.continuous = true;
  const Prediction result = predicted(often, refilled);
  const Bytes bytes = bytes_of(often);
  const double sweeps = 9 * kSweeps + kSweeps + 9;  // ten rounds, each of the last nine with a sweep that begins it
  const double joining = bytes.experts * (1 - std::pow(7.0 / 8, 4 * kPrompt));
  CHECK(loaded(result.decode) == Approx((sweeps - 9) * each + 9 * (bytes.others + joining)).epsilon(0.02));
}
