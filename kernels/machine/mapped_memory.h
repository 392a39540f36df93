// kernels/machine/mapped_memory.h: anonymous pages of the host, huge ones where the system has them.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/backend.h"
#include "kernels/error.h"
#include "kernels/machine/host_machine.h"

namespace weft::kernels {

/// Anonymous pages, not yet touched: they become real when they are first written.
class MappedMemory : public Memory {
 public:
  /// Throws CapacityError if the machine, or the process's share of it, has less.
  explicit MappedMemory(std::size_t bytes) {
    const std::size_t available = memory_available();
    void* mapped = MAP_FAILED;
    std::size_t wanted = 0, slack = 0;
    if (bytes <= available) {
      wanted = round_up(std::max<std::size_t>(bytes, 1), kPage);
      slack = wanted + kHugePage;
      mapped = mmap(nullptr, slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    if (mapped == MAP_FAILED)
      throw CapacityError("memory: wanted " + std::to_string(bytes) + " bytes, " + std::to_string(available) +
                          " are available; lower the memory budgets or the batch");
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
  ~MappedMemory() override { munmap(data_, mapped_); }
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

 private:
  static constexpr std::size_t kHugePage = std::size_t{2} << 20, kPage = 4096;
  static constexpr std::size_t round_up(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }

  std::size_t mapped_ = 0;
};

}  // namespace weft::kernels
