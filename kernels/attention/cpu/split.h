// kernels/attention/cpu/split.h: the reading part of a decode step over split slots (KvSlots::split), over a vector
// type S (cpu/math.h). All entries are read by their high rows; the rows of the chosen become rows of int8 in the
// cache, some at a time, and are read as those of int8 slots. With all entries chosen the bits are therefore those of
// int8.
#pragma once

#include "kernels/attention/cpu/high_values.h"
#include "kernels/attention/cpu/levels.h"

namespace weft::kernels {

namespace {  // compiled for each instruction set, and never shared between them

/// The place of each row of a block.
struct EachRow {
  alignas(64) std::int32_t slot[kRowsAtOnce];
  constexpr EachRow() : slot{} {
    for (int i = 0; i < kRowsAtOnce; ++i) slot[i] = i;
  }
};
constexpr EachRow kEachRow;

}  // namespace

/// The numbers of planes of kBits bits in all (coarse_row.h), as words of int8, from bit kFrom of each number on.
template <class S, int kBits, int kFrom> typename S::I of_planes(const std::uint8_t* plane) {
  if constexpr (kBits >= 4) {
    const typename S::I x = S::template words<DType::i4>(plane);
    const typename S::I both = S::add(S::template raised<kFrom + kBits - 4>(S::masked(x, 0x000F000F)),
                                      S::template raised<kFrom + kBits>(S::masked(x, 0x00F000F0)));
    if constexpr (kBits == 4) return both;
    else return S::add(both, of_planes<S, kBits - 4, kFrom>(plane + kKvGroup / 2));
  } else if constexpr (kBits >= 2) {
    const typename S::I x = S::template raised<kFrom + kBits - 2>(S::masked(S::two_bits(plane), 0x03030303));
    if constexpr (kBits == 2) return x;
    else return S::add(x, of_planes<S, kBits - 2, kFrom>(plane + kKvGroup / 4));
  } else {
    return S::template raised<kFrom>(S::masked(S::one_bit(plane), 0x01010101));
  }
}

namespace {

/// The keys or the values of a tile's split slots.
struct RowPieces {
  const std::uint8_t *high, *low, *scales;
  std::size_t high_bytes, low_bytes, level_bytes, fine_bytes, groups;
  int bits, head_dim;

  RowPieces(const void* high_rows, const std::byte* low_rows, const std::byte* of_scales, int row_bits, int dim)
      : high(static_cast<const std::uint8_t*>(high_rows)), low(reinterpret_cast<const std::uint8_t*>(low_rows)),
        scales(reinterpret_cast<const std::uint8_t*>(of_scales)), high_bytes(high_row_bytes(row_bits, dim)),
        low_bytes(low_row_bytes(row_bits, dim)), level_bytes(kv_level_bytes(DType::i8, dim)),
        fine_bytes(kv_row_bytes(DType::i8, dim)), groups(static_cast<std::size_t>(kv_groups(dim))), bits(row_bits),
        head_dim(dim) {}
  /// Prefetches a slot's low row.
  [[gnu::always_inline]] void prefetch_low(int slot) const {
    const std::uint8_t* const row = low + static_cast<std::size_t>(slot) * low_bytes;
    for (std::size_t i = 0; i < low_bytes; i += kLine) __builtin_prefetch(row + i, 0, 2);
  }
};
RowPieces key_pieces(const DecodeTile& t) { return {t.slot_k, t.low_k, t.scale_k, t.coarse.keys, t.head_dim}; }
RowPieces value_pieces(const DecodeTile& t) { return {t.slot_v, t.low_v, t.scale_v, t.coarse.values, t.head_dim}; }

}  // namespace

/// Writes the row of int8 of a slot, and something up to a whole group behind its levels, before the scales.
template <class S, int kBits> void join_row(const RowPieces& of, int slot, std::uint8_t* row) {
  const auto place = static_cast<std::size_t>(slot);
  const std::uint8_t *high = of.high + place * of.high_bytes, *low = of.low + place * of.low_bytes;
  for (std::size_t g = 0; g < of.groups; ++g, high += kBits * kKvGroup / 8, low += (8 - kBits) * kKvGroup / 8)
    S::store_levels(row + g * kKvGroup, S::add(of_planes<S, kBits, 8 - kBits>(high), of_planes<S, 8 - kBits, 0>(low)));
  for (std::size_t g = 0; g < of.groups; ++g)
    __builtin_memcpy(row + of.level_bytes + 4 * g, of.scales + (place * of.groups + g) * 4, 4);
}

/// Calls f(first, rows) for the chosen entries, a block at a time, whose rows have been joined. It prefetches the low
/// rows of `of`, and those of `next` that are read after them.
template <class S, class F>
void in_blocks(const DecodeEntries& s, const SplitEntries& split, const RowPieces& of, const RowPieces* next,
               const F& f) {
  constexpr int ahead = 32;
  const std::uintptr_t soon = s.tile_bytes / static_cast<std::uintptr_t>(12 * split.count);
  for (int i = 0; i < split.count && i < ahead; ++i) of.prefetch_low(s.slot[split.chosen[i]]);
  for (int first = 0; first < split.count; first += kRowsAtOnce) {
    const int count = split.count - first < kRowsAtOnce ? split.count - first : kRowsAtOnce;
    with_bits<S>(of.bits, [&]<int kBits>() {
      for (int i = 0; i < count; ++i) {
        s.coming->go_on(soon);
        if (first + i + ahead < split.count) of.prefetch_low(s.slot[split.chosen[first + i + ahead]]);
        if (next) next->prefetch_low(s.slot[split.chosen[first + i]]);
        join_row<S, kBits>(of, s.slot[split.chosen[first + i]],
                           split.rows + static_cast<std::size_t>(i) * of.fine_bytes);
      }
    });
    f(first, LevelRows(split.rows, DType::i8, of.head_dim, kEachRow.slot, count, nullptr));
  }
}

/// s.p = the logits of all entries, capped: of the chosen ones by all bits. It chooses them.
template <class S> void split_logits(const DecodeEntries& s, SplitEntries& split) {
  const DecodeTile& t = s.tile;
  const int groups = kv_groups(t.head_dim);
  const auto of_heads = [&]<class Rows>(const LevelRows& k, float* logits) {
    by_heads<S>(t.group, [&]<int H>(int head) {
      const int first = head * groups;
      level_logits<S, H, Rows>(k, s.q_words + first * kKvGroup, s.q_scale + first, s.q_sum + first,
                               logits + head * s.stride, s.stride);
    });
  };
  const auto cap = [&](float* logits, int count) {
    for (int g = 0; t.cap > 0 && g < t.group; ++g) cap_logits<S>(logits + g * s.stride, count, t.cap);
  };
  if (!reads_all<S>(s)) {
    all_high_logits<S>(s, split);
    cap(s.p, s.count);
    for (int g = 0; g < t.group; ++g)
      for (std::int64_t i = s.count; i < whole_vectors(s.count); ++i) s.p[g * s.stride + i] = -__builtin_inff();
  }
  choose_entries<S>(s, split);
  const RowPieces values = value_pieces(t);
  in_blocks<S>(s, split, key_pieces(t), &values, [&](int first, const LevelRows& k) {
    of_heads.template operator()<WholeRows<DType::i8>>(k, split.weight + first);
  });
  cap(split.weight, split.count);
  for (int g = 0; g < t.group; ++g) {
    float* const p = s.p + g * s.stride;
    for (int i = 0; i < split.count; ++i) p[split.chosen[i]] = split.weight[g * s.stride + i];
    for (std::int64_t i = s.count; i < whole_vectors(s.count); ++i) p[i] = -__builtin_inff();
  }
}

/// The outputs of all query heads by the probabilities in s.p.
template <class S> void split_outputs(const DecodeEntries& s, SplitEntries& split) {
  const DecodeTile& t = s.tile;
  clear_sums<S>(s);
  for (int g = 0; g < t.group; ++g) {
    float *const p = s.p + g * s.stride, *const weight = split.weight + g * s.stride;
    for (int i = 0; i < split.count; ++i) weight[i] = p[split.chosen[i]], p[split.chosen[i]] = 0;
    for (std::int64_t i = split.count; i < whole_vectors(split.count); ++i) weight[i] = 0;
  }
  const bool others = split.count < s.count;
  if (others) {
    const std::int64_t numbers = std::int64_t{t.group} * kv_groups(t.head_dim) * kKvGroup;
    for (std::int64_t i = 0; i < numbers; i += kLanes) S::store(split.sum + i, S::zero());
    with_bits<S>(t.coarse.values, [&]<int kBits>() { add_high_values<S, kBits>(s, split); });
  }
  DecodeEntries chosen = s;
  chosen.p = split.weight;
  in_blocks<S>(s, split, value_pieces(t), nullptr,
               [&](int first, const LevelRows& v) { add_values<S, WholeRows<DType::i8>>(chosen, v, first); });
  for (int g = 0; g < t.group; ++g)
    for (int i = 0; i < split.count; ++i) s.p[g * s.stride + split.chosen[i]] = split.weight[g * s.stride + i];
  write_outputs<S, DType::i8>(s);
  if (others) add_high_outputs<S>(s, split);
}

/// Rounds the new key and value into the free slot.
template <class S> void write_split_token(const DecodeTile& t, std::uint8_t* row) {
  const auto slot = static_cast<std::size_t>(*t.free_slot);
  auto* const fine = reinterpret_cast<std::byte*>(row);
  const auto write = [&](const float* x, int bits, void* high, std::byte* low, std::byte* scales) {
    quantise_row<S>(x, t.head_dim, DType::i8, fine);
    split_row(fine, t.head_dim, bits, static_cast<std::byte*>(high) + slot * high_row_bytes(bits, t.head_dim),
              low + slot * low_row_bytes(bits, t.head_dim), scales + slot * scales_bytes(t.head_dim));
  };
  write(t.k, t.coarse.keys, t.slot_k, t.low_k, t.scale_k);
  write(t.v, t.coarse.values, t.slot_v, t.low_v, t.scale_v);
  place_token<S>(t);
}

}  // namespace weft::kernels
