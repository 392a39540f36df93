#include "kernels/linear/linear_pass.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstring>

#include "kernels/linear/linear_cut.h"
#include "kernels/quantised.h"

namespace weft::kernels {
namespace {

constexpr std::int64_t kMostPacked = 8 * kPanelK;  // numbers of x that are packed at a time
constexpr std::int64_t kPackedBytes = std::int64_t{16} << 20;
constexpr std::int64_t kWorkPerThread = std::int64_t{1} << 17;  // products; below, waking a thread costs more

/// One pass: some rows of x against all weights. Threads first pack x, then take tasks, both from one counter. It
/// treats a pair of bf16 numbers as one number of f32: op.weight then has half the columns that x has, unless its
/// levels become such pairs.
class Pass {
 public:
  Pass(const Linear& op, const LinearKernels& kernels, std::int64_t first_row, std::int64_t rows)
      : op_(op), kernels_(kernels), cut_(kernels, op, rows), type_(static_cast<int>(op.weight.dtype)),
        weight_size_(static_cast<std::int64_t>(size_of(op.weight.dtype))), first_row_(first_row),
        quantised_(QuantisedLayout::of(op.weight)) {}

  void run(ThreadPool::Turn& turn, int threads) {
    packed_ = reinterpret_cast<float*>(turn.shared(static_cast<std::size_t>(cut_.packed_floats()) * 4));
    const std::int64_t useful = 1 + cut_.rows * cut_.columns * cut_.in / kWorkPerThread;
    turn.run(std::min<std::int64_t>({threads, cut_.tasks, useful}),
             [&](std::int64_t, int thread) { work(turn, thread); });
  }

 private:
  void work(ThreadPool::Turn& turn, int thread) {
    const std::int64_t floats = cut_.sums_floats() + cut_.panel_floats();
    float* const sums = reinterpret_cast<float*>(turn.scratch(thread, static_cast<std::size_t>(floats) * 4));
    const std::int64_t tiles = cut_.padded_rows / cut_.tile_rows * cut_.k_blocks;
    std::int64_t mine = next_++;
    for (; mine < tiles; mine = next_++) {
      pack(mine / cut_.k_blocks * cut_.tile_rows, mine % cut_.k_blocks);
      packed_tiles_.fetch_add(1, std::memory_order_release);
    }
    while (packed_tiles_.load(std::memory_order_acquire) < tiles) std::this_thread::yield();  // tiles of other threads
    for (std::int64_t following; mine < tiles + cut_.tasks; mine = following) {
      following = next_++;  // drawn one task early, to know what to prefetch
      const Task task{(mine - tiles) * cut_.task_columns, (following - tiles) * cut_.task_columns};
      if (cut_.direct) direct(task, sums);
      else if (cut_.float8) float8(task, sums);
      else panels(task, sums, sums + cut_.sums_floats());
    }
  }

  struct Task {
    std::int64_t first, following;  // its first column, and that of this thread's next task
  };
  std::int64_t columns(const Task& task) const { return std::min(cut_.task_columns, cut_.columns - task.first); }

  /// direct or float8: [block][row tile][step][tile_rows][16]; else [block][16][row tile][step][tile_rows], the order
  /// in which the kernels read it.
  float* packed_tile(std::int64_t row, std::int64_t block) const {
    const std::int64_t before = cut_.padded_rows * divide_up(cut_.k_block, kPartialSums) + kPartialSums;
    return packed_ + before * kPartialSums * block +
           row * cut_.steps(block) * (cut_.lanes_of_x_together() ? kPartialSums : 1);
  }
  void pack(std::int64_t row, std::int64_t block) {
    const std::int64_t rows = std::min(cut_.tile_rows, cut_.rows - row), stride = op_.x.stride;
    const float* const from = op_.x.as<float>() + (first_row_ + row) * stride;
    if (kernels_.round_pairs == nullptr) return pack_rows(from + block * cut_.k_block, stride, row, rows, block);
    const std::int64_t length = cut_.length(block);
    assert(rows * length <= kMostPacked);
    std::array<float, kMostPacked> pairs;
    for (std::int64_t i = 0; i < rows; ++i)
      kernels_.round_pairs(from + i * stride + 2 * block * cut_.k_block, length, pairs.data() + i * length);
    pack_rows(pairs.data(), length, row, rows, block);
  }
  void pack_rows(const float* from, std::int64_t stride, std::int64_t row, std::int64_t rows, std::int64_t block) {
    float* const to = packed_tile(row, block);
    if (!cut_.lanes_of_x_together())
      return kernels_.transpose[static_cast<int>(DType::f32)]({.from = from,
                                                               .rows = rows,
                                                               .k = cut_.length(block),
                                                               .stride = stride,
                                                               .to = to,
                                                               .step = cut_.tile_rows,
                                                               .lane_step = cut_.x_lane(block),
                                                               .width = cut_.tile_rows});
    const std::int64_t step = cut_.tile_rows * kPartialSums;
    for (std::int64_t i = 0; i < rows; ++i)
      kernels_.spread(from + i * stride, cut_.length(block), to + i * kPartialSums, step);
    for (std::int64_t i = rows; i < cut_.tile_rows; ++i)
      for (std::int64_t s = 0; s < cut_.steps(block); ++s)
        std::memset(to + s * step + i * kPartialSums, 0, kPartialSums * 4);
  }

  const std::byte* weight(std::int64_t column, std::int64_t block) const {
    return op_.weight.as<std::byte>() + (column * op_.weight.stride + block * cut_.k_block) * weight_size_;
  }

  void direct(const Task& task, float* sums) {
    const std::int64_t have = columns(task), stride = cut_.task_columns * kPartialSums;
    for (std::int64_t block = 0; block < cut_.k_blocks; ++block)
      for (std::int64_t n = 0, width; n < have; n += width) {
        width = n + cut_.group <= have ? cut_.group : 1;
        const DirectKernel kernel =
            (width == cut_.group ? kernels_.direct : kernels_.single)[type_][cut_.tile_rows - 1];
        const std::byte *from = weight(task.first + n, block), *next = soon(task, n + 2 * cut_.group, block);
        for (std::int64_t row = 0; row < cut_.padded_rows; row += cut_.tile_rows)
          kernel({.x = packed_tile(row, block),
                  .weight = from,
                  .prefetch = row == 0 ? next : from,
                  .weight_stride = op_.weight.stride,
                  .k = cut_.length(block),
                  .sums = sums + row * stride + n * kPartialSums,
                  .sums_stride = stride,
                  .first = block == 0});
      }
    finish(task, 0, cut_.rows, sums);
  }
  /// The weights that are multiplied where column `n` would be, even past the task's last. It looks only a short way
  /// ahead, because a line on its way holds one of the few fill buffers.
  const std::byte* soon(const Task& task, std::int64_t n, std::int64_t block) const {
    const std::int64_t have = columns(task), last = cut_.columns - 1;
    if (n < have) return weight(task.first + n, block);
    n = (n - have) % cut_.task_columns;
    if (block + 1 < cut_.k_blocks) return weight(std::min(task.first + n, last), block + 1);
    return weight(std::min(task.following + n, last), 0);
  }

  void panels(const Task& task, float* sums, float* panel) {
    const bool one = cut_.one_panel();
    NextPanel next;
    if (one) {
      fill_panel(task.first, 0, panel);
      next = next_panel(task.following, 0, cut_.padded_rows);
    }
    for (std::int64_t row = 0; row < cut_.padded_rows; row += cut_.chunk_rows) {
      const std::int64_t rows = std::min(cut_.chunk_rows, cut_.padded_rows - row);
      for (std::int64_t block = 0; block < cut_.k_blocks; ++block) {
        const bool last_block = block + 1 == cut_.k_blocks, last = last_block && row + rows == cut_.padded_rows;
        if (!one) {
          fill_panel(task.first, block, panel);
          next = next_panel(last ? task.following : task.first, last_block ? 0 : block + 1, rows);
        }
        multiply(row, rows, block, panel, sums, next);
      }
      finish(task, row, std::min(rows, cut_.rows - row), sums);
    }
  }
  void fill_panel(std::int64_t column, std::int64_t block, float* panel) const {
    if (is_quantised(quantised_.dtype)) return unpack_panel(column, block, panel);
    for (std::int64_t n = 0; n < cut_.task_columns; n += kPartialSums)
      kernels_.transpose[type_]({.from = weight(std::min(column + n, cut_.columns - 1), block),
                                 .rows = std::clamp<std::int64_t>(cut_.columns - column - n, 0, kPartialSums),
                                 .k = cut_.length(block),
                                 .stride = op_.weight.stride,
                                 .to = panel + n,
                                 .step = cut_.task_columns,
                                 .lane_step = cut_.panel_lane(block),
                                 .width = kPartialSums});
  }

  void unpack_panel(std::int64_t column, std::int64_t block, float* panel) const {
    const auto unpack = quantised_.dtype == DType::f8          ? kernels_.unpack_f8
                        : quantised_.dtype == DType::i8        ? kernels_.unpack8
                        : quantised_.table == LevelTable::even ? kernels_.unpack4
                                                               : kernels_.unpack_table;
    const auto& table = level_table(quantised_.table);
    for (std::int64_t n = 0; n < cut_.task_columns; n += kPartialSums)
      unpack({.from = groups(std::min(column + n, cut_.columns - 1), block),
              .group = quantised_.group,
              .k = cut_.length(block) * cut_.numbers,
              .steps = cut_.steps(block),
              .to = panel + n,
              .step = cut_.task_columns,
              .lane_step = cut_.panel_lane(block),
              .table = table.data()});
  }
  void float8(const Task& task, float* sums) {
    for (std::int64_t n = 0; n < columns(task); n += kPartialSums)
      for (std::int64_t block = 0; block < cut_.k_blocks; ++block)
        for (std::int64_t row = 0; row < cut_.padded_rows; row += cut_.tile_rows)
          kernels_.float8[cut_.tile_rows - 1]({.x = packed_tile(row, block),
                                               .from = groups(task.first + n, block),
                                               .group = quantised_.group,
                                               .steps = cut_.steps(block),
                                               .sums = sums + row * cut_.task_columns + n,
                                               .sums_lane = cut_.sums_lane(),
                                               .sums_stride = cut_.task_columns,
                                               .first = block == 0});
    finish(task, 0, cut_.rows, sums);
  }
  /// The groups of a column's tile in a block, for quantised weights.
  const std::byte* groups(std::int64_t column, std::int64_t block) const {
    return op_.weight.as<std::byte>() + column / QuantisedLayout::kTileRows * quantised_.tile_bytes() +
           block * cut_.k_block * cut_.numbers / quantised_.group * quantised_.group_bytes();
  }

  /// The weights of the next panel: every tile prefetches a part of them.
  struct NextPanel {
    std::int64_t column = 0, block = 0, last = 0;  // the next column, and the one after the last
    std::int64_t lines = 0, part_lines = 0, line = 0;
  };
  /// `rows` are multiplied before it.
  NextPanel next_panel(std::int64_t column, std::int64_t block, std::int64_t rows) const {
    const bool tiles = is_quantised(quantised_.dtype);  // a tile's columns are one range
    const std::int64_t lines = divide_up(tiles ? divide_up(cut_.length(block) * cut_.numbers, quantised_.group) *
                                                     quantised_.group_bytes() / QuantisedLayout::kTileRows
                                               : cut_.length(block) * weight_size_,
                                         64);
    const std::int64_t parts = std::max<std::int64_t>(1, rows / cut_.tile_rows * kPartialSums / cut_.task_columns);
    return {.column = column,
            .block = block,
            .last = std::min(column + cut_.task_columns, cut_.columns),
            .lines = lines,
            .part_lines = divide_up(lines, parts)};
  }

  /// Multiplies one lane after the other, in the order in which the tree of the 16 sums (linear_kernels.h) takes them.
  /// In the last block the sums of a lane are whole, and join those that are their neighbours in the tree. The sums of
  /// some lanes lie where those of the first of them did; in the end all lie where lane 0 does.
  void multiply(std::int64_t row0, std::int64_t rows, std::int64_t block, const float* panel, float* sums,
                NextPanel& next) {
    constexpr std::array<int, kPartialSums> order{0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};
    const bool whole = block + 1 == cut_.k_blocks;
    const std::int64_t steps = cut_.steps(block), tile_x = cut_.tile_rows * steps,
                       tile_sums = cut_.tile_rows * cut_.task_columns;
    const auto kernel = kernels_.panel[cut_.tile_rows - 1];
    for (std::size_t i = 0; i < order.size(); ++i) {
      const int lane = order[i], joins = whole ? std::countr_one(i) : 0;
      const auto sums_from = [&](std::size_t first) { return sums + order[first] * cut_.sums_lane(); };
      PanelTile tile{.x = packed_tile(row0, block) + lane * cut_.x_lane(block),
                     .panel = panel + lane * cut_.panel_lane(block),
                     .steps = steps,
                     .sums = sums_from(i),
                     .first = block == 0,
                     .joins = joins,
                     .join = {},
                     .to = sums_from(i + 1 - (std::size_t{1} << joins)),
                     .prefetch = nullptr,
                     .prefetch_lines = 0};
      for (int level = 0; level < joins; ++level) tile.join[level] = sums_from(i + 1 - (std::size_t{2} << level));
      for (std::int64_t row = 0; row < rows; row += cut_.tile_rows) {
        const bool wanted = next.column < next.last && next.line < next.lines;
        tile.prefetch = wanted ? upcoming(next.column, next.block, next.lines) + next.line * 64 : nullptr;
        tile.prefetch_lines = wanted ? next.part_lines : 0;
        kernel(tile);
        tile.x += tile_x, tile.sums += tile_sums, tile.to += tile_sums;
        for (int level = 0; level < joins; ++level) tile.join[level] += tile_sums;
        next.line += next.part_lines;
        if (next.line >= next.lines) ++next.column, next.line = 0;
      }
    }
  }

  const std::byte* upcoming(std::int64_t column, std::int64_t block, std::int64_t lines) const {
    if (!is_quantised(quantised_.dtype)) return weight(column, block);
    return groups(column, block) + column % QuantisedLayout::kTileRows * lines * 64;
  }

  void finish(const Task& task, std::int64_t row0, std::int64_t rows, const float* sums) const {
    const auto bias_size = static_cast<std::int64_t>(size_of(op_.bias.dtype));
    const bool whole = !cut_.lanes_of_x_together();
    const std::int64_t row_sums = cut_.task_columns * (cut_.direct ? kPartialSums : 1);
    const std::int64_t together = whole ? rows : 1;
    for (std::int64_t row = 0; row < rows; row += together)
      (whole         ? kernels_.finish_sums
       : cut_.direct ? kernels_.finish_direct
                     : kernels_.finish_panel)(
          {.sums = sums + row * row_sums,
           .lane_step = cut_.sums_lane(),
           .bias = op_.bias ? op_.bias.as<std::byte>() + task.first * bias_size : nullptr,
           .bias_type = op_.bias.dtype,
           .activation = op_.activation,
           .accumulate = op_.accumulate,
           .out = op_.out.as<float>() + (first_row_ + row0 + row) * op_.out.stride + task.first,
           .columns = columns(task),
           .rows = together,
           .sums_stride = row_sums,
           .out_stride = op_.out.stride});
  }

  const Linear& op_;
  const LinearKernels& kernels_;
  const LinearCut cut_;
  const int type_;
  const std::int64_t weight_size_;
  const std::int64_t first_row_;
  const QuantisedLayout quantised_;
  float* packed_ = nullptr;
  alignas(64) std::atomic<std::int64_t> next_{0};
  alignas(64) std::atomic<std::int64_t> packed_tiles_{0};
};

}  // namespace

void linear_by(const LinearKernels& kernels, const Linear& op, ThreadPool& pool) {
  // As many rows at a time as fit kPackedBytes when packed, in passes as even as possible.
  const std::int64_t row_bytes = std::max<std::int64_t>(1, round_up(op.x.cols, kPartialSums)) * 4;
  const std::int64_t tile = kernels.panel_rows;
  const std::int64_t most = std::max<std::int64_t>(64, kPackedBytes / row_bytes / tile * tile);
  const std::int64_t rows = round_up(divide_up(op.x.rows, divide_up(op.x.rows, most)), tile);
  ThreadPool::Turn turn(pool);
  for (std::int64_t row = 0; row < op.x.rows; row += rows)
    Pass(op, kernels, row, std::min(rows, op.x.rows - row)).run(turn, pool.threads());
}

}  // namespace weft::kernels
