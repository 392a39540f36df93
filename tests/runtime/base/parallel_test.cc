// Loops on several threads, and buffers that are filled ahead.
#include "runtime/base/parallel.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "kernels/machine/mapped_memory.h"
#include "runtime/base/fill_ahead.h"

using namespace weft;
using namespace weft::runtime;

TEST_CASE("a loop does every piece once, on no more threads than it may", "[runtime]") {
  const int threads = GENERATE(1, 2, 5);
  const std::int64_t count = GENERATE(0, 1, 3, 1000);
  std::vector<std::atomic<int>> done(static_cast<std::size_t>(count));
  std::atomic<int> most{-1};
  for_each_of(count, threads, [&](std::int64_t i, int thread) {
    ++done[static_cast<std::size_t>(i)];
    for (int seen = most; thread > seen && !most.compare_exchange_weak(seen, thread);) {}
  });
  for (const auto& times : done) CHECK(times == 1);
  CHECK(most < threads);
}

TEST_CASE("a loop throws what a piece threw, and begins no others", "[runtime]") {
  const int threads = GENERATE(1, 4);
  std::atomic<int> begun{0};
  std::atomic<bool> thrown{false};
  const auto piece = [&](std::int64_t i, int) {
    ++begun;
    if (i == 10) {
      thrown = true;
      throw std::runtime_error("piece 10");
    }
    // Later ones wait, so that each of the other threads has begun at most one of them, and one more after it at most.
    while (i > 10 && !thrown) std::this_thread::yield();
    if (i > 10) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  };
  CHECK_THROWS_WITH(for_each_of(1'000'000, threads, piece), "piece 10");
  CHECK(begun >= 11);
  CHECK(begun <= 11 + (threads - 1));
}

TEST_CASE("what is filled ahead is carried in order, and keeps its contents until then", "[runtime]") {
  std::vector<int> carried;
  FillAhead ahead([](std::size_t bytes) { return std::make_unique<kernels::MappedMemory>(bytes); });
  for (int i = 0; i < 50; ++i) {
    const auto bytes = static_cast<std::size_t>(4 + i * 100);  // buffers grow
    auto* const numbers = reinterpret_cast<int*>(ahead.next(bytes));
    *numbers = i;
    ahead.carry([&carried, numbers] { carried.push_back(*numbers); });
  }
  ahead.finish();
  REQUIRE(carried.size() == 50);
  for (int i = 0; i < 50; ++i) CHECK(carried[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("what cannot be carried away ends the filling", "[runtime]") {
  FillAhead ahead([](std::size_t bytes) { return std::make_unique<kernels::MappedMemory>(bytes); });
  ahead.next(8);
  ahead.carry([] { throw std::runtime_error("the disk is full"); });
  ahead.next(8);
  const bool at_the_end = GENERATE(false, true);
  if (at_the_end) CHECK_THROWS_WITH(ahead.finish(), "the disk is full");
  else CHECK_THROWS_WITH(ahead.carry([] {}), "the disk is full");
}
