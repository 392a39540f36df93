// kernels/attention/cpu/choice.h: the choice of the entries that a step over split slots (KvSlots::split) reads with
// all their bits (Keep::read). Over a vector type S (cpu/math.h).
#pragma once

#include "kernels/attention/cpu/attend.h"

namespace weft::kernels {

/// Shares of a tile's bytes, in 32nds, that are prefetched in each part of a step over split slots: memory is to be
/// busy all the time, so they go by what a part takes, less what it gathers.
constexpr int kInHighLogits = 10, kInShares = 1, kInMarks = 2, kInChoice = 2, kInFineLogits = 1, kInSoftmax = 2,
              kInHighScales = 3, kInHighValues = 4, kInFineValues = 7;
static_assert(kInHighLogits + kInShares + kInMarks + kInChoice + kInFineLogits + kInSoftmax + kInHighScales +
                  kInHighValues + kInFineValues ==
              32);

/// The further state of a step over split slots.
struct SplitEntries {
  float* weight = nullptr;         // [group, entries]: logits of the chosen entries, then their probabilities
  std::int32_t* chosen = nullptr;  // [entries]: those that are read with all their bits, ascending
  // [group, groups of numbers]: of the query in 8 bits its scale and sum; [.., 64]: its bytes, and sums of values
  float *q_scale = nullptr, *q_sum = nullptr, *sum = nullptr;
  std::uint8_t* q_bytes = nullptr;
  std::int16_t* q_words = nullptr;            // [group, groups of numbers, 64]: the query in 16 bits, by order_words()
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
  split.q_words = reinterpret_cast<std::int16_t*>(s.q_bytes);  // which only cold rows take
  split.weight_bytes = split.q_bytes + groups * kKvGroup;
  split.rows = split.weight_bytes + s.tile.group * s.stride;
  return split;
}

/// s.value = the share of each entry, summed over the query heads: of the logits in s.p, or of given probabilities. The
/// entries that are read whatever their share have more than any share. `work` [entries]. Returns the largest share.
template <class S> float find_shares(const DecodeEntries& s, float* work) {
  constexpr float of_sink = 1e38f;
  const DecodeTile& t = s.tile;
  for (int g = 0; g < t.group; ++g) {
    float* const made = g == 0 ? s.value : work;
    if (!t.probabilities)
      softmax<S>(s.p + g * s.stride, made, s.count, t.sink_logits ? t.sink_logits + g : nullptr, s.coming,
                 s.share_of_tile(kInShares, kLanes, s.count * t.group));
    const float* const share = t.probabilities ? s.p + g * s.stride : made;
    for (int i = 0; share != s.value && i < s.count; i += kLanes)
      S::store(s.value + i, g == 0 ? S::load(share + i) : S::add(S::load(s.value + i), S::load(share + i)));
  }
  const std::int32_t newest = t.token - t.keep.read_newest();  // the last that has to be chosen
  const std::uintptr_t soon = s.share_of_tile(kInMarks, kLanes, s.count);
  typename S::V most = S::zero();
  for (int i = 0; i < s.count; i += kLanes) {
    const typename S::V share = S::max(S::load(s.value + i), S::zero());  // 0 for what is not a number
    most = S::max(share, most);
    s.coming->go_on(soon);
    const typename S::V not_sinks = S::between(share, s.place + i, t.keep.sinks, INT32_MAX, of_sink);
    const typename S::V all = S::between(not_sinks, s.place + i, INT32_MIN, newest, __builtin_inff());
    S::store(s.value + i, S::first(all, s.count - i < kLanes ? s.count - i : kLanes, -1.0f));
  }
  return S::largest(most);
}

/// The number of those of `count` shares, whole vectors of them, that are at least `least`.
template <class S> int shares_from(const float* share, int count, float least) {
  int found = 0;
  for (int i = 0; i < count; i += kLanes) found += __builtin_popcount(S::lanes_from(S::load(share + i), least));
  return found;
}

namespace {  // compiled for each instruction set, and never shared between them

/// A bound of the chosen shares. Shares are not negative, so their bits have their order.
struct ShareBound {
  std::uint32_t bits;
  int count;  // of the entries with this share or more
  float share() const { return __builtin_bit_cast(float, bits); }
};
/// The bounds between which the smallest chosen share is: at least `wanted` entries have `low` or more, and fewer have
/// `high` or more.
struct ChoiceRange {
  ShareBound low, high;
  int wanted;
  bool found() const { return low.count == wanted || high.bits - low.bits <= 1; }
  void narrow(ShareBound by) {
    if (by.count >= wanted) low = by;
    else high = by;
  }
  std::uint32_t middle() const { return low.bits + (high.bits - low.bits) / 2; }
};

}  // namespace

/// The last position of those that are chosen, if of `count` entries only the `wanted` oldest are.
template <class S> std::int32_t last_of_oldest(const std::int32_t* place, int count, int wanted, std::int32_t newest) {
  std::int32_t low = -1, high = newest;  // fewer than `wanted` are at most at low, and enough at most at high
  while (high - low > 1) {
    const std::int32_t middle = low + (high - low) / 2;
    int found = 0;
    for (int i = 0; i < count; ++i) found += place[i] <= middle ? 1 : 0;
    if (found >= wanted) high = middle;
    else low = middle;
  }
  return high;
}

/// list = the entries whose share is at least `low` and not at least `high`, as none is if that is no number. Returns
/// how many they are.
template <class S> int list_shares(const DecodeEntries& s, float low, float high, std::int32_t* list) {
  int count = 0;
  for (int first = 0; first < s.count; first += kLanes) {
    const typename S::V share = S::load(s.value + first);
    const unsigned lanes = S::lanes_from(share, low) & ~S::lanes_from(share, high);
    S::store_lanes(list + count, first, lanes);
    count += __builtin_popcount(lanes);
  }
  return count;
}

/// Chooses `wanted` entries, fewer than there are, by s.value. `largest`: the largest share. `work` [entries].
template <class S>
void choose_largest(const DecodeEntries& s, SplitEntries& split, int wanted, float largest, float* work) {
  constexpr int few = 4 * kLanes;  // that are looked at alone
  constexpr std::uint32_t above_all = __builtin_bit_cast(std::uint32_t, __builtin_inff()) + 1;
  ChoiceRange bounds{{0, s.count}, {above_all, 0}, wanted};
  const std::uintptr_t soon = s.share_of_tile(kInChoice, 1, 12);  // it takes about as many rounds
  const auto narrow = [&](std::uint32_t bits) {
    s.coming->go_on(soon);
    bounds.narrow({bits, shares_from<S>(s.value, s.count, __builtin_bit_cast(float, bits))});
  };
  const auto most = __builtin_bit_cast(std::uint32_t, largest);
  constexpr std::uint32_t eighth = 3u << 23;  // in bits; most of what is chosen seldom has less
  narrow(most + 1);
  if (!bounds.found() && most > eighth) narrow(most - eighth);
  while (!bounds.found() && bounds.low.count - bounds.high.count > few) narrow(bounds.middle());
  if (!bounds.found()) {
    const int above = bounds.high.count;
    const int between = list_shares<S>(s, bounds.low.share(), bounds.high.share(), split.chosen);
    for (int i = 0; i < between; ++i) work[i] = s.value[split.chosen[i]];
    for (int i = between; i < whole_vectors(between); ++i) work[i] = -1;
    while (!bounds.found()) {
      const std::uint32_t middle = bounds.middle();
      bounds.narrow({middle, above + shares_from<S>(work, between, __builtin_bit_cast(float, middle))});
    }
  }
  const float least = bounds.low.share();
  split.count = list_shares<S>(s, least, __builtin_nanf(""), split.chosen);
  if (split.count == wanted) return;
  // Of those with the least share only the oldest are chosen.
  auto* const place = reinterpret_cast<std::int32_t*>(work);
  int equal = 0;
  for (int i = 0; i < split.count; ++i)
    if (s.value[split.chosen[i]] == least) place[equal++] = s.place[split.chosen[i]];
  const std::int32_t last = last_of_oldest<S>(place, equal, wanted - (split.count - equal), s.tile.token);
  int count = 0;
  for (int i = 0; i < split.count; ++i)
    if (const int entry = split.chosen[i]; s.value[entry] > least || s.place[entry] <= last)
      split.chosen[count++] = entry;
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
  const float largest = find_shares<S>(s, split.weight);
  choose_largest<S>(s, split, s.tile.keep.read, largest, split.weight);
}

}  // namespace weft::kernels
