// kernels/attention/cpu/slots.h: the part of a decode step that manages slots: it finds the visible ones, writes the
// new token and updates the scores. Over a vector type S (cpu/math.h).
//
// Empty slots are skipped: their contents are never read, and every sum goes over the visible slots alone, in their
// order, however many slots the KV buffer has. The visible slots are nearly always one run that begins with the first.
#pragma once

#include "kernels/attention/cpu/coming.h"
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
  std::uint8_t* q_bytes = nullptr;             // [group, groups of numbers, 128]: its low and high bytes, for cold rows
  float *q_scale = nullptr, *q_sum = nullptr;  // [group, groups of numbers]
  float *sum = nullptr, *minima = nullptr;     // [group, groups of numbers, 64] and 16
  Coming* coming = nullptr;                    // what is prefetched meanwhile
  std::uintptr_t tile_bytes = 0;               // of it, for a tile
  int first_empty = -1, first_cold_empty = -1;
  /// The bytes to prefetch with `some` of `all` entries, if with all of them `share` of 32 parts of a tile are
  /// prefetched.
  [[gnu::always_inline]] std::uintptr_t share_of_tile(int share, int some, int all) const {
    return tile_bytes * static_cast<std::uintptr_t>(share * some) / (32 * static_cast<std::uintptr_t>(all));
  }
};
template <class T> struct DecodeState : DecodeEntries {
  KeyOf<T>* k;
  ValueOf<T>* v;
  std::int64_t k_row = 0, v_row = 0;  // elements of K and V per slot
};

/// 16 places in the compiler's own vectors, as registers of each instruction set.
using Places16 = std::int32_t __attribute__((vector_size(kLanes * sizeof(std::int32_t))));
inline constexpr Places16 kFirstPlaces = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/// Adds the visible slots from `begin` to before `end`. `slot`: where the next one is listed, or null. Returns the
/// first empty one, or -1.
template <class S> int list_slots(DecodeEntries& s, int begin, int end, std::int32_t* slot_of) {
  const DecodeTile& t = s.tile;
  const int before = s.count;
  int count = before, empty = -1, runs = s.runs, run_end = -1;
  const auto extend = [&](int slot, int slots) {
    if (run_end == slot && slot != t.alike) s.run[runs - 1].count += slots;
    else s.run[runs++] = {slot, slots};
    run_end = slot + slots;
  };
  for (int first = begin; first < end; first += kLanes) {
    const int lanes = end - first < kLanes ? end - first : kLanes;
    if (lanes == kLanes && !S::any_negative(t.position + first)) {
      __builtin_memcpy(s.place + count, t.position + first, sizeof(Places16));
      if (slot_of) {
        const Places16 slots = kFirstPlaces + first;
        __builtin_memcpy(slot_of + (count - before), &slots, sizeof slots);
      }
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

/// A new row less its mean, in the memory of the sums.
template <class S> const float* less_mean(const DecodeEntries& s, const float* row, const float* mean) {
  for (int d = 0; d < s.tile.head_dim; d += kLanes) {
    const int lanes = s.tile.head_dim - d < kLanes ? s.tile.head_dim - d : kLanes;
    store_some<S>(s.sum + d, S::sub(load_some<S>(row + d, lanes), load_some<S>(mean + d, lanes)), lanes);
  }
  return s.sum;
}

/// Rounds the new key and value into the free slot.
template <class S, class T> void write_token(const DecodeState<T>& s) {
  const DecodeTile& t = s.tile;
  const std::int32_t slot = *t.free_slot;
  KeyOf<T>* const k = s.k + slot * s.k_row;
  ValueOf<T>* const v = s.v + slot * s.v_row;
  if constexpr (is_level<T>) {
    const float* const mean = t.mean;
    quantise_row<S>(mean ? less_mean<S>(s, t.k, mean) : t.k, t.head_dim, KeyOf<T>::kType,
                    reinterpret_cast<std::byte*>(k));
    quantise_row<S>(mean ? less_mean<S>(s, t.v, mean + t.head_dim) : t.v, t.head_dim, ValueOf<T>::kType,
                    reinterpret_cast<std::byte*>(v));
  } else {
    for (int d = 0; d < t.head_dim; d += kLanes) {
      const int lanes = t.head_dim - d < kLanes ? t.head_dim - d : kLanes;
      store_some<S>(k + d, load_some<S>(t.k + d, lanes), lanes);
      store_some<S>(v + d, load_some<S>(t.v + d, lanes), lanes);
    }
  }
  place_token<S>(t);
}

/// The row of a tile with which a run of slots begins. No run has slots before and after t.alike.
inline std::int64_t first_row(const DecodeTile& t, std::int64_t slot) {
  return slot < t.alike ? slot + t.alike_at : slot;
}

/// The slot of an entry.
template <class S> int slot_of(const DecodeEntries& s, int entry) {
  int r = 0;
  for (; entry >= s.run[r].count; ++r) entry -= s.run[r].count;
  return s.run[r].first + entry;
}

}  // namespace weft::kernels
