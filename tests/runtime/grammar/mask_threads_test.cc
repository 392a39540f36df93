// Work on masks is done once, by whoever comes first, and never after its matcher is gone.
#include "runtime/grammar/mask_threads.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>
#include <stdexcept>

using namespace weft;
using runtime::MaskThreads;
using runtime::MaskWork;

TEST_CASE("work on masks is done once, by threads or by the one that waits", "[runtime]") {
  const int threads = GENERATE(0, 1, 3);
  MaskThreads pool(threads);
  std::atomic<int> done = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<std::shared_ptr<MaskWork>> all;
    for (int i = 0; i < 20; ++i) {
      all.push_back(std::make_shared<MaskWork>([&] { ++done; }));
      pool.add(all.back());
    }
    for (const auto& work : all) work->finish();
    REQUIRE(done == 20 * (round + 1));
  }
}

TEST_CASE("work on masks that is dropped is over, whether it was done or not", "[runtime]") {
  std::vector<int> done(500), seen;
  {
    MaskThreads pool(2);
    for (int& own : done) {
      const auto work = std::make_shared<MaskWork>([&own] { ++own; });
      pool.add(work);
      work->drop();
      seen.push_back(own);
    }
  }
  CHECK(seen == done);
  CHECK(*std::max_element(done.begin(), done.end()) <= 1);
}

TEST_CASE("the one that waits for work on masks gets its error, and threads may end before the work", "[runtime]") {
  std::optional<MaskThreads> pool(2);
  const auto wrong = std::make_shared<MaskWork>([] { throw std::runtime_error("no memory"); });
  pool->add(wrong);
  CHECK_THROWS_WITH(wrong->finish(), "no memory");
  int done = 0;
  const auto late = std::make_shared<MaskWork>([&] { ++done; });
  pool.emplace(0);
  pool->add(late);
  pool.reset();
  late->finish();
  CHECK(done == 1);
}
