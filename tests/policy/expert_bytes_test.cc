// tests/policy/expert_bytes_test.cc: the experts that a sweep loads, as schedules and predictions count them.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "policy/planner/predict.h"
#include "policy/planner/search.h"
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
ModelSpec sparse_decoder() { return test::sparse_decoder(4, 512, 8, 1000, {.count = 64, .chosen = 8, .ffn = 128}); }

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

TEST_CASE("predict: experts on the host are not loaded after the first sweep, and take the host's time",
          "[predict][experts]") {
  const double share = GENERATE(0.25, 0.5, 1.0);
  for (const auto& [size, batches] : {std::pair{1, 1}, {2, 2}, {64, 2}}) {
    CAPTURE(share, size, batches);
    const int block = size * batches;
    const test::Rates rates;
    const Made made = made_of(rates, block);
    Policy policy = on_host(size, batches, false);
    const Prediction without = predicted(made, policy);
    policy.experts_on_host = share;
    const Footprint print = footprint(made.model, made.units, policy, made.work, made.sizing);
    const Prediction result = predicted(made, policy);
    const Bytes bytes = bytes_of(made);
    const double touched = 1 - std::pow(7.0 / 8, block), each = block / 8.0 / touched;
    double loads = 0, seconds = 0;
    for (std::size_t u = 0; u < made.units.size(); ++u) {
      if (!print.shape.host_computes[u]) continue;
      loads += double(made.sizing.unit_bytes[u]) * touched;
      const double product = 512.0 * 128 * 2 / rates.host_attention * std::max(1.0, each / 8);
      seconds += made.units[u].experts * touched * 3 * std::max(rates.launch, product);
    }
    CHECK(loads > 0);
    CHECK(loaded(result.decode) == Approx(kSweeps * (bytes.others + bytes.experts * touched - loads)).epsilon(1e-9));
    CHECK(loaded(result.prefill) == Approx(loaded(without.prefill)).epsilon(1e-9));
    CHECK(result.decode.busy[static_cast<std::size_t>(Lane::host_compute)] == Approx(kSweeps * seconds).epsilon(1e-9));
    CHECK(result.prefill.busy[static_cast<std::size_t>(Lane::host_compute)] == 0);
    CHECK(result.decode.bytes[static_cast<std::size_t>(Lane::device_to_host)] ==
          Approx(kSweeps * 4.0 * block * 512 * sizeof(float)).epsilon(1e-9));
  }
}

TEST_CASE("predict: where the link is slow, experts on the host make a sweep shorter, and a plan keeps their share",
          "[predict][experts]") {
  const Made made = made_of({.link = 2e9}, 32);
  Policy policy = on_host(16, 2, true);
  const double all_loaded = predicted(made, policy).tokens_per_second();
  policy.experts_on_host = 0.5;
  CHECK(predicted(made, policy).tokens_per_second() > 1.2 * all_loaded);
  PartialPolicy partial;
  partial.experts_on_host = 0.5;
  partial.weights = Fractions{{0, 1, 0}};
  const Plan plan = search(made.problem(), partial, {{64 * kGiB, 64 * kGiB, 64 * kGiB}});
  for (const Candidate& candidate : plan.candidates) CHECK(candidate.policy.experts_on_host == 0.5);
  CHECK(plan.best().prediction.decode.busy[static_cast<std::size_t>(Lane::host_compute)] > 0);
}
