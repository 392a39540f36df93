// kernels/machine/mapped_memory.h: anonymous pages of the host, huge ones where the system has them.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "kernels/backend.h"
#include "kernels/error.h"
#include "kernels/machine/host_machine.h"

namespace weft::kernels {

/// Throws CapacityError if the machine, or the process's share of it, has less. Asking reads files of each control
/// group, so up to a MiB it does not ask.
inline void require_available(std::size_t bytes) {
  if (bytes <= std::size_t{1} << 20) return;
  if (const std::size_t available = memory_available(); bytes > available)
    throw CapacityError("memory: wanted " + std::to_string(bytes) + " bytes, " + std::to_string(available) +
                        " are available; lower the memory budgets or the batch");
}

/// Anonymous pages, not yet touched: they become real when they are first written.
class MappedMemory : public Memory {
 public:
  /// Throws CapacityError as require_available() does.
  explicit MappedMemory(std::size_t bytes) {
    require_available(bytes);
    const std::size_t wanted = round_up(std::max<std::size_t>(bytes, 1), kPage), slack = wanted + kHugePage;
    void* const mapped =
        mmap(nullptr, slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED)
      throw CapacityError("memory: the system refused " + std::to_string(bytes) +
                          " bytes; lower the memory budgets or the batch, or raise ulimit -v");
    auto* const begin = static_cast<std::byte*>(mapped);
    const std::size_t before =
        round_up(reinterpret_cast<std::uintptr_t>(begin), kHugePage) - reinterpret_cast<std::uintptr_t>(begin);
    if (before > 0) munmap(begin, before);
    if (slack - before > wanted) munmap(begin + before + wanted, slack - before - wanted);
    madvise(begin + before, wanted, MADV_HUGEPAGE);  // fewer TLB misses; small pages work too
    data_ = begin + before;
    bytes_ = bytes;
    mapped_ = wanted;
  }
  /// Several threads give the pages back: where they are small, a system takes a tenth of a second for a GiB.
  ~MappedMemory() override {
    in_slices([](std::byte* begin, std::size_t bytes) noexcept {
      if (bytes >= kSlice) madvise(begin, bytes, MADV_DONTNEED);
    });
    munmap(data_, mapped_);
  }
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  /// Calls work(begin, bytes) for slices of kSlice bytes or more that begin at huge pages, the same ones in each call,
  /// on up to kThreads threads. Less than kSlice is one slice, on this thread. `work` must not throw.
  template <class Work> void in_slices(const Work& work) const {
    const std::size_t count = std::clamp<std::size_t>(bytes_ / kSlice, 1, kThreads);
    const auto slice = [&](std::size_t i) {
      const std::size_t begin = cut(i, count), end = cut(i + 1, count);
      work(data_ + begin, end - begin);
    };
    std::vector<std::jthread> threads;
    std::size_t begun = 1;
    try {
      for (; begun < count; ++begun) threads.emplace_back(slice, begun);
    } catch (...) {  // the system refuses a thread
    }
    slice(0);
    for (; begun < count; ++begun) slice(begun);
  }

 private:
  static constexpr std::size_t kHugePage = std::size_t{2} << 20, kPage = 4096;
  static constexpr std::size_t kSlice = std::size_t{1} << 30, kThreads = 16;
  static constexpr std::size_t round_up(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }
  std::size_t cut(std::size_t i, std::size_t count) const {
    return i == count ? bytes_ : bytes_ / count * i / kHugePage * kHugePage;
  }

  std::size_t mapped_ = 0;
};

}  // namespace weft::kernels
