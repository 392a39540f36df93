// kernels/attention/prefill_cpu.cc: attention of whole prompts and the scores of their tokens, tile by tile.
#include <algorithm>
#include <vector>

#include "kernels/attention/cpu/kernels.h"
#include "kernels/linear/linear_cpu.h"
#include "kernels/machine/cpu_ops.h"

namespace weft::kernels {
namespace {

/// Consecutive keys of one prompt.
struct Block {
  std::size_t prompt;
  std::int32_t begin, length;  // of the whole prompt: the row in the call where it would begin, had it no prefix
  int first, count;            // within the prompt
};

std::vector<Block> blocks_of(std::span<const std::int32_t> offsets, int prefix, int size) {
  std::vector<Block> blocks;
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const std::int32_t begin = offsets[i] - prefix, length = offsets[i + 1] - begin;
    for (int first = 0; first < length; first += size)
      blocks.push_back({i, begin, length, first, std::min(size, length - first)});
  }
  return blocks;
}

template <class T> T* at(const BasicView<T>& view, std::int64_t row, std::int64_t col) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return static_cast<Byte*>(view.slice(row, 1).data) + col * static_cast<std::int64_t>(size_of(view.dtype));
}

/// Consecutive rows of a call, of one prompt or more.
struct RowTile {
  std::int64_t row = 0;
  std::vector<PromptRows> prompts;
  int rows = 0, last = 0;  // the last token of a prompt that is one of the rows
};

/// Tiles of the prompts' rows after their prefix, of up to `size` places, of which each prompt takes a multiple of
/// `step`. Prompts share a tile if they have a block of keys in common.
std::vector<RowTile> row_tiles(const PrefillAttention& op, int size, int step) {
  std::vector<RowTile> tiles;
  const bool share = op.prefix >= kKeyColumns;
  int places = 0;  // that are taken in the last tile
  for (std::size_t i = 0; i + 1 < op.offsets.size(); ++i) {
    const std::int32_t own = op.offsets[i], length = op.offsets[i + 1] - own;
    for (int done = 0; done < length;) {
      if (tiles.empty() || places == size || (done == 0 && !share)) {
        tiles.push_back({.row = own + done - op.q_begin, .prompts = {}});
        places = 0;
      }
      RowTile& tile = tiles.back();
      const int rows = std::min(size - places, length - done);
      tile.prompts.push_back({own, op.prefix + done, rows});
      places += (rows + step - 1) / step * step;
      tile.rows += rows, done += rows;
      tile.last = std::max(tile.last, op.prefix + done - 1);
    }
  }
  return tiles;
}

template <class Op> bool goes_by_tiles(const Op& op) {
  return op.arithmetic == Arithmetic::bfloat16 && op.k.dtype == DType::bf16 && multiplies_by_tiles();
}

}  // namespace

void CpuOps::run(const PrefillAttention& op, Stream&) const {
  check(op);
  require_f32("prefill_attention", {{"q", op.q}, {"out", op.out}});
  const int group = op.heads / op.kv_heads;
  const bool by_tiles = goes_by_tiles(op) && vectors_.prefill_tiles != nullptr;
  const int heads = by_tiles ? heads_together(group) : 1;
  std::vector<RowTile> tiles = row_tiles(op, by_tiles ? query_rows(heads) : kQueryRows, by_tiles ? 1 : kPromptPlaces);
  // The last rows see the most keys: long tiles first, so that no thread is left with one at the end.
  std::stable_sort(tiles.begin(), tiles.end(), [](const RowTile& a, const RowTile& b) { return a.last > b.last; });
  const std::size_t scratch = by_tiles ? prefill_tiles_scratch(op.head_dim) : prefill_scratch(op.head_dim);
  ThreadPool::Turn turn(pool_);
  const std::int64_t runs = op.heads / heads;
  turn.run(static_cast<std::int64_t>(tiles.size()) * runs, [&](std::int64_t index, int thread) {
    const RowTile& tile = tiles[static_cast<std::size_t>(index / runs)];
    const std::int64_t head = index % runs * heads, column = head * op.head_dim, kv_column = head / group * op.head_dim;
    PrefillTile t{};
    t.q = static_cast<const float*>(at(op.q, tile.row, column));
    t.prefix = op.prefix, t.k = at(op.k, 0, kv_column), t.v = at(op.v, 0, kv_column);
    t.q_stride = op.q.stride, t.k_stride = op.k.stride, t.v_stride = op.v.stride, t.out_stride = op.out.stride;
    t.dtype = op.k.dtype;
    t.prompts = tile.prompts, t.rows = tile.rows, t.head_dim = op.head_dim, t.window = op.window;
    t.heads = heads, t.scale = op.scale, t.cap = op.cap;
    t.sink_logit = op.sink_logits.empty() ? nullptr : &op.sink_logits[static_cast<std::size_t>(head)];
    t.out = static_cast<float*>(at(op.out, tile.row, column));
    t.lse = op.lse ? static_cast<float*>(at(op.lse, head, tile.row)) : nullptr;
    t.lse_stride = op.lse.stride;
    t.scratch = reinterpret_cast<float*>(turn.scratch(thread, scratch * sizeof(float)));
    if (by_tiles) vectors_.prefill_tiles(t, *tile_kernels_amx());
    else vectors_.prefill(t);
  });
}

void CpuOps::run(const ColumnSums& op, Stream&) const {
  static_assert(kPrefixStep == kKeyColumns);
  check(op);
  require_f32("column_sums", {{"q", op.q}});
  std::vector<Block> blocks = blocks_of(op.offsets, op.prefix, kKeyColumns);
  std::stable_sort(blocks.begin(), blocks.end(), [](const Block& a, const Block& b) {
    return a.length - a.first > b.length - b.first;  // the first keys are seen by the most rows
  });
  const int group = op.heads / op.kv_heads;
  const bool by_tiles = goes_by_tiles(op) && vectors_.column_tiles != nullptr;
  const std::size_t scratch = by_tiles ? column_tiles_scratch(op.head_dim) : column_scratch(op.head_dim);
  ThreadPool::Turn turn(pool_);
  turn.run(static_cast<std::int64_t>(blocks.size()) * op.kv_heads, [&](std::int64_t tile, int thread) {
    const Block& block = blocks[static_cast<std::size_t>(tile / op.kv_heads)];
    const std::int64_t kv_head = tile % op.kv_heads, head = kv_head * group;
    const std::int64_t own = block.begin + op.prefix, row = own - op.q_begin;
    ColumnTile t{};
    t.q = static_cast<const float*>(at(op.q, row, head * op.head_dim));
    t.k = at(op.k, own, kv_head * op.head_dim);
    t.lse = static_cast<const float*>(at(op.lse, head, row));
    t.q_begin = op.q_begin, t.prefix = op.prefix, t.prefix_k = at(op.k, 0, kv_head * op.head_dim);
    t.prefix_q = static_cast<const float*>(at(op.q, 0, head * op.head_dim));
    t.prefix_lse = static_cast<const float*>(at(op.lse, head, 0));
    t.q_stride = op.q.stride, t.k_stride = op.k.stride, t.lse_stride = op.lse.stride;
    t.dtype = op.k.dtype;
    t.first_key = block.first, t.keys = block.count, t.head_dim = op.head_dim, t.group = group;
    t.window = op.window;
    t.first_row = op.observation > 0 ? std::max(0, block.length - op.observation) : whole_steps(op.prefix);
    // The last row that sees one of these keys ends them.
    t.length = op.window > 0 ? std::min(block.length, block.first + block.count - 1 + op.window) : block.length;
    t.scale = op.scale, t.cap = op.cap;
    t.statistic = op.statistic;
    t.before = op.before && block.first < whole_steps(op.prefix) ? static_cast<const float*>(at(op.before, kv_head, 0))
                                                                 : nullptr;
    t.score = static_cast<float*>(at(op.score, kv_head, whole_begin(op.offsets, op.prefix, block.prompt)));
    t.scratch = reinterpret_cast<float*>(turn.scratch(thread, scratch * sizeof(float)));
    if (by_tiles) vectors_.column_tiles(t, *tile_kernels_amx());
    else vectors_.column_sums(t);
  });
}

}  // namespace weft::kernels
