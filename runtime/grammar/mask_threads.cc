#include "runtime/grammar/mask_threads.h"

namespace weft::runtime {

MaskThreads::MaskThreads(int threads) {
  for (int t = 0; t < threads; ++t) threads_.emplace_back([this](const std::stop_token& stop) { run(stop); });
}

MaskThreads::~MaskThreads() = default;

void MaskThreads::add(std::shared_ptr<MaskWork> work) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  added_.notify_one();
}

void MaskThreads::run(const std::stop_token& stop) {
  for (;;) {
    std::shared_ptr<MaskWork> next;
    {
      std::unique_lock lock(mutex_);
      if (!added_.wait(lock, stop, [this] { return !queue_.empty(); })) return;
      next = std::move(queue_.front());
      queue_.pop_front();
    }
    next->attempt();
  }
}

}  // namespace weft::runtime
