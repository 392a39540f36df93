// tests/support/slot_arrays.h: KV buffers in the memory of a place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "tests/support/array.h"

namespace weft::test {

/// The type of the keys and values in slots. Slots of int4 may have int8 keys.
struct SlotType {
  DType dtype;
  bool int8_keys = false;

  SlotType(DType type, bool keys = false) : dtype(type), int8_keys(keys) {}
  DType key_type() const { return int8_keys ? DType::i8 : dtype; }
  std::string name() const { return std::string(name_of(dtype)) + (int8_keys ? ", keys int8" : ""); }
};

/// The number of slots that are cold, and their bits; or the bits of split slots; and whether rows are less a mean.
struct Cold {
  int slots = 0;
  kernels::CoarseBits bits = {};
  bool split = false, means = false;
};

/// The arrays of an empty KV buffer: every position is -1 and every free slot 0.
struct SlotArrays {
  Array k, v, score, position, free_slot, rest, key_sum, mean, cold_k, cold_v, low_k, low_v, scale_k, scale_v;
  kernels::KvSlots block;

  SlotArrays(const Place& place, int sequences, int kv_heads, int slots, int head_dim, SlotType type,
             bool with_rest = false, bool with_key_sum = false, Cold cold = {})
      : k(rows_of(place, std::int64_t{sequences} * kv_heads * (slots - cold.slots), head_dim, type.key_type(), cold,
                  cold.bits.keys)),
        v(rows_of(place, std::int64_t{sequences} * kv_heads * (slots - cold.slots), head_dim, type.dtype, cold,
                  cold.bits.values)),
        score(place, std::int64_t{sequences} * kv_heads, slots),
        position(place, std::int64_t{sequences} * kv_heads, slots, DType::i32),
        free_slot(
            place,
            std::vector<std::int32_t>(static_cast<std::size_t>(sequences) * static_cast<std::size_t>(kv_heads), 0),
            sequences, kv_heads),
        rest(place, std::int64_t{sequences} * kv_heads, kernels::rest_numbers(head_dim)),
        key_sum(place, std::int64_t{sequences} * kv_heads, head_dim),
        mean(place, std::int64_t{sequences} * kv_heads, 2 * head_dim),
        cold_k(cold_rows(place, std::int64_t{sequences} * kv_heads * cold.slots, head_dim, cold.bits.keys)),
        cold_v(cold_rows(place, std::int64_t{sequences} * kv_heads * cold.slots, head_dim, cold.bits.values)),
        low_k(pieces(place, std::int64_t{sequences} * kv_heads * slots,
                     kernels::low_row_bytes(cold.bits.keys, head_dim), cold)),
        low_v(pieces(place, std::int64_t{sequences} * kv_heads * slots,
                     kernels::low_row_bytes(cold.bits.values, head_dim), cold)),
        scale_k(pieces(place, std::int64_t{sequences} * kv_heads * slots, kernels::scales_bytes(head_dim), cold)),
        scale_v(pieces(place, std::int64_t{sequences} * kv_heads * slots, kernels::scales_bytes(head_dim), cold)),
        block{k.data(),
              v.data(),
              static_cast<float*>(score.data()),
              static_cast<std::int32_t*>(position.data()),
              static_cast<std::int32_t*>(free_slot.data()),
              type.dtype,
              sequences,
              kv_heads,
              slots,
              head_dim,
              with_rest ? static_cast<float*>(rest.data()) : nullptr,
              with_key_sum ? static_cast<float*>(key_sum.data()) : nullptr} {
    block.int8_keys = type.int8_keys;
    block.cold = cold.slots, block.coarse = cold.bits;
    if (cold.split) {
      block.split = true, block.low_k = low_k.data(), block.low_v = low_v.data();
      block.scale_k = scale_k.data(), block.scale_v = scale_v.data();
    }
    if (cold.means) block.mean = static_cast<float*>(mean.data());
    if (cold.slots > 0) block.cold_k = cold_k.data(), block.cold_v = cold_v.data();
  }

 private:
  /// Allocates quantised rows as whole words. Tests compare their bytes, because the words have no numeric meaning.
  static Array rows_of(const Place& place, std::int64_t rows, int head_dim, DType dtype, Cold cold, int bits) {
    if (cold.split) return pieces(place, rows, kernels::high_row_bytes(bits, head_dim), cold);
    if (!is_quantised(dtype)) return {place, rows, head_dim, dtype};
    return {place, rows, static_cast<std::int64_t>(kernels::kv_row_bytes(dtype, head_dim) / 4), DType::i32};
  }
  static Array pieces(const Place& place, std::int64_t rows, std::size_t bytes, Cold cold) {
    return {place, cold.split ? rows : 0, static_cast<std::int64_t>(bytes / 4), DType::i32};
  }
  static Array cold_rows(const Place& place, std::int64_t rows, int head_dim, int bits) {
    return {place, rows, static_cast<std::int64_t>(kernels::coarse_row_bytes(bits, head_dim) / 4), DType::i32};
  }
};

}  // namespace weft::test
