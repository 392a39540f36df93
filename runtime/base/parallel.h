// runtime/base/parallel.h: loops over independent pieces on all cores, for code without a backend and its thread pool.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/machine/host_machine.h"

namespace weft::runtime {

/// The number of threads that such a loop runs on: the cores that this process may use, at most 64.
inline int loop_threads() { return std::clamp(kernels::processors(), 1, 64); }

/// Calls one(i, thread) for i in [0, count), each i on any thread in [0, threads), in about their order. If a call
/// throws, those not yet begun are dropped, and the first exception is thrown once the others have ended. Throws
/// std::system_error if the system refuses a thread.
template <class One> void for_each_of(std::int64_t count, int threads, const One& one) {
  std::atomic<std::int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&](int thread) {
    try {
      for (std::int64_t i = next++; i < count; i = next++) one(i, thread);
    } catch (...) {
      next = count;
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    try {
      for (int t = 1; t < std::min<std::int64_t>(threads, count); ++t) others.emplace_back(work, t);
    } catch (...) {
      next = count;  // those that are there end soon
      throw;
    }
    work(0);
  }
  if (error) std::rethrow_exception(error);
}

/// The same on loop_threads() threads, for calls one(i).
template <class One> void for_each_of(std::int64_t count, const One& one) {
  for_each_of(count, loop_threads(), [&](std::int64_t i, int) { one(i); });
}

}  // namespace weft::runtime
