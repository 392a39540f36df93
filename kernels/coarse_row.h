// kernels/coarse_row.h: one key or value of a cold token: the highest bits of its int8 levels (kv_row.h), with the same
// scale and minimum. A level that begins with these bits lies in an interval of 2^(8 - bits) levels, and the row reads
// as the middle of each, a little farther from the middle of all levels (coarse_stretch()):
//
//   number = scale * (127.5 + stretch * 2^(8 - bits) * (coarse - (2^bits - 1) / 2)) + minimum
//
// So a token cools without being rounded again. Groups have 64 numbers as in kv_row.h, and the last takes as much as a
// whole one. With number d = 2 i + p of a group, its bits lie in planes, one after the other:
//
//   of 4 bits, 32 bytes: byte i, from bit 4 p on
//   of 2 bits, 16 bytes: byte 2 (i mod 8) + p, from bit 2 (i / 8) on
//   of 1 bit, 8 bytes: byte 2 (i mod 4) + p, bit i / 4
//
// A group of 3 bits is its two high bits as a plane of 2, then the low one as a plane of 1. The scales and minima of
// all groups follow. In this order a register filled with copies of a plane needs only shifts to have number 2 i + p in
// part p of word i, as words of int8 have it.
//
// Slots that are split (KvSlots::split) have each row of int8 in three pieces: a high row, which is a coarse row
// without scales and minima; a low row with the bits that the high one lacks, of each group as many planes of 4, 2 and
// 1 bits as 8 - bits takes, the highest bits first; and the scales and minima of all groups.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_row.h"

namespace weft::kernels {

/// Bits of a cold token's keys and values, from 1 to 4 each.
struct CoarseBits {
  int keys = 0, values = 0;
  bool operator==(const CoarseBits&) const = default;
};
constexpr int kMostCoarseBits = 4;

constexpr std::size_t coarse_level_bytes(int bits, int head_dim) {
  return static_cast<std::size_t>(kv_groups(head_dim)) * static_cast<std::size_t>(bits) * kKvGroup / 8;
}
constexpr std::size_t scales_bytes(int head_dim) { return static_cast<std::size_t>(kv_groups(head_dim)) * 4; }
constexpr std::size_t coarse_row_bytes(int bits, int head_dim) {
  return coarse_level_bytes(bits, head_dim) + scales_bytes(head_dim);
}
constexpr std::size_t high_row_bytes(int bits, int head_dim) { return coarse_level_bytes(bits, head_dim); }
constexpr std::size_t low_row_bytes(int bits, int head_dim) { return coarse_level_bytes(8 - bits, head_dim); }
/// The levels of int8 that read alike.
constexpr int coarse_step(int bits) { return 1 << (8 - bits); }
/// A coarse level reads by this factor farther from the middle of all levels than the middle of its interval does.
/// Middles are too near on average, because a row's extremes lie at the outer ends of their intervals; and what is
/// wrong on average adds up in a sum over many tokens. With these factors a number of a row of 64 normally distributed
/// ones reads on average as itself, which a test computes (tests/kernels/cold_slots_test.cc).
constexpr float coarse_stretch(int bits) {
  return bits == 1 ? 1.096f : bits == 2 ? 1.061f : bits == 3 ? 1.026f : 1.011f;
}
/// A coarse level c reads as a number: scale * (step * c + offset) + minimum.
struct CoarseReading {
  float step, offset;
};
constexpr CoarseReading coarse_reading(int bits) {
  const float step = coarse_stretch(bits) * static_cast<float>(coarse_step(bits));
  return {step, 127.5f - step * static_cast<float>((1 << bits) - 1) / 2};
}

/// Writes the coarse row of a row of int8.
void coarsen(const std::byte* fine, int head_dim, int bits, std::byte* coarse);
/// Writes the three pieces of a row of int8.
void split_row(const std::byte* fine, int head_dim, int bits, std::byte* high, std::byte* low, std::byte* scales);
/// The coarse level of number d.
int coarse_level(const std::byte* coarse, int bits, int d);

}  // namespace weft::kernels
