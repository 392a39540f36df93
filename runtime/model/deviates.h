// runtime/model/deviates.h: normal deviates for random weights, which depend on nothing but a key and their place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/tensor.h"

namespace weft::runtime {

/// Deviates with one mean and one standard deviation, as numbers of a float type. Thread-safe.
class Deviates {
 public:
  Deviates(float deviation, float mean, DType type);
  /// Writes those at [first, first + count) of the sequence of `key`.
  void draw(std::uint64_t key, std::uint64_t first, std::int64_t count, std::byte* to) const;

 private:
  DType type_;
  std::vector<std::byte> values_;  // the quantiles of the distribution, for 16 random bits
};

}  // namespace weft::runtime
