// tests/offload/memory_test.cc
#include "offload/memory.h"

#include <catch2/catch.hpp>

#include <random>
#include <vector>

#include "kernels/error.h"

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
