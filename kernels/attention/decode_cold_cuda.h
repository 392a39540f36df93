// kernels/attention/decode_cold_cuda.h: decode attention over slots of which the last are cold (KvSlots::cold). The
// fine slots come first, as slots of int8 do; then the cold ones, and their sums are added.
#pragma once

#include <type_traits>

#include "kernels/attention/decode_choice_cuda.h"
#include "kernels/attention/decode_levels_cuda.h"
#include "kernels/attention/decode_team_cuda.h"

namespace weft::kernels::cuda::decode {

/// The coarse rows of one head, keys or values, as find_logits() and weigh_values() take the rows of a Tile.
struct ColdRows {
  const std::uint32_t* words;
  int bits, index, head;
  __device__ CoarseRow key(const DecodeArgs& a, int slot) const {
    return {words + slot * std::int64_t{coarse_words(bits, a.slots.head_dim)}, bits};
  }
  __device__ CoarseRow value(const DecodeArgs& a, int slot) const { return key(a, slot); }
};

/// A head's coarse rows in a KV buffer.
struct ColdPlace {
  std::uint32_t *k = nullptr, *v = nullptr;
  __device__ ColdPlace(const KvSlots& s, std::int64_t at) {
    if (!s.k) return;
    const auto rows = [&](void* all, int bits) {
      return static_cast<std::uint32_t*>(all) + at * s.cold * coarse_words(bits, s.head_dim);
    };
    k = rows(s.cold_k, s.coarse.keys), v = rows(s.cold_v, s.coarse.values);
  }
};

template <> struct Tile<ColdLevels> : Tile<Level<DType::i8>> {
  using Fine = Tile<Level<DType::i8>>;
  ColdPlace cold, cold_home;

  __device__ explicit Tile(const DecodeArgs& a) : Tile(a, Fine::at(a, a.rows[a.first_row + blockIdx.y])) {}
  __device__ Tile(const DecodeArgs& a, std::int64_t place) : Fine(a), cold(a.slots, place), cold_home(a.home, place) {
    const std::int64_t before = place * a.slots.cold;  // slots that are no fine ones
    Fine::k -= before * a.k_row, Fine::v -= before * a.v_row;
    if (home.k) home.k -= before * a.k_row, home.v -= before * a.v_row;
  }
};

/// keep_scores() where a victim may become cold. All threads get the cold slot that a token moves to, or -1; the slot
/// that it leaves is the free one then. move_cold() moves its row when the step has read all rows.
__device__ inline int keep_scores(const DecodeArgs& a, const Tile<ColdLevels>& t, const std::int32_t* position,
                                  const float* p, std::int64_t stride, ChoiceShared& shared) {
  const Keep& keep = t.row.keep;
  const int hot = a.slots.hot();
  const ScannedSlots fine = scan_slots(a, t, position, p, stride, 0, hot, keep.sinks, newest_victim(t.row), shared);
  const ScannedSlots cold = scan_slots(a, t, position, p, stride, hot, a.slots.slots, 0, INT32_MAX, shared);
  Victim gone{0, 0, -1}, cools = gone;
  if (fine.leaves) gone = fine.victim;
  else if (cold.leaves) gone = cold.victim;
  if (!fine.leaves && fine.visible > keep.budget()) cools = fine.victim;
  if (cools.slot >= 0 && gone.slot < 0 && cold.visible >= min(keep.cold, a.slots.cold)) {
    gone = First{}(cools, cold.victim);
    if (gone.slot == cools.slot) cools.slot = -1;
  }
  const int to = cools.slot < 0 ? -1 : gone.slot >= 0 ? gone.slot : cold.empty;
  if (threadIdx.x != 0) return to;
  const std::int32_t free_slot = cools.slot >= 0                     ? cools.slot
                                 : gone.slot >= 0 && gone.slot < hot ? gone.slot
                                 : fine.empty < hot                  ? fine.empty
                                                                     : -1;
  const auto change = [&](const Place<Level<DType::i8>>& of) {
    if (gone.slot >= 0) of.position[gone.slot] = -1;
    *of.free_slot = free_slot;
    if (to < 0) return;
    of.position[to] = cools.position, of.position[cools.slot] = -1;
    if (a.scoring != Scoring::none) of.score[to] = cools.score;
  };
  change(t);
  if (t.home.k) change(t.home);
  if (a.evicted) a.evicted[t.index * a.evicted_stride + t.head] = gone.slot >= 0 ? gone.position : -1;
  return to;
}

/// Moves the row of the token that became cold from the free slot to the cold slot `to`, unless that is -1.
__device__ inline void move_cold(const DecodeArgs& a, const Tile<ColdLevels>& t, int to) {
  if (to < 0) return;
  const KvSlots& s = a.slots;
  const int from = *t.free_slot, keys = coarse_words(s.coarse.keys, s.head_dim),
            values = coarse_words(s.coarse.values, s.head_dim);
  for (int i = threadIdx.x; i < keys + values; i += kThreads) {
    const bool key = i < keys;
    const int word = key ? i : i - keys;
    const std::uint32_t made =
        coarse_word(key ? t.key(a, from) : t.value(a, from), s.head_dim, key ? s.coarse.keys : s.coarse.values, word);
    const std::int64_t at = std::int64_t{to - s.hot()} * (key ? keys : values) + word;
    (key ? t.cold.k : t.cold.v)[at] = made;
    if (t.home.k) (key ? t.cold_home.k : t.cold_home.v)[at] = made;
  }
}

/// The layout of slots whose fine rows lie in FineLayout.
template <class FineLayout> struct ColdTiles;
template <int kRowDim> struct ColdTiles<LevelTiles<Level<DType::i8>, kRowDim>> {
  using T = ColdLevels;
  using Fine = LevelTiles<Level<DType::i8>, kRowDim>;
  using Cold = CoarseTiles<kRowDim>;
  static constexpr int kTeams = Fine::kTeams;
};
template <int kVector, int kLanes, int kSteps> struct ColdTiles<Team<Level<DType::i8>, kVector, kLanes, kSteps>> {
  using T = ColdLevels;
  using Fine = Team<Level<DType::i8>, kVector, kLanes, kSteps>;
  using Cold = Team<CoarseRow, kVector, kLanes, kSteps>;
  static constexpr int kTeams = Fine::kTeams;
};
template <class Layout> inline constexpr bool of_cold = false;
template <class Fine> inline constexpr bool of_cold<ColdTiles<Fine>> = true;
template <class Fine, int kHeads> constexpr int kBlocks<ColdTiles<Fine>, kHeads> = 3;
template <int kHeads>
constexpr int kBlocks<ColdTiles<LevelTiles<Level<DType::i8>, 128>>, kHeads> = 2;  // with 3 ptxas would spill
template <> constexpr int kBlocks<ColdTiles<Team<Level<DType::i8>, 1, 32, 8>>, 1> = 2;

/// See decode_team_cuda.h.
template <class Layout, int kHeads>
requires of_cold<Layout> __device__ void find_logits(const DecodeArgs& a, const Tile<ColdLevels>& t, int head,
                                                     int first, int last, const std::int32_t* position, float* p,
                                                     std::int64_t stride) {
  const int hot = a.slots.hot();
  find_logits<typename Layout::Fine, kHeads>(a, t, head, first, min(last, hot), position, p, stride);
  const ColdRows rows{t.cold.k, a.slots.coarse.keys, t.index, t.head};
  find_logits<typename Layout::Cold, kHeads>(a, rows, head, max(first - hot, 0), last - hot, position + hot, p + hot,
                                             stride);
}

/// See decode_team_cuda.h.
template <class Layout, int kHeads>
requires of_cold<Layout> __device__ void weigh_values(const DecodeArgs& a, const Tile<ColdLevels>& t, int first,
                                                      int last, const std::int32_t* position, const float* p,
                                                      std::int64_t stride, float* shared, float* out,
                                                      std::int64_t out_stride) {
  const int hot = a.slots.hot();
  weigh_values<typename Layout::Fine, kHeads>(a, t, first, min(last, hot), position, p, stride, shared, out,
                                              out_stride);
  const ColdRows rows{t.cold.v, a.slots.coarse.values, t.index, t.head};
  weigh_values<typename Layout::Cold, kHeads, true>(a, rows, max(first - hot, 0), last - hot, position + hot, p + hot,
                                                    stride, shared, out, out_stride);
}

}  // namespace weft::kernels::cuda::decode
