#include "kernels/machine/thread_pool.h"

#include <sys/mman.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <system_error>
#include <utility>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "kernels/error.h"
#include "kernels/machine/host_machine.h"

namespace weft::kernels {
namespace {

constexpr auto kSpin =
    std::chrono::microseconds(50);  // longer than between two ops of a layer, shorter than a time slice
constexpr std::size_t kHugePage = std::size_t{2} << 20, kPage = 4096;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

/// Waits for at most kSpin. Returns true as soon as `reached` does.
template <class Reached> bool spin_until(const Reached& reached) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (reached()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

/// A program built with -ffast-math flushes denormals on the thread that runs main() and those it starts, but on no
/// other. Without this class a tile's result would depend on the thread that takes it.
class DefaultFloatMode {
 public:
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;
#if defined(__x86_64__)
  DefaultFloatMode() : before_(_mm_getcsr()) {
    if ((before_ & kModeBits) != (kDefault & kModeBits)) _mm_setcsr(kDefault);
  }
  ~DefaultFloatMode() {
    if ((before_ & kModeBits) != (kDefault & kModeBits)) _mm_setcsr(before_);
  }

 private:
  static constexpr unsigned kDefault = 0x1F80, kModeBits = 0xFFC0;
  unsigned before_;
#else
  DefaultFloatMode() = default;
#endif
};

}  // namespace

void ThreadPool::Free::operator()(std::byte* p) const { std::free(p); }

std::byte* ThreadPool::Scratch::at_least(std::size_t wanted) {
  if (wanted <= bytes) return data.get();
  const std::size_t page = wanted >= kHugePage / 4 ? kHugePage : kPage;
  const std::size_t rounded = (wanted + page - 1) / page * page;
  data.reset();
  bytes = 0;
  data.reset(static_cast<std::byte*>(std::aligned_alloc(page, rounded)));
  if (!data)
    throw CapacityError("thread pool: " + std::to_string(rounded) +
                        " bytes of scratch memory wanted, the system has none; lower the memory budgets");
  if (page == kHugePage) madvise(data.get(), rounded, MADV_HUGEPAGE);  // fewer TLB misses; small pages work too
  bytes = rounded;
  return data.get();
}

ThreadPool::ThreadPool(int threads, std::vector<int> processors) : processors_(std::move(processors)) {
  if (threads < 1)
    throw UsageError("thread pool: at least 1 thread wanted, got " + std::to_string(threads) + "; check --threads");
  scratch_.resize(static_cast<std::size_t>(threads));
  workers_.reserve(static_cast<std::size_t>(threads) - 1);
  try {
    for (int thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
  } catch (const std::system_error& error) {
    const std::size_t started = workers_.size() + 1;
    stop();
    throw CapacityError("thread pool: " + std::to_string(threads) + " threads wanted, the system refused after " +
                        std::to_string(started) + " (" + error.what() + "); lower --threads");
  } catch (...) {  // out of memory
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

// The gate: a worker that wakes late finds it closed, and the caller does not wait for it. A core that another process
// holds thus delays nothing. The caller closes the gate when no worker is inside and no tile is left.
bool ThreadPool::enter() {
  int inside = gate_.load(std::memory_order_relaxed);
  while (inside >= 0)
    if (gate_.compare_exchange_weak(inside, inside + 1, std::memory_order_acquire, std::memory_order_relaxed))
      return true;
  return false;
}

void ThreadPool::leave() {
  if (gate_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const std::lock_guard lock(mutex_);  // else the caller could look, miss this and sleep
  done_.notify_one();
}

void ThreadPool::close() {
  const auto closed = [&] {
    int nobody = 0;
    return gate_.compare_exchange_strong(nobody, -1, std::memory_order_acq_rel, std::memory_order_acquire);
  };
  if (closed() || spin_until(closed)) return;
  std::unique_lock lock(mutex_);
  done_.wait(lock, closed);
}

void ThreadPool::run_erased(std::int64_t tiles, Call call, const void* body) {
  if (tiles <= 0) return;
  tiles_ = tiles;
  call_ = call;
  body_ = body;
  next_.store(0, std::memory_order_relaxed);
  if (tiles == 1 || workers_.empty()) {
    take_tiles(0);
  } else {
    gate_.store(0, std::memory_order_release);
    {
      const std::lock_guard lock(mutex_);
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    take_tiles(0);
    close();
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::take_tiles(int thread) {
  const DefaultFloatMode mode;
  for (;;) {
    const std::int64_t tile = next_.fetch_add(1, std::memory_order_relaxed);
    if (tile >= tiles_) return;
    try {
      call_(body_, tile, thread);
    } catch (...) {
      next_.store(tiles_, std::memory_order_relaxed);
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }
}

void ThreadPool::work(int thread) {
  stay_on(processors_);
  std::uint64_t seen = 0;
  const auto called = [&] { return generation_.load(std::memory_order_acquire) != seen || quit_; };
  for (;;) {
    if (!spin_until(called)) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, called);
    }
    if (quit_) return;
    seen = generation_.load(std::memory_order_acquire);
    if (!enter()) continue;
    take_tiles(thread);
    leave();
  }
}

}  // namespace weft::kernels
