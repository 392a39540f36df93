// kernels/attention/cpu/decode.h: one decode step of one row and KV head over fixed slots, over a vector type S
// (cpu/math.h).
#pragma once

#include "kernels/attention/cpu/attend.h"
#include "kernels/attention/cpu/levels.h"
#include "kernels/attention/cpu/rest.h"
#include "kernels/attention/cpu/split.h"
#include "kernels/attention/cpu/victims.h"

namespace weft::kernels {

template <class S> void scale_queries(const DecodeEntries& s) {
  const DecodeTile& t = s.tile;
  for (int g = 0; g < t.group; ++g)
    for (int d = 0; d < t.head_dim; d += kLanes) {
      const int lanes = t.head_dim - d < kLanes ? t.head_dim - d : kLanes;
      S::store(s.q + g * s.dim + d, S::mul(load_some<S>(t.q + g * t.head_dim + d, lanes), S::all(t.scale)));
    }
}

template <class S, DType kType> void quantise_queries(const DecodeEntries& s) {
  const int groups = kv_groups(s.tile.head_dim);
  for (int i = 0; i < s.tile.group * groups; ++i)
    quantise_query<S, kType>(s.q + i / groups * s.dim, s.tile.head_dim, i % groups * kKvGroup, s.q_words + i * kKvGroup,
                             s.q_scale + i, s.q_sum + i);
}

template <class S, class T> void find_logits(const DecodeState<T>& s) {
  const DecodeTile& t = s.tile;
  scale_queries<S>(s);
  if constexpr (is_level<T>) quantise_queries<S, KeyOf<T>::kType>(s);
  by_heads<S, !is_level<T>>(t.group, [&]<int H>(int head) { logits<S, H>(s, head); });
  if constexpr (is_level<T>)
    if (s.count > s.fine) cold_logits<S>(s);
}

/// Prefetches the memory that the next tile touches first.
template <class S> [[gnu::always_inline]] inline void prefetch_tile(const DecodeTile& t) {
  constexpr std::uintptr_t most = 512;  // the processor fetches the rest by itself
  const auto bytes = static_cast<std::uintptr_t>(t.slots) * sizeof(float);
  for (std::uintptr_t i = 0; i < bytes && i < most; i += kLine) {
    __builtin_prefetch(reinterpret_cast<const char*>(t.position) + i, 1);
    if (t.score) __builtin_prefetch(reinterpret_cast<const char*>(t.score) + i, 1);
  }
  const auto prefetch_row = [&t](const void* rows, DType type, int bits) {
    const std::size_t of_row = t.low_k ? high_row_bytes(bits, t.head_dim) : kv_row_bytes(type, t.head_dim);
    const auto row_bytes = static_cast<std::int64_t>(of_row), row = *t.free_slot * row_bytes;
    for (std::int64_t i = row; i < row + row_bytes; i += kLine)
      __builtin_prefetch(static_cast<const char*>(rows) + i, 1);
  };
  prefetch_row(t.slot_k, t.key_type, t.coarse.keys);
  prefetch_row(t.slot_v, t.dtype, t.coarse.values);
  __builtin_prefetch(t.position + *t.free_slot, 1);
}

constexpr std::size_t kLevelsAhead = 16384;  ///< bytes that are prefetched of the next tile's rows
constexpr std::size_t kSplitAhead = 49152;   ///< more, as choosing and the sums of values read less than others

/// Adds what a step of `fine` and `cold` visible slots reads of a tile. Returns the bytes of its first arrays, which
/// are not rows.
template <class S> std::size_t add_tile(Coming& coming, const DecodeTile& t, std::size_t fine, std::size_t cold) {
  std::size_t first = 0;
  const auto add_numbers = [&](const void* numbers) {
    if (!numbers) return;
    coming.add(numbers, fine * 4);
    coming.add(static_cast<const std::int32_t*>(numbers) + t.hot, cold * 4);
    first += (fine + cold) * 4;
  };
  add_numbers(t.position);
  add_numbers(t.score);
  const auto add = [&](const void* rows, DType type, int bits, const std::byte* cold_rows, const std::byte* scales) {
    if (t.low_k) coming.add(scales, fine * scales_bytes(t.head_dim));
    coming.add(rows, fine * (t.low_k ? high_row_bytes(bits, t.head_dim) : kv_row_bytes(type, t.head_dim)));
    coming.add(cold_rows, cold * coarse_row_bytes(bits, t.head_dim));
  };
  add(t.slot_k, t.key_type, t.coarse.keys, t.cold_k, t.scale_k);
  add(t.slot_v, t.dtype, t.coarse.values, t.cold_v, t.scale_v);
  return first;
}

/// Begins to prefetch what this tile and the next read. `ahead`: bytes of rows that the tile before has prefetched.
template <class S> void begin_prefetch(DecodeEntries& s, Coming& coming, std::size_t ahead) {
  const DecodeTile& t = s.tile;
  const auto fine = static_cast<std::size_t>(s.fine), cold = static_cast<std::size_t>(s.count - s.fine);
  const std::size_t first = add_tile<S>(coming, t, fine, cold);
  for (int i = 0; i < coming.count; ++i) s.tile_bytes += coming.range[i].end - coming.range[i].begin;
  if (t.next) add_tile<S>(coming, *t.next, fine < static_cast<std::size_t>(t.next->hot) ? fine + 1 : fine, cold);
  const std::size_t half = s.tile_bytes / 2;
  coming.start(first + (ahead < half ? ahead : half));
  s.coming = &coming;
}

/// Takes the probabilities that the tile brings for a head.
template <class S> void take_probabilities(const DecodeEntries& s, int g) {
  for (int i = 0; i < static_cast<int>(whole_vectors(s.count + 1)); ++i)
    s.p[g * s.stride + i] =
        i < s.count ? s.tile.probabilities[g * s.tile.probabilities_stride + slot_of<S>(s, i)] : 0.0f;
}

/// Takes them, or makes probabilities of the logits.
template <class S> void find_probabilities(const DecodeEntries& s) {
  const DecodeTile& t = s.tile;
  const bool rest = has_rest<S>(s);
  for (int g = 0; g < t.group; ++g) {
    float* const p = s.p + g * s.stride;
    if (t.probabilities) {
      take_probabilities<S>(s, g);
      continue;
    }
    if (t.cap > 0) cap_logits<S>(p, s.count, t.cap);
    if (rest) add_rest_logit<S>(s, g);
    softmax<S>(p, p, s.count + (rest ? 1 : 0), t.sink_logits ? t.sink_logits + g : nullptr);
  }
  if (t.next) prefetch_tile<S>(*t.next);
}

/// Frees a slot for the next token. Returns that of the token that is gone, or -1 if none is.
template <class S> int free_slot(const DecodeEntries& s) {
  const DecodeTile& t = s.tile;
  if (t.statistic == Statistic::largest) add_to_scores<S, Statistic::largest>(s);
  else add_to_scores<S, Statistic::sum>(s);
  const Leaving leaving = choose_victims<S>(s);
  const int gone = leaving.gone >= 0 ? slot_of<S>(s, leaving.gone) : -1;
  *t.free_slot = gone >= 0 && gone < t.hot ? gone : s.first_empty;
  if (gone >= 0) t.position[gone] = -1;
  if (leaving.cools >= 0) {
    const int from = slot_of<S>(s, leaving.cools);
    cool<S>(t, from, gone >= t.hot ? gone : s.first_cold_empty);
    *t.free_slot = from;
  }
  if (t.evicted) *t.evicted = gone >= 0 ? s.place[leaving.gone] : -1;
  return gone;
}

/// Lays the lists of a tile's entries out in its scratch memory, with what levels need if they are `quantised`. Returns
/// where they end.
template <class S> float* lay_out(DecodeEntries& s, bool quantised) {
  const DecodeTile& t = s.tile;
  const std::int64_t entries = whole_vectors(t.slots) + kLanes;
  s.dim = whole_vectors(t.head_dim), s.stride = entries;
  s.q = t.scratch;
  s.p = s.q + t.group * s.dim;
  s.value = s.p + t.group * entries;
  s.place = reinterpret_cast<std::int32_t*>(s.value + entries);
  s.run = reinterpret_cast<SlotRun*>(s.place + entries);
  float* const end = reinterpret_cast<float*>(s.run + entries / 2);
  if (!quantised) return end;
  const int groups = t.group * kv_groups(t.head_dim);
  s.slot = reinterpret_cast<std::int32_t*>(end);
  s.q_words = reinterpret_cast<std::int16_t*>(s.slot + entries);
  s.q_bytes = reinterpret_cast<std::uint8_t*>(s.q_words + groups * kKvGroup);
  s.q_scale = reinterpret_cast<float*>(s.q_bytes + groups * 2 * kKvGroup);
  s.q_sum = s.q_scale + groups;
  s.sum = s.q_sum + groups;
  s.minima = s.sum + groups * kKvGroup;
  return s.minima + groups * kLanes;
}

template <class S, class T> void decode_tile_of(const DecodeTile& t) {
  DecodeState<T> s{{t}, static_cast<KeyOf<T>*>(t.slot_k), static_cast<ValueOf<T>*>(t.slot_v)};
  s.k_row = static_cast<std::int64_t>(kv_row_bytes(t.key_type, t.head_dim) / sizeof(KeyOf<T>));
  s.v_row = static_cast<std::int64_t>(kv_row_bytes(t.dtype, t.head_dim) / sizeof(ValueOf<T>));
  lay_out<S>(s, is_level<T>);

  write_token<S>(s);
  list_entries<S>(s);
  Coming coming;
  if constexpr (is_level<T>) begin_prefetch<S>(s, coming, kLevelsAhead);
  if (!t.probabilities) find_logits<S>(s);
  find_probabilities<S>(s);
  outputs<S>(s);
  if (t.cooled) *t.cooled = -1;
  if (has_rest<S>(s)) add_rest_values<S>(s);
  const int freed = free_slot<S>(s);
  if (freed >= 0 && t.rest) add_to_rest<S>(s, freed);
}

/// The same over split slots.
template <class S> void decode_split(const DecodeTile& t) {
  DecodeEntries s{t};
  SplitEntries split = lay_out_split<S>(s, lay_out<S>(s, true));

  write_split_token<S>(t, split.rows);
  list_entries<S>(s);
  Coming coming;
  begin_prefetch<S>(s, coming, kSplitAhead);
  if (t.probabilities) {
    for (int g = 0; g < t.group; ++g) take_probabilities<S>(s, g);
    choose_entries<S>(s, split);
  } else {
    scale_queries<S>(s);
    quantise_queries<S, DType::i8>(s);
    split_logits<S>(s, split);
    for (int g = 0; g < t.group; ++g) {
      float* const p = s.p + g * s.stride;
      softmax<S>(p, p, s.count, t.sink_logits ? t.sink_logits + g : nullptr, &coming,
                 s.share_of_tile(kInSoftmax, kLanes, s.count * t.group));
    }
  }
  if (t.next) prefetch_tile<S>(*t.next);
  split_outputs<S>(s, split);
  if (t.cooled) *t.cooled = -1;
  free_slot<S>(s);
}

template <class S> void decode_tile(const DecodeTile& t) {
  if (t.low_k) decode_split<S>(t);
  else if (t.dtype == DType::f32) decode_tile_of<S, float>(t);
  else if (t.dtype == DType::f16) decode_tile_of<S, f16>(t);
  else if (t.dtype == DType::bf16) decode_tile_of<S, bf16>(t);
  else if (t.dtype == DType::i8) decode_tile_of<S, Level<DType::i8>>(t);
  else if (t.key_type == DType::i8) decode_tile_of<S, MixedLevels>(t);
  else decode_tile_of<S, Level<DType::i4>>(t);
}

}  // namespace weft::kernels
