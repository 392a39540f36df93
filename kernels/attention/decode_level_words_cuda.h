// kernels/attention/decode_level_words_cuda.h: the words of rows of int8 and int4 slots (kv_row.h), and of cold ones
// (coarse_row.h), as the fragments of tensor cores take them (tensor_core_cuda.h), and layouts of such rows.
#pragma once

#include "kernels/attention/decode_tensor_cuda.h"
#include "kernels/attention/decode_tile_cuda.h"

namespace weft::kernels::cuda::decode {

/// A row's words of four bytes, which are the levels of 4 (int8) or 8 (int4) numbers, and its scales.
template <DType kType, int kDim> struct RowWords {
  static constexpr int kHalves = kType == DType::i4 ? 2 : 1;  // of a byte, with a level each
  static constexpr int kWords = kDim / 4 / kHalves, kGroups = kDim / kKvGroup;
  static constexpr bool kPairs = kGroups == 2;  // two words at once: rows begin at multiples of 8 bytes

  /// The column of the number in half `half` of byte `byte` of a word.
  __device__ static int column(int word, int byte, int half) {
    return kHalves == 1 ? word * 4 + byte : word / 4 * kKvBlock + word % 4 * 4 + byte + half * (kKvBlock / 2);
  }
  /// The place in a row of a lane's word `i`, where `kLanes` lanes share the row.
  template <int kLanes> __device__ static int word(int lane, int i) {
    return kPairs ? (i / 2 * kLanes + lane) * 2 + i % 2 : i * kLanes + lane;
  }
  __device__ static int group_of(int word) { return word * kGroups / kWords; }
  template <int kLanes, int kCount>
  __device__ static void load(const Level<kType>* row, int lane, std::uint32_t (&words)[kCount]) {
    const auto* const from = reinterpret_cast<const std::uint32_t*>(row);
    if constexpr (kPairs) {
#pragma unroll
      for (int i = 0; i < kCount; i += 2) {
        const auto both = load_pack<2>(from + word<kLanes>(lane, i));
        words[i] = both.at[0], words[i + 1] = both.at[1];
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) words[i] = from[word<kLanes>(lane, i)];
    }
  }
  __device__ static Pack<std::uint32_t, kGroups> scales(const Level<kType>* row) {
    return load_pack<kGroups>(reinterpret_cast<const std::uint32_t*>(row) + kWords);
  }
  __device__ static std::uint32_t scales(const Level<kType>* row, int group) {
    return reinterpret_cast<const std::uint32_t*>(row)[kWords + group];
  }
  __device__ static float scale(std::uint32_t both) { return scale_of(both); }
  __device__ static float minimum(std::uint32_t both) { return minimum_of(both); }
  /// The levels of bytes 0 and 2 of a word, or those of bytes 1 and 3, in half `half`, which counts 16 times if it
  /// is 1.
  __device__ static std::uint32_t even(std::uint32_t word, int half) {
    return word & (kHalves == 1 ? 0x00FF00FFu : half == 0 ? 0x000F000Fu : 0x00F000F0u);
  }
  __device__ static std::uint32_t odd(std::uint32_t word, int half) { return even(word >> 8, half); }
};

/// The words of a coarse row of `bits` bits. Its levels become words of int8 in the lanes that have those of a fine
/// row, so that a query's fragments serve both.
template <int kDim> struct CoarseWords : RowWords<DType::i8, kDim> {
  using Fine = RowWords<DType::i8, kDim>;
  using Fine::kGroups;
  int bits;

  __device__ explicit CoarseWords(int its_bits) : bits(its_bits) {}
  template <int kLanes, int kCount>
  __device__ void load(const CoarseRow& row, int lane, std::uint32_t (&words)[kCount]) const {
    constexpr int of_group = Fine::kWords / kGroups;
    with_bits(bits, [&]<int kBits>() {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int word = Fine::template word<kLanes>(lane, i);
        words[i] = four_levels<kBits>(row.words + word / of_group * (2 * kBits), word % of_group);
      }
    });
  }
  __device__ Pack<std::uint32_t, kGroups> scales(const CoarseRow& row) const {
    Pack<std::uint32_t, kGroups> all;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) all.at[g] = scales(row, g);
    return all;
  }
  __device__ std::uint32_t scales(const CoarseRow& row, int group) const {
    return row.words[kGroups * 2 * bits + group];
  }
  __device__ float scale(std::uint32_t both) const { return coarse_scale(both, bits); }
  __device__ float minimum(std::uint32_t both) const { return coarse_minimum(both, bits); }
};

/// The words of split rows of high rows of `bits` bits, as words of int8. What is not read of a row are zeros, which
/// its minimum makes up for. So that rows of both kinds go together, the bit of a scale's sign, which is never
/// negative, says that a row is read by its high row alone.
template <int kDim> struct SplitWords : RowWords<DType::i8, kDim> {
  using Fine = RowWords<DType::i8, kDim>;
  using Fine::kGroups;
  static constexpr std::uint32_t kHighAlone = 0x8000;
  int bits;

  __device__ explicit SplitWords(int its_bits) : bits(its_bits) {}
  template <int kLanes, int kCount>
  __device__ void load(const SplitRow& row, int lane, std::uint32_t (&words)[kCount]) const {
    constexpr int of_group = Fine::kWords / kGroups;
    with_bits(bits, [&]<int kBits>() {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int word = Fine::template word<kLanes>(lane, i);
        words[i] = joined_levels<kBits>(row, word / of_group, word % of_group);
      }
    });
  }
  __device__ Pack<std::uint32_t, kGroups> scales(const SplitRow& row) const {
    auto all = load_pack<kGroups>(row.scales);
#pragma unroll
    for (std::uint32_t& both : all.at) both |= row.low ? 0 : kHighAlone;
    return all;
  }
  __device__ std::uint32_t scales(const SplitRow& row, int group) const {
    return row.scales[group] | (row.low ? 0 : kHighAlone);
  }
  __device__ float scale(std::uint32_t both) const {
    return (both & kHighAlone) != 0 ? high_scale(both & ~kHighAlone, bits) : scale_of(both);
  }
  __device__ float minimum(std::uint32_t both) const {
    return (both & kHighAlone) != 0 ? coarse_minimum(both & ~kHighAlone, bits) : minimum_of(both);
  }
};

/// The layout of rows of `kRowDim` levels, 64 or 128, in fragments.
template <class Number, int kRowDim> struct LevelTiles {
  using T = Number;
  static constexpr int kDim = kRowDim, kTeams = kWarps;
  __device__ static RowWords<KeyOf<T>::kType, kDim> key_words(const DecodeArgs&) { return {}; }
  __device__ static RowWords<ValueOf<T>::kType, kDim> value_words(const DecodeArgs&) { return {}; }
};
/// The layout of coarse rows in fragments.
template <int kRowDim> struct CoarseTiles {
  static constexpr int kDim = kRowDim, kTeams = kWarps;
  __device__ static CoarseWords<kDim> key_words(const DecodeArgs& a) { return CoarseWords<kDim>(a.slots.coarse.keys); }
  __device__ static CoarseWords<kDim> value_words(const DecodeArgs& a) {
    return CoarseWords<kDim>(a.slots.coarse.values);
  }
};
/// The layout of split rows in fragments.
template <int kRowDim> struct SplitTiles {
  static constexpr int kDim = kRowDim, kTeams = kWarps;
  __device__ static SplitWords<kDim> key_words(const DecodeArgs& a) { return SplitWords<kDim>(a.slots.coarse.keys); }
  __device__ static SplitWords<kDim> value_words(const DecodeArgs& a) {
    return SplitWords<kDim>(a.slots.coarse.values);
  }
};

}  // namespace weft::kernels::cuda::decode
