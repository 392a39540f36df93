// kernels/attention/cpu/quantise.h: writes rows of KV slots of int8 and int4 (kv_row.h), and rotates rows, over a
// vector type S (cpu/math.h).
#pragma once

#include "kernels/attention/cpu/math.h"
#include "kernels/kv_row.h"

namespace weft::kernels {

/// The nearest fp16 as a float, which is also stored at `to`.
template <class S> float to_half(float x, std::uint8_t* to) {
  f16 half[1];
  float lanes[kLanes];
  S::store_first(half, S::all(x), 1);
  __builtin_memcpy(to, half, sizeof half);
  S::store(lanes, S::load_first(half, 1));
  return lanes[0];
}

/// Writes the levels of up to a group's numbers, one to a byte, and their scale and minimum at `scales`.
template <class S>
void quantise_group(const float* x, int count, float top, std::uint8_t* levels, std::uint8_t* scales) {
  const float infinity = __builtin_inff();
  typename S::V least = S::all(infinity), most = S::all(-infinity), trouble = S::zero();
  for (int d = 0; d < count; d += kLanes) {
    const int lanes = count - d < kLanes ? count - d : kLanes;
    const typename S::V v = load_some<S>(x + d, lanes);
    least = S::min(S::first(v, lanes, infinity), least);
    most = S::max(S::first(v, lanes, -infinity), most);
    trouble = S::fma(v, S::zero(), trouble);
  }
  const float minimum = to_half<S>(S::smallest(least) + 0.0f, scales + 2), range = S::largest(most) - minimum;
  const float scale = to_half<S>(range > 0 ? range / top : 0.0f, scales);
  if (S::sum(trouble) != 0 || !__builtin_isfinite(scale) || !__builtin_isfinite(minimum)) {  // NaN is not 0 either
    to_half<S>(__builtin_nanf(""), scales);
    to_half<S>(__builtin_nanf(""), scales + 2);
    for (int d = 0; d < count; ++d) levels[d] = 0;
    return;
  }
  const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
  for (int d = 0; d < count; d += kLanes) {
    const int lanes = count - d < kLanes ? count - d : kLanes;
    const typename S::V exact = S::mul(S::sub(load_some<S>(x + d, lanes), S::all(minimum)), S::all(inverse));
    std::int16_t level[kLanes];
    S::store_rounded(level, S::min(S::max(exact, S::zero()), S::all(top)));
    for (int i = 0; i < kLanes; ++i) levels[d + i] = static_cast<std::uint8_t>(level[i]);
  }
}

template <class S> void quantise_row(const float* x, int head_dim, DType type, std::byte* to) {
  auto* const row = reinterpret_cast<std::uint8_t*>(to);
  const auto level_bytes = static_cast<int>(kv_level_bytes(type, head_dim));
  int bytes = 0;
  for (int first = 0; first < head_dim; first += kKvGroup) {
    const int count = head_dim - first < kKvGroup ? head_dim - first : kKvGroup;
    std::uint8_t levels[kKvGroup];
    std::uint8_t* const scales = row + level_bytes + first / kKvGroup * 4;
    quantise_group<S>(x + first, count, type == DType::i8 ? 255.0f : 15.0f, levels, scales);
    if (type == DType::i8) {
      for (int d = 0; d < count; ++d) row[bytes++] = levels[d];
      continue;
    }
    for (int block = 0; block < count; block += kKvBlock) {
      const int numbers = count - block < kKvBlock ? count - block : kKvBlock, half = (numbers + 1) / 2;
      for (int i = 0; i < half; ++i) {
        const int high = half + i < numbers ? levels[block + half + i] : 0;
        row[bytes++] = static_cast<std::uint8_t>(levels[block + i] | high << 4);
      }
    }
  }
  while (bytes < level_bytes) row[bytes++] = 0;
}

/// The butterflies at distance `kDistance` < 16 of a vector's lanes.
template <class S, int kDistance> typename S::V butterfly(typename S::V v, const float* signs) {
  return S::fma(v, S::load(signs), S::template swapped<kDistance>(v));  // a product by 1 or -1 rounds nothing
}

/// x[n] times the Hadamard matrix of n, a power of two, divided by the square root of n.
template <class S> void hadamard_block(float* x, int n) {
  const float root = __builtin_sqrtf(1.0f / static_cast<float>(n));
  if (n < kLanes) {
    for (int distance = 1; distance < n; distance *= 2)
      for (int i = 0; i < n; ++i) {
        if (i & distance) continue;
        const float a = x[i], b = x[i + distance];
        x[i] = a + b, x[i + distance] = a - b;
      }
    for (int i = 0; i < n; ++i) x[i] *= root;
    return;
  }
  float signs[4][kLanes];
  for (int stage = 0; stage < 4; ++stage)
    for (int i = 0; i < kLanes; ++i) signs[stage][i] = i >> stage & 1 ? -1.0f : 1.0f;
  for (int d = 0; d < n; d += kLanes) {
    typename S::V v = S::load(x + d);
    v = butterfly<S, 1>(v, signs[0]);
    v = butterfly<S, 2>(v, signs[1]);
    v = butterfly<S, 4>(v, signs[2]);
    S::store(x + d, butterfly<S, 8>(v, signs[3]));
  }
  for (int distance = kLanes; distance < n; distance *= 2)
    for (int first = 0; first < n; first += 2 * distance)
      for (int d = first; d < first + distance; d += kLanes) {
        const typename S::V a = S::load(x + d), b = S::load(x + d + distance);
        S::store(x + d, S::add(a, b));
        S::store(x + d + distance, S::sub(a, b));
      }
  for (int d = 0; d < n; d += kLanes) S::store(x + d, S::mul(S::load(x + d), S::all(root)));
}

/// Hadamard (ops.h) of one head.
template <class S> void hadamard(float* x, int head_dim) {
  for (int first = 0; first < head_dim;) {
    int n = 1;
    while (2 * n <= head_dim - first) n *= 2;
    hadamard_block<S>(x + first, n);
    first += n;
  }
}

}  // namespace weft::kernels
