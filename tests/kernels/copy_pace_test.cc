#include "kernels/machine/copy_pace.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>
#include <vector>

using weft::kernels::CopyPace;

namespace {

constexpr std::size_t kChunk = CopyPace::kChunk;

/// A queue of copies that a made-up link carries only when somebody waits.
struct Queue {
  std::vector<std::size_t> chunks;  // in order
  std::size_t queued = 0, arrived = 0, most_queued = 0;
  std::array<std::size_t, 2> at{};  // bytes up to each event
  int waits = 0;
  double seconds_per_chunk = 0;

  void copy(CopyPace& pace, std::size_t bytes) {
    std::size_t next = 0;
    pace.copy(
        bytes,
        [&](std::size_t begin, std::size_t size) {
          CHECK(begin == next);
          next += size;
          chunks.push_back(size);
          queued += size;
          most_queued = std::max(most_queued, queued - arrived);
        },
        [&](std::size_t event) { at[event] = queued; },
        [&](std::size_t event) {
          ++waits;
          if (at[event] <= arrived) return;
          const auto seconds = seconds_per_chunk * static_cast<double>(at[event] - arrived) / kChunk;
          std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
          arrived = at[event];
        });
    CHECK(next == bytes);
  }
};

}  // namespace

TEST_CASE("a slow link has two chunks queued, within a copy and across copies", "[kernels]") {
  CopyPace pace;
  Queue queue;
  queue.seconds_per_chunk = 2e-3;
  queue.copy(pace, 7 * kChunk + 5);
  CHECK(queue.chunks == std::vector<std::size_t>{kChunk, kChunk, kChunk, kChunk, kChunk, kChunk, kChunk, 5});
  CHECK(pace.group() == kChunk);
  CHECK(queue.most_queued <= 2 * kChunk + 5);
  queue.copy(pace, 3 * kChunk);
  for (int i = 0; i < 100; ++i) queue.copy(pace, kChunk / 10);
  CHECK(queue.most_queued <= 2 * (kChunk + kChunk / 10));  // a group ends with the copy that makes it large enough
}

TEST_CASE("a fast link has two groups of several chunks queued, and its thread is woken once a group", "[kernels]") {
  CopyPace pace;
  Queue queue;  // as fast as this thread
  queue.copy(pace, 400 * kChunk);
  CHECK(pace.group() == CopyPace::kMostGroup);
  queue.waits = 0;
  queue.copy(pace, 40 * kChunk);
  CHECK(queue.waits <= 10);
  CHECK(queue.most_queued <= 2 * CopyPace::kMostGroup);
}

TEST_CASE("the largest group can be set", "[kernels]") {
  CopyPace pace(kChunk);
  Queue queue;
  queue.copy(pace, 20 * kChunk);
  CHECK(pace.group() == kChunk);
  CHECK(queue.most_queued <= 2 * kChunk);
}
