// kernels/kv_row.h: one key or value in its slot. A row of a float type is head_dim numbers. A row of int8 or int4 is
// levels, followed by the scale and minimum in fp16 of each group of numbers, so that it is one piece of memory.
//
//   group g: numbers 64 g to 64 g + 63; the last group may be shorter
//   int8: byte d is the level of number d, from 0 to 255
//   int4: numbers come in blocks of 32, the last of which may be shorter; a block of n numbers takes h = (n + 1) / 2
//     bytes, and byte i has the level of number i, from 0 to 15, in its low half and that of number h + i in its high
//     half, so that 16 bytes are two vectors of 16
//   zeros fill the levels up to a multiple of 4 bytes
//
// A group is quantised in fp32, and every operation rounds its result:
//   minimum = fp16(least number + 0)
//   scale   = fp16((greatest number - minimum) / top), 0 if the difference is not above 0; top is 255 or 15
//   level   = (number - minimum) * (1 / scale), rounded to nearest even, then brought into 0 .. top; 0 with scale 0
// If a number is not finite, or the minimum or scale does not fit fp16, both are NaN and the levels are 0. Attention
// over the row is then NaN, as it would be with fp16's infinities.
//
// A level stands for scale * level + minimum, but decode attention mostly does without that number:
//   logit = sum over groups of scale * (sum of level * query), then + minimum * (sum of the group's query) per group
//   out   = sum over slots of (p * scale) * level, then + sum over slots of p * minimum
// On the CPU the query and p * scale are rounded to 16 bits first (attention/cpu/levels.h).
//
// Slots of int4 may have int8 keys: choosing among tokens takes more bits than adding up their values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/tensor.h"

namespace weft::kernels {

constexpr int kKvGroup = 64;  ///< numbers that share a scale and a minimum
constexpr int kKvBlock = 32;  ///< numbers of int4 whose halves share bytes

constexpr int kv_groups(int head_dim) { return (head_dim + kKvGroup - 1) / kKvGroup; }

/// Bytes of the levels in a quantised row. The first group's scale and minimum follow them.
constexpr std::size_t kv_level_bytes(DType type, int head_dim) {
  const int last = head_dim % kKvBlock;
  const int bytes = type == DType::i8 ? head_dim : head_dim / kKvBlock * (kKvBlock / 2) + (last + 1) / 2;
  return static_cast<std::size_t>(bytes + 3) / 4 * 4;
}

/// Bytes of one key or value of any type.
constexpr std::size_t kv_row_bytes(DType type, int head_dim) {
  if (!is_quantised(type)) return bytes_of(type, head_dim);
  return kv_level_bytes(type, head_dim) + static_cast<std::size_t>(kv_groups(head_dim)) * 4;
}

/// The place of a number's level: its byte in the row, and the shift in bits.
struct KvLevel {
  int byte = 0, shift = 0;
};
constexpr KvLevel kv_level(DType type, int head_dim, int d) {
  if (type == DType::i8) return {d, 0};
  const int block = d / kKvBlock, i = d % kKvBlock, left = head_dim - block * kKvBlock;
  const int half = left < kKvBlock ? (left + 1) / 2 : kKvBlock / 2;
  return {block * (kKvBlock / 2) + i % half, i < half ? 0 : 4};
}

/// A byte of a quantised row. Kernels take it as a type parameter where other slots have a float type.
template <DType kLevelType> struct Level {
  static constexpr DType kType = kLevelType;
  std::uint8_t byte;
};
/// Slots whose keys are int8 and whose values are int4.
struct MixedLevels {};
template <class T> inline constexpr bool is_level = false;
template <DType kType> inline constexpr bool is_level<Level<kType>> = true;
template <> inline constexpr bool is_level<MixedLevels> = true;

/// The types of the keys and the values in slots of type T.
template <class T> struct RowTypes {
  using Key = T;
  using Value = T;
};
template <> struct RowTypes<MixedLevels> {
  using Key = Level<DType::i8>;
  using Value = Level<DType::i4>;
};
template <class T> using KeyOf = typename RowTypes<T>::Key;
template <class T> using ValueOf = typename RowTypes<T>::Value;

/// A sequence whose first `count` slots hold what those of another hold, to the last bit and in every head.
struct AlikeSlots {
  std::int32_t sequence, count;
};

}  // namespace weft::kernels
