// offload/disk_io_threads.cc: transfers by pread and pwrite on a few threads, for systems without io_uring.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "offload/disk_io.h"

namespace weft::offload {

int DiskIo::allocate(int fd, std::uint64_t bytes) {
  while (fallocate(fd, 0, 0, static_cast<off_t>(bytes)) != 0)
    if (errno != EINTR) return errno;
  return 0;
}

namespace {

class ThreadsIo : public DiskIo {
 public:
  explicit ThreadsIo(int threads) {
    threads_.reserve(static_cast<std::size_t>(threads));
    results_.reserve(kMostInFlight);
    try {
      for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
    } catch (...) {
      if (threads_.empty()) throw;  // fewer threads will do
    }
  }
  ~ThreadsIo() override {
    {
      const std::lock_guard lock(mutex_);
      quit_ = true;
    }
    work_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  void submit(const DiskTransfer& transfer) override {
    {
      const std::lock_guard lock(mutex_);
      queue_[(first_ + count_) % kMostInFlight] = transfer;
      ++count_;
    }
    work_.notify_one();
  }

  DiskResult reap() override {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return !results_.empty(); });
    const DiskResult result = results_.back();
    results_.pop_back();
    return result;
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_.wait(lock, [this] { return quit_ || count_ > 0; });
      if (quit_) return;
      const DiskTransfer t = queue_[first_];
      first_ = (first_ + 1) % kMostInFlight;
      --count_;
      lock.unlock();
      const auto offset = static_cast<off_t>(t.offset);
      const ssize_t moved = t.write ? pwrite(t.fd, t.data, t.bytes, offset) : pread(t.fd, t.data, t.bytes, offset);
      const std::int64_t result = moved < 0 ? -errno : moved;
      lock.lock();
      results_.push_back({t.tag, result});
      done_.notify_one();
    }
  }

  std::mutex mutex_;  // guards all members except threads_
  std::condition_variable work_, done_;
  std::array<DiskTransfer, kMostInFlight> queue_;  // a ring
  std::size_t first_ = 0, count_ = 0;
  // Reserved in the constructor, because an exception in one of these threads would end the process.
  std::vector<DiskResult> results_;
  bool quit_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<DiskIo> make_io_threads(int threads) { return std::make_unique<ThreadsIo>(threads); }

}  // namespace weft::offload
