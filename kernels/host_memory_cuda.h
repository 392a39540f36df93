// kernels/host_memory_cuda.h: host memory that a GPU reads and writes without staging.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda.h"
#include "kernels/error.h"
#include "kernels/mapped_memory.h"

namespace weft::kernels::cuda {

/// Which host memory could not be pinned. Copies of it go through a ring of pinned pieces; ops cannot use it.
class PageableMemory {
 public:
  void add(const std::byte* begin, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    ranges_[begin] = bytes;
    any_ = true;
  }
  void remove(const std::byte* begin) {
    const std::lock_guard lock(mutex_);
    ranges_.erase(begin);
    any_ = !ranges_.empty();
  }
  bool any() const { return any_; }
  bool holds(const void* address) const {
    if (!any_) return false;
    const std::lock_guard lock(mutex_);
    const auto* const p = static_cast<const std::byte*>(address);
    const auto after = ranges_.upper_bound(p);
    return after != ranges_.begin() && p < std::prev(after)->first + std::prev(after)->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<const std::byte*, std::size_t> ranges_;
  std::atomic<bool> any_{false};
};

/// Pages that several threads touch at once and that are then registered in pieces: cudaHostAlloc would take a minute
/// for 100 GB. The device reaches them by the same addresses. Where the system does not allow that much to be
/// pinned, large memory stays pageable; small memory, which results and staging need, must be pinned (CapacityError).
class CudaHostMemory final : public MappedMemory {
 public:
  CudaHostMemory(std::size_t bytes, PageableMemory& pageable) : MappedMemory(bytes), pageable_(pageable) {
    touch();
    try {
      if (!pin()) pageable_.add(data_, bytes_);
    } catch (...) {
      unpin();
      throw;
    }
  }
  ~CudaHostMemory() override {
    if (pinned_ < bytes_) pageable_.remove(data_);
    unpin();
  }

 private:
  static constexpr std::size_t kPiece = std::size_t{4} << 30;  // what one registration takes at most
  static constexpr std::size_t kSmall = 64 << 20;
  static constexpr std::size_t kWorthAThread = 64 << 20, kPage = 4096;

  void touch() const {
    const std::size_t most = std::min<std::size_t>(std::max(1u, std::thread::hardware_concurrency()), 16);
    const std::size_t count = std::min(most, bytes_ / kWorthAThread + 1);
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < count; ++t)
      threads.emplace_back([this, t, count] {
        const std::size_t begin = bytes_ * t / count, end = bytes_ * (t + 1) / count;
        for (std::size_t i = begin; i < end; i += kPage) static_cast<volatile std::byte*>(data_)[i] = std::byte{};
      });
  }
  bool pin() {
    while (pinned_ < bytes_) {
      const std::size_t size = std::min(kPiece, bytes_ - pinned_);
      const cudaError_t error =
          cudaHostRegister(data_ + pinned_, size, cudaHostRegisterPortable | cudaHostRegisterMapped);
      if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        if (bytes_ > kSmall) {
          unpin();
          return false;
        }
        throw CapacityError("host memory: " + std::to_string(bytes_) + " bytes were to be pinned for the GPU, the " +
                            "system refuses; raise the limit (ulimit -l)");
      }
      check(error, "cudaHostRegister");
      pinned_ += size;
    }
    return true;
  }
  void unpin() noexcept {
    for (std::size_t begin = 0; begin < pinned_; begin += kPiece) cudaHostUnregister(data_ + begin);
    pinned_ = 0;
  }

  PageableMemory& pageable_;
  std::size_t pinned_ = 0;  // bytes from the start on
};

}  // namespace weft::kernels::cuda
