// offload/memory.h: arenas, which first count bytes and then hand out memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "offload/tier.h"

namespace weft::offload {

inline constexpr std::size_t kPage = 4096;  ///< the alignment that O_DIRECT requires of addresses, offsets and lengths
/// Granularity of a spill file: writes start at multiples of this, and a read covers what one write wrote.
inline constexpr std::size_t kSpillPage = std::size_t{64} << 10;

constexpr std::uint64_t round_down(std::uint64_t value, std::uint64_t unit) { return value / unit * unit; }
constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) { return round_down(value + unit - 1, unit); }

/// Hands out offsets one after another. Counting and real arenas return the same offsets for the same calls, so that
/// "does it fit?" and "allocate it" are one piece of code. Not thread-safe.
class Arena {
 public:
  /// Makes an arena that only counts. It is unlimited, and at() must not be called.
  Arena() = default;
  /// Makes an arena over memory that the caller owns and that starts at a multiple of every alignment used.
  Arena(std::byte* base, std::size_t capacity, Tier tier) : base_(base), capacity_(capacity), tier_(tier) {}

  /// Takes `bytes` bytes at a multiple of `alignment`, a power of two, and returns their offset. Throws CapacityError,
  /// which names the tier and the bytes wanted and free; then nothing was taken.
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

}  // namespace weft::offload
