// How busy a link is kept while the host computes: the lanes' own threads beside a pool of threads, with a made-up link
// and a made-up GPU. Their work has a length and no contents, and their clock is that of the host, so each is late only
// as far as the threads that queue its work are. Takes a minute and demands nothing: test_offload "[gaps]" prints a
// table (docs/lab/link-gaps.md).
#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/machine/copy_pace.h"
#include "kernels/machine/host_machine.h"
#include "kernels/machine/thread_pool.h"
#include "offload/lanes.h"
#include "tests/support/threaded_backend.h"

using namespace weft;
using namespace weft::offload;
using Clock = std::chrono::steady_clock;

namespace {

Clock::duration seconds(double s) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
}
double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

struct MadeUpEvent : kernels::Event {
  std::mutex mutex;
  Clock::time_point at{};
  Clock::time_point reached() {
    const std::lock_guard lock(mutex);
    return at;
  }
};

/// Work that follows each other. Only its lane's thread touches it.
struct MadeUpStream : kernels::Stream {
  explicit MadeUpStream(std::size_t most_group) : pace(most_group) {}

  /// Queues work of a length. It begins at once, or after the work before it.
  void queue(double length) {
    const auto now = Clock::now();
    if (free < now && busy > Clock::duration{}) gaps.push_back(seconds(now - free));
    free = std::max(free, now) + seconds(length);
    busy += seconds(length);
  }
  kernels::CopyPace pace;
  std::array<Clock::time_point, 2> group_end{};
  Clock::time_point free{};
  Clock::duration busy{};
  std::vector<double> gaps;
};

struct Setup {
  std::string name;
  int threads = 1;                                         // of the pool
  std::size_t most_group = kernels::CopyPace::kMostGroup;  // of copies
  kernels::CoreShares cores = {};
  std::vector<int> allowed = kernels::allowed_processors();
};

class MadeUpGpu : public test::ThreadedBackend {
 public:
  explicit MadeUpGpu(const Setup& setup) : setup_(setup) {}
  std::unique_ptr<kernels::Stream> make_stream() override { return std::make_unique<MadeUpStream>(setup_.most_group); }
  std::unique_ptr<kernels::Event> make_event() override { return std::make_unique<MadeUpEvent>(); }
  void settle_thread(Duty duty) const override {
    if (duty == Duty::computes_on_host) return kernels::stay_on(setup_.cores.others);
    kernels::stay_on(setup_.cores.feeding);
    kernels::stay_on(setup_.allowed);
  }
  void copy(void*, const void*, std::size_t bytes, kernels::Stream& any) override {
    auto& stream = static_cast<MadeUpStream&>(any);
    stream.pace.copy(
        bytes, [&](std::size_t, std::size_t size) { stream.queue(static_cast<double>(size) / kBytesPerSecond); },
        [&](std::size_t i) { stream.group_end[i] = stream.free; },
        [&](std::size_t i) { std::this_thread::sleep_until(stream.group_end[i]); });
  }
  void record(kernels::Event& event, kernels::Stream& stream) override {
    auto& e = static_cast<MadeUpEvent&>(event);
    const std::lock_guard lock(e.mutex);
    e.at = static_cast<MadeUpStream&>(stream).free;
  }
  void wait(kernels::Stream& stream, const kernels::Event& event) override {
    auto& free = static_cast<MadeUpStream&>(stream).free;
    free = std::max(free, const_cast<MadeUpEvent&>(static_cast<const MadeUpEvent&>(event)).reached());
  }
  void synchronize(const kernels::Event& event) override {
    std::this_thread::sleep_until(const_cast<MadeUpEvent&>(static_cast<const MadeUpEvent&>(event)).reached());
  }
  static constexpr double kBytesPerSecond = 54.7e9;  // PCIe 5, 16 lanes

 private:
  const Setup& setup_;
};

struct Gaps {
  double busy = 0, largest = 0;  // share of the time; seconds
};

Gaps gaps_of(const MadeUpStream& link, Clock::duration took) {
  const double largest = link.gaps.empty() ? 0 : *std::max_element(link.gaps.begin(), link.gaps.end());
  return {std::min(1.0, seconds(link.busy) / seconds(took)), largest};
}

/// Something that a core is busy with for so long.
void compute(double length) {
  const auto end = Clock::now() + seconds(length);
  while (Clock::now() < end) {}
}

/// One copy after another, while the pool computes without a pause.
Gaps copies(const Setup& setup, double length) {
  MadeUpGpu gpu(setup);
  kernels::ThreadPool pool(setup.threads, setup.cores.others);
  Lanes lanes(gpu);
  const MadeUpStream* link = nullptr;
  std::atomic<bool> stop{false};
  lanes.submit(Lane::host_compute, {}, [&](kernels::Stream&) {
    while (!stop) pool.run(4 * setup.threads, [](std::int64_t, int) { compute(0.2e-3); });
  });
  constexpr std::size_t kUnit = 540 << 20;
  const auto begin = Clock::now();
  const int count = static_cast<int>(length * MadeUpGpu::kBytesPerSecond / kUnit);
  for (int i = 0; i < count; ++i)
    lanes.submit(Lane::host_to_device, {}, [&](kernels::Stream& stream) {
      link = static_cast<MadeUpStream*>(&stream);
      gpu.copy(nullptr, nullptr, kUnit, stream);
    });
  lanes.wait(lanes.submit(Lane::host_to_device, {}, [](kernels::Stream&) {}));
  const auto took = Clock::now() - begin;
  stop = true;
  lanes.wait_all();
  return gaps_of(*link, took);
}

/// A sweep of decode: each layer's weights are loaded, and six batches go through it, attended by the host.
Gaps sweep(const Setup& setup, int layers) {
  constexpr int kBatches = 6, kSlots = 4;
  constexpr std::size_t kAttention = 411 << 20, kMlp = 822 << 20, kRows = 1248 << 10;
  constexpr double kIn = 0.15e-3, kOut = 0.35e-3, kCore = 0.84e-3;  // seconds of a batch; of the host, on all cores
  MadeUpGpu gpu(setup);
  const int cores = kernels::processors();
  kernels::ThreadPool pool(setup.threads, setup.cores.others);
  const MadeUpStream* link = nullptr;
  Lanes lanes(gpu);
  const auto begin = Clock::now();
  std::vector<Ticket> used;  // the last op that uses each unit
  Ticket last_load;
  std::array<Ticket, kBatches> out{};
  for (int layer = 0; layer < layers; ++layer) {
    std::array<Ticket, 2> loads;
    for (std::size_t i = 0; i < 2; ++i) {
      const Ticket before = used.size() + i < kSlots ? Ticket{} : used[used.size() + i - kSlots];
      loads[i] = lanes.submit(Lane::host_to_device, {&before, 1}, [&, i](kernels::Stream& stream) {
        link = static_cast<MadeUpStream*>(&stream);
        gpu.copy(nullptr, nullptr, i == 0 ? kAttention : kMlp, stream);
      });
    }
    last_load = loads[1];
    for (Ticket& batch : out) {
      const std::array in_deps{loads[0], batch};
      const Ticket in = lanes.submit(Lane::device_compute, in_deps,
                                     [](kernels::Stream& stream) { static_cast<MadeUpStream&>(stream).queue(kIn); });
      const Ticket rows = lanes.submit(Lane::device_to_host, {&in, 1},
                                       [&](kernels::Stream& stream) { gpu.copy(nullptr, nullptr, kRows, stream); });
      const Ticket core = lanes.submit(Lane::host_compute, {&rows, 1}, [&, cores](kernels::Stream&) {
        pool.run(8 * cores, [](std::int64_t, int) { compute(kCore / 8); });
      });
      const std::array out_deps{core, loads[1]};
      batch = lanes.submit(Lane::device_compute, out_deps,
                           [](kernels::Stream& stream) { static_cast<MadeUpStream&>(stream).queue(kOut); });
    }
    used.insert(used.end(), 2, out.back());
  }
  lanes.wait(last_load);
  const auto took = Clock::now() - begin;
  lanes.wait_all();
  return gaps_of(*link, took);
}

}  // namespace

TEST_CASE("gaps of a link beside a pool", "[.][gaps]") {
  const int cores = kernels::processors(), left = std::max(1, cores - std::min(3, std::max(1, cores / 4)));
  const auto chunk = kernels::CopyPace::kChunk, group = kernels::CopyPace::kMostGroup;
  kernels::CoreShares shares;
  shares.others = kernels::allowed_processors();
  while (shares.others.size() > static_cast<std::size_t>(left)) {
    shares.feeding.push_back(shares.others.back());
    shares.others.pop_back();
  }
  if (shares.feeding.empty()) shares = {};  // one core
  const std::vector<Setup> setups = {{"all cores compute, a wake-up per chunk", cores, chunk, {}},
                                     {"all cores compute, a wake-up per group", cores, group, {}},
                                     {"cores are left, a wake-up per chunk", left, chunk, shares},
                                     {"cores are left, a wake-up per group", left, group, shares}};
  constexpr int kRounds = 24;
  std::vector<std::array<std::vector<double>, 4>> of(setups.size());
  for (int round = 0; round < kRounds; ++round)  // short and in turn, so that what else the machine does meets all
    for (std::size_t i = 0; i < setups.size(); ++i) {
      const Gaps alone = copies(setups[i], 0.1), in_sweep = sweep(setups[i], 5);
      for (std::size_t k = 0; const double value : {alone.busy, -alone.largest, in_sweep.busy, -in_sweep.largest})
        of[i][k++].push_back(value);
    }
  std::printf("%d cores, %d rounds: share of the time that the link is busy, and its longest gap in ms; median, best\n",
              cores, kRounds);
  std::printf("%-40s %13s %13s %13s %13s\n", "", "copies", "gap", "sweep", "gap");
  for (std::size_t i = 0; i < setups.size(); ++i) {
    std::printf("%-40s", setups[i].name.c_str());
    for (std::size_t k = 0; std::vector<double> & values : of[i]) {
      const double scale = k++ % 2 == 0 ? 1 : -1e3;
      std::sort(values.begin(), values.end());
      std::printf(" %6.3f %6.3f", scale * values[values.size() / 2], scale * values.back());
    }
    std::printf("\n");
  }
}
