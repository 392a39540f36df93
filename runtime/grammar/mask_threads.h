// runtime/grammar/mask_threads.h: threads that find the masks of answers with a form while the model computes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace weft::runtime {

/// Work that is done once, by the first thread that comes to it.
class MaskWork {
 public:
  explicit MaskWork(std::function<void()> work) : work_(std::move(work)), done_(work_.get_future()) {}
  /// Does the work if no other thread has begun it.
  void attempt() {
    if (!begun_.test_and_set()) work_();
  }
  /// Returns once it is done, and throws what it threw.
  void finish() {
    attempt();
    done_.get();
  }
  /// Returns once no thread does it or will.
  void drop() {
    if (begun_.test_and_set()) done_.wait();
  }

 private:
  std::atomic_flag begun_;
  std::packaged_task<void()> work_;
  std::future<void> done_;
};

/// Threads that take up work in its order. What is left when they end is left to those who wait for it.
class MaskThreads {
 public:
  /// Throws std::system_error if the system refuses a thread.
  explicit MaskThreads(int threads);
  ~MaskThreads();
  MaskThreads(const MaskThreads&) = delete;
  MaskThreads& operator=(const MaskThreads&) = delete;

  void add(std::shared_ptr<MaskWork> work);

 private:
  void run(const std::stop_token& stop);

  std::mutex mutex_;  // guards queue_
  std::condition_variable_any added_;
  std::deque<std::shared_ptr<MaskWork>> queue_;
  std::vector<std::jthread> threads_;  // last: they end before what they use
};

}  // namespace weft::runtime
