// tests/offload/memory_test.cc
#include "offload/memory.h"

#include <catch2/catch.hpp>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "kernels/error.h"
#include "tests/support/threaded_backend.h"

using namespace weft;
using namespace weft::offload;
using Catch::Matchers::Contains;

TEST_CASE("a counting and a real arena hand out the same offsets", "[offload]") {
  const auto seed = GENERATE(range(1, 9));
  std::mt19937 random(static_cast<unsigned>(seed));
  std::vector<std::byte> memory(1 << 20);
  Arena counting, real(memory.data(), memory.size(), Tier::device);
  std::vector<std::pair<std::size_t, std::size_t>> taken;
  for (int i = 0; i < 50; ++i) {
    const std::size_t bytes = random() % 5000, alignment = std::size_t{1} << random() % 13;
    const std::size_t offset = counting.take(bytes, alignment);
    REQUIRE(real.take(bytes, alignment) == offset);
    REQUIRE(offset % alignment == 0);
    REQUIRE(real.at(offset) == memory.data() + offset);
    if (!taken.empty()) REQUIRE(offset >= taken.back().first + taken.back().second);
    taken.emplace_back(offset, bytes);
  }
  REQUIRE(counting.peak() == real.peak());
  REQUIRE(counting.used() == taken.back().first + taken.back().second);

  // Exactly what was counted suffices, and one byte less does not.
  const auto repeat = [&](std::size_t capacity) {
    Arena arena(memory.data(), capacity, Tier::host);
    for (const auto& [offset, bytes] : taken) arena.take(offset + bytes - arena.used(), 1);
  };
  REQUIRE_NOTHROW(repeat(counting.peak()));
  REQUIRE_THROWS_AS(repeat(counting.peak() - 1), CapacityError);
}

TEST_CASE("an arena that is full says tier, wanted, free and remedy, and takes nothing", "[offload]") {
  std::vector<std::byte> memory(8192);
  Arena arena(memory.data(), memory.size(), Tier::host);
  arena.take(100);
  REQUIRE_THROWS_WITH(arena.take(5000), Contains("host") && Contains("5000 bytes wanted") &&
                                            Contains("4096 of 8192 free") && Contains("raise its budget"));
  REQUIRE_THROWS_AS(arena.take(SIZE_MAX), CapacityError);
  REQUIRE(arena.used() == 100);
  REQUIRE(arena.take(4096) == 4096);
}

TEST_CASE("a rewound arena keeps its peak", "[offload]") {
  Arena arena;
  const std::size_t mark = arena.used();
  arena.take(10000, 1);
  arena.rewind(mark);
  REQUIRE(arena.take(10, 1) == 0);
  REQUIRE(arena.peak() == 10000);
}

TEST_CASE("leases are apart, page-aligned, move-only, and come back", "[offload]") {
  test::ThreadedBackend backend;
  HostPool pool(backend, 16 * kPage);
  {
    auto a = pool.lease(1), b = pool.lease(3 * kPage + 1), c = pool.lease(kPage);
    REQUIRE(a.bytes() == kPage);
    REQUIRE(b.bytes() == 4 * kPage);
    for (const auto* lease : {&a, &b, &c}) REQUIRE(reinterpret_cast<std::uintptr_t>(lease->data()) % kPage == 0);
    REQUIRE(pool.bytes_free() == 10 * kPage);
    HostPool::Lease moved = std::move(b);
    REQUIRE(moved.bytes() == 4 * kPage);
    REQUIRE(pool.bytes_free() == 10 * kPage);
    moved = {};
    REQUIRE(pool.bytes_free() == 14 * kPage);
    // 14 pages are free, but not in one run.
    REQUIRE_THROWS_WITH(pool.lease(14 * kPage),
                        Contains("57344 bytes wanted in one run") && Contains("57344 of 65536"));
  }
  REQUIRE(pool.bytes_free() == 16 * kPage);
  REQUIRE(pool.lease(16 * kPage).bytes() == 16 * kPage);
}

TEST_CASE("threads that lease at once never share a page", "[offload]") {
  test::ThreadedBackend backend;
  HostPool pool(backend, 64 * kPage);
  std::atomic<int> spoiled{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 random(t + 1);
      for (int i = 0; i < 300; ++i) {
        const auto lease = pool.lease(1 + random() % (8 * kPage));
        std::memset(lease.data(), static_cast<int>(t), lease.bytes());
        std::this_thread::yield();
        for (std::size_t at = 0; at < lease.bytes(); at += 512)
          spoiled += lease.data()[at] != static_cast<std::byte>(t);
      }
    });
  for (auto& thread : threads) thread.join();
  REQUIRE(spoiled == 0);
  REQUIRE(pool.bytes_free() == 64 * kPage);
}
