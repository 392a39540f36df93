// offload/memory.cc
#include "offload/memory.h"

#include <algorithm>
#include <string>

#include "kernels/error.h"

namespace weft::offload {

std::size_t Arena::take(std::size_t bytes, std::size_t alignment) {
  const std::size_t offset = (used_ + alignment - 1) & ~(alignment - 1);
  if (offset > capacity_ || bytes > capacity_ - offset)
    throw CapacityError(std::string(name_of(tier_)) + " memory is too small: " + std::to_string(bytes) +
                        " bytes wanted, " + std::to_string(capacity_ - std::min(offset, capacity_)) + " of " +
                        std::to_string(capacity_) + " free; raise its budget, or place less on this tier");
  used_ = offset + bytes;
  peak_ = std::max(peak_, used_);
  return offset;
}

HostPool::HostPool(kernels::Backend& backend, std::size_t bytes)
    : memory_(backend.allocate_host(round_up(std::max<std::size_t>(bytes, 1), kPage))) {
  free_.emplace(0, round_up(bytes, kPage));
}

HostPool::Lease HostPool::lease(std::size_t bytes) {
  bytes = round_up(std::max<std::size_t>(bytes, 1), kPage);
  const std::lock_guard lock(mutex_);
  // The tightest run keeps the long ones whole.
  auto best = free_.end();
  for (auto run = free_.begin(); run != free_.end(); ++run)
    if (run->second >= bytes && (best == free_.end() || run->second < best->second)) best = run;
  if (best == free_.end()) {
    std::size_t free_bytes = 0;
    for (const auto& run : free_) free_bytes += run.second;
    throw CapacityError("pinned host pool is too small: " + std::to_string(bytes) + " bytes wanted in one run, " +
                        std::to_string(free_bytes) + " of " + std::to_string(memory_->bytes()) +
                        " free; raise the host budget");
  }
  const auto [offset, run_bytes] = *best;
  lent_.emplace(offset, bytes);
  free_.erase(best);
  if (run_bytes > bytes) free_.emplace(offset + bytes, run_bytes - bytes);

  Lease lease;
  lease.pool_ = this;
  lease.data_ = memory_->data() + offset;
  lease.bytes_ = bytes;
  return lease;
}

std::size_t HostPool::bytes_free() const {
  const std::lock_guard lock(mutex_);
  std::size_t bytes = 0;
  for (const auto& run : free_) bytes += run.second;
  return bytes;
}

void HostPool::give_back(std::byte* data) {
  const std::lock_guard lock(mutex_);
  const auto lent = lent_.find(static_cast<std::size_t>(data - memory_->data()));
  auto [run, inserted] = free_.emplace(lent->first, lent->second);
  lent_.erase(lent);
  if (const auto next = std::next(run); next != free_.end() && run->first + run->second == next->first) {
    run->second += next->second;
    free_.erase(next);
  }
  if (run == free_.begin()) return;
  if (const auto before = std::prev(run); before->first + before->second == run->first) {
    before->second += run->second;
    free_.erase(run);
  }
}

}  // namespace weft::offload
