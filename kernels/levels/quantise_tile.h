// kernels/levels/quantise_tile.h: quantises tiles of weights, written once over the vector types of quantise_search.h.
#pragma once

#include "kernels/levels/quantise_search.h"

namespace weft::kernels {
namespace {

/// S::transpose() gives rows beyond the last zeros, which have scale, minimum and levels 0.
template <class S> std::int64_t quantise(const QuantiseTile& t) {
  constexpr std::int64_t kTileRows = QuantisedLayout::kTileRows;
  alignas(64) float x[kMostGroup * S::kLanes];
  TileSearch<S> search;
  std::byte* to = t.to;
  for (std::int64_t first = 0; first < t.cols; first += t.group, to += t.group_bytes) {
    const int count = static_cast<int>(t.cols - first < t.group ? t.cols - first : t.group);
    for (std::int64_t row = 0; row < kTileRows; row += S::kLanes) {
      const std::int64_t here = t.rows < row ? 0 : t.rows - row < S::kLanes ? t.rows - row : S::kLanes;
      const std::int64_t at = here > 0 ? row * t.stride + first : 0;
      if (t.type == DType::f16) S::transpose(static_cast<const f16*>(t.numbers) + at, here, count, t.stride, x);
      else if (t.type == DType::bf16) S::transpose(static_cast<const bf16*>(t.numbers) + at, here, count, t.stride, x);
      else S::transpose(static_cast<const float*>(t.numbers) + at, here, count, t.stride, x);
      if (const auto bad = search.begin(x, count, t.four ? 15.0f : 255.0f); S::any(bad)) return row + S::first(bad);
      if (t.four) search.search();  // 8 bits leave nothing to gain
      S::store_half(to + row * 2, search.line.scale);
      S::store_half(to + kLine / 2 + row * 2, search.line.minimum);
      std::byte* const lines = to + kLine + row * 4;
      if (t.four) search.template write<true>(lines);
      else search.template write<false>(lines);
    }
    const int columns = t.four ? 8 : 4;
    const std::int64_t written = kLine + (count + columns - 1) / columns * kLine;
    __builtin_memset(to + written, 0, static_cast<std::size_t>(t.group_bytes - written));
  }
  return -1;
}

}  // namespace
}  // namespace weft::kernels
