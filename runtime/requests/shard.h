// runtime/requests/shard.h: the part of a request file that one of several processes answers.
#pragma once

#include <cstddef>
#include <string>

namespace weft::runtime {

/// Every count-th request, beginning with request `number`, which counts from 1. Requests are dealt like cards, because
/// long ones are often neighbours. Only their place in the file counts, so that every process agrees.
struct Shard {
  std::size_t number = 1, count = 1;

  /// "2/4" is the second of four. Throws UsageError unless 1 <= number <= count.
  static Shard from_text(const std::string& text);
  std::string text() const;
  bool has(std::size_t index) const { return index % count == number - 1; }
  std::size_t size(std::size_t requests) const { return requests / count + (number <= requests % count ? 1 : 0); }
};

}  // namespace weft::runtime
