// How places fill and empty, against counts by hand.
#include "policy/planner/timeline.h"

#include <catch2/catch.hpp>

#include "policy/planner/search.h"
#include "tests/policy/machines.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::policy;
using test::kGiB;
using test::Made;

namespace {

Workload of(std::vector<WorkGroup> groups) {
  Workload work;
  work.requests = 0;
  for (const WorkGroup& group : groups) {
    *work.requests += static_cast<std::int64_t>(group.choices);
    work.longest_prompt = std::max(work.longest_prompt, static_cast<std::int64_t>(group.prompt));
    work.longest_generation = std::max(work.longest_generation, static_cast<std::int64_t>(group.generation));
  }
  work.groups = std::move(groups);
  return work;
}

}  // namespace

TEST_CASE("timeline: requests of one length run in whole rounds", "[timeline]") {
  const Workload work = of({{17, 20, 16, 17}});
  const Timeline two = timeline(work, 16, 1, 1000);
  CHECK(two.full == 15);  // after the prefill
  CHECK(two.rest == 16);
  CHECK(two.full_live == 16);
  CHECK(two.rest_live == Approx(15.0 / 16));  // in the sweep that a prompt joins it does not decode
  CHECK(two.joins == 1);
  CHECK(two.joining_tokens == 20);
  const Timeline one = timeline(work, 17, 1, 1000);
  CHECK(one.full == 15);
  CHECK(one.rest == 0);
  const Timeline half = timeline(work, 9, 1, 1000);
  CHECK(half.full == 15);
  CHECK(half.rest == 16);
  CHECK(half.rest_live == 7.5);
  CHECK(timeline(of({{2, 20, 1, 2}}), 2, 1, 1000).full == 0);  // all is said in the prefill
}

TEST_CASE("timeline: long answers go first, and short ones fill up beside them", "[timeline]") {
  const Timeline line = timeline(of({{1, 10, 100, 1}, {99, 10, 10, 99}}), 10, 1, 1000);
  CHECK(line.full == 99);  // 9 places serve 99 answers of 10 tokens in 110 sweeps, or 11 rounds of 9
  CHECK(line.rest == 10);
  CHECK(line.full_live == Approx(10 - 81.0 / 99));
  CHECK(line.rest_live == Approx(9 - 9.0 / 10));
}

TEST_CASE("timeline: prompts join no faster than sweeps admit them", "[timeline]") {
  const Timeline line = timeline(of({{16, 100, 8, 16}}), 8, 1, 200);
  CHECK(line.joins == 4);  // two at a time
  CHECK(line.joining_tokens == 800);
  const Timeline equal = timeline(of({{16, 100, 8, 1}}), 8, 1, 200);
  CHECK(equal.joins == 1);  // one prefill serves all of them
  CHECK(equal.joining_tokens == 100);
}

TEST_CASE("timeline: equal prompts are computed once in each gpu batch", "[timeline]") {
  const Workload equal = of({{64, 200, 20, 1}});
  CHECK(first_sweep(equal, 64, 1).tokens() == 200);
  CHECK(first_sweep(equal, 16, 4).tokens() == 800);
  CHECK(first_sweep(equal, 16, 1).tokens() == 200);
  CHECK(timeline(equal, 16, 1, 512).joining_tokens == 600);
  CHECK(first_sweep(of({{64, 200, 20, 64}}), 64, 1).tokens() == 12'800);
  CHECK(first_sweep(of({{64, 200, 20, 16}}), 16, 4).own == 16.0 / 64);  // four choices of each request
  CHECK(first_sweep(of({{64, 200, 20, 16}}), 22, 1).own == 6.0 / 22);
  CHECK(first_sweep(of({{64, 200, 20, 16}}), 22, 3).own == (6.0 + 6 + 5) / 64);  // two more are cut by a gpu batch
  CHECK(timeline(of({{64, 200, 20, 4}}), 16, 1, 512).joining_tokens == 600);
  // Places are taken as answers end, 16 and 8 at a time, and a prompt whose choices come in two parts is computed
  // twice.
  CHECK(timeline(of({{64, 200, 20, 4}}), 24, 1, 5000).joining_tokens == 2 * 200 + 200);
}

TEST_CASE("timeline: a prefix is computed once for the prompts of a gpu batch that share it", "[timeline]") {
  const auto group = [](double choices, double prefixes, bool continues = false) {
    return WorkGroup{.choices = choices,
                     .prompt = 200,
                     .generation = 20,
                     .prompts = choices,
                     .prefix = 150,
                     .prefixes = prefixes,
                     .prefix_continues = continues};
  };
  CHECK(first_sweep(of({group(64, 1)}), 64, 1).tokens() == Approx(150 + 64 * 50));
  CHECK(first_sweep(of({group(64, 1)}), 16, 4).tokens() == Approx(4 * 150 + 64 * 50));
  CHECK(first_sweep(of({group(32, 1), group(32, 1, true)}), 64, 1).tokens() == Approx(150 + 64 * 50).epsilon(0.05));
  CHECK(first_sweep(of({group(32, 1), group(32, 1)}), 64, 1).tokens() == Approx(2 * 150 + 64 * 50).epsilon(0.05));
  CHECK(first_sweep(of({group(64, 64)}), 64, 1).tokens() == Approx(64 * 200));
  CHECK(timeline(of({group(64, 1)}), 16, 1, 5000).joining_tokens == Approx(3 * 150 + 48 * 50));
  // Where slots hold it, those that join later find it there.
  CHECK(timeline(of({group(64, 1)}), 16, 1, 5000, true).joining_tokens == Approx(48 * 50));
  CHECK(timeline(of({group(64, 1)}), 8, 2, 5000, true).joining_tokens == Approx(48 * 50));
  CHECK(timeline(of({group(64, 4)}), 16, 1, 5000, true).joining_tokens == Approx(3 * 150 + 48 * 50));
}

TEST_CASE("timeline: a prompt whose answers have two lengths counts once where both begin together", "[timeline]") {
  const Workload work = of({{4, 200, 16, 1}, {4, 200, 12, 1, true}, {4, 200, 16, 1}, {4, 200, 12, 1, true}});
  CHECK(first_sweep(work, 16, 1).tokens() == 400);
  CHECK(first_sweep(work, 8, 2).tokens() == 400);
  CHECK(first_sweep(work, 4, 4).tokens() == 800);
  CHECK(timeline(work, 8, 1, 5000).joining_tokens == 400);  // four places are free after 12 sweeps, four after 16
}

TEST_CASE("timeline: very many rounds are counted by some of them", "[timeline]") {
  const Timeline line = timeline(of({{1e6, 20, 16, 1e6}}), 16, 1, 1000);
  CHECK(line.full == Approx(1e6 / 16 * 16).epsilon(0.01));
  CHECK(line.joining_tokens == Approx(20e6).epsilon(0.01));
}

TEST_CASE("search: 17 requests of one length get 17 places, where one more round takes twice as long", "[timeline]") {
  for (const int requests : {17, 33, 65, 100}) {
    CAPTURE(requests);
    const Made made(test::decoder(12, 768, 12, 8192), 20, 16, requests,
                    test::machine_of({.disk = 60e6}, {60 << 20, 0, 64 * kGiB}, true));
    const Policy policy = search(made.problem(), {}, {made.machine.bytes}).best().policy;
    CHECK(policy.block_size() >= requests);
    CHECK(policy.block_size() - policy.num_gpu_batches < requests);  // and no places that nobody takes
  }
}

TEST_CASE("search: 17 requests of one length run in smaller gpu batches, where 17 rows take half as long again as 16",
          "[timeline]") {
  Made made(test::decoder(12, 768, 12, 8192), 20, 40, 17, test::machine_of({}, {4 * kGiB, 0, 64 * kGiB}, true));
  const auto chosen = [&](double at_17, double at_32) {
    made.machine.device.linear[static_cast<std::size_t>(DType::f16)].points = {
        {1, 768, 1e10}, {8, 768, 5e10}, {16, 768, 9e10}, {17, 768, at_17}, {32, 768, at_32}, {64, 768, 13e10}};
    return search(made.problem(), {}, {made.machine.bytes}).best().policy;
  };
  CHECK(chosen(9.3e10, 12e10).gpu_batch_size == 17);
  CHECK(chosen(6.2e10, 9e10).gpu_batch_size <= 16);
}

TEST_CASE("search: 64 equal prompts in one gpu batch, whose one prefill serves all", "[timeline]") {
  Made made(test::decoder(12, 768, 12, 8192), 200, 20, 64,
            test::machine_of({.flops = 5e10, .memory = 8e9}, {4 * kGiB, 0, 64 * kGiB}, true));
  const double apart = search(made.problem(), {}, {made.machine.bytes}).best().prediction.seconds;
  made.work.groups = {{64, 200, 20, 1}};
  const Candidate together = search(made.problem(), {}, {made.machine.bytes}).best();
  CHECK(together.policy.gpu_batch_size == 64);
  CHECK(together.policy.num_gpu_batches == 1);
  CHECK(together.prediction.seconds < apart / 3);
  CHECK(together.prediction.prompt_tokens == 200);
}
