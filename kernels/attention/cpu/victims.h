// kernels/attention/cpu/victims.h: the end of a decode step: it chooses which token leaves the cache and which becomes
// cold, and moves the latter. Over a vector type S (cpu/math.h).
#pragma once

#include "kernels/attention/cpu/slots.h"

namespace weft::kernels {

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

}  // namespace weft::kernels
