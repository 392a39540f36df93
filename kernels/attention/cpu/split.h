// kernels/attention/cpu/split.h: the reading part of a decode step over split slots (KvSlots::split), over a vector
// type S (cpu/math.h). All entries are read by their high rows; the rows of the chosen become rows of int8 in the
// cache, some at a time, and are read as those of int8 slots; keys of 4 bits are multiplied without that. With all
// entries chosen the bits are those of int8.
#pragma once

#include "kernels/attention/cpu/high_values.h"
#include "kernels/attention/cpu/row_pieces.h"

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

/// Calls f(first, rows) for the chosen entries, a block at a time, whose rows have been joined. It prefetches their low
/// rows, and `share` of what comes.
template <class S, class F>
void in_blocks(const DecodeEntries& s, const SplitEntries& split, const RowPieces& of, int share, const F& f) {
  constexpr int ahead = 32;
  const std::uintptr_t soon = s.share_of_tile(share, 1, split.count);
  for (int i = 0; i < split.count && i < ahead; ++i) of.prefetch_low(s.slot[split.chosen[i]]);
  for (int first = 0; first < split.count; first += kRowsAtOnce) {
    const int count = split.count - first < kRowsAtOnce ? split.count - first : kRowsAtOnce;
    with_bits<S>(of.bits, [&]<int kBits>() {
      for (int i = 0; i < count; ++i) {
        s.coming->go_on(soon);
        if (first + i + ahead < split.count) of.prefetch_low(s.slot[split.chosen[first + i + ahead]]);
        join_row<S, kBits>(of, s.slot[split.chosen[first + i]],
                           split.rows + static_cast<std::size_t>(i) * of.fine_bytes);
      }
    });
    f(first, LevelRows(split.rows, DType::i8, of.head_dim, kEachRow.slot, count, nullptr));
  }
}

/// split.weight = the logits of the chosen entries, whose keys have high rows of 4 bits, for H query heads from `head`
/// on. The bits are those of level_logits() over joined rows. It prefetches as in_blocks() does.
template <class S, int H>
void joined_logits(const DecodeEntries& s, const SplitEntries& split, int head, const RowPieces& keys) {
  constexpr int ahead = 32;
  const int groups = kv_groups(s.tile.head_dim), end = split.count;
  const std::uintptr_t soon = s.share_of_tile(kInFineLogits, 1, end);
  const auto slot_at = [&](int i) { return s.slot[split.chosen[i < end ? i : end - 1]]; };
  for (int i = 0; head == 0 && i < end && i < ahead; ++i) keys.prefetch_low(slot_at(i));
  for (int first = 0; first < end; first += kLanes) {
    alignas(64) std::int32_t at[kLanes], scales_at[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const int slot = slot_at(first + i);
      at[i] = slot * static_cast<std::int32_t>(keys.high_bytes), scales_at[i] = slot * groups * 4;
      if (head > 0 || first + i >= end) continue;
      s.coming->go_on(soon);
      if (first + i + ahead < end) keys.prefetch_low(slot_at(first + i + ahead));
    }
    typename S::V logit[H];
    WEFT_UNROLLED (int h = 0; h < H; ++h) logit[h] = S::zero();
    for (int g = 0; g < groups;) {
      const std::int16_t* const q = split.q_words + (head * groups + g) * kKvGroup;
      const bool pairs = in_pairs(4, groups);
      typename S::I dot[2][H];
      if (pairs) multiply_joined<S, H, true>(keys, at, g, q, groups * kKvGroup, dot);
      else multiply_joined<S, H, false>(keys, at, g, q, groups * kKvGroup, dot);
      for (int n = 0; n < (pairs ? 2 : 1); ++n, ++g) {
        typename S::V scale, minimum;
        S::scales(keys.scales + 4 * g, scales_at, kLanes, scale, minimum);
        const float *const q_scale = s.q_scale + head * groups + g, *const q_sum = s.q_sum + head * groups + g;
        WEFT_UNROLLED (int h = 0; h < H; ++h) {
          logit[h] = S::fma(S::to_floats(dot[n][h]), S::mul(scale, S::all(q_scale[h * groups])), logit[h]);
          logit[h] = S::fma(minimum, S::all(q_sum[h * groups]), logit[h]);
        }
      }
    }
    WEFT_UNROLLED (int h = 0; h < H; ++h) S::store(split.weight + (head + h) * s.stride + first, logit[h]);
  }
}

/// Those of all query heads, for keys of any bits.
template <class S> void chosen_logits(const DecodeEntries& s, const SplitEntries& split) {
  const DecodeTile& t = s.tile;
  const int groups = kv_groups(t.head_dim);
  const RowPieces keys = key_pieces(t);
  if (t.coarse.keys == 4) {
    for (int i = 0; i < t.group * groups * kKvGroup; i += groups * kKvGroup)
      order_words<S>(s.q_words + i, groups, split.q_words + i);
    return by_heads<S>(t.group, [&]<int H>(int head) { joined_logits<S, H>(s, split, head, keys); });
  }
  in_blocks<S>(s, split, keys, kInFineLogits, [&](int first, const LevelRows& k) {
    by_heads<S>(t.group, [&]<int H>(int head) {
      const int part = head * groups;
      level_logits<S, H, WholeRows<DType::i8>>(k, s.q_words + part * kKvGroup, s.q_scale + part, s.q_sum + part,
                                               split.weight + first + head * s.stride, s.stride);
    });
  });
}

/// s.p = the logits of all entries, capped: of the chosen ones by all bits. It chooses them.
template <class S> void split_logits(const DecodeEntries& s, SplitEntries& split) {
  const DecodeTile& t = s.tile;
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
  chosen_logits<S>(s, split);
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
  in_blocks<S>(s, split, value_pieces(t), kInFineValues,
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
