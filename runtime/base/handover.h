// runtime/base/handover.h: a queue that hands values from one thread to another.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace weft::runtime {

/// A bounded queue between one thread that pushes and one that pops.
template <class T> class Handover {
 public:
  explicit Handover(std::size_t capacity) : capacity_(capacity) {}

  /// Waits while the queue is full. Returns false once the queue is closed; then the value is dropped.
  bool push(T value) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return closed_ || values_.size() < capacity_; });
    if (closed_) return false;
    values_.push_back(std::move(value));
    changed_.notify_all();
    return true;
  }
  /// Waits for a value. Returns nothing once the queue is closed and empty.
  std::optional<T> pop() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return closed_ || !values_.empty(); });
    if (values_.empty()) return {};
    std::optional<T> value(std::move(values_.front()));
    values_.pop_front();
    changed_.notify_all();
    return value;
  }
  /// Closes the queue. Values in it can still be popped, but no more are accepted.
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  const std::size_t capacity_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> values_;
  bool closed_ = false;
};

}  // namespace weft::runtime
