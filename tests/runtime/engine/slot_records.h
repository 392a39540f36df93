// tests/runtime/engine/slot_records.h: the places of things in the records of sequences (runtime/job/kv_rows.h).
#pragma once

#include <cstddef>

#include "offload/kv_layout.h"

namespace weft::test {

/// The bytes before the positions in a record with so many slots, none of them cold: keys and values, fine, cold and in
/// pieces, and scores.
inline std::size_t positions_in_record(const offload::KvShape& shape, std::size_t slots) {
  constexpr std::size_t kBefore = 9;
  const auto parts = shape.with_rows().parts();
  std::size_t bytes = 0;
  for (std::size_t part = 0; part < kBefore; ++part)
    bytes += static_cast<std::size_t>(shape.kv_heads) * parts[part].head_bytes({slots, 0});
  return bytes;
}

}  // namespace weft::test
