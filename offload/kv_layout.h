// offload/kv_layout.h: the layout of a KV buffer in memory, the same on every tier.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/kv_row.h"
#include "kernels/tensor.h"

namespace weft::kernels {
struct KvSlots;  // kernels/attention_ops.h
}

namespace weft::offload {

/// The shape of one KV buffer, which holds what one layer keeps for one batch of sequences (kernels::KvSlots). It has
/// these parts in this order, each starting at a multiple of 64 bytes: k, v [sequences, kv_heads, slots], rows of
/// kernels/kv_row.h; score [sequences, kv_heads, slots] f32 if `scores`; position, of the same shape, i32; free_slot
/// [sequences, kv_heads] i32; rest [sequences, kv_heads, kernels::rest_numbers(head_dim)] f32 if `rest`; key_sum
/// [sequences, kv_heads, head_dim] f32 if `key_sums`. It moves between tiers unchanged.
struct KvShape {
  int sequences = 0, kv_heads = 0, slots = 0, head_dim = 0;
  DType dtype = DType::f16;
  bool scores = true;      ///< false with Scoring::none
  bool rest = false;       ///< evicted tokens are summed
  bool int8_keys = false;  ///< keys are rows of i8 (only with dtype i4)
  bool key_sums = false;

  std::size_t bytes() const;  ///< size of the whole buffer, a multiple of 4096
  kernels::KvSlots view(std::byte* base) const;
  DType key_type() const { return int8_keys ? DType::i8 : dtype; }
  std::size_t key_bytes() const { return kernels::kv_row_bytes(key_type(), head_dim); }
  std::size_t value_bytes() const { return kernels::kv_row_bytes(dtype, head_dim); }
  /// The bytes of one slot that a decode step reads and writes: key, value, position, and the score, which is both read
  /// and written.
  std::size_t bytes_per_step() const {
    return key_bytes() + value_bytes() + sizeof(std::int32_t) + (scores ? 2 * sizeof(float) : 0);
  }

  struct Offsets {
    std::size_t k = 0, v = 0, score = 0, position = 0, free_slot = 0, rest = 0, key_sum = 0, end = 0;
  };
  Offsets offsets() const;

  /// A part of a buffer: [sequences, kv_heads, slots], or [sequences, kv_heads] if there is one per head.
  struct Part {
    std::size_t offset = 0, bytes = 0;  ///< bytes: per slot, or per head
    bool per_slot = true;
    std::size_t head_bytes(std::size_t of_slots) const { return per_slot ? of_slots * bytes : bytes; }
  };
  /// All parts in the order in which they lie. Parts that this shape lacks have no bytes.
  std::array<Part, 7> parts() const;
};

}  // namespace weft::offload
