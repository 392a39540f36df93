// kernels/attention/cpu/level_rows.h: rows of int8 and int4 slots (kv_row.h) and of cold ones (coarse_row.h) as decode
// attention reads them: where a number lies, and what is fetched ahead.
//
// A level is read as part of a 16-bit word: of int8, a word has two numbers, one beside the other; of int4, a word is
// one byte, which has two numbers as well. The one in the low bits is part 0, the other part 1.
#pragma once

#include <array>

#include "kernels/attention/cpu/attend.h"

namespace weft::kernels {

constexpr int kGroupWords = kKvGroup / 2;

/// The part and the word of its group in which number d of a row is.
struct LevelPlace {
  int word, part;
};
constexpr LevelPlace level_place(DType type, int head_dim, int d) {
  const KvLevel at = kv_level(type, head_dim, d);
  if (type == DType::i4) return {at.byte % kGroupWords, at.shift / 4};
  return {at.byte % kKvGroup / 2, at.byte % 2};
}
/// The place of number d in its group's query, which has the numbers of part 0, then those of part 1.
constexpr int query_place(DType type, int head_dim, int d) {
  const LevelPlace at = level_place(type, head_dim, d);
  return at.part * kGroupWords + at.word;
}
/// The place of number d in its group's sums: S::low_words() and S::high_words() interleave fours of words.
constexpr int sum_place(DType type, int head_dim, int d) {
  const LevelPlace at = level_place(type, head_dim, d);
  return (at.word / 4 % 2 * 2 + at.part) * kLanes + at.word / 8 * 4 + at.word % 4;
}
using Places = std::array<std::uint8_t, kKvGroup>;
constexpr Places places(int (*place)(DType, int, int), DType type) {
  Places all{};
  for (int d = 0; d < kKvGroup; ++d)
    all[static_cast<std::size_t>(d)] = static_cast<std::uint8_t>(place(type, kKvGroup, d));
  return all;
}
template <DType kType> inline constexpr Places kQueryPlaces = places(query_place, kType);
template <DType kType> inline constexpr Places kSumPlaces = places(sum_place, kType);

namespace {  // compiled for each instruction set, and never shared between them

/// The keys or the values of the visible slots that are alike: all, those of int8, or the cold ones.
struct LevelRows {
  const std::uint8_t* rows;  // that of slot `base` first
  std::int64_t row_bytes;
  int head_dim, level_bytes;
  const std::int32_t* slot;  // of each entry; those past the last are like the last, up to a whole vector
  int count;                 // entries
  Coming* coming;            // what is prefetched while they are read, or null
  std::uintptr_t share;      // bytes of it for four rows of each group, with what a step reads of their tokens besides
  int base;

  /// `bytes` and `of_levels`: those of a row, and of its levels.
  LevelRows(const std::uint8_t* first, std::size_t bytes, std::size_t of_levels, int dim, const std::int32_t* slots,
            int entries, Coming* soon, int first_slot = 0)
      : rows(first), row_bytes(static_cast<std::int64_t>(bytes)), head_dim(dim),
        level_bytes(static_cast<int>(of_levels)), slot(slots), count(entries), coming(soon),
        share(4 * (static_cast<std::uintptr_t>(row_bytes) + 4) / static_cast<std::uintptr_t>(kv_groups(dim))),
        base(first_slot) {}
  LevelRows(const std::uint8_t* first, DType type, int dim, const std::int32_t* slots, int entries, Coming* soon)
      : LevelRows(first, kv_row_bytes(type, dim), kv_level_bytes(type, dim), dim, slots, entries, soon) {}
  /// The same for further query heads, for which nothing is prefetched.
  LevelRows again() const {
    LevelRows same = *this;
    same.coming = nullptr;
    return same;
  }
  /// Prefetches a share: called for four rows of each group of numbers.
  [[gnu::always_inline]] void go_on() const {
    if (coming) coming->go_on(share);
  }
  /// Finds the places of the rows of 16 entries, in bytes after `rows`.
  void find_rows(int first, std::int32_t* at) const {
    Places16 place;
    __builtin_memcpy(&place, slot + first, sizeof place);
    place = (place - base) * static_cast<std::int32_t>(row_bytes);
    __builtin_memcpy(at, &place, sizeof place);
  }
};

}  // namespace

/// Rows of int8 or int4. `kPlaces`: the type by whose query_place() and sum_place() their numbers lie.
template <DType kType> struct WholeRows {
  static constexpr DType kPlaces = kType;
  static constexpr int kCoarseBits = 0;
  /// The words of group g of a row.
  template <class S, bool kWhole> static typename S::I words(const std::uint8_t* row, const LevelRows& r, int g) {
    constexpr int bytes = kType == DType::i8 ? kKvGroup : kGroupWords;
    if constexpr (kWhole) return S::template words<kType>(row + g * bytes);
    else return S::template words_first<kType>(row + g * bytes, r.level_bytes - g * bytes);
  }
  template <class S> static typename S::I low(typename S::I x) { return S::template low<kType>(x); }
  template <class S> static typename S::I high(typename S::I x) { return S::template high<kType>(x); }
  /// Turns the scale and minimum of a row into those of the levels that are read.
  template <class S> static void read_as(typename S::V&, typename S::V&) {}
};

/// Rows of kBits bits.
template <int kBits> struct CoarseRows {
  static constexpr DType kPlaces = DType::i8;
  static constexpr int kCoarseBits = kBits;
  template <class S, bool kWhole> static typename S::I words(const std::uint8_t* row, const LevelRows&, int g) {
    const std::uint8_t* const planes = row + g * (kBits * kKvGroup / 8);
    if constexpr (kBits == 4) return S::template words<DType::i4>(planes);
    else if constexpr (kBits == 2) return S::two_bits(planes);
    else if constexpr (kBits == 1) return S::one_bit(planes);
    else {
      const typename S::I two = S::masked(S::two_bits(planes), 0x03030303);  // doubling carries into no other number
      return S::add(S::add(two, two), S::masked(S::one_bit(planes + 16), 0x01010101));
    }
  }
  static constexpr int kMask = ((1 << kBits) - 1) * 0x00010001;
  template <class S> static typename S::I low(typename S::I x) { return S::masked(x, kMask); }
  template <class S> static typename S::I high(typename S::I x) {
    return S::masked(S::template shifted < kBits == 4 ? 4 : 8 > (x), kMask);
  }
  template <class S> static void read_as(typename S::V& scale, typename S::V& minimum) {
    constexpr CoarseReading read = coarse_reading(kBits);
    minimum = S::fma(scale, S::all(read.offset), minimum);
    scale = S::mul(scale, S::all(read.step));
  }
};

/// Calls f.operator()<bits>().
template <class S, class F> void with_bits(int bits, const F& f) {
  if (bits == 1) f.template operator()<1>();
  else if (bits == 2) f.template operator()<2>();
  else if (bits == 3) f.template operator()<3>();
  else f.template operator()<4>();
}

}  // namespace weft::kernels
