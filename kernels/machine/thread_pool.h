// kernels/machine/thread_pool.h: the CPU's cores, for the CPU twins of the kernels.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace weft::kernels {

/// A few threads that take tiles from a shared counter, so that a core that is slow or taken away costs little.
/// run() may be called from several threads; calls take turns. Tiles run in the default floating-point mode (round to
/// nearest, denormals kept) on every thread, whatever the caller's mode is.
class ThreadPool {
 public:
  class Turn;

  /// `threads` >= 1 counts the caller of run(), which works too. The pool's own threads stay on `processors`, if there
  /// are any. Throws UsageError below 1, CapacityError if the system refuses a thread.
  explicit ThreadPool(int threads, std::vector<int> processors = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(scratch_.size()); }

  /// Calls body(tile, thread) for every tile in [0, tiles), in any order, thread in [0, threads()). Returns when all
  /// are done. If a tile throws, tiles not yet begun are dropped and run() throws what was thrown first, after the
  /// others have ended. Must not be called from inside a tile.
  template <class Body> void run(std::int64_t tiles, const Body& body);

 private:
  using Call = void (*)(const void*, std::int64_t, int);
  struct Free {
    void operator()(std::byte* p) const;
  };
  struct Scratch {
    std::unique_ptr<std::byte, Free> data;
    std::size_t bytes = 0;
    std::byte* at_least(std::size_t wanted);
  };

  void run_erased(std::int64_t tiles, Call call, const void* body);
  void work(int thread);
  void take_tiles(int thread);
  bool enter();
  void leave();
  void close();
  void stop();

  const std::vector<int> processors_;
  std::vector<std::thread> workers_;
  std::vector<Scratch> scratch_;  // one for each thread
  Scratch shared_;
  std::mutex turn_;   // one run() at a time
  std::mutex mutex_;  // for both conditions, error_ and quit_
  std::condition_variable wake_, done_;
  std::atomic<std::uint64_t> generation_{0};
  std::atomic<bool> quit_{false};
  std::exception_ptr error_;
  // Written before the gate opens, read inside it only.
  std::int64_t tiles_ = 0;
  Call call_ = nullptr;
  const void* body_ = nullptr;
  alignas(64) std::atomic<int> gate_{-1};  // workers inside the job, or -1: closed
  alignas(64) std::atomic<std::int64_t> next_{0};
};

/// Exclusive use of the pool until the turn is destroyed. Its runs share scratch memory that no other caller touches.
class ThreadPool::Turn {
 public:
  explicit Turn(ThreadPool& pool) : pool_(pool), lock_(pool.turn_) {}

  /// Like ThreadPool::run(), which would wait for this turn to end.
  template <class Body> void run(std::int64_t tiles, const Body& body) {
    pool_.run_erased(
        tiles, [](const void* b, std::int64_t tile, int thread) { (*static_cast<const Body*>(b))(tile, thread); },
        &body);
  }

  /// Memory for all threads, 64-byte aligned, contents undefined. It grows on demand and stays with the pool. Valid
  /// until the next shared() or the end of the turn. Must not be called from a tile. Throws CapacityError.
  std::byte* shared(std::size_t bytes) { return pool_.shared_.at_least(bytes); }
  /// The same for one thread. Must be called from that thread's tile.
  std::byte* scratch(int thread, std::size_t bytes) {
    return pool_.scratch_[static_cast<std::size_t>(thread)].at_least(bytes);
  }

 private:
  ThreadPool& pool_;
  std::unique_lock<std::mutex> lock_;
};

template <class Body> void ThreadPool::run(std::int64_t tiles, const Body& body) { Turn(*this).run(tiles, body); }

}  // namespace weft::kernels
