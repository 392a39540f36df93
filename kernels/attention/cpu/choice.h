// kernels/attention/cpu/choice.h: the choice of the entries that a step over split slots (KvSlots::split) reads with
// all their bits (Keep::read). Over a vector type S (cpu/math.h).
#pragma once

#include "kernels/attention/cpu/attend.h"

namespace weft::kernels {

/// The further state of a step over split slots.
struct SplitEntries {
  float* weight = nullptr;         // [group, entries]: logits of the chosen entries, then their probabilities
  std::int32_t* chosen = nullptr;  // [entries]: those that are read with all their bits, ascending
  // [group, groups of numbers]: of the query in 8 bits its scale and sum; [.., 64]: its bytes, and sums of values
  float *q_scale = nullptr, *q_sum = nullptr, *sum = nullptr;
  std::uint8_t* q_bytes = nullptr;
  float *scale = nullptr, *middle = nullptr;  // [entries]: of a group of numbers of values, its scales and middles
  std::uint8_t* weight_bytes = nullptr;       // [group, entries]: weights of these numbers
  std::uint8_t* rows = nullptr;               // [kRowsAtOnce] rows of int8, and room for a group of numbers
  int count = 0;                              // of `chosen`
};

/// Lays them out from `at` on.
template <class S> SplitEntries lay_out_split(const DecodeEntries& s, float* at) {
  const std::int64_t groups = std::int64_t{s.tile.group} * kv_groups(s.tile.head_dim);
  SplitEntries split;
  split.weight = at;
  split.chosen = reinterpret_cast<std::int32_t*>(split.weight + s.tile.group * s.stride);
  split.scale = reinterpret_cast<float*>(split.chosen + s.stride);
  split.middle = split.scale + s.stride;
  split.sum = split.middle + s.stride;
  split.q_scale = split.sum + groups * kKvGroup;
  split.q_sum = split.q_scale + groups;
  split.q_bytes = reinterpret_cast<std::uint8_t*>(split.q_sum + groups);
  split.weight_bytes = split.q_bytes + groups * kKvGroup;
  split.rows = split.weight_bytes + s.tile.group * s.stride;
  return split;
}

/// s.value = the share of each entry, summed over the query heads: of the logits in s.p, or of given probabilities. The
/// entries that are read whatever their share have more than any share. `work` [entries].
template <class S> void find_shares(const DecodeEntries& s, float* work) {
  constexpr float of_sink = 1e38f;
  const DecodeTile& t = s.tile;
  for (int g = 0; g < t.group; ++g) {
    const float* p = s.p + g * s.stride;
    if (!t.probabilities) {
      softmax<S>(p, work, s.count, t.sink_logits ? t.sink_logits + g : nullptr);
      p = work;
    }
    for (int i = 0; i < s.count; i += kLanes)
      S::store(s.value + i, g == 0 ? S::load(p + i) : S::add(S::load(s.value + i), S::load(p + i)));
  }
  const std::int32_t newest = t.token - t.keep.read_newest();  // the last that has to be chosen
  for (int i = 0; i < s.count; i += kLanes) {
    const typename S::V share = S::max(S::load(s.value + i), S::zero());  // 0 for what is not a number
    const typename S::V not_sinks = S::between(share, s.place + i, t.keep.sinks, INT32_MAX, of_sink);
    const typename S::V all = S::between(not_sinks, s.place + i, INT32_MIN, newest, __builtin_inff());
    S::store(s.value + i, S::first(all, s.count - i < kLanes ? s.count - i : kLanes, -1.0f));
  }
}

template <class S> int shares_from(const DecodeEntries& s, float least) {
  int count = 0;
  for (int i = 0; i < s.count; i += kLanes) count += __builtin_popcount(S::lanes_from(S::load(s.value + i), least));
  return count;
}

/// The last position of those that are chosen, if of the entries with this share only the `wanted` oldest are.
template <class S> std::int32_t last_of_equals(const DecodeEntries& s, float share, int wanted) {
  std::int32_t low = -1, high = s.tile.token;  // fewer than `wanted` are at most at low, and enough at most at high
  while (high - low > 1) {
    const std::int32_t middle = low + (high - low) / 2;
    int count = 0;
    for (int i = 0; i < s.count; ++i) count += s.value[i] == share && s.place[i] <= middle ? 1 : 0;
    if (count >= wanted) high = middle;
    else low = middle;
  }
  return high;
}

/// Chooses `wanted` entries, fewer than there are, by s.value.
template <class S> void choose_largest(const DecodeEntries& s, SplitEntries& split, int wanted) {
  // Shares are not negative, so their bits have their order: at least `wanted` entries have the share `low` or more.
  std::uint32_t low = 0, high = __builtin_bit_cast(std::uint32_t, __builtin_inff()) + 1;
  int from_low = s.count, from_high = 0;
  while (high - low > 1 && from_low != wanted) {
    const std::uint32_t middle = low + (high - low) / 2;
    const int count = shares_from<S>(s, __builtin_bit_cast(float, middle));
    if (count >= wanted) low = middle, from_low = count;
    else high = middle, from_high = count;
  }
  const float least = __builtin_bit_cast(float, low);
  const std::int32_t last = from_low == wanted ? INT32_MAX : last_of_equals<S>(s, least, wanted - from_high);
  int count = 0;
  for (int first = 0; first < s.count; first += kLanes)
    for (unsigned lanes = S::lanes_from(S::load(s.value + first), least); lanes != 0; lanes &= lanes - 1) {
      const int i = first + __builtin_ctz(lanes);
      if (s.value[i] > least || s.place[i] <= last) split.chosen[count++] = i;
    }
  split.count = count;
}

/// Whether a step reads all entries with all their bits.
template <class S> bool reads_all(const DecodeEntries& s) {
  return s.tile.keep.read == 0 || s.tile.keep.read >= s.count;
}

/// Chooses the entries, of those whose logits by coarse rows are in s.p, or whose probabilities are given.
template <class S> void choose_entries(const DecodeEntries& s, SplitEntries& split) {
  if (reads_all<S>(s)) {
    for (int i = 0; i < s.count; ++i) split.chosen[i] = i;
    split.count = s.count;
    return;
  }
  find_shares<S>(s, split.weight);
  choose_largest<S>(s, split, s.tile.keep.read);
}

}  // namespace weft::kernels
