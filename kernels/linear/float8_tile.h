// kernels/linear/float8_tile.h: weights of f8, floats of 8 bits (E4M3), as fp32 numbers in registers, over a vector
// type S of 8 or 16 floats, which linear_avx512.cc and linear_avx2.cc define in an unnamed namespace, as linear_math.h
// says.
//
// The sign, exponent and mantissa become those of an fp32 number, which is then 2^-8 times what the 8 bits stand for;
// the scale makes up for that. The numbers below 2^-6 have exponent 0 and no leading 1, so they need a step more. They
// are rare, as whoever stores weights so scales the largest to 448; a line without them goes without that step.
#pragma once

#include "kernels/linear/linear_kernels.h"
#include "kernels/unrolled.h"

namespace weft::kernels {

constexpr std::int64_t kFloat8Line = 64, kFloat8Columns = 4;  // of kernels/quantised.h

/// The scales of the rows [part * S::kWidth, ...) of a tile, for numbers as S::expand() has them.
template <class S> typename S::V float8_scale(const std::byte* from, int part) {
  return S::mul(S::load(reinterpret_cast<const float*>(from) + part * S::kWidth), S::all(0x1p8f));
}

template <class S> void unpack_float8(const Unpack& u) {
  const std::byte* from = u.from;
  for (std::int64_t first = 0; first < u.steps * kPartialSums; first += u.group) {
    const std::byte* const scales = from;
    from += kFloat8Line;
    for (std::int64_t k = first; k < first + u.group; k += kFloat8Columns, from += kFloat8Line) {
      if (k >= u.steps * kPartialSums) return;  // padding of the last group
      float* const to = u.to + k / kPartialSums * u.step + k % kPartialSums * u.lane_step;
      WEFT_UNROLLED (int part = 0; part < kPartialSums / S::kWidth; ++part) {
        const auto scale = float8_scale<S>(scales, part);
        typename S::V w[kFloat8Columns];
        S::expand(from, part, w);
        WEFT_UNROLLED (int j = 0; j < kFloat8Columns; ++j)
          S::store(to + j * u.lane_step + part * S::kWidth, S::mul(w[j], scale));
      }
    }
  }
}

/// Takes kSums of the 16 partial sums at a time, and S::kWidth rows of weights, so that all sums stay in registers.
/// From the second time on the weights are in the first cache. Each time a part of the next weights is asked for.
template <class S, int kRows, int kSums> void float8_tile(const Float8Tile& t) {
  constexpr std::int64_t of_step = kPartialSums / kFloat8Columns * kFloat8Line;
  const std::int64_t ahead = t.steps * of_step;  // as many as these
  for (int part = 0; part < kPartialSums / S::kWidth; ++part)
    for (int first = 0; first < kPartialSums; first += kSums) {
      float* const to = t.sums + first * t.sums_lane + part * S::kWidth;
      typename S::V sum[kRows][kSums];
      WEFT_UNROLLED (int i = 0; i < kRows; ++i) {
        WEFT_UNROLLED (int l = 0; l < kSums; ++l)
          sum[i][l] = t.first ? S::all(0) : S::load(to + l * t.sums_lane + i * t.sums_stride);
      }
      const std::byte* from = t.from;
      const float* x = t.x + first;
      for (std::int64_t s = 0; s < t.steps;) {
        const auto scale = float8_scale<S>(from, part);
        from += kFloat8Line;
        const std::int64_t of_group = t.group / kPartialSums, end = t.steps - s < of_group ? t.steps : s + of_group;
        for (; s < end; ++s, from += of_step, x += kRows * kPartialSums) {
          WEFT_UNROLLED (int quad = 0; quad < kSums; quad += kFloat8Columns) {
            const std::byte* const line = from + (first + quad) / kFloat8Columns * kFloat8Line;
            if (part == 0) __builtin_prefetch(line + ahead);
            typename S::V w[kFloat8Columns];
            S::expand(line, part, w);
            WEFT_UNROLLED (int j = 0; j < kFloat8Columns; ++j) {
              w[j] = S::mul(w[j], scale);
              WEFT_UNROLLED (int i = 0; i < kRows; ++i)
                sum[i][quad + j] = S::fma(S::all(x[i * kPartialSums + quad + j]), w[j], sum[i][quad + j]);
            }
          }
        }
      }
      WEFT_UNROLLED (int i = 0; i < kRows; ++i) {
        WEFT_UNROLLED (int l = 0; l < kSums; ++l) S::store(to + l * t.sums_lane + i * t.sums_stride, sum[i][l]);
      }
    }
}

}  // namespace weft::kernels
