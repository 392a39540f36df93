// kernels/rows/row_blocks.h: loops over rows on the cores of a CPU.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/machine/thread_pool.h"
#include "kernels/tensor.h"

namespace weft::kernels {

/// Calls body(first row, rows, thread) for blocks of rows that are each enough work for a thread.
template <class Body>
void for_row_blocks(ThreadPool::Turn& turn, std::int64_t rows, std::int64_t cols, const Body& body) {
  constexpr std::int64_t block_numbers = 16384;
  if (rows == 0 || cols == 0) return;
  const std::int64_t block = std::max<std::int64_t>(1, block_numbers / cols);
  turn.run((rows + block - 1) / block,
           [&](std::int64_t tile, int thread) { body(tile * block, std::min(block, rows - tile * block), thread); });
}

inline float* row_of(const View& v, std::int64_t r) { return v.as<float>() + r * v.stride; }
inline const float* row_of(const ConstView& v, std::int64_t r) { return v.as<float>() + r * v.stride; }

}  // namespace weft::kernels
