// The search against brute force, and what must hold of its answers on any machine.
#include "policy/planner/search.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <random>

#include "kernels/error.h"
#include "tests/policy/machines.h"
#include "tests/support/numbers.h"
#include "tests/support/program.h"

using namespace weft;
using namespace weft::policy;
using test::kGiB;
using test::kMiB;
using test::Made;

namespace {

double speed(const Made& made, const PartialPolicy& partial = {}) {
  const Plan plan = search(made.problem(), partial, {made.machine.bytes});
  return plan.fastest().prediction.tokens_per_second();
}

bool fits(const Made& made, const Policy& policy) {
  const Footprint print = footprint(made.model, made.units, policy, made.work, made.sizing);
  for (const Tier tier : offload::kTiers)
    if (print[tier] > policy.budgets[tier]) return false;
  return true;
}

/// Shares of a kind in steps of 1 / steps.
std::vector<Fractions> grid(int steps, bool host) {
  std::vector<Fractions> all;
  for (int device = 0; device <= steps; ++device)
    for (int on_host = 0; on_host <= (host ? steps - device : 0); ++on_host)
      all.push_back({{double(device) / steps, double(on_host) / steps, double(steps - device - on_host) / steps}});
  return all;
}

/// Every policy of a fine grid, timed as the search times its own.
double brute_force(const Made& made, const Retention& retention, int steps) {
  double best = 0;
  const bool host = !made.machine.device_is_host_memory;
  Policy policy;
  policy.retention = retention;
  policy.budgets.bytes = made.machine.bytes;
  if (!host) policy.budgets.bytes[1] = 0;
  for (policy.gpu_batch_size = 1; policy.gpu_batch_size <= made.work.requests; ++policy.gpu_batch_size)
    for (policy.num_gpu_batches = 1; policy.num_gpu_batches <= made.work.requests &&
                                     (policy.gpu_batch_size - 1) * policy.num_gpu_batches < made.work.requests;
         ++policy.num_gpu_batches)
      for (const Fractions& weights : grid(steps, host))
        for (const Fractions& kv : grid(3, host))
          for (const double attention : {0.0, 0.5, 1.0}) {
            if (attention > 0 && (!host || kv.device() == 1)) continue;
            policy.weights = weights;
            policy.kv = kv;
            policy.attention_on_host = attention;
            const Footprint print = footprint(made.model, made.units, policy, made.work, made.sizing);
            if (!fits(made, policy)) continue;
            best = std::max(best, predict(made.problem(), policy, print).tokens_per_second());
          }
  return best;
}

}  // namespace

TEST_CASE("search: within 1 % of brute force on random small problems, and never infeasible", "[search]") {
  for (int seed = 1; seed <= 40; ++seed) {
    std::mt19937 random(static_cast<std::mt19937::result_type>(seed));
    const auto pick = [&](double low, double high) {
      return low * std::pow(high / low, std::uniform_real_distribution<double>(0, 1)(random));
    };
    const bool cpu = seed % 3 == 0;
    const int layers = 2 + seed % 2, requests = 2 + seed % 3;
    const test::Rates rates{.link = pick(1e9, 50e9),
                            .disk = pick(0.5e9, 5e9),
                            .flops = pick(0.2e12, 100e12),
                            .memory = pick(20e9, 2e12),
                            .host_attention = pick(5e9, 100e9),
                            .launch = 5e-6};
    const ModelSpec model = test::decoder(layers, 512, 8, 2000);
    const auto weights = static_cast<std::uint64_t>(double(parameters(model)) * 2);
    PartialPolicy partial;
    partial.retention = Retention::from_text("recent:48");
    const Made made(model, 64, 32, requests,
                    test::machine_of(rates,
                                     {static_cast<std::uint64_t>(double(weights) * pick(0.9, 3)) + 12 * kMiB,
                                      static_cast<std::uint64_t>(double(weights) * pick(0.3, 2)), kGiB},
                                     cpu),
                    *partial.retention);
    const Plan plan = search(made.problem(), partial, {made.machine.bytes});
    INFO("seed " << seed);
    for (const Candidate& candidate : plan.candidates) CHECK(fits(made, candidate.policy));
    const double best = brute_force(made, *partial.retention, 2 * layers + 2);
    CAPTURE(policy::host_share_to_text(plan.best().policy.attention_on_host), best);
    const double fastest = plan.fastest().prediction.tokens_per_second();
    CHECK(fastest >= 0.99 * best);
    CHECK(plan.best().prediction.tokens_per_second() >= (1 - kNearlyAsFast) * fastest);
    for (const Candidate& candidate : plan.candidates)
      if (candidate.prediction.tokens_per_second() >= (1 - kNearlyAsFast) * fastest)
        CHECK(candidate.policy.block_size() >= plan.best().policy.block_size());
  }
}

TEST_CASE("search: more memory or bandwidth is never slower, nor is a smaller KV budget", "[search]") {
  const test::Rates base;
  const std::array<std::uint64_t, 3> bytes{2 * kGiB, 8 * kGiB, 64 * kGiB};
  const ModelSpec model = test::decoder(12, 2048, 16, 8000);
  const auto at = [&](const test::Rates& rates, std::array<std::uint64_t, 3> memory, const char* retention = "full") {
    PartialPolicy partial;
    partial.retention = Retention::from_text(retention);
    return speed(Made(model, 256, 64, std::nullopt, test::machine_of(rates, memory), *partial.retention), partial);
  };
  constexpr double kNoise = 0.995;  // a search that samples shapes may miss by as much
  const auto never_slower = [](const auto& values, const auto& speed_at) {
    double before = 0;
    for (const auto& value : values) {
      const double now = speed_at(value);
      CHECK(now >= kNoise * before);
      before = now;
    }
  };
  // All neighbours, or in less time some that lie further apart.
  const auto factors = test::exhaustive() ? std::vector{0.5, 1.0, 1.7, 3.0, 8.0} : std::vector{0.5, 1.7, 8.0};
  for (const std::size_t tier : {0, 1})
    never_slower(factors, [&](double factor) {
      auto memory = bytes;
      memory[tier] = static_cast<std::uint64_t>(factor * double(memory[tier]));
      return at(base, memory);
    });
  for (double test::Rates::*rate : {&test::Rates::link, &test::Rates::disk, &test::Rates::flops, &test::Rates::memory,
                                    &test::Rates::host_attention})
    never_slower(test::exhaustive() ? std::vector{0.5, 1.0, 2.0, 5.0} : std::vector{0.5, 2.0}, [&](double factor) {
      test::Rates rates = base;
      rates.*rate *= factor;
      return at(rates, bytes);
    });
  never_slower(test::exhaustive()
                   ? std::vector{"h2o:0.5:0.5", "h2o:0.3:0.3", "h2o:0.2:0.2", "h2o:0.1:0.1", "h2o:0.05:0.05"}
                   : std::vector{"h2o:0.5:0.5", "h2o:0.2:0.2", "h2o:0.05:0.05"},
               [&](const char* retention) { return at(base, bytes, retention); });
}

TEST_CASE("search: rates that were measured again lead to nearly the same block", "[search][blocks]") {
  // Everything fits, so that beyond some size a larger block gains next to nothing.
  const ModelSpec model = test::decoder(4, 512, 8, 2000);
  const std::array<std::uint64_t, 3> bytes{16 * kGiB, 8 * kGiB, 64 * kGiB};
  std::vector<int> blocks;
  bool smaller = false;
  for (int seed = 0; seed < 6; ++seed) {
    std::mt19937 random(static_cast<std::mt19937::result_type>(seed));
    const auto about = [&](double rate) { return rate * std::uniform_real_distribution<double>(0.93, 1.07)(random); };
    const test::Rates base, rates{.link = about(base.link),
                                  .disk = about(base.disk),
                                  .flops = about(base.flops),
                                  .memory = about(base.memory),
                                  .host_attention = about(base.host_attention),
                                  .launch = about(base.launch)};
    const Made made(model, 64, 32, 20000, test::machine_of(rates, bytes));
    PartialPolicy on_device;  // whether the host should help is a closer question than this test's
    on_device.attention_on_host = 0;
    const Plan plan = search(made.problem(), on_device, {made.machine.bytes});
    CHECK(plan.best().prediction.tokens_per_second() >=
          (1 - kNearlyAsFast) * plan.fastest().prediction.tokens_per_second());
    blocks.push_back(plan.best().policy.block_size());
    smaller |= blocks.back() < plan.fastest().policy.block_size();
  }
  CAPTURE(blocks);
  CHECK(smaller);
  CHECK(*std::max_element(blocks.begin(), blocks.end()) <= 3 * *std::min_element(blocks.begin(), blocks.end()));
}

TEST_CASE("search: what the user fixed stays, and the same question has the same answer", "[search]") {
  const Made made(test::decoder(12, 2048, 16, 8000), 128, 32, 100, test::machine_of({}, {kGiB, 4 * kGiB, 64 * kGiB}));
  PartialPolicy partial;
  partial.gpu_batch_size = 6;
  partial.weights = Fractions{{0.25, 0.5, 0.25}};
  partial.attention_on_host = 1;
  const Plan plan = search(made.problem(), partial, {made.machine.bytes});
  CHECK(plan.best().policy.gpu_batch_size == 6);
  CHECK(plan.best().policy.weights == *partial.weights);
  CHECK(plan.best().policy.attention_on_host == 1);
  const Plan again = search(made.problem(), partial, {made.machine.bytes});
  REQUIRE(again.candidates.size() == plan.candidates.size());
  for (std::size_t i = 0; i < plan.candidates.size(); ++i) {
    CHECK(again.candidates[i].policy.weights == plan.candidates[i].policy.weights);
    CHECK(again.candidates[i].prediction.seconds == plan.candidates[i].prediction.seconds);
  }
}

TEST_CASE("search: what cannot be done is refused with one line", "[search]") {
  const ModelSpec model = test::decoder(4, 2048, 16, 8000);
  const auto refusal = [&](std::array<std::uint64_t, 3> bytes) -> std::string {
    try {
      search(Made(model, 128, 32, 10, test::machine_of({}, bytes)).problem(), {}, {bytes});
    } catch (const CapacityError& error) {
      return error.what();
    }
    return "";
  };
  for (const auto& bytes : {std::array<std::uint64_t, 3>{64 * kMiB, 8 * kGiB, 8 * kGiB},  // no unit fits
                            std::array<std::uint64_t, 3>{0, 0, 0}}) {
    const std::string line = refusal(bytes);
    CAPTURE(line);
    CHECK(line.find("needs") != std::string::npos);
    CHECK(line.find('\n') == std::string::npos);
  }
}
