// kernels/backend/backend_cpu.cc: the host as a machine. Work is done by the thread that submits it, before the call
// returns.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>

#include "kernels/attention/cpu/kernels.h"
#include "kernels/backend.h"
#include "kernels/backend/ceilings.h"
#include "kernels/error.h"
#include "kernels/machine/cpu_ops.h"
#include "kernels/machine/host_machine.h"
#include "kernels/machine/mapped_memory.h"

namespace weft::kernels {
namespace {

struct CpuStream final : Stream {
  std::chrono::steady_clock::time_point link_free{};  // when the paced link has carried all copies so far
};

/// Recorded work is already done. The number only makes the recording thread's writes visible to the one that waits.
struct CpuEvent final : Event {
  std::atomic<std::uint64_t> recorded{0};
};

std::string describe(const ThreadPool& pool) {
  const int threads = pool.threads();
  return processor_name() + ", " + std::to_string(threads) + (threads == 1 ? " thread, " : " threads, ") +
         vector_kernels().front()->name;
}

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const CpuOptions& options)
      : pool_(options.threads > 0 ? options.threads : processors()), ops_(pool_), description_(describe(pool_)),
        separate_device_(options.separate_device),
        seconds_per_byte_(options.link_bytes_per_second > 0 ? 1 / options.link_bytes_per_second : 0) {}

  std::string name() const override { return "cpu"; }
  std::string description() const override { return description_; }
  bool device_is_host_memory() const override { return !separate_device_; }
  DType product_type(DType) const override { return DType::f32; }

  std::size_t device_bytes_free() const override { return memory_available(); }
  std::size_t host_bytes_free() const override { return memory_available(); }
  std::size_t device_overhead() const override { return 0; }
  bool batch_invariant() const override { return true; }
  std::unique_ptr<Memory> allocate_device(std::size_t bytes) override { return std::make_unique<MappedMemory>(bytes); }
  std::unique_ptr<Memory> allocate_host(std::size_t bytes) override { return std::make_unique<MappedMemory>(bytes); }
  bool device_reaches(const void*, std::size_t) const override { return true; }

  std::unique_ptr<Stream> make_stream() override { return std::make_unique<CpuStream>(); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CpuEvent>(); }

  void copy(void* to, const void* from, std::size_t bytes, Stream& stream) override {
    const auto begin = std::chrono::steady_clock::now();
    if (bytes > 0) std::memcpy(to, from, bytes);
    if (seconds_per_byte_ == 0) return;
    // The link has its own clock, instead of one sleep per copy, so that the next copy regains what a sleep overslept.
    auto& link_free = static_cast<CpuStream&>(stream).link_free;
    const std::chrono::duration<double> busy(static_cast<double>(bytes) * seconds_per_byte_);
    link_free = std::max(link_free, begin) + std::chrono::duration_cast<std::chrono::steady_clock::duration>(busy);
    std::this_thread::sleep_until(link_free);
  }

  void read(const void* from, std::size_t bytes, Stream&) override { read_memory(pool_, from, bytes, 0); }
  void record(Event& event, Stream&) override {
    static_cast<CpuEvent&>(event).recorded.fetch_add(1, std::memory_order_release);
  }
  void wait(Stream&, const Event& event) override { synchronize(event); }
  void synchronize(const Event& event) override {
    static_cast<void>(static_cast<const CpuEvent&>(event).recorded.load(std::memory_order_acquire));
  }

  void repeat(Stream&, std::uint64_t, const std::function<void()>& work) override { work(); }

  const Ops& ops() const override { return ops_; }
  const Ops& host_ops() const override { return ops_; }
  Stream& host_stream() override { return host_stream_; }

 private:
  ThreadPool pool_;
  CpuOps ops_;
  CpuStream host_stream_;
  std::string description_;
  bool separate_device_;
  double seconds_per_byte_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options) {
  if (options.threads < 0)
    throw UsageError("threads: wanted 1 or more, or 0 for all cores, got " + std::to_string(options.threads));
  return std::make_unique<CpuBackend>(options);
}

}  // namespace weft::kernels
