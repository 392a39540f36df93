// kernels/attention/coarse_row_cuda.h: rows of cold slots and the pieces of split ones (coarse_row.h), as threads write
// and read them.
#pragma once

#include "kernels/attention/kv_row_cuda.h"

namespace weft::kernels {

/// Slots of int8, the last of which are cold (KvSlots::cold).
struct ColdLevels {};
template <class T> inline constexpr bool has_cold = std::is_same_v<T, ColdLevels>;
template <> inline constexpr bool is_level<ColdLevels> = true;
template <> struct RowTypes<ColdLevels> {
  using Key = Level<DType::i8>;
  using Value = Level<DType::i8>;
};
/// Slots of int8 whose rows lie in pieces (KvSlots::split).
struct SplitLevels {};
template <class T> inline constexpr bool is_split = std::is_same_v<T, SplitLevels>;
template <> inline constexpr bool is_level<SplitLevels> = true;
template <> struct RowTypes<SplitLevels> : RowTypes<ColdLevels> {};

namespace cuda {

/// One coarse row.
struct CoarseRow {
  const std::uint32_t* words;
  int bits;
};

/// Levels 4 k to 4 k + 3 of a group, one to a byte as in a row of int8.
template <int kBits> __device__ __forceinline__ std::uint32_t four_levels(const std::uint32_t* planes, int k) {
  if constexpr (kBits == 4)
    return __byte_perm(planes[k / 2], planes[k / 2] >> 4, k % 2 == 0 ? 0x5140 : 0x7362) & 0x0F0F0F0Fu;
  if constexpr (kBits == 3) return four_levels<2>(planes, k) << 1 | four_levels<1>(planes + 4, k);
  if constexpr (kBits == 2) return planes[k % 4] >> k / 4 * 2 & 0x03030303u;
  return planes[k % 2] >> k / 2 & 0x01010101u;
}

/// Calls f.operator()<kBits>(). The bits are the same for all threads.
template <class F> __device__ __forceinline__ void with_bits(int bits, const F& f) {
  if (bits == 1) f.template operator()<1>();
  else if (bits == 2) f.template operator()<2>();
  else if (bits == 3) f.template operator()<3>();
  else f.template operator()<4>();
}

/// The scale and the minimum of what a coarse row's levels mean, and the scale of levels that are int8's but for their
/// low bits, which are 0.
__device__ inline float coarse_scale(std::uint32_t both, int bits) {
  return coarse_reading(bits).step * scale_of(both);
}
__device__ inline float coarse_minimum(std::uint32_t both, int bits) {
  return minimum_of(both) + coarse_reading(bits).offset * scale_of(both);
}
__device__ inline float high_scale(std::uint32_t both, int bits) { return coarse_stretch(bits) * scale_of(both); }

/// Level d of a group. For rows that are read number by number: without branches.
__device__ inline unsigned one_level(const std::uint32_t* planes, int bits, int d) {
  const int plane = bits == 3 ? 2 : bits, k = d / 4, byte = 8 * (d % 4);
  const int word = plane == 4 ? k / 2 : k & (2 * plane - 1),
            shift = plane == 4 ? 4 * (d % 8) : byte + (k >> plane) * plane;
  const unsigned level = planes[word] >> shift & ((1u << plane) - 1);
  return bits == 3 ? level << 1 | (planes[4 + k % 2] >> (byte + k / 2) & 1u) : level;
}

/// load_levels() of a coarse row.
template <int kVector> __device__ void load_coarse(const CoarseRow& row, int dim, int column, float (&at)[kVector]) {
  const int words = 2 * row.bits, group = column / kKvGroup, d = column % kKvGroup;
  const std::uint32_t both = row.words[kv_groups(dim) * words + group], *const planes = row.words + group * words;
  const float scale = coarse_scale(both, row.bits), minimum = coarse_minimum(both, row.bits);
  if constexpr (kVector == 1) {
    at[0] = scale * static_cast<float>(one_level(planes, row.bits, d)) + minimum;
  } else {
    static_assert(kVector == 8);
    std::uint32_t levels[2];
    with_bits(row.bits, [&]<int kBits>() {
#pragma unroll
      for (int i = 0; i < 2; ++i) levels[i] = four_levels<kBits>(planes, d / 4 + i);
    });
#pragma unroll
    for (int i = 0; i < 8; ++i) at[i] = scale * static_cast<float>(levels[i / 4] >> 8 * (i % 4) & 255u) + minimum;
  }
}

/// Words of four bytes in a coarse row.
__device__ inline int coarse_words(int bits, int dim) { return kv_groups(dim) * (2 * bits + 1); }

/// Word `word` of a group's planes. level(d) is the level of int8 of number d of the group. A thread makes whole words,
/// so that none writes a part of another's.
template <class LevelOf> __device__ std::uint32_t plane_word(int bits, int word, const LevelOf& level) {
  const bool second = bits == 3 && word >= 4;  // of two planes
  const int plane = bits == 3 ? (second ? 1 : 2) : bits, at = second ? word - 4 : word;
  const int shift = 8 - bits + (bits == 3 && !second ? 1 : 0);
  std::uint32_t made = 0;
  for (int bit = 0; bit < 32; bit += plane) {
    const int byte = bit / 8, field = bit % 8 / plane;
    const int d = plane == 4 ? 8 * at + 2 * byte + field : 8 * plane * field + 4 * at + byte;
    made |= (level(d) >> shift & ((1u << plane) - 1)) << bit;
  }
  return made;
}

/// Word `word` of the coarse row of a row of int8.
__device__ inline std::uint32_t coarse_word(const Level<DType::i8>* fine, int dim, int bits, int word) {
  const int planes = kv_groups(dim) * 2 * bits, level_bytes = static_cast<int>(kv_level_bytes(DType::i8, dim));
  if (word >= planes) return reinterpret_cast<const std::uint32_t*>(fine + level_bytes)[word - planes];
  const int first = word / (2 * bits) * kKvGroup;
  return plane_word(bits, word % (2 * bits),
                    [&](int d) -> std::uint32_t { return first + d < dim ? fine[first + d].byte : 0u; });
}

/// The pieces of one row of a split slot. `low` is null if the row is read by its high row alone.
struct SplitRow {
  std::uint32_t *high, *low, *scales;
  int bits;
};

/// The pieces of the keys or the values of one head.
struct SplitHead {
  std::uint32_t *high = nullptr, *low = nullptr, *scales = nullptr;
  int bits = 0, groups = 0;

  __device__ SplitHead(const KvSlots& s, bool keys, std::int64_t at) {  // at: sequence * kv_heads + head
    if (!s.k) return;
    bits = keys ? s.coarse.keys : s.coarse.values, groups = kv_groups(s.head_dim);
    const auto words = [](void* all) { return static_cast<std::uint32_t*>(all); };
    const std::int64_t first = at * s.slots * groups;
    high = words(keys ? s.k : s.v) + first * (2 * bits);
    low = words(keys ? s.low_k : s.low_v) + first * (2 * (8 - bits));
    scales = words(keys ? s.scale_k : s.scale_v) + first;
  }
  /// The row of a slot; `whole`: with its low row.
  __device__ SplitRow row(int slot, bool whole) const {
    const std::int64_t first = std::int64_t{slot} * groups;
    return {high + first * (2 * bits), whole ? low + first * (2 * (8 - bits)) : nullptr, scales + first, bits};
  }
};

/// Levels 4 k to 4 k + 3 of a group's low row of kBits bits, 4 to 7, one to a byte.
template <int kBits> __device__ __forceinline__ std::uint32_t four_low_levels(const std::uint32_t* planes, int k) {
  if constexpr (kBits == 4) return four_levels<4>(planes, k);
  else return four_levels<4>(planes, k) << (kBits - 4) | four_levels<kBits - 4>(planes + 8, k);
}

/// Levels 4 k to 4 k + 3 of group `group` of a split row, as those of int8. Bits that are not read are 0.
template <int kBits> __device__ __forceinline__ std::uint32_t joined_levels(const SplitRow& row, int group, int k) {
  const std::uint32_t high = four_levels<kBits>(row.high + group * (2 * kBits), k) << (8 - kBits);
  return row.low ? high | four_low_levels<8 - kBits>(row.low + group * (2 * (8 - kBits)), k) : high;
}

/// Level d of a group of a split row, as one_level().
__device__ inline unsigned one_joined_level(const SplitRow& row, int group, int d) {
  const int rest = 4 - row.bits;  // bits of a low row besides its plane of 4
  const unsigned high = one_level(row.high + group * (2 * row.bits), row.bits, d) << (8 - row.bits);
  if (!row.low) return high;
  const std::uint32_t* const planes = row.low + group * (2 * (4 + rest));
  return high | one_level(planes, 4, d) << rest | (rest > 0 ? one_level(planes + 8, rest, d) : 0u);
}

/// load_levels() of a split row.
template <int kVector> __device__ void load_split(const SplitRow& row, int column, float (&at)[kVector]) {
  const int group = column / kKvGroup, d = column % kKvGroup;
  const std::uint32_t both = row.scales[group];
  const float scale = row.low ? scale_of(both) : high_scale(both, row.bits),
              minimum = row.low ? minimum_of(both) : coarse_minimum(both, row.bits);
  if constexpr (kVector == 1) {
    at[0] = scale * static_cast<float>(one_joined_level(row, group, d)) + minimum;
  } else {
    static_assert(kVector == 8);
    std::uint32_t levels[2];
    with_bits(row.bits, [&]<int kBits>() {
#pragma unroll
      for (int i = 0; i < 2; ++i) levels[i] = joined_levels<kBits>(row, group, d / 4 + i);
    });
#pragma unroll
    for (int i = 0; i < 8; ++i) at[i] = scale * static_cast<float>(levels[i / 4] >> 8 * (i % 4) & 255u) + minimum;
  }
}

/// Word `word` of a group's planes in a low row, beside high rows of `bits` bits; see plane_word().
template <class LevelOf> __device__ std::uint32_t low_word(int bits, int word, const LevelOf& level) {
  const bool first = word < 8;  // of the plane of 4 bits
  const int above = first ? bits : bits + 4;
  return plane_word(first ? 4 : 4 - bits, first ? word : word - 8,
                    [&](int d) { return static_cast<std::uint32_t>(level(d)) << above & 255u; });
}

/// Quantises group `group` of x [dim] into the pieces of a slot, and of `home` too unless it has none. All threads of a
/// warp call it; `level` [kKvGroup] of shared memory is the warp's own.
__device__ inline void write_split_group(const float* x, int dim, int group, const SplitHead& to, const SplitHead& home,
                                         int slot, std::uint32_t* level) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, high = 2 * to.bits, all = 16;  // words of a group
  const GroupLevels levels = levels_of_group<DType::i8>(x, dim, group);
#pragma unroll
  for (int n = 0; n < GroupLevels::kEach; ++n) level[n * kWarp + lane] = levels.level[n];
  __syncwarp();
  const auto level_of = [&](int d) { return level[d]; };
  const std::uint32_t made = lane < high  ? plane_word(to.bits, lane, level_of)
                             : lane < all ? low_word(to.bits, lane - high, level_of)
                                          : levels.both;
  const auto write = [&](const SplitRow& row) {
    if (lane < high) row.high[group * high + lane] = made;
    else if (lane < all) row.low[group * (all - high) + lane - high] = made;
    else if (lane == all) row.scales[group] = made;
  };
  write(to.row(slot, true));
  if (home.high) write(home.row(slot, true));
  __syncwarp();
}

}  // namespace cuda
}  // namespace weft::kernels
