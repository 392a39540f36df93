// kernels/attention/cpu/prefill_tiles.h: prefill attention and column sums over keys and values of bf16 by tile
// registers (linear/linear_tiles.h), with the softmax over a vector type S (cpu/math.h).
//
// It goes through keys and rows as prefill.h does, and again no choice of rows that share a tile can change a bit: keys
// that a row does not see have probability 0, and each block of keys is one product, from 0 on, that joins the row's
// sums.
#pragma once

#include "kernels/attention/cpu/columns.h"

namespace weft::kernels {

/// Up to 32 rows from `begin` on, next to each other: those of a block may lie in two places.
template <class T> struct TogetherRows {
  TogetherRows(const SplitRows<T>& rows, std::int64_t begin, std::int64_t count, int head_dim, T* copy)
      : from(rows.row(begin)), stride(rows.stride) {
    if (begin >= rows.split || begin + count <= rows.split) return;
    for (std::int64_t i = 0; i < count; ++i)
      std::memcpy(copy + i * head_dim, rows.row(begin + i), sizeof(T) * static_cast<std::size_t>(head_dim));
    from = copy, stride = head_dim;
  }
  const T* from;
  std::int64_t stride;
};

/// A block of keys as tiles of pairs, [4][steps of head_dim].
template <class S>
void keys_to_tiles(const SplitRows<bf16>& k, std::int64_t begin, std::int64_t count, int head_dim,
                   const TileKernels& tiles, bf16* copy, std::byte* to) {
  for (std::int64_t key = 0; key < kKeyColumns; key += kAmxRows) {
    const std::int64_t some = std::clamp<std::int64_t>(count - key, 0, kAmxRows);
    const TogetherRows of(k, begin + std::min(key, count - 1), some, head_dim, copy);
    tiles.pair_weights({.from = of.from,
                        .rows = some,
                        .k = head_dim,
                        .stride = of.stride,
                        .to = to + key / kAmxRows * (whole_tiles(head_dim) / kAmxStep) * kAmxTile});
  }
}

/// logits [32, kKeyColumns] = scale times the products of one or two tiles of queries with a block of keys, of which
/// only the first `seen` matter.
template <class S>
void tile_logits(const std::byte* q, const std::byte* keys, int rows, int seen, int head_dim, float scale,
                 const TileKernels& tiles, float* logits) {
  const std::int64_t steps = whole_tiles(head_dim) / kAmxStep, tile = steps * kAmxTile;
  for (int key = 0; key < kKeyColumns && key < seen; key += kAmxStep)
    tiles.many[rows > kAmxRows ? 1 : 0]({.x = q,
                                         .panel = keys + key / kAmxRows * tile,
                                         .x_tile = tile,
                                         .panel_tile = tile,
                                         .steps = steps,
                                         .sums = logits + key,
                                         .sums_stride = kKeyColumns,
                                         .first = true});
  for (std::int64_t i = 0; i < std::int64_t{rows} * kKeyColumns; i += kLanes)
    S::store(logits + i, S::mul(S::load(logits + i), S::all(scale)));
}

/// A tile of prefill_tiles on its way through the keys. Row r of head h has place h * places + r.
template <class S> struct PromptsTile {
  static constexpr int kTogether = 2 * kAmxRows, kKeySteps = kKeyColumns / kAmxStep;
  const PrefillTile& t;
  const TileKernels& tiles;
  const std::int64_t dim = whole_tiles(t.head_dim);
  const std::int64_t q_tile = dim / kAmxStep * kAmxTile, v_tile = kKeySteps * kAmxTile;  // of 16 rows; of 16 columns
  const int places = static_cast<int>(round_up(t.rows, kTogether));
  std::byte* const q = reinterpret_cast<std::byte*>(t.scratch);        // [places / 16][dim / step] tiles
  std::byte* const keys = q + kMostTogether / kAmxRows * q_tile;       // [4][dim / step]
  std::byte* const values = keys + kKeyColumns / kAmxRows * q_tile;    // [dim / 16][kKeySteps]
  std::byte* const weights = values + dim / kAmxRows * v_tile;         // [2][kKeySteps]
  bf16* const copy = reinterpret_cast<bf16*>(weights + 2 * v_tile);    // [32, head_dim]
  float* const out = reinterpret_cast<float*>(copy + kAmxStep * dim);  // [kMostTogether, dim]
  float* const product = out + kMostTogether * dim;                    // [32, dim]
  float* const logits = product + kTogether * dim;                     // [32, kKeyColumns]
  float *const max = logits + kTogether * kKeyColumns, *const sum = max + kMostTogether;
  int token[kMostTogether] = {};  // of each row, in its prompt

  void begin() {
    int* next = token;
    for (const PromptRows& prompt : t.prompts)
      for (int row = 0; row < prompt.rows; ++row) *next++ = prompt.first_row + row;
    set_to<S>(out, t.heads * places * dim, 0.0f);
    for (int place = 0; place < t.heads * places; place += kAmxRows) {
      const int head = place / places, r = place % places;
      tiles.round_rows({.from = t.q + head * t.head_dim + (r < t.rows ? r : 0) * t.q_stride,
                        .rows = std::clamp<std::int64_t>(t.rows - r, 0, kAmxRows),
                        .k = t.head_dim,
                        .stride = t.q_stride,
                        .to = q + place / kAmxRows * q_tile});
    }
    for (int place = 0; place < t.heads * places; ++place) {  // a sink logit is one more key, which comes first
      max[place] = t.sink_logit ? t.sink_logit[place / places] : -__builtin_inff();
      sum[place] = t.sink_logit ? 1.0f : 0.0f;
    }
  }

  /// The rows [from, to) attend to the keys [first_key, last_key) of a prompt whose token t.prefix has row `own`.
  void attend(int from, int to, std::int64_t own, int first_key, int last_key) {
    const auto rows_of = [&](const void* first, std::int64_t stride) {
      const auto* const rows = static_cast<const bf16*>(first);
      return SplitRows<bf16>{rows, rows + own * stride, stride, t.prefix};
    };
    const SplitRows<bf16> k = rows_of(t.k, t.k_stride), v = rows_of(t.v, t.v_stride);
    for (; first_key < last_key; first_key += kKeyColumns) {
      const std::int64_t count = std::min(last_key - first_key, kKeyColumns);
      keys_to_tiles<S>(k, first_key, count, t.head_dim, tiles, copy, keys);
      for (std::int64_t key = 0; key < kKeyColumns; key += kAmxStep) {
        const std::int64_t some = std::clamp<std::int64_t>(count - key, 0, kAmxStep);
        const TogetherRows of(v, first_key + std::min(key, count - 1), some, t.head_dim, copy);
        tiles.pair_rows({.from = of.from,
                         .rows = some,
                         .k = t.head_dim,
                         .stride = of.stride,
                         .to = values + key / kAmxStep * kAmxTile,
                         .tile = v_tile});
      }
      for (int place = 0; place < t.heads * places; place += kTogether) {
        const int r = place % places;
        add_block(place, std::min(t.rows - r, kTogether), from - r, to - r, first_key, static_cast<int>(count));
      }
    }
  }

  /// Adds the block's `count` keys to the rows [from, to) of `rows` rows that have one or two tiles from `place` on.
  void add_block(int place, int rows, int from, int to, int first_key, int count) {
    from = std::max(from, 0), to = std::min(to, rows);
    const int* const row_token = token + place % places;
    int most = 0;  // keys of the block that one of these rows sees
    for (int i = from; i < to; ++i) most = std::max(most, row_token[i] - first_key + 1);
    if (most == 0) return;
    tile_logits<S>(q + place / kAmxRows * q_tile, keys, rows, most, t.head_dim, t.scale, tiles, logits);
    float factor[kTogether];
    for (int i = from; i < to; ++i) {
      const int seen = row_token[i] - first_key + 1, unseen = seen - hidden_from(t);  // of the block's first keys
      float* const row = logits + i * kKeyColumns;
      if (unseen >= kKeyColumns) {
        set_to<S>(row, kKeyColumns, 0.0f), factor[i] = 1;
        continue;
      }
      if (t.cap > 0) cap_logits<S>(row, kKeyColumns, t.cap);
      for (int n = 0; n < unseen; ++n) row[n] = -__builtin_inff();
      factor[i] = softmax_block<S>(row, std::min(seen, count), max[place + i], sum[place + i]);
    }
    for (int tile = 0; tile < rows; tile += kAmxRows)
      tiles.round_rows({.from = logits + tile * kKeyColumns,
                        .rows = std::min<std::int64_t>(rows - tile, kAmxRows),
                        .k = kKeyColumns,
                        .stride = kKeyColumns,
                        .to = weights + tile / kAmxRows * v_tile});
    for (std::int64_t d = 0; d < dim; d += kAmxStep)
      tiles.many[rows > kAmxRows ? 1 : 0]({.x = weights,
                                           .panel = values + d / kAmxRows * v_tile,
                                           .x_tile = v_tile,
                                           .panel_tile = v_tile,
                                           .steps = kKeySteps,
                                           .sums = product + d,
                                           .sums_stride = dim,
                                           .first = true});
    for (int i = from; i < to; ++i) {
      float* const row = out + (place + i) * dim;
      for (std::int64_t d = 0; d < dim; d += kLanes)
        S::store(row + d, S::fma(S::load(row + d), S::all(factor[i]), S::load(product + i * dim + d)));
    }
  }

  void finish() const {
    PrefillTile of_head = t;
    for (int first = 0; first < t.heads * places; first += places) {
      for (int r = 0; r < t.rows; ++r)
        finish_row<S>(of_head, r, out + (first + r) * dim, max[first + r], sum[first + r]);
      of_head.out += t.head_dim;
      if (t.lse) of_head.lse += t.lse_stride;
    }
  }
};

template <class S> void prefill_tiles(const PrefillTile& t, const TileKernels& tiles) {
  PromptsTile<S> tile{t, tiles};
  tiles.begin(kAmxRows);
  tile.begin();
  attend_prompts(
      t, [](int rows) { return rows; },
      [&](int from, int to, std::int64_t own, int first, int last) { tile.attend(from, to, own, first, last); });
  tiles.end();
  tile.finish();
}

template <class S, Statistic kStatistic> void column_tiles_by(const ColumnTile& t, const TileKernels& tiles) {
  constexpr int kTogether = 2 * kAmxRows;
  const std::int64_t dim = whole_tiles(t.head_dim), tile = dim / kAmxStep * kAmxTile;
  std::byte* const keys = reinterpret_cast<std::byte*>(t.scratch);  // [4][steps] tiles
  std::byte* const q = keys + kKeyColumns / kAmxRows * tile;        // [2][steps]
  float* const logits = reinterpret_cast<float*>(q + 2 * tile);     // [32, kKeyColumns]
  float* const copy = logits + kTogether * kKeyColumns;             // [16, head_dim] of any type
  const SplitRows<bf16> k{static_cast<const bf16*>(t.prefix_k), static_cast<const bf16*>(t.k), t.k_stride, t.prefix};
  tiles.begin(kAmxRows);
  keys_to_tiles<S>(k, t.first_key, t.keys, t.head_dim, tiles, reinterpret_cast<bf16*>(copy), keys);
  sum_columns<S, kStatistic>(t, [&](int head, int first, int count, typename S::V* sum) {
    for (int row = first; row < first + count; row += kTogether) {
      const int rows = std::min(first + count - row, kTogether);
      for (int r = 0; r < rows; r += kAmxRows) {
        const int some = std::min<int>(rows - r, kAmxRows);
        const TogetherRows of(queries_of<S>(t, head), row + r, some, t.head_dim, copy);
        tiles.round_rows(
            {.from = of.from, .rows = some, .k = t.head_dim, .stride = of.stride, .to = q + r / kAmxRows * tile});
      }
      tile_logits<S>(q, keys, rows, t.keys, t.head_dim, t.scale, tiles, logits);
      gather_columns<S, kStatistic>(t, head, row, rows, logits, sum);
    }
  });
  tiles.end();
}

template <class S> void column_tiles(const ColumnTile& t, const TileKernels& tiles) {
  if (t.statistic == Statistic::largest) column_tiles_by<S, Statistic::largest>(t, tiles);
  else column_tiles_by<S, Statistic::sum>(t, tiles);
}

}  // namespace weft::kernels
