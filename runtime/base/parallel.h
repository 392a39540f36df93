// runtime/base/parallel.h: loops over independent pieces on all cores, for code without a backend and its thread pool.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace weft::runtime {

/// Calls one(i) for i in [0, count) on as many threads as there are cores, at most 16. one() must not throw, because an
/// exception in another thread ends the process. Throws std::system_error if the system refuses a thread.
template <class One> void for_each_of(std::int64_t count, const One& one) {
  std::atomic<std::int64_t> next{0};
  const auto work = [&] {
    for (std::int64_t i = next++; i < count; i = next++) one(i);
  };
  const std::int64_t threads = std::clamp<std::int64_t>(std::thread::hardware_concurrency(), 1, 16);
  std::vector<std::jthread> others;
  for (std::int64_t t = 1; t < std::min(threads, count); ++t) others.emplace_back(work);
  work();
}

}  // namespace weft::runtime
