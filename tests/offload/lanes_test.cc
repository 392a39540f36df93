// tests/offload/lanes_test.cc
#include "offload/lanes.h"

#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/error.h"
#include "tests/support/threaded_backend.h"

using namespace weft;
using namespace weft::offload;

namespace {

/// The machine of which issued is done, and the one of which it is not.
class AtOnceBackend : public test::ThreadedBackend {
 public:
  bool device_is_host_memory() const override { return true; }
  std::unique_ptr<kernels::Stream> make_stream() override { return std::make_unique<kernels::Stream>(); }
};
std::unique_ptr<test::ThreadedBackend> make_backend(bool at_once) {
  if (at_once) return std::make_unique<AtOnceBackend>();
  return std::make_unique<test::ThreadedBackend>();
}

/// Runs `body` where a lane's work runs: in its stream if that is a thread of its own.
void work(kernels::Stream& stream, std::function<void()> body) {
  if (dynamic_cast<test::ThreadedStream*>(&stream)) test::ThreadedBackend::launch(stream, std::move(body));
  else body();
}

std::vector<Lane> random_lanes(std::size_t count, std::mt19937& random) {
  std::vector<Lane> lanes(count);
  for (Lane& lane : lanes) lane = kLanes[random() % kLanes.size()];
  return lanes;
}

}  // namespace

TEST_CASE("work sees all that it depends on, and its own lane in order", "[offload]") {
  const bool at_once = GENERATE(true, false);
  const auto seed = GENERATE(range(1u, 4u));
  CAPTURE(at_once, seed);
  std::mt19937 random(seed);
  const auto backend = make_backend(at_once);
  const std::size_t count = 3000;
  const auto lane = random_lanes(count, random);
  // Plain ints: a dependency that does not order is a race for the sanitizer, and a wrong sum here.
  std::vector<int> done(count, 0);
  std::vector<std::vector<std::size_t>> needs(count);
  std::atomic<int> wrong{0};
  {
    Lanes lanes(*backend);
    std::vector<Ticket> tickets;
    std::array<std::size_t, kLanes.size()> last;
    last.fill(count);
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<Ticket> deps;
      for (std::size_t d = 0; i > 0 && d < random() % 4; ++d) {
        const std::size_t back = random() % 2 ? random() % std::min<std::size_t>(i, 20) : random() % i;
        needs[i].push_back(i - 1 - back);
        deps.push_back(tickets[i - 1 - back]);
      }
      std::size_t& before = last[static_cast<std::size_t>(lane[i])];
      if (before < count) needs[i].push_back(before);
      before = i;
      tickets.push_back(lanes.submit(lane[i], deps, [&, i](kernels::Stream& stream) {
        work(stream, [&, i] {
          for (const std::size_t need : needs[i]) wrong += done[need] != 1;
          done[i] = 1;
        });
      }));
      if (random() % 200 == 0) {
        const std::size_t some = random() % tickets.size();
        lanes.wait(tickets[some]);
        wrong += done[some] != 1;
      }
    }
    lanes.wait_all();
    for (const int d : done) wrong += d != 1;
  }
  REQUIRE(wrong == 0);
}

TEST_CASE("a failure reaches all that depends on it and nothing else", "[offload]") {
  const bool at_once = GENERATE(true, false);
  const auto seed = GENERATE(range(1u, 4u));
  CAPTURE(at_once, seed);
  std::mt19937 random(seed);
  const auto backend = make_backend(at_once);
  const std::size_t count = 600;
  const auto lane = random_lanes(count, random);
  std::vector<std::string> expected(count);  // what it fails with; empty: runs
  std::vector<std::unique_ptr<std::atomic<int>>> ran(count);
  for (auto& r : ran) r = std::make_unique<std::atomic<int>>(0);

  Lanes lanes(*backend);
  std::vector<Ticket> tickets;
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<Ticket> deps;
    for (std::size_t d = 0; i > 0 && d < random() % 3; ++d) {
      const std::size_t need = i - 1 - random() % std::min<std::size_t>(i, 8);
      deps.push_back(tickets[need]);
      if (expected[i].empty()) expected[i] = expected[need];
    }
    const bool fails = random() % 60 == 0;
    const bool inherits = !expected[i].empty();
    if (fails && !inherits) expected[i] = "failure " + std::to_string(i);
    tickets.push_back(lanes.submit(lane[i], deps, [&, i, fails](kernels::Stream& stream) {
      ++*ran[i];
      if (fails) throw IoError("failure " + std::to_string(i));
      work(stream, [] {});
    }));
    if (!fails || inherits) continue;
    REQUIRE_THROWS_AS(lanes.wait(tickets[i]), IoError);
  }
  std::string first;
  for (std::size_t i = 0; i < count; ++i) {
    CAPTURE(i);
    if (first.empty()) first = expected[i];
    if (expected[i].empty()) REQUIRE_NOTHROW(lanes.wait(tickets[i]));
    else REQUIRE_THROWS_WITH(lanes.wait(tickets[i]), expected[i]);
    REQUIRE(*ran[i] == (expected[i].empty() || expected[i] == "failure " + std::to_string(i) ? 1 : 0));
  }
  REQUIRE_FALSE(first.empty());
  REQUIRE_THROWS_WITH(lanes.wait_all(), first);
  // The lanes themselves go on.
  bool went_on = false;
  lanes.wait(lanes.submit(Lane::disk_read, {}, [&](kernels::Stream&) { went_on = true; }));
  REQUIRE(went_on);
}

TEST_CASE("a device that fails later fails the work that it was given", "[offload]") {
  test::ThreadedBackend backend;
  Lanes lanes(backend);
  backend.break_device();
  const Ticket copy = lanes.submit(Lane::host_to_device, {}, [](kernels::Stream&) {});
  bool ran = false;
  const Ticket after = lanes.submit(Lane::host_compute, {&copy, 1}, [&](kernels::Stream&) { ran = true; });
  REQUIRE_THROWS_AS(lanes.wait(after), DeviceError);
  REQUIRE_THROWS_AS(lanes.wait(copy), DeviceError);
  REQUIRE_FALSE(ran);
}

TEST_CASE("work is issued once all that it depends on is done, while its lane's earlier work is under way",
          "[offload]") {
  test::ThreadedBackend backend;
  Lanes lanes(backend);
  std::atomic<bool> go{false}, issued{false}, open{false};
  lanes.submit(Lane::device_compute, {}, [&](kernels::Stream& stream) {
    work(stream, [&] {
      while (!open) std::this_thread::yield();
    });
  });
  const Ticket host = lanes.submit(Lane::host_compute, {}, [&](kernels::Stream&) {
    while (!go) std::this_thread::yield();
  });
  lanes.submit(Lane::device_compute, {&host, 1}, [&](kernels::Stream&) { issued = true; });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the lane waits for the host, or for the device
  go = true;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!issued && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  CHECK(issued);
  open = true;
  lanes.wait_all();
}

namespace {

/// A device whose queue of work is full until `open`.
class FullBackend : public test::ThreadedBackend {
 public:
  void record(kernels::Event& event, kernels::Stream& stream) override {
    wait_for_room();
    test::ThreadedBackend::record(event, stream);
  }
  void wait(kernels::Stream& stream, const kernels::Event& event) override {
    wait_for_room();
    test::ThreadedBackend::wait(stream, event);
  }
  std::atomic<bool> open{false};

 private:
  void wait_for_room() const {
    while (!open) std::this_thread::yield();
  }
};

}  // namespace

TEST_CASE("a device that takes no work for now stops no lane but its own", "[offload]") {
  FullBackend backend;
  Lanes lanes(backend);
  const Ticket copy = lanes.submit(Lane::host_to_device, {}, [](kernels::Stream&) {});
  const auto another_lane_works = [&] {
    lanes.wait(lanes.submit(Lane::disk_read, {}, [](kernels::Stream&) {}));
    backend.open = true;
  };
  another_lane_works();  // while the copy's event is recorded
  lanes.wait(copy);
  std::atomic<bool> go{false};
  const Ticket slow = lanes.submit(Lane::host_to_device, {}, [&](kernels::Stream& stream) {
    work(stream, [&] {
      while (!go) std::this_thread::yield();
    });
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it is issued
  backend.open = false;
  const Ticket after = lanes.submit(Lane::device_compute, {&slow, 1}, [](kernels::Stream&) {});
  another_lane_works();  // while the stream is ordered after the copy
  go = true;
  lanes.wait(after);
}

TEST_CASE("submit blocks when a lane runs behind, and only then", "[offload]") {
  const auto backend = make_backend(GENERATE(true, false));
  Lanes lanes(*backend);
  std::atomic<bool> open{false};
  std::atomic<std::size_t> submitted{0};
  const Ticket gate = lanes.submit(Lane::disk_read, {}, [&](kernels::Stream&) {
    while (!open) std::this_thread::yield();
  });
  std::thread submitter([&] {
    for (std::size_t i = 0; i < 2 * Lanes::kRunAhead; ++i, ++submitted)
      lanes.submit(Lane::device_compute, {&gate, 1}, [](kernels::Stream&) {});
  });
  while (submitted < Lanes::kRunAhead) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  REQUIRE(submitted == Lanes::kRunAhead);
  lanes.wait(lanes.submit(Lane::disk_write, {}, [](kernels::Stream&) {}));  // another lane is free
  open = true;
  submitter.join();
  REQUIRE(submitted == 2 * Lanes::kRunAhead);
  lanes.wait_all();
}

TEST_CASE("a dependency on what is not submitted yet is refused", "[offload]") {
  const auto backend = make_backend(true);
  Lanes lanes(*backend);
  const Ticket future{1};
  REQUIRE_THROWS_AS(lanes.submit(Lane::disk_read, {&future, 1}, [](kernels::Stream&) {}), UsageError);
  const Ticket none;
  REQUIRE_NOTHROW(lanes.wait(lanes.submit(Lane::disk_read, {&none, 1}, [](kernels::Stream&) {})));
  REQUIRE_NOTHROW(lanes.wait(none));
  REQUIRE_NOTHROW(lanes.wait_all());
}

TEST_CASE("records tell when work ran, and lanes how long they were busy", "[offload]") {
  const bool at_once = GENERATE(true, false);
  CAPTURE(at_once);
  const auto backend = make_backend(at_once);
  Lanes lanes(*backend);
  const auto nap = [](kernels::Stream& stream) {
    work(stream, [] { std::this_thread::sleep_for(std::chrono::milliseconds(40)); });
  };
  lanes.wait(lanes.submit(Lane::disk_read, {}, nap));  // before the recording
  lanes.start_recording();
  const double begin = lanes.now();
  const Ticket read = lanes.submit(Lane::disk_read, {}, nap, 7);
  const Ticket copy = lanes.submit(Lane::host_to_device, {&read, 1}, nap, 8);
  lanes.submit(Lane::host_to_device, {}, nap, 9);
  lanes.submit(Lane::device_compute, {&copy, 1}, nap, 10);
  lanes.wait_all();
  const double end = lanes.now();

  auto records = lanes.take_records();
  REQUIRE(records.size() == 4);
  REQUIRE(lanes.take_records().empty());
  std::array<LaneRecord, 4> of;
  for (const LaneRecord& record : records) of[record.label - 7] = record;
  REQUIRE(of[0].lane == Lane::disk_read);
  REQUIRE(of[3].lane == Lane::device_compute);
  for (const LaneRecord& record : of) {
    REQUIRE(record.begin >= begin);
    REQUIRE(record.end <= end);
    REQUIRE(record.end - record.begin > 0.015);
    REQUIRE(record.end - record.begin < 0.5);
  }
  REQUIRE(of[1].begin >= of[0].end);
  REQUIRE(of[2].begin >= of[1].end);
  REQUIRE(of[3].begin >= of[1].end - 0.005);  // as the host saw it
  const auto busy = lanes.busy_seconds();
  REQUIRE(busy[static_cast<std::size_t>(Lane::disk_read)] > 0.035);
  REQUIRE(busy[static_cast<std::size_t>(Lane::host_to_device)] > 0.035);
  REQUIRE(busy[static_cast<std::size_t>(Lane::disk_write)] == 0);
}

TEST_CASE("lanes overlap", "[offload]") {
  const auto backend = make_backend(GENERATE(true, false));
  Lanes lanes(*backend);
  // Each waits for the other: only together can they end.
  std::atomic<int> met{0};
  const auto meet = [&](kernels::Stream& stream) {
    work(stream, [&] {
      ++met;
      while (met < static_cast<int>(kLanes.size())) std::this_thread::yield();
    });
  };
  for (const Lane lane : kLanes) lanes.submit(lane, {}, meet);
  lanes.wait_all();
  REQUIRE(met == static_cast<int>(kLanes.size()));
}

TEST_CASE("lanes that go away finish what was submitted", "[offload]") {
  const auto backend = make_backend(GENERATE(true, false));
  std::atomic<int> ran{0};
  {
    Lanes lanes(*backend);
    Ticket last;
    for (int i = 0; i < 200; ++i)
      last = lanes.submit(kLanes[static_cast<std::size_t>(i) % kLanes.size()], {&last, 1},
                          [&](kernels::Stream& stream) { work(stream, [&] { ++ran; }); });
  }
  REQUIRE(ran == 200);
}
