// kernels/attention/cpu/rest.h: the tokens that a head has evicted, as one more token of a decode step (KvSlots::rest).
// Over a vector type S (cpu/math.h).
#pragma once

#include <math.h>

#include "kernels/attention/cpu/slots.h"

namespace weft::kernels {

/// Whether there is a rest to attend to.
template <class S> bool has_rest(const DecodeEntries& s) { return s.tile.rest && s.tile.rest[0] > 0; }

/// Stores the logit of one head for the rest as that of the entry after the last.
template <class S> void add_rest_logit(const DecodeEntries& s, int head) {
  const DecodeTile& t = s.tile;
  typename S::V sum = S::zero();
  for (int d = 0; d < t.head_dim; d += kLanes) {
    const int lanes = t.head_dim - d < kLanes ? t.head_dim - d : kLanes;
    sum = S::fma(load_some<S>(t.rest + 1 + d, lanes), S::load(s.q + head * s.dim + d), sum);
  }
  float* const p = s.p + head * s.stride;
  for (std::int64_t i = s.count; i < whole_vectors(s.count + 1); ++i) p[i] = -__builtin_inff();
  p[s.count] = S::sum(sum) / t.rest[0];
  if (t.cap > 0) cap_logits<S>(p + s.count, 1, t.cap);
  p[s.count] += logf(t.rest[0]);
}

/// Adds the rest's values, weighted by its probabilities, to the outputs.
template <class S> void add_rest_values(const DecodeEntries& s) {
  const DecodeTile& t = s.tile;
  const float* const values = t.rest + 1 + t.head_dim;
  for (int g = 0; g < t.group; ++g) {
    const typename S::V weight = S::all(s.p[g * s.stride + s.count] / t.rest[0]);
    for (int d = 0; d < t.head_dim; d += kLanes) {
      const int lanes = t.head_dim - d < kLanes ? t.head_dim - d : kLanes;
      float* const out = t.out + g * t.head_dim + d;
      store_some<S>(out, S::fma(weight, load_some<S>(values + d, lanes), load_some<S>(out, lanes)), lanes);
    }
  }
}

/// Adds the numbers of a slot's row to to[head_dim].
template <class S, class T> void add_row(const T* row, int head_dim, float* to) {
  for (int d = 0; d < head_dim; d += kLanes) {
    const int lanes = head_dim - d < kLanes ? head_dim - d : kLanes;
    typename S::V x;
    if constexpr (is_level<T>) {
      const auto* const bytes = reinterpret_cast<const std::uint8_t*>(row);
      const std::uint8_t* const scales = bytes + kv_level_bytes(T::kType, head_dim) + d / kKvGroup * 4;
      f16 both[2];
      float numbers[kLanes];
      __builtin_memcpy(both, scales, sizeof both);
      S::store(numbers, S::load_first(both, 2));
      float level[kLanes] = {};
      for (int i = 0; i < lanes; ++i) {
        const KvLevel at = kv_level(T::kType, head_dim, d + i);
        level[i] = static_cast<float>(bytes[at.byte] >> at.shift & (T::kType == DType::i4 ? 15 : 255));
      }
      x = S::fma(S::load(level), S::all(numbers[0]), S::all(numbers[1]));
    } else {
      x = load_some<S>(row + d, lanes);
    }
    store_some<S>(to + d, S::add(load_some<S>(to + d, lanes), x), lanes);
  }
}

/// Adds the victim in `slot` to the rest.
template <class S, class T> void add_to_rest(const DecodeState<T>& s, int slot) {
  float* const rest = s.tile.rest;
  const int dim = s.tile.head_dim;
  rest[0] += 1;
  add_row<S>(s.k + slot * s.k_row, dim, rest + 1);
  add_row<S>(s.v + slot * s.v_row, dim, rest + 1 + dim);
}

}  // namespace weft::kernels
