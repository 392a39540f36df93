#include "kernels/machine/thread_pool.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "kernels/error.h"
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

using namespace weft;
using kernels::ThreadPool;

TEST_CASE("thread pool runs every tile once, on a thread that it names", "[kernels]") {
  const int threads = GENERATE(1, 2, 3, 5);
  const std::int64_t tiles = GENERATE(0, 1, 2, 7, 1000);
  CAPTURE(threads, tiles);
  ThreadPool pool(threads);
  CHECK(pool.threads() == threads);
  for (int repetition = 0; repetition < 50; ++repetition) {
    std::vector<int> count(static_cast<std::size_t>(tiles)), per_thread(static_cast<std::size_t>(threads));
    pool.run(tiles, [&](std::int64_t tile, int thread) {
      ++count[static_cast<std::size_t>(tile)];
      ++per_thread.at(static_cast<std::size_t>(thread));  // no two tiles of one thread at once
    });
    REQUIRE(count == std::vector<int>(static_cast<std::size_t>(tiles), 1));
    REQUIRE(std::accumulate(per_thread.begin(), per_thread.end(), 0) == tiles);
  }
}

TEST_CASE("thread pool wakes workers that sleep", "[kernels]") {
  ThreadPool pool(3);
  for (int repetition = 0; repetition < 5; ++repetition) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int> present{0};
    // Ends only if all three threads are inside at once.
    pool.run(3, [&](std::int64_t, int) {
      ++present;
      while (present < 3) std::this_thread::yield();
    });
    CHECK(present == 3);
  }
}

TEST_CASE("thread pool throws what a tile threw, and works on", "[kernels]") {
  const int threads = GENERATE(1, 2, 3);
  ThreadPool pool(threads);
  for (int repetition = 0; repetition < 20; ++repetition) {
    std::atomic<int> begun{0}, ended{0};
    CHECK_THROWS_WITH(pool.run(100,
                               [&](std::int64_t tile, int) {
                                 ++begun;
                                 if (tile == 5) throw std::runtime_error("tile five");
                                 ++ended;
                               }),
                      "tile five");
    CHECK(ended == begun - 1);
    CHECK(ended >= 5);
    std::atomic<int> done{0};
    pool.run(100, [&](std::int64_t, int) { ++done; });
    CHECK(done == 100);
  }
}

TEST_CASE("thread pool takes callers in turns", "[kernels]") {
  ThreadPool pool(3);
  std::atomic<int> inside{0}, most{0};
  std::atomic<std::int64_t> sum{0};
  const auto caller = [&] {
    for (int repetition = 0; repetition < 100; ++repetition) {
      ThreadPool::Turn turn(pool);
      most = std::max(most.load(), ++inside);
      auto* total = new (turn.shared(sizeof(std::atomic<std::int64_t>))) std::atomic<std::int64_t>(0);
      turn.run(10, [&](std::int64_t tile, int) { *total += tile; });
      turn.run(10, [&](std::int64_t tile, int) { *total += tile; });
      sum += total->load();
      --inside;
    }
  };
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) callers.emplace_back(caller);
  for (std::thread& thread : callers) thread.join();
  CHECK(most == 1);
  CHECK(sum == 4 * 100 * 2 * 45);
}

TEST_CASE("thread pool lends scratch memory that stays", "[kernels]") {
  ThreadPool pool(2);
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{5000}, std::size_t{3} << 20}) {
    ThreadPool::Turn turn(pool);
    std::byte* const shared = turn.shared(bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(shared) % 64 == 0);
    std::memset(shared, 1, bytes);
    std::byte* own[2] = {};
    turn.run(16, [&](std::int64_t, int thread) {
      std::byte* const mine = turn.scratch(thread, bytes);
      std::memset(mine, 2 + thread, bytes);
      own[thread] = mine;
    });
    for (int thread = 0; thread < 2; ++thread)
      if (own[thread]) CHECK(static_cast<int>(own[thread][bytes - 1]) == 2 + thread);
    CHECK(static_cast<int>(shared[bytes - 1]) == 1);
    CHECK(turn.shared(1) == shared);  // never shrinks, never moves for less
  }
}

TEST_CASE("thread pool refuses no threads", "[kernels]") {
  const int threads = GENERATE(0, -1);
  CHECK_THROWS_AS(ThreadPool(threads), UsageError);
}

#if defined(__x86_64__)
TEST_CASE("thread pool keeps denormals on every thread, whatever the caller's mode", "[kernels]") {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // flush to zero, denormals are zero
  const unsigned flushing = _mm_getcsr();
  {
    ThreadPool pool(3);  // its threads start in the mode of this one
    std::vector<float> product(64);
    const volatile float tiny = 0x1p-126f, half = 0.5f;
    pool.run(64, [&](std::int64_t tile, int) { product[static_cast<std::size_t>(tile)] = tiny * half; });
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    CHECK((after & 0xFFC0) == (flushing & 0xFFC0));
    CHECK(product == std::vector<float>(64, 0x1p-127f));
  }
}
#endif
