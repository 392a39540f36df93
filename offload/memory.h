// offload/memory.h: sizes first, then memory: arenas that count or hand out, and leases of pinned host memory.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "kernels/backend.h"
#include "offload/tier.h"

namespace weft::offload {

inline constexpr std::size_t kPage = 4096;  ///< what O_DIRECT asks of addresses, offsets and lengths

constexpr std::uint64_t round_down(std::uint64_t value, std::uint64_t unit) { return value / unit * unit; }
constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) { return round_down(value + unit - 1, unit); }

/// Hands out offsets one after another. Counting and real arenas return the same offsets for the same calls, so that
/// "does it fit?" and "allocate it" are one piece of code. Not thread-safe.
class Arena {
 public:
  /// Counts only: unlimited, and at() must not be called.
  Arena() = default;
  /// Over memory that somebody else owns and that starts at a multiple of the alignments asked for.
  Arena(std::byte* base, std::size_t capacity, Tier tier) : base_(base), capacity_(capacity), tier_(tier) {}

  /// The offset of `bytes` bytes at a multiple of `alignment`, a power of two. Throws CapacityError, which names the
  /// tier, what was wanted and what is free; then nothing was taken.
  std::size_t take(std::size_t bytes, std::size_t alignment = kPage);
  std::byte* at(std::size_t offset) const { return base_ + offset; }

  std::size_t used() const { return used_; }
  /// Gives back all that was taken since used() was `mark`.
  void rewind(std::size_t mark) { used_ = mark; }
  /// The capacity that all calls so far needed.
  std::size_t peak() const { return peak_; }

 private:
  std::byte* base_ = nullptr;
  std::size_t capacity_ = SIZE_MAX, used_ = 0, peak_ = 0;
  Tier tier_ = Tier::host;
};

/// Pinned host memory, allocated once and lent in pages. Thread-safe. Must outlive its leases.
class HostPool {
 public:
  /// Page-aligned memory that goes back to its pool with the lease. Move-only; contents undefined.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept { *this = std::move(other); }
    Lease& operator=(Lease&& other) noexcept {
      std::swap(pool_, other.pool_);
      std::swap(data_, other.data_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Lease() {
      if (pool_) pool_->give_back(data_);
    }
    std::byte* data() const { return data_; }
    std::size_t bytes() const { return bytes_; }

   private:
    friend class HostPool;
    HostPool* pool_ = nullptr;
    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
  };

  /// Throws CapacityError as Backend::allocate_host does.
  HostPool(kernels::Backend& backend, std::size_t bytes);

  /// `bytes` rounded up to pages. Throws CapacityError where no free run is long enough.
  Lease lease(std::size_t bytes);
  std::size_t bytes_free() const;

 private:
  void give_back(std::byte* data);

  std::unique_ptr<kernels::Memory> memory_;
  mutable std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_, lent_;  // offset -> bytes; neighbouring free runs are merged
};

}  // namespace weft::offload
