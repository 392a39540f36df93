// offload/kv_layout.h: the layout of a KV buffer in memory, the same on every tier.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/coarse_row.h"
#include "kernels/kv_row.h"
#include "kernels/tensor.h"

namespace weft::kernels {
struct KvSlots;  // kernels/attention_ops.h
}

namespace weft::offload {

/// The shape of one KV buffer, which holds what one layer keeps for one batch of sequences (kernels::KvSlots). It has
/// these parts in this order, each starting at a multiple of 64 bytes: k, v [sequences, kv_heads, slots - cold], rows
/// of kernels/kv_row.h, unless they are `lent`; cold_k, cold_v [sequences, kv_heads, cold], rows of
/// kernels/coarse_row.h; low_k, low_v, scale_k, scale_v [sequences, kv_heads, slots] if `split`, and k and v are then
/// high rows; score [sequences, kv_heads, slots] f32 if `scores`; position, of the same shape, i32; free_slot
/// [sequences, kv_heads] i32; rest [sequences, kv_heads, kernels::rest_numbers(head_dim)] f32 if `rest`; key_sum
/// [sequences, kv_heads, head_dim] f32 if `key_sums`; mean [sequences, kv_heads, 2 * head_dim] f32 if `means`. It moves
/// between tiers unchanged.
struct KvShape {
  int sequences = 0, kv_heads = 0, slots = 0, head_dim = 0;
  DType dtype = DType::f16;
  bool scores = true;      ///< false with Scoring::none
  bool rest = false;       ///< evicted tokens are summed
  bool int8_keys = false;  ///< keys are rows of i8 (only with dtype i4)
  bool key_sums = false;
  int cold = 0;                     ///< the number of slots with coarse rows, at the end (only with dtype i8)
  kernels::CoarseBits coarse = {};  ///< the bits of their rows, or of high rows
  bool split = false;               ///< each row lies in pieces (only with dtype i8)
  int read = 0;                     ///< if so, how many tokens a step reads with all bits; 0: all
  bool means = false;               ///< rows are stored less the prompt's mean key and value (only with dtype i8)
  /// Keys and values lie in another buffer, of a layer that keeps the same tokens in the same slots; view() has null
  /// for them (only without cold and split slots).
  bool lent = false;

  std::size_t bytes() const;  ///< size of the whole buffer, a multiple of 4096
  kernels::KvSlots view(std::byte* base) const;
  DType key_type() const { return int8_keys ? DType::i8 : dtype; }
  std::size_t key_bytes() const {
    return split ? kernels::high_row_bytes(coarse.keys, head_dim) : kernels::kv_row_bytes(key_type(), head_dim);
  }
  std::size_t value_bytes() const {
    return split ? kernels::high_row_bytes(coarse.values, head_dim) : kernels::kv_row_bytes(dtype, head_dim);
  }
  std::size_t low_key_bytes() const { return split ? kernels::low_row_bytes(coarse.keys, head_dim) : 0; }
  std::size_t low_value_bytes() const { return split ? kernels::low_row_bytes(coarse.values, head_dim) : 0; }
  std::size_t split_scales_bytes() const {
    return split ? kernels::scales_bytes(head_dim) : 0;
  }  // of a key, of a value
  int hot() const { return slots - cold; }
  std::size_t cold_key_bytes() const { return cold > 0 ? kernels::coarse_row_bytes(coarse.keys, head_dim) : 0; }
  std::size_t cold_value_bytes() const { return cold > 0 ? kernels::coarse_row_bytes(coarse.values, head_dim) : 0; }
  /// The bytes of one slot that a decode step reads and writes: key, value, position, and the score, which is both read
  /// and written; of one that is not cold, and of a cold one. Of a split slot the low rows are apart.
  std::size_t bytes_per_step() const {
    return key_bytes() + value_bytes() + 2 * split_scales_bytes() + state_per_step();
  }
  std::size_t low_bytes_per_step() const { return low_key_bytes() + low_value_bytes(); }
  /// The same if keys and values were of another type.
  std::size_t bytes_per_step_as(DType type) const {
    return 2 * kernels::kv_row_bytes(type, head_dim) + state_per_step();
  }
  std::size_t cold_bytes_per_step() const { return cold_key_bytes() + cold_value_bytes() + state_per_step(); }

  struct Offsets {
    std::size_t k = 0, v = 0, cold_k = 0, cold_v = 0, low_k = 0, low_v = 0, scale_k = 0, scale_v = 0, score = 0,
                position = 0, free_slot = 0, rest = 0, key_sum = 0, mean = 0, end = 0;
  };
  Offsets offsets() const;
  /// The bytes of all low rows, which lie side by side, from Offsets::low_k to Offsets::scale_k.
  std::size_t low_bytes() const {
    const Offsets at = split ? offsets() : Offsets{};
    return at.scale_k - at.low_k;
  }

  /// Slots of a head: those that are not cold, and the cold ones.
  struct Slots {
    std::size_t hot = 0, cold = 0;
    bool operator==(const Slots&) const = default;
  };
  Slots all_slots() const { return {static_cast<std::size_t>(hot()), static_cast<std::size_t>(cold)}; }
  /// A part of a buffer: [sequences, kv_heads, slots of some kind], or [sequences, kv_heads] if there is one per head.
  struct Part {
    enum class Per : std::uint8_t { hot, cold, slot, head };
    std::size_t offset = 0, bytes = 0;  ///< bytes: per slot, or per head
    Per per = Per::slot;
    /// Those of one head that has so many slots.
    std::size_t head_bytes(Slots of) const {
      switch (per) {
        case Per::hot: return of.hot * bytes;
        case Per::cold: return of.cold * bytes;
        case Per::slot: return (of.hot + of.cold) * bytes;
        case Per::head: break;
      }
      return bytes;
    }
  };
  /// All parts in the order in which they lie. Parts that this shape lacks have no bytes.
  using Parts = std::array<Part, 14>;
  Parts parts() const;
  /// The same shape with keys and values of its own.
  KvShape with_rows() const {
    KvShape shape = *this;
    shape.lent = false;
    return shape;
  }

 private:
  std::size_t state_per_step() const { return sizeof(std::int32_t) + (scores ? 2 * sizeof(float) : 0); }
};

}  // namespace weft::offload
