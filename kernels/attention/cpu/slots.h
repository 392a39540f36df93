// kernels/attention/cpu/slots.h: the part of a decode step that manages slots: it finds the visible ones, writes the
// new token, updates the scores and chooses the victim. Over a vector type S (cpu/math.h).
//
// Empty slots are skipped: their contents are never read, and every sum goes over the visible slots alone, in their
// order, however many slots the KV buffer has. The visible slots are nearly always one run that begins with the first.
#pragma once

#include "kernels/attention/cpu/keys.h"
#include "kernels/attention/cpu/math.h"
#include "kernels/attention/cpu/quantise.h"

namespace weft::kernels {

/// Consecutive visible slots.
struct SlotRun {
  std::int32_t first, count;
};

/// The state that the parts of one decode tile share, whatever the type of its slots. Entries are the visible slots in
/// order; lists hold whole vectors.
struct DecodeEntries {
  const DecodeTile& tile;
  float* q = nullptr;                // [group, dim], scaled
  float* p = nullptr;                // [group, entries]: logits, then probabilities
  float* value = nullptr;            // [entries]: scores, for the choice of the victim
  std::int32_t* place = nullptr;     // [entries]: the position
  SlotRun* run = nullptr;            // [entries / 2]
  std::int64_t dim = 0, stride = 0;  // row strides of q and of p
  int runs = 0, count = 0;           // visible slots
  // Only for slots of int8 and int4 (cpu/levels.h), else null:
  std::int32_t* slot = nullptr;                // [entries]: the slot, then that of the last up to a whole vector
  std::int16_t* q_words = nullptr;             // [group, groups of numbers, 64]: the query in 16 bits
  float *q_scale = nullptr, *q_sum = nullptr;  // [group, groups of numbers]
  float *sum = nullptr, *minima = nullptr;     // [group, groups of numbers, 64] and 16
  int first_empty = -1;
};
template <class T> struct DecodeState : DecodeEntries {
  KeyOf<T>* k;
  ValueOf<T>* v;
  std::int64_t k_row = 0, v_row = 0;  // elements of K and V per slot
};

/// Finds the visible slots, the new token among them.
template <class S> void list_entries(DecodeEntries& s) {
  const DecodeTile& t = s.tile;
  int count = 0, empty = -1, runs = 0, run_end = -1;
  const auto extend = [&](int slot, int slots) {
    if (run_end == slot) s.run[runs - 1].count += slots;
    else s.run[runs++] = {slot, slots};
    run_end = slot + slots;
  };
  for (int first = 0; first < t.slots; first += kLanes) {
    const int lanes = t.slots - first < kLanes ? t.slots - first : kLanes;
    if (lanes == kLanes && !S::any_negative(t.position + first)) {
      WEFT_UNROLLED (int i = 0; i < kLanes; ++i) s.place[count + i] = t.position[first + i];
      if (s.slot)
        WEFT_UNROLLED (int i = 0; i < kLanes; ++i) s.slot[count + i] = first + i;
      extend(first, kLanes);
      count += kLanes;
      continue;
    }
    for (int slot = first; slot < first + lanes; ++slot)
      if (t.position[slot] >= 0) {
        if (s.slot) s.slot[count] = slot;
        s.place[count++] = t.position[slot];
        extend(slot, 1);
      } else if (empty < 0) {
        empty = slot;
      }
  }
  if (s.slot)  // the new token is visible
    for (int i = count; i < whole_vectors(count); ++i) s.slot[i] = s.slot[count - 1];
  s.count = count;
  s.runs = runs;
  s.first_empty = empty;
}

/// score = decay * score + the probabilities of the group, or the largest of these. The new scores are also left in
/// s.value.
template <class S, Statistic kStatistic> void add_to_scores(const DecodeEntries& s) {
  const DecodeTile& t = s.tile;
  int entry = 0;
  for (int r = 0; r < s.runs; ++r)
    for (int first = 0; first < s.run[r].count; first += kLanes) {
      const int left = s.run[r].count - first, lanes = left < kLanes ? left : kLanes;
      typename S::V score = S::zero();
      if (t.score) score = load_some<S>(t.score + s.run[r].first + first, lanes);
      if (t.scoring == Scoring::attention) {
        typename S::V got = S::load(s.p + entry);
        for (int g = 1; g < t.group; ++g) {
          const typename S::V p = S::load(s.p + g * s.stride + entry);
          if constexpr (kStatistic == Statistic::largest) got = S::max(got, p);
          else got = S::add(got, p);
        }
        if constexpr (kStatistic == Statistic::largest) score = S::max(S::mul(S::all(t.decay), score), got);
        else score = S::fma(S::all(t.decay), score, got);
        store_some<S>(t.score + s.run[r].first + first, score, lanes);
      }
      S::store(s.value + entry, score);
      entry += lanes;
    }
}

/// The entry of the token that leaves the window, if there is one; else, if there are more tokens than the budget, of
/// the candidate with the lowest score, the oldest among equal ones; else -1. A score that is not a number is never
/// lowest.
template <class S> int choose_victim(const DecodeEntries& s) {
  const DecodeTile& t = s.tile;
  const std::int32_t seen_from = t.keep.seen_from(t.token + 1);
  for (int i = 0; seen_from > 0 && i < s.count; ++i)
    if (s.place[i] < seen_from) return i;
  if (s.count <= t.keep.budget()) return -1;
  const std::int64_t newest = std::int64_t{t.token} - t.keep.recent - t.keep.grace;
  const std::int32_t low = t.keep.sinks, high = newest < 0 ? -1 : static_cast<std::int32_t>(newest);
  const float infinity = __builtin_inff();
  typename S::V least = S::all(infinity);
  for (int first = 0; first < s.count; first += kLanes) {
    const int lanes = s.count - first < kLanes ? s.count - first : kLanes;
    const typename S::V score = S::between(S::load(s.value + first), s.place + first, low, high, infinity);
    S::store(s.value + first, S::first(score, lanes, infinity));
    least = S::min(S::load(s.value + first), least);
  }
  const float lowest = S::smallest(least);
  int victim = -1;
  for (int first = 0; first < s.count; first += kLanes) {
    if (!S::any_equal(S::load(s.value + first), lowest)) continue;
    for (int i = first; i < s.count && i < first + kLanes; ++i) {
      if (s.value[i] != lowest || s.place[i] < low || s.place[i] > high) continue;
      if (victim < 0 || s.place[i] < s.place[victim]) victim = i;
    }
  }
  if (victim >= 0) return victim;
  for (int i = 0; i < s.count; ++i) {  // no candidate's score is a number
    if (s.place[i] < low || s.place[i] > high) continue;
    if (victim < 0 || s.place[i] < s.place[victim]) victim = i;
  }
  return victim;
}

/// Marks the free slot as the new token's, with its score.
template <class S> void place_token(const DecodeTile& t) {
  const std::int32_t slot = *t.free_slot;
  t.position[slot] = t.token;
  if (t.scoring == Scoring::keys) {
    add_unit<S>(t.k, t.head_dim, t.key_sum);
    t.score[slot] = key_score<S>(t.k, t.head_dim, t.key_sum);
  } else if (t.score) {
    t.score[slot] = t.new_score;
  }
}

/// Rounds the new key and value into the free slot.
template <class S, class T> void write_token(const DecodeState<T>& s) {
  const DecodeTile& t = s.tile;
  const std::int32_t slot = *t.free_slot;
  KeyOf<T>* const k = s.k + slot * s.k_row;
  ValueOf<T>* const v = s.v + slot * s.v_row;
  if constexpr (is_level<T>) {
    quantise_row<S>(t.k, t.head_dim, KeyOf<T>::kType, reinterpret_cast<std::byte*>(k));
    quantise_row<S>(t.v, t.head_dim, ValueOf<T>::kType, reinterpret_cast<std::byte*>(v));
  } else {
    for (int d = 0; d < t.head_dim; d += kLanes) {
      const int lanes = t.head_dim - d < kLanes ? t.head_dim - d : kLanes;
      store_some<S>(k + d, load_some<S>(t.k + d, lanes), lanes);
      store_some<S>(v + d, load_some<S>(t.v + d, lanes), lanes);
    }
  }
  place_token<S>(t);
}

/// The slot of an entry.
template <class S> int slot_of(const DecodeEntries& s, int entry) {
  int r = 0;
  for (; entry >= s.run[r].count; ++r) entry -= s.run[r].count;
  return s.run[r].first + entry;
}

}  // namespace weft::kernels
