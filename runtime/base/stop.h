// runtime/base/stop.h: the end of work that a user has stopped.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace weft::runtime {

/// Thrown by work that saw its `stop` flag set. Not an error: the program ends with exit code 130.
struct Interrupted {};

/// The flag of work that nothing stops.
inline const std::atomic<bool> kNeverStopped{false};

/// A `stop` flag with a grace period, in which work may continue so that its results can be saved. Thread-safe.
class GracePeriod {
 public:
  /// There is no grace until allow(). `stop` must outlive this object.
  explicit GracePeriod(const std::atomic<bool>& stop) : stop_(stop) {}

  bool asked() const { return stop_; }
  /// Whether a stop was asked for and the grace period has ended. The period begins with the first call after the stop.
  bool over() const {
    if (!stop_) return false;
    const std::int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
    std::int64_t begin = 0;
    if (begin_.compare_exchange_strong(begin, now)) begin = now;
    return now - begin >= allowed_;
  }
  void allow(std::chrono::steady_clock::duration time) { allowed_ = time.count(); }

 private:
  const std::atomic<bool>& stop_;
  std::atomic<std::int64_t> allowed_{0};
  mutable std::atomic<std::int64_t> begin_{0};
};

}  // namespace weft::runtime
