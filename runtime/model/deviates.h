// runtime/model/deviates.h: normal deviates for random weights, which depend on nothing but a key and their place, as
// numbers and as levels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/quantised.h"

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

/// Matrices of deviates with the mean 0 that are drawn as levels. Every group has the same scale. So they are there as
/// fast as numbers of 16 bits, and are not those numbers quantised, which would take several times as long.
/// Thread-safe.
class RandomLevels {
 public:
  /// `type`: i8, i4 or f8.
  RandomLevels(float deviation, DType type);
  /// Writes the layout.tile_bytes() bytes of tile `tile` of the matrix of `key`.
  void draw(const QuantisedLayout& layout, std::uint64_t key, std::int64_t tile, std::byte* to) const;

 private:
  GroupScale scale_;
  float wide_scale_ = 0;             // of f8
  std::vector<std::uint8_t> bytes_;  // of a line, for 16 random bits: one level, or two of 8 bits each
};

}  // namespace weft::runtime
