// kernels/attention/cpu/coming.h: the memory that a decode step reads soon, across the arrays of its tile and into
// those of the next tile. Steps prefetch it little by little, also while they read nothing: a burst would fill the
// processor's queue of open loads, and between two arrays memory would stand still.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::kernels {

constexpr std::uintptr_t kLine = 64;

/// Ranges of memory in the order in which they are read. Addresses are numbers because some point past an end. What is
/// inlined is never shared between instruction sets.
struct Coming {
  static constexpr int kMost = 16;
  struct Range {
    std::uintptr_t begin, end;
  };
  Range range[kMost] = {};
  int count = 0, at = 0;
  std::uintptr_t line = 0, end = 0;  // of the range that is being fetched
  std::uintptr_t due = 0;            // bytes that a share of less than a line left

  [[gnu::always_inline]] void add(const void* from, std::size_t bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(from);
    if (bytes > 0 && count < kMost) range[count++] = {begin / kLine * kLine, begin + bytes};
  }
  /// Goes past what has been prefetched before: `bytes`. To be called once, after the ranges have been added.
  [[gnu::always_inline]] void start(std::size_t bytes) {
    for (; at < count; ++at) {
      line = range[at].begin, end = range[at].end;
      if (line + bytes < end) break;
      bytes -= end - line;
    }
    line += at < count ? bytes / kLine * kLine : 0;
    if (at == count) line = end;
  }
  /// Prefetches the next `bytes`, in whole lines.
  [[gnu::always_inline]] void go_on(std::uintptr_t bytes) {
    due += bytes;
    for (; due >= kLine; due -= kLine) {
      if (line >= end) {
        if (at + 1 >= count) return;
        ++at, line = range[at].begin, end = range[at].end;
      }
      __builtin_prefetch(reinterpret_cast<const void*>(line), 0, 2);  // NOLINT(performance-no-int-to-ptr)
      line += kLine;
    }
  }
};

}  // namespace weft::kernels
