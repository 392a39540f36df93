// kernels/backend/random_rows.h: quantised keys and values for measurements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/kv_row.h"
#include "kernels/random.h"

namespace weft::kernels {

/// Fills rows [first, first + rows) with random levels. Each stands for a number from about -0.5 to about 0.5.
inline void random_rows(DType dtype, int head_dim, std::int64_t first, std::int64_t rows, std::byte* to) {
  const std::size_t row_bytes = kv_row_bytes(dtype, head_dim), level_bytes = kv_level_bytes(dtype, head_dim);
  const f16 scale_and_minimum[2] = {f16(dtype == DType::i8 ? 1 / 256.0f : 1 / 16.0f), f16(-0.5f)};
  for (std::int64_t row = first; row < first + rows; ++row, to += row_bytes) {
    for (std::size_t at = 0; at < level_bytes; at += sizeof(std::uint32_t)) {  // rows are whole words
      const auto bits = static_cast<std::uint32_t>(mix_bits(static_cast<std::uint64_t>(row) * level_bytes + at));
      std::memcpy(to + at, &bits, sizeof bits);
    }
    for (std::size_t at = level_bytes; at < row_bytes; at += sizeof scale_and_minimum)
      std::memcpy(to + at, scale_and_minimum, sizeof scale_and_minimum);
  }
}

}  // namespace weft::kernels
