// kernels/attention/cpu/levels.h: the reading part of a decode step over slots of int8 and int4 (kv_row.h), whose
// levels become floats in registers, over a vector type S (cpu/math.h). It does what cpu/attend.h does for float types.
#pragma once

#include <type_traits>

#include "kernels/attention/cpu/attend.h"
#include "kernels/attention/cpu/quantise.h"

namespace weft::kernels {

constexpr int kGroupVectors = kKvGroup / kLanes;

/// The 16 levels of vector n of a row. `kWhole`: it lies in a whole group.
template <class S, DType kType, bool kWhole> typename S::V levels_of(const std::uint8_t* row, int head_dim, int n) {
  const int first = n * kLanes, count = head_dim - first;
  if constexpr (kType == DType::i8) {
    if (kWhole || count >= kLanes) return S::levels(row + first);
  } else {
    const int left = head_dim - first / kKvBlock * kKvBlock;  // numbers from the vector's block on
    const std::uint8_t* const block = row + first / kKvBlock * kLanes;
    if (kWhole || left >= kKvBlock) return n % 2 == 0 ? S::low_levels(block) : S::high_levels(block);
    if (left == kLanes) return S::half_levels(block);
  }
  float lanes[kLanes] = {};
  for (int i = 0; i < kLanes && i < count; ++i) {
    const KvLevel at = kv_level(kType, head_dim, first + i);
    lanes[i] = static_cast<float>(row[at.byte] >> at.shift & (kType == DType::i4 ? 15 : 255));
  }
  return S::load(lanes);
}

/// sum[H][R] = the vectors whose lanes add up to the products of H queries with as many keys, without the minima. scale
/// [groups, 16] has the scales of these keys, from its first column on.
template <class S, int H, int R, DType kType>
void multiply_levels(const float* q, std::int64_t q_stride, const std::uint8_t* const (&row)[R], int head_dim,
                     const float* scale, typename S::V (&sum)[H][R]) {
  WEFT_UNROLLED (int h = 0; h < H; ++h)
    WEFT_UNROLLED (int i = 0; i < R; ++i) sum[h][i] = S::zero();
  typename S::V part[H][R];
  const auto add_vector = [&](int n, auto whole) {
    typename S::V query[H];
    WEFT_UNROLLED (int h = 0; h < H; ++h) query[h] = S::load(q + h * q_stride + n * kLanes);
    WEFT_UNROLLED (int i = 0; i < R; ++i) {
      const typename S::V x = levels_of<S, kType, decltype(whole)::value>(row[i], head_dim, n);
      WEFT_UNROLLED (int h = 0; h < H; ++h) part[h][i] = S::fma(x, query[h], part[h][i]);
    }
  };
  for (int g = 0, first = 0; first < head_dim; ++g, first += kKvGroup) {
    WEFT_UNROLLED (int h = 0; h < H; ++h)
      WEFT_UNROLLED (int i = 0; i < R; ++i) part[h][i] = S::zero();
    if (first + kKvGroup <= head_dim) {
      WEFT_UNROLLED (int n = 0; n < kGroupVectors; ++n) add_vector(g * kGroupVectors + n, std::true_type{});
    } else {
      for (int n = first / kLanes; n * kLanes < head_dim; ++n) add_vector(n, std::false_type{});
    }
    WEFT_UNROLLED (int i = 0; i < R; ++i) {
      const typename S::V factor = S::all(scale[g * kLanes + i]);
      WEFT_UNROLLED (int h = 0; h < H; ++h) sum[h][i] = S::fma(part[h][i], factor, sum[h][i]);
    }
  }
}

/// Prefetches the memory that lies kAheadBytes after these `rows` rows.
template <class S>
[[gnu::always_inline]] inline void prefetch_rows(const Ahead<S>& ahead, int first, int rows, std::uintptr_t row_bytes) {
  const std::uintptr_t from = ahead.after(static_cast<std::uintptr_t>(first) * row_bytes);
  const std::uintptr_t bytes = static_cast<std::uintptr_t>(rows) * row_bytes;
  for (std::uintptr_t i = 0; i < bytes; i += kLine)
    __builtin_prefetch(reinterpret_cast<const void*>(from + i), 0, 2);  // NOLINT(performance-no-int-to-ptr)
}

/// logits() of cpu/attend.h.
template <class S, int H, class T>
requires is_level<T>
void logits(const DecodeState<T>& s, int head) {
  constexpr int R = H == 1 ? 4 : 2;
  constexpr DType kType = KeyOf<T>::kType;
  const int head_dim = s.tile.head_dim, groups = kv_groups(head_dim);
  const std::size_t level_bytes = kv_level_bytes(kType, head_dim);
  const float* q = s.q + head * s.dim;
  const float* q_sum = s.q_sum + head * groups;
  float* out = s.p + head * s.stride;
  for (int r = 0; r < s.runs; ++r) {
    const SlotRun& run = s.run[r];
    const std::uint8_t* const next =  // after the last keys come the first values
        r + 1 < s.runs ? &s.k->byte + static_cast<std::int64_t>(s.run[r + 1].first) * s.k_row
                       : &s.v->byte + static_cast<std::int64_t>(s.run[0].first) * s.v_row;
    const auto ahead = ahead_in<S>(&s.k->byte, next, run, static_cast<std::uintptr_t>(s.k_row));
    const std::uint8_t* const rows = &s.k->byte + static_cast<std::int64_t>(run.first) * s.k_row;
    for (int first = 0; first < run.count; first += kLanes, out += kLanes) {
      const int count = run.count - first < kLanes ? run.count - first : kLanes;
      const std::uint8_t* const block = rows + static_cast<std::int64_t>(first) * s.k_row;
      for (int g = 0; g < groups; ++g) {
        typename S::V scale, minimum;
        S::scales(block + level_bytes + 4 * g, static_cast<int>(s.k_row), count, scale, minimum);
        S::store(s.scale + g * kLanes, scale);
        S::store(s.minimum + g * kLanes, minimum);
      }
      typename S::V sums[H][kLanes];
      WEFT_UNROLLED (int u = 0; u < kLanes; u += R) {
        const std::uint8_t* row[R];
        WEFT_UNROLLED (int i = 0; i < R; ++i)
          row[i] = block + static_cast<std::int64_t>(u + i < count ? u + i : count - 1) * s.k_row;
        typename S::V sum[H][R];
        prefetch_rows<S>(ahead, first + u, R, static_cast<std::uintptr_t>(s.k_row));
        multiply_levels<S, H, R, kType>(q, s.dim, row, head_dim, s.scale + u, sum);
        WEFT_UNROLLED (int h = 0; h < H; ++h)
          WEFT_UNROLLED (int i = 0; i < R; ++i) sums[h][u + i] = sum[h][i];
      }
      // The next run, or the infinities below, overwrite what is stored past the run's end.
      WEFT_UNROLLED (int h = 0; h < H; ++h) {
        typename S::V logit = S::sums(sums[h]);
        for (int g = 0; g < groups; ++g)
          logit = S::fma(S::load(s.minimum + g * kLanes), S::all(q_sum[h * groups + g]), logit);
        S::store(out + h * s.stride, logit);
      }
    }
    out += run.count - whole_vectors(run.count);
  }
  for (int h = 0; h < H; ++h)
    for (std::int64_t i = s.count; i < whole_vectors(s.count); ++i) s.p[(head + h) * s.stride + i] = -__builtin_inff();
}

/// The sums of each group's numbers of a query; q holds whole vectors, with zeros at their end.
template <class S> void sum_groups(const float* q, int head_dim, float* sums) {
  for (int first = 0; first < head_dim; first += kKvGroup) {
    typename S::V sum = S::zero();
    for (int d = first; d < head_dim && d < first + kKvGroup; d += kLanes) sum = S::add(sum, S::load(q + d));
    sums[first / kKvGroup] = S::sum(sum);
  }
}

/// out[H, 16 * N columns] = p v for H query heads. The columns begin with vector n0, the first of a group.
template <class S, int H, int N, bool kWhole, class T> void weigh_levels(const DecodeState<T>& s, int head, int n0) {
  constexpr DType kType = ValueOf<T>::kType;
  constexpr int kGroups = (N + kGroupVectors - 1) / kGroupVectors;
  const DecodeTile& t = s.tile;
  const std::size_t level_bytes = kv_level_bytes(kType, t.head_dim);
  const float* p = s.p + head * s.stride;
  typename S::V sum[H][N];
  float of_minima[kGroups][H] = {};
  WEFT_UNROLLED (int h = 0; h < H; ++h)
    WEFT_UNROLLED (int n = 0; n < N; ++n) sum[h][n] = S::zero();
  alignas(64) float weight[kGroups][H][kLanes], minima[kGroups][H][kLanes];
  for (int r = 0; r < s.runs; ++r) {
    const SlotRun& run = s.run[r];
    const std::uint8_t* next = t.next ? static_cast<const std::uint8_t*>(t.next->slot_k) : nullptr;
    if (r + 1 < s.runs) next = &s.v->byte + static_cast<std::int64_t>(s.run[r + 1].first) * s.v_row;
    const auto ahead = ahead_in<S>(&s.v->byte, next, run, static_cast<std::uintptr_t>(s.v_row));
    const std::uint8_t* row = &s.v->byte + static_cast<std::int64_t>(run.first) * s.v_row;
    for (int first = 0; first < run.count; first += kLanes) {
      const int count = run.count - first < kLanes ? run.count - first : kLanes;
      for (int g = 0; g < kGroups; ++g) {
        typename S::V scale, minimum;
        S::scales(row + level_bytes + 4 * (n0 / kGroupVectors + g), static_cast<int>(s.v_row), count, scale, minimum);
        for (int h = 0; h < H; ++h) {
          const typename S::V probability = S::load(p + h * s.stride);
          S::store(weight[g][h], S::mul(probability, scale));
          S::store(minima[g][h], S::mul(probability, minimum));
        }
      }
      for (int i = 0; i < count; ++i, row += s.v_row) {
        if (n0 == 0) prefetch_rows<S>(ahead, first + i, 1, static_cast<std::uintptr_t>(s.v_row));
        WEFT_UNROLLED (int n = 0; n < N; ++n) {
          const typename S::V x = levels_of<S, kType, kWhole>(row, t.head_dim, n0 + n);
          WEFT_UNROLLED (int h = 0; h < H; ++h)
            sum[h][n] = S::fma(x, S::all(weight[n / kGroupVectors][h][i]), sum[h][n]);
        }
      }
      for (int i = 0; i < count; ++i)
        WEFT_UNROLLED (int g = 0; g < kGroups; ++g)
          WEFT_UNROLLED (int h = 0; h < H; ++h) of_minima[g][h] += minima[g][h][i];
      p += count;
    }
  }
  WEFT_UNROLLED (int h = 0; h < H; ++h)
    WEFT_UNROLLED (int n = 0; n < N; ++n) {
      const int d = (n0 + n) * kLanes, left = t.head_dim - d;
      store_some<S>(t.out + (head + h) * t.head_dim + d, S::add(sum[h][n], S::all(of_minima[n / kGroupVectors][h])),
                    kWhole || left >= kLanes ? kLanes : left);
    }
}

/// weigh_levels() for a last group of `vectors` <= N vectors.
template <class S, int H, int N, class T> void weigh_last(const DecodeState<T>& s, int head, int n0, int vectors) {
  if (vectors == N) weigh_levels<S, H, N, false>(s, head, n0);
  else if constexpr (N > 1) weigh_last<S, H, N - 1>(s, head, n0, vectors);
}

/// outputs() of cpu/attend.h: two groups at once where registers allow.
template <class S, int H, class T>
requires is_level<T>
void outputs(const DecodeState<T>& s, int head) {
  const int whole = s.tile.head_dim / kKvGroup, vectors = static_cast<int>(s.dim / kLanes);
  int g = 0;
  if constexpr (S::kHeads >= 4 && H <= 2)
    for (; g + 2 <= whole; g += 2) weigh_levels<S, H, 2 * kGroupVectors, true>(s, head, g * kGroupVectors);
  for (; g < whole; ++g) weigh_levels<S, H, kGroupVectors, true>(s, head, g * kGroupVectors);
  if (const int left = vectors - whole * kGroupVectors; left > 0)
    weigh_last<S, H, kGroupVectors>(s, head, whole * kGroupVectors, left);
}

}  // namespace weft::kernels
