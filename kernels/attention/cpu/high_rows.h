// kernels/attention/cpu/high_rows.h: logits by the high rows of split slots (KvSlots::split), by products of bytes,
// over a vector type S (cpu/math.h). The sums of values are in high_values.h.
//
// High rows are coarse, so a query and the weights of values have 8 bits here: what that rounds is small beside what
// the levels of high rows round. A level c of `bits` bits is read as (coarse_reading())
//
//   number = scale * step * (c - middle) + (minimum + scale * 127.5)     middle = (2^bits - 1) / 2
//
// so that a weight that is rounded to 0 moves the sum by little. All sums of products are exact integers.
#pragma once

#include "kernels/attention/cpu/choice.h"
#include "kernels/attention/cpu/high_products.h"
#include "kernels/attention/cpu/level_logits.h"

namespace weft::kernels {

constexpr float kTopQueryByte = 127.0f;

/// Rounds the queries of a tile to 8 bits per group of numbers.
template <class S> void query_bytes(const DecodeEntries& s, const SplitEntries& split, int bits) {
  const int dim = s.tile.head_dim, groups = kv_groups(dim);
  for (int part = 0; part < s.tile.group * groups; ++part) {
    const int first = part % groups * kKvGroup, count = dim - first < kKvGroup ? dim - first : kKvGroup;
    const float* const q = s.q + part / groups * s.dim + first;
    typename S::V most = S::zero(), trouble = S::zero();
    for (int d = 0; d < count; d += kLanes) {
      most = S::max(S::max(S::load(q + d), S::sub(S::zero(), S::load(q + d))), most);
      trouble = S::fma(S::load(q + d), S::zero(), trouble);
    }
    const float top = S::largest(most), inverse = top > kLeastWeight ? kTopQueryByte / top : 0.0f;
    std::int16_t level[kKvGroup] = {};
    for (int d = 0; d < count; d += kLanes) S::store_rounded(level + d, S::mul(S::load(q + d), S::all(inverse)));
    int total = 0;
    std::uint8_t* const bytes = split.q_bytes + part / groups * groups * kKvGroup;
    for (int d = 0; d < kKvGroup; ++d) {
      total += level[d];
      bytes[query_byte(bits, groups, first + d)] = static_cast<std::uint8_t>(level[d]);
    }
    const float scale = (inverse > 0 ? top / kTopQueryByte : 0.0f) + S::sum(trouble);
    split.q_scale[part] = scale, split.q_sum[part] = scale * static_cast<float>(total);
  }
}

/// The scales and minima of a group of 16 entries, a lane for each; `slot`: those of the entries. Lanes from `count` on
/// are of no use.
template <class S>
[[gnu::always_inline]] inline void high_scales(const std::byte* scales, int groups, int g, const std::int32_t* slot,
                                               int count, typename S::V& scale, typename S::V& minimum) {
  const auto* const first = reinterpret_cast<const std::uint8_t*>(scales) + 4 * g;
  const std::uint8_t* const run = first + std::int64_t{slot[0]} * groups * 4;
  const bool in_order = count == kLanes && slot[kLanes - 1] - slot[0] == kLanes - 1;
  if (in_order && groups == 1) return S::template scales_in_order<1>(run, scale, minimum);
  if (in_order && groups == 2) return S::template scales_in_order<2>(run, scale, minimum);
  alignas(64) std::int32_t at[kLanes];
  for (int i = 0; i < kLanes; ++i) at[i] = slot[i] * groups * 4;
  S::scales(first, at, count, scale, minimum);
}

/// Logits of H query heads from `head` on for all entries, by their high rows.
template <class S, int H, int kBits> void high_logits(const DecodeEntries& s, const SplitEntries& split, int head) {
  constexpr CoarseReading read = coarse_reading(kBits);
  const DecodeTile& t = s.tile;
  const int groups = kv_groups(t.head_dim);
  const std::int64_t row_bytes = static_cast<std::int64_t>(high_row_bytes(kBits, t.head_dim)),
                     q_stride = std::int64_t{groups} * kKvGroup;
  const auto* const rows = static_cast<const std::uint8_t*>(t.slot_k);
  const float *const q_scale = split.q_scale + head * groups, *const q_sum = split.q_sum + head * groups;
  const std::uint8_t* const q = split.q_bytes + head * q_stride;
  Coming* const coming = head == 0 ? s.coming : nullptr;
  const std::uintptr_t soon =
      s.share_of_tile(kInHighLogits, 4, s.count * (in_pairs(kBits, groups) ? groups / 2 : groups));
  for (int first = 0; first < s.count; first += kLanes) {
    const std::int32_t* const slot = s.slot + first;
    const int count = s.count - first < kLanes ? s.count - first : kLanes;
    typename S::V logit[H];
    WEFT_UNROLLED (int h = 0; h < H; ++h) logit[h] = S::zero();
    const auto add = [&](int g, const typename S::I(&dot)[H]) __attribute__((always_inline)) {
      typename S::V scale, minimum;
      high_scales<S>(t.scale_k, groups, g, slot, count, scale, minimum);
      minimum = S::fma(scale, S::all(read.offset), minimum);
      scale = S::mul(scale, S::all(read.step));
      WEFT_UNROLLED (int h = 0; h < H; ++h) {
        logit[h] = S::fma(S::to_floats(dot[h]), S::mul(scale, S::all(q_scale[h * groups + g])), logit[h]);
        logit[h] = S::fma(minimum, S::all(q_sum[h * groups + g]), logit[h]);
      }
    };
    const auto add_rows = [&](const auto& of) __attribute__((always_inline)) {
      for (int g = 0; g < groups; ++g) {
        const std::uint8_t* const of_group = q + g * kKvGroup;
        if constexpr (kBits == 4)
          if (in_pairs(kBits, groups)) {
            typename S::I dot[2][H];
            multiply_pair<S, H>(of, g, of_group, q_stride, coming, soon, dot);
            add(g, dot[0]);
            add(++g, dot[1]);
            continue;
          }
        typename S::I dot[H];
        if constexpr (kBits == 4) multiply_halves<S, H>(of, g, of_group, q_stride, coming, soon, dot);
        else multiply_one<S, H, kBits>(of, g, of_group, q_stride, coming, soon, dot);
        add(g, dot);
      }
    };
    const std::uint8_t* const from = rows + slot[0] * row_bytes;
    if (slot[kLanes - 1] - slot[0] == kLanes - 1) add_rows(RowsInOrder{from, row_bytes});
    else add_rows(RowsOfList{rows, row_bytes, slot});
    WEFT_UNROLLED (int h = 0; h < H; ++h) S::store(s.p + (head + h) * s.stride + first, logit[h]);
  }
}

/// Those of all query heads.
template <class S> void all_high_logits(const DecodeEntries& s, const SplitEntries& split) {
  query_bytes<S>(s, split, s.tile.coarse.keys);
  with_bits<S>(s.tile.coarse.keys, [&]<int kBits>() {
    by_heads<S>(s.tile.group, [&]<int H>(int head) { high_logits<S, H, kBits>(s, split, head); });
  });
}

}  // namespace weft::kernels
