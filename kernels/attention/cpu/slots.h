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
  int fine = 0;                      // those of them that are not cold; they come first
  // Only for slots of int8 and int4 (cpu/levels.h), else null:
  std::int32_t* slot = nullptr;  // [entries]: slots of fine rows, then the last again up to a whole vector; so of cold
  std::int16_t* q_words = nullptr;             // [group, groups of numbers, 64]: the query in 16 bits
  float *q_scale = nullptr, *q_sum = nullptr;  // [group, groups of numbers]
  float *sum = nullptr, *minima = nullptr;     // [group, groups of numbers, 64] and 16
  int first_empty = -1, first_cold_empty = -1;
};
template <class T> struct DecodeState : DecodeEntries {
  KeyOf<T>* k;
  ValueOf<T>* v;
  std::int64_t k_row = 0, v_row = 0;  // elements of K and V per slot
};

/// Adds the visible slots from `begin` to before `end`. `slot`: where the next one is listed, or null. Returns the
/// first empty one, or -1.
template <class S> int list_slots(DecodeEntries& s, int begin, int end, std::int32_t* slot_of) {
  const DecodeTile& t = s.tile;
  const int before = s.count;
  int count = before, empty = -1, runs = s.runs, run_end = -1;
  const auto extend = [&](int slot, int slots) {
    if (run_end == slot) s.run[runs - 1].count += slots;
    else s.run[runs++] = {slot, slots};
    run_end = slot + slots;
  };
  for (int first = begin; first < end; first += kLanes) {
    const int lanes = end - first < kLanes ? end - first : kLanes;
    if (lanes == kLanes && !S::any_negative(t.position + first)) {
      WEFT_UNROLLED (int i = 0; i < kLanes; ++i) s.place[count + i] = t.position[first + i];
      if (slot_of)
        WEFT_UNROLLED (int i = 0; i < kLanes; ++i) slot_of[count - before + i] = first + i;
      extend(first, kLanes);
      count += kLanes;
      continue;
    }
    for (int slot = first; slot < first + lanes; ++slot)
      if (t.position[slot] >= 0) {
        if (slot_of) slot_of[count - before] = slot;
        s.place[count++] = t.position[slot];
        extend(slot, 1);
      } else if (empty < 0) {
        empty = slot;
      }
  }
  if (slot_of && count > before)
    for (int i = count - before; i < whole_vectors(count - before); ++i) slot_of[i] = slot_of[count - before - 1];
  s.count = count;
  s.runs = runs;
  return empty;
}

/// The list of the cold slots, behind that of the others.
template <class S> std::int32_t* cold_slots(const DecodeEntries& s) {
  return s.slot ? s.slot + whole_vectors(s.fine) : nullptr;
}

/// Finds the visible slots, the new token among them.
template <class S> void list_entries(DecodeEntries& s) {
  s.first_empty = list_slots<S>(s, 0, s.tile.hot, s.slot);
  s.fine = s.count;
  if (s.tile.hot < s.tile.slots) s.first_cold_empty = list_slots<S>(s, s.tile.hot, s.tile.slots, cold_slots<S>(s));
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

/// The entry with the lowest score from `begin` to before `end` at a position from `low` to `high`, the oldest among
/// equal ones; -1 if there is none. A score that is not a number is never lowest.
template <class S> int lowest(const DecodeEntries& s, int begin, int end, std::int32_t low, std::int32_t high) {
  const float infinity = __builtin_inff();
  typename S::V least = S::all(infinity);
  for (int first = begin; first < end; first += kLanes) {
    const int lanes = end - first < kLanes ? end - first : kLanes;
    const typename S::V inside = S::between(S::load(s.value + first), s.place + first, low, high, infinity);
    const typename S::V score = S::first(inside, lanes, infinity);
    store_some<S>(s.value + first, score, lanes);
    least = S::min(score, least);
  }
  const float smallest = S::smallest(least);
  int found = -1;
  for (int first = begin; first < end; first += kLanes) {
    if (!S::any_equal(S::load(s.value + first), smallest)) continue;
    for (int i = first; i < end && i < first + kLanes; ++i) {
      if (s.value[i] != smallest || s.place[i] < low || s.place[i] > high) continue;
      if (found < 0 || s.place[i] < s.place[found]) found = i;
    }
  }
  if (found >= 0) return found;
  for (int i = begin; i < end; ++i) {  // no candidate's score is a number
    if (s.place[i] < low || s.place[i] > high) continue;
    if (found < 0 || s.place[i] < s.place[found]) found = i;
  }
  return found;
}

/// The entries that a step takes from their slots, or -1: the one that leaves the cache, and the one that becomes cold.
struct Leaving {
  int gone = -1, cools = -1;
};

/// Whether entry a goes before entry b.
template <class S> bool goes_before(const DecodeEntries& s, int a, int b) {
  if (s.value[a] == s.value[b]) return s.place[a] < s.place[b];
  return s.value[a] < s.value[b] || s.value[b] != s.value[b];
}

/// Chooses them, as Keep says.
template <class S> Leaving choose_victims(const DecodeEntries& s) {
  const DecodeTile& t = s.tile;
  Leaving leaving;
  const std::int32_t seen_from = t.keep.seen_from(t.token + 1);
  for (int i = 0; seen_from > 0 && i < s.count && leaving.gone < 0; ++i)
    if (s.place[i] < seen_from) leaving.gone = i;
  const int fine = s.fine - (leaving.gone >= 0 && leaving.gone < s.fine ? 1 : 0);
  if (fine <= t.keep.budget()) return leaving;
  const std::int64_t newest = std::int64_t{t.token} - t.keep.recent - t.keep.grace;
  leaving.cools = lowest<S>(s, 0, s.fine, t.keep.sinks, newest < 0 ? -1 : static_cast<std::int32_t>(newest));
  const int most = t.keep.cold < t.slots - t.hot ? t.keep.cold : t.slots - t.hot;
  if (leaving.cools < 0 || leaving.gone >= 0 || s.count - s.fine < most) return leaving;
  leaving.gone = s.count > s.fine ? lowest<S>(s, s.fine, s.count, 0, INT32_MAX) : leaving.cools;
  if (goes_before<S>(s, leaving.cools, leaving.gone)) leaving.gone = leaving.cools;
  if (leaving.gone == leaving.cools) leaving.cools = -1;
  return leaving;
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

/// Moves a token from its slot to the cold slot `to`, and leaves the former empty.
template <class S> void cool(const DecodeTile& t, int from, int to) {
  const auto coarsen_row = [&](void* fine, int bits, std::byte* cold) {
    coarsen(static_cast<std::byte*>(fine) + static_cast<std::size_t>(from) * kv_row_bytes(DType::i8, t.head_dim),
            t.head_dim, bits, cold + static_cast<std::size_t>(to - t.hot) * coarse_row_bytes(bits, t.head_dim));
  };
  coarsen_row(t.slot_k, t.coarse.keys, t.cold_k);
  coarsen_row(t.slot_v, t.coarse.values, t.cold_v);
  t.position[to] = t.position[from], t.position[from] = -1;
  if (t.score) t.score[to] = t.score[from];
  if (t.cooled) *t.cooled = to - t.hot;
}

/// The slot of an entry.
template <class S> int slot_of(const DecodeEntries& s, int entry) {
  int r = 0;
  for (; entry >= s.run[r].count; ++r) entry -= s.run[r].count;
  return s.run[r].first + entry;
}

}  // namespace weft::kernels
