// tests/policy/expert_share_test.cc: when a plan has the host compute a share of the experts.
#include <algorithm>
#include <catch2/catch.hpp>

#include "policy/planner/search.h"
#include "tests/policy/machines.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::policy;
using test::kGiB;
using test::kMiB;
using test::Made;

namespace {

/// 32 experts a layer, of which a token chooses 4: 0.8 GB, nearly all of it experts.
ModelSpec shared_decoder() { return test::sparse_decoder(4, 1024, 8, 1000, {.count = 32, .chosen = 4, .ffn = 1024}); }

/// A link that brings 2 GB/s and a host that reads 60 GB/s; the other way round a host of few cores.
constexpr test::Rates kSlowLink{.link = 2e9}, kFastLink{.link = 60e9, .host_attention = 4e9};
constexpr std::array<std::uint64_t, 3> kBytes{256 * kMiB, 8 * kGiB, 8 * kGiB};

Plan plan_of(const test::Rates& rates, const PartialPolicy& partial = {}, bool cpu = false,
             ModelSpec model = shared_decoder()) {
  const Made made(std::move(model), 32, 64, 32, test::machine_of(rates, kBytes, cpu));
  Plan plan = search(made.problem(), partial, {made.machine.bytes});
  for (const Candidate& candidate : plan.candidates) {
    const Footprint print = footprint(made.model, made.units, candidate.policy, made.work, made.sizing);
    CHECK_FALSE(lacking(print, candidate.policy.budgets));
  }
  return plan;
}

PartialPolicy with_share(double share) {
  PartialPolicy partial;
  partial.experts_on_host = share;
  return partial;
}

double speed_of(const Plan& plan) { return plan.best().prediction.tokens_per_second(); }

}  // namespace

TEST_CASE("search: where the link is slow, the host computes a share of the experts", "[search][experts]") {
  const Plan plan = plan_of(kSlowLink);
  CAPTURE(plan.best().policy.experts_on_host);
  CHECK(plan.best().policy.experts_on_host > 0);
  CHECK(speed_of(plan) > (1 + kNearlyAsFast) * speed_of(plan_of(kSlowLink, with_share(0))));
  for (const double share : {0.25, 0.5, 0.75, 1.0})
    CHECK(speed_of(plan) >= (1 - kNearlyAsFast) * speed_of(plan_of(kSlowLink, with_share(share))));
  CHECK(std::any_of(plan.candidates.begin(), plan.candidates.end(),
                    [](const Candidate& other) { return other.policy.experts_on_host == 0; }));
  // The linear program's speed is that of the share.
  CHECK(plan.relaxed == plan_of(kSlowLink, with_share(plan.best().policy.experts_on_host)).relaxed);
}

TEST_CASE("search: the same question has the same share of the experts", "[search][experts]") {
  const Plan plan = plan_of(kSlowLink), again = plan_of(kSlowLink);
  REQUIRE(again.candidates.size() == plan.candidates.size());
  for (std::size_t i = 0; i < plan.candidates.size(); ++i) {
    CHECK(again.candidates[i].policy.experts_on_host == plan.candidates[i].policy.experts_on_host);
    CHECK(again.candidates[i].policy.weights == plan.candidates[i].policy.weights);
    CHECK(again.candidates[i].prediction.seconds == plan.candidates[i].prediction.seconds);
  }
}

TEST_CASE("search: where it gains nothing the host computes no experts, and the plan is as without the question",
          "[search][experts]") {
  const Plan plan = plan_of(kFastLink), without = plan_of(kFastLink, with_share(0));
  REQUIRE(plan.candidates.size() == without.candidates.size());
  for (std::size_t i = 0; i < plan.candidates.size(); ++i) {
    CHECK(plan.candidates[i].policy.experts_on_host == 0);
    CHECK(plan.candidates[i].prediction.seconds == without.candidates[i].prediction.seconds);
  }
  CHECK(plan.relaxed == without.relaxed);
}

TEST_CASE("search: a share of the experts is the user's, and none is tried without a device, experts or a choice",
          "[search][experts]") {
  const double given = GENERATE(0.0, 0.3, 1.0);
  for (const Candidate& candidate : plan_of(kSlowLink, with_share(given)).candidates)
    CHECK(candidate.policy.experts_on_host == given);
  CHECK(plan_of(kSlowLink, {}, true).best().policy.experts_on_host == 0);
  CHECK(plan_of(kSlowLink, {}, false, test::decoder(4, 1024, 8, 1000)).best().policy.experts_on_host == 0);
  PartialPolicy complete = PartialPolicy::of(plan_of(kSlowLink, with_share(0)).best().policy);
  complete.experts_on_host.reset();  // a file of a policy without a share does not say so
  CHECK(plan_of(kSlowLink, complete).best().policy.experts_on_host == 0);
}
