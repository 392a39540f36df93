// tests/runtime/measure/measure_ops_test.cc: loads keep work queued, and everything that they queue is counted.
#include "runtime/measure/measure_ops.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <thread>

#include "tests/support/threaded_backend.h"

using namespace weft;
using runtime::Load;
using runtime::Side;
using runtime::Timer;

TEST_CASE("feeding a stream waits for the fourth piece before, not for the last", "[lanes]") {
  test::ThreadedBackend backend;
  Timer timer(backend, Side::device);
  std::promise<void> gate;
  const auto opened = gate.get_future().share();
  std::atomic<int> done{0};
  const auto piece = [&](kernels::Stream& stream) {
    test::ThreadedBackend::launch(stream, [&] {
      opened.wait_for(std::chrono::seconds(20));  // so that a feed() that waits too early fails and does not hang
      ++done;
    });
  };
  for (int i = 0; i < 4; ++i) timer.feed(piece, 2);
  CHECK(done == 0);
  auto fifth = std::async(std::launch::async, [&] { timer.feed(piece, 2); });
  CHECK(fifth.wait_for(std::chrono::milliseconds(20)) == std::future_status::timeout);
  gate.set_value();
  fifth.get();
  CHECK(done >= 2);
  timer.wait();
  CHECK(done == 10);
}

TEST_CASE("a rate counts the pieces that were queued last, and their time", "[lanes]") {
  test::ThreadedBackend backend;
  Timer timer(backend, Side::device);
  constexpr double work = 8, seconds = 0.01;
  static constexpr std::chrono::duration<double> nap(0.01);
  const Load load{[&] {
                    timer.feed(
                        [](kernels::Stream& stream) {
                          test::ThreadedBackend::launch(stream, [] { std::this_thread::sleep_for(nap); });
                        },
                        1);
                    return work;
                  },
                  [&] { timer.wait(); }};
  // A piece takes at least `seconds`, so a rate that leaves out the time of queued pieces is above this.
  CHECK(runtime::rate_of(load, seconds / 10) <= work / seconds);
  CHECK(runtime::rate_of(load, 2 * seconds) <= work / seconds);
}
