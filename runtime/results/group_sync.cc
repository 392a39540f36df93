#include "runtime/results/group_sync.h"

#include <cerrno>

namespace weft::runtime {

GroupSync::GroupSync(std::function<int()> sync, std::uint64_t durable)
    : sync_(std::move(sync)), end_(durable), durable_(durable), thread_([this] { run(); }) {}

void GroupSync::wrote(std::uint64_t end) {
  std::unique_lock lock(mutex_);
  end_ = end;
  ++lines_;
  changed_.notify_all();
  changed_.wait(lock, [this] { return lines_ < kLines || error_ != 0; });
}

void GroupSync::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

int GroupSync::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

std::uint64_t GroupSync::durable() const {
  const std::lock_guard lock(mutex_);
  return durable_;
}

void GroupSync::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return lines_ > 0 || stopping_; });
    if (lines_ == 0) return;
    changed_.wait_for(lock, kDelay, [this] { return lines_ >= kLines || stopping_; });
    const std::uint64_t end = end_;
    lines_ = 0;
    changed_.notify_all();
    lock.unlock();
    const int error = sync_() == 0 ? 0 : errno;
    lock.lock();
    if (error != 0) {
      error_ = error;
      changed_.notify_all();
      return;
    }
    durable_ = end;
  }
}

}  // namespace weft::runtime
