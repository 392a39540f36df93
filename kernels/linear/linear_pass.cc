#include "kernels/linear/linear_pass.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstring>
#include <span>

#include "kernels/linear/linear_cut.h"
#include "kernels/quantised.h"

namespace weft::kernels {
namespace {

constexpr std::int64_t kMostPacked = 8 * kPanelK;  // numbers of x that are packed at a time
constexpr std::int64_t kPackedBytes = std::int64_t{16} << 20;
constexpr std::int64_t kWorkPerThread = std::int64_t{1} << 17;  // products; below, waking a thread costs more

/// One pass: some rows of x against all weights of some products. Threads first pack x, then take tasks, both from one
/// counter. It treats a pair of bf16 numbers as one number of f32: weights then have half the columns that x has,
/// unless their levels become such pairs.
class Pass {
 public:
  Pass(std::span<const Linear> products, const LinearKernels& kernels, std::int64_t first_row, std::int64_t rows)
      : products_(products), x_(products.front().x), kernels_(kernels), cut_(kernels, products.front(), rows),
        type_(static_cast<int>(products.front().weight.dtype)),
        weight_size_(static_cast<std::int64_t>(size_of(products.front().weight.dtype))), first_row_(first_row),
        quantised_(QuantisedLayout::of(products.front().weight)) {
    for (const Linear& op : products) columns_ += op.weight.rows, tasks_ += tasks_of(op);
  }

  void run(ThreadPool::Turn& turn, int threads) {
    packed_ = reinterpret_cast<float*>(turn.shared(static_cast<std::size_t>(cut_.packed_floats()) * 4));
    const std::int64_t useful = 1 + cut_.rows * columns_ * cut_.in / kWorkPerThread;
    turn.run(std::min<std::int64_t>({threads, tasks_, useful}), [&](std::int64_t, int thread) { work(turn, thread); });
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
    for (std::int64_t following; mine < tiles + tasks_; mine = following) {
      following = next_++;  // drawn one task early, to know what to prefetch
      const Task task{columns_of(mine - tiles), columns_of(following - tiles)};
      if (cut_.direct) direct(task, sums);
      else if (cut_.float8) float8(task, sums);
      else panels(task, sums, sums + cut_.sums_floats());
    }
  }

  /// Columns of a product's weights, from `first` on: as many as a task has, or those that are left.
  struct Columns {
    const Linear* op;
    std::int64_t first;
  };
  struct Task {
    Columns own, following;  // those of this thread's next task
  };
  std::int64_t tasks_of(const Linear& op) const { return divide_up(op.weight.rows, cut_.task_columns); }
  Columns columns_of(std::int64_t task) const {
    for (const Linear& op : products_) {
      if (task < tasks_of(op)) return {&op, task * cut_.task_columns};
      task -= tasks_of(op);
    }
    return {&products_.back(), products_.back().weight.rows};  // none
  }
  std::int64_t count(const Columns& of) const { return std::min(cut_.task_columns, of.op->weight.rows - of.first); }

  /// direct or float8: [block][row tile][step][tile_rows][16]; else [block][16][row tile][step][tile_rows], the order
  /// in which the kernels read it.
  float* packed_tile(std::int64_t row, std::int64_t block) const {
    const std::int64_t before = cut_.padded_rows * divide_up(cut_.k_block, kPartialSums) + kPartialSums;
    return packed_ + before * kPartialSums * block +
           row * cut_.steps(block) * (cut_.lanes_of_x_together() ? kPartialSums : 1);
  }
  void pack(std::int64_t row, std::int64_t block) {
    const std::int64_t rows = std::min(cut_.tile_rows, cut_.rows - row), stride = x_.stride;
    const float* const from = x_.as<float>() + (first_row_ + row) * stride;
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

  /// Of column `n` after the first, or the product's last.
  const std::byte* weight(const Columns& of, std::int64_t n, std::int64_t block) const {
    const ConstView& weight = of.op->weight;
    const std::int64_t column = std::min(of.first + n, weight.rows - 1);
    return weight.as<std::byte>() + (column * weight.stride + block * cut_.k_block) * weight_size_;
  }

  void direct(const Task& task, float* sums) {
    const std::int64_t have = count(task.own), stride = cut_.task_columns * kPartialSums;
    for (std::int64_t block = 0; block < cut_.k_blocks; ++block)
      for (std::int64_t n = 0, width; n < have; n += width) {
        width = n + cut_.group <= have ? cut_.group : 1;
        const DirectKernel kernel =
            (width == cut_.group ? kernels_.direct : kernels_.single)[type_][cut_.tile_rows - 1];
        const std::byte *from = weight(task.own, n, block), *next = soon(task, n + 2 * cut_.group, block);
        for (std::int64_t row = 0; row < cut_.padded_rows; row += cut_.tile_rows)
          kernel({.x = packed_tile(row, block),
                  .weight = from,
                  .prefetch = row == 0 ? next : from,
                  .weight_stride = task.own.op->weight.stride,
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
    const std::int64_t have = count(task.own);
    if (n < have) return weight(task.own, n, block);
    n = (n - have) % cut_.task_columns;
    if (block + 1 < cut_.k_blocks) return weight(task.own, n, block + 1);
    return weight(task.following, n, 0);
  }

  void panels(const Task& task, float* sums, float* panel) {
    const bool one = cut_.one_panel();
    NextPanel next;
    if (one) {
      fill_panel(task.own, 0, panel);
      next = next_panel(task.following, 0, cut_.padded_rows);
    }
    for (std::int64_t row = 0; row < cut_.padded_rows; row += cut_.chunk_rows) {
      const std::int64_t rows = std::min(cut_.chunk_rows, cut_.padded_rows - row);
      for (std::int64_t block = 0; block < cut_.k_blocks; ++block) {
        const bool last_block = block + 1 == cut_.k_blocks, last = last_block && row + rows == cut_.padded_rows;
        if (!one) {
          fill_panel(task.own, block, panel);
          next = next_panel(last ? task.following : task.own, last_block ? 0 : block + 1, rows);
        }
        multiply(row, rows, block, panel, sums, next);
      }
      finish(task, row, std::min(rows, cut_.rows - row), sums);
    }
  }
  void fill_panel(const Columns& of, std::int64_t block, float* panel) const {
    if (is_quantised(quantised_.dtype)) return unpack_panel(of, block, panel);
    for (std::int64_t n = 0; n < cut_.task_columns; n += kPartialSums)
      kernels_.transpose[type_]({.from = weight(of, n, block),
                                 .rows = std::clamp<std::int64_t>(count(of) - n, 0, kPartialSums),
                                 .k = cut_.length(block),
                                 .stride = of.op->weight.stride,
                                 .to = panel + n,
                                 .step = cut_.task_columns,
                                 .lane_step = cut_.panel_lane(block),
                                 .width = kPartialSums});
  }

  void unpack_panel(const Columns& of, std::int64_t block, float* panel) const {
    const auto unpack = quantised_.dtype == DType::f8          ? kernels_.unpack_f8
                        : quantised_.dtype == DType::i8        ? kernels_.unpack8
                        : quantised_.table == LevelTable::even ? kernels_.unpack4
                                                               : kernels_.unpack_table;
    const auto& table = level_table(quantised_.table);
    for (std::int64_t n = 0; n < cut_.task_columns; n += kPartialSums)
      unpack({.from = groups(of, n, block),
              .group = quantised_.group,
              .k = cut_.length(block) * cut_.numbers,
              .steps = cut_.steps(block),
              .to = panel + n,
              .step = cut_.task_columns,
              .lane_step = cut_.panel_lane(block),
              .table = table.data()});
  }
  void float8(const Task& task, float* sums) {
    for (std::int64_t n = 0; n < count(task.own); n += kPartialSums)
      for (std::int64_t block = 0; block < cut_.k_blocks; ++block)
        for (std::int64_t row = 0; row < cut_.padded_rows; row += cut_.tile_rows)
          kernels_.float8[cut_.tile_rows - 1]({.x = packed_tile(row, block),
                                               .from = groups(task.own, n, block),
                                               .group = quantised_.group,
                                               .steps = cut_.steps(block),
                                               .sums = sums + row * cut_.task_columns + n,
                                               .sums_lane = cut_.sums_lane(),
                                               .sums_stride = cut_.task_columns,
                                               .first = block == 0});
    finish(task, 0, cut_.rows, sums);
  }
  /// The groups, in a block, of the tile of column `n` after the first, or of the product's last column.
  const std::byte* groups(const Columns& of, std::int64_t n, std::int64_t block) const {
    const std::int64_t column = std::min(of.first + n, of.op->weight.rows - 1);
    return of.op->weight.as<std::byte>() + column / QuantisedLayout::kTileRows * quantised_.tile_bytes() +
           block * cut_.k_block * cut_.numbers / quantised_.group * quantised_.group_bytes();
  }

  /// The weights of the next panel: every tile prefetches a part of them.
  struct NextPanel {
    Columns of{};
    std::int64_t block = 0, columns = 0, column = 0;  // how many columns, and the one that comes next
    std::int64_t lines = 0, part_lines = 0, line = 0;
  };
  /// `rows` are multiplied before it.
  NextPanel next_panel(const Columns& of, std::int64_t block, std::int64_t rows) const {
    const bool tiles = is_quantised(quantised_.dtype);  // a tile's columns are one range
    const std::int64_t lines = divide_up(tiles ? divide_up(cut_.length(block) * cut_.numbers, quantised_.group) *
                                                     quantised_.group_bytes() / QuantisedLayout::kTileRows
                                               : cut_.length(block) * weight_size_,
                                         64);
    const std::int64_t parts = std::max<std::int64_t>(1, rows / cut_.tile_rows * kPartialSums / cut_.task_columns);
    return {.of = of, .block = block, .columns = count(of), .lines = lines, .part_lines = divide_up(lines, parts)};
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
      PanelTile tile{.tiles = 1,
                     .x = packed_tile(row0, block) + lane * cut_.x_lane(block),
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
      for (std::int64_t left = rows / cut_.tile_rows; left > 0; left -= tile.tiles) {
        const bool wanted = next.column < next.columns && next.line < next.lines;
        tile.tiles = wanted ? 1 : left;  // the last call takes all that are left
        tile.prefetch = wanted ? upcoming(next) + next.line * 64 : nullptr;
        tile.prefetch_lines = wanted ? next.part_lines : 0;
        kernel(tile);
        tile.x += tile_x, tile.sums += tile_sums, tile.to += tile_sums;
        for (int level = 0; level < joins; ++level) tile.join[level] += tile_sums;
        next.line += next.part_lines;
        if (next.line >= next.lines) ++next.column, next.line = 0;
      }
    }
  }

  const std::byte* upcoming(const NextPanel& next) const {
    if (!is_quantised(quantised_.dtype)) return weight(next.of, next.column, next.block);
    return groups(next.of, next.column, next.block) + next.column % QuantisedLayout::kTileRows * next.lines * 64;
  }

  void finish(const Task& task, std::int64_t row0, std::int64_t rows, const float* sums) const {
    const Linear& op = *task.own.op;
    const auto bias_size = static_cast<std::int64_t>(size_of(op.bias.dtype));
    const bool whole = !cut_.lanes_of_x_together();
    const std::int64_t row_sums = cut_.task_columns * (cut_.direct ? kPartialSums : 1);
    const std::int64_t together = whole ? rows : 1;
    for (std::int64_t row = 0; row < rows; row += together)
      (whole         ? kernels_.finish_sums
       : cut_.direct ? kernels_.finish_direct
                     : kernels_.finish_panel)(
          {.sums = sums + row * row_sums,
           .lane_step = cut_.sums_lane(),
           .bias = op.bias ? op.bias.as<std::byte>() + task.own.first * bias_size : nullptr,
           .bias_type = op.bias.dtype,
           .activation = op.activation,
           .accumulate = op.accumulate,
           .out = op.out.as<float>() + (first_row_ + row0 + row) * op.out.stride + task.own.first,
           .columns = count(task.own),
           .rows = together,
           .sums_stride = row_sums,
           .out_stride = op.out.stride});
  }

  const std::span<const Linear> products_;
  const ConstView x_;
  const LinearKernels& kernels_;
  const LinearCut cut_;
  const int type_;
  const std::int64_t weight_size_;
  const std::int64_t first_row_;
  const QuantisedLayout quantised_;  // of the first; those of the others have as many numbers in a row and a group
  std::int64_t columns_ = 0, tasks_ = 0;
  float* packed_ = nullptr;
  alignas(64) std::atomic<std::int64_t> next_{0};
  alignas(64) std::atomic<std::int64_t> packed_tiles_{0};
};

}  // namespace

void linear_by(const LinearKernels& kernels, std::span<const Linear> products, ThreadPool& pool) {
  // As many rows at a time as fit kPackedBytes when packed, in passes as even as possible.
  const ConstView& x = products.front().x;
  const std::int64_t row_bytes = std::max<std::int64_t>(1, round_up(x.cols, kPartialSums)) * 4;
  const std::int64_t tile = kernels.panel_rows;
  const std::int64_t most = std::max<std::int64_t>(64, kPackedBytes / row_bytes / tile * tile);
  const std::int64_t rows = round_up(divide_up(x.rows, divide_up(x.rows, most)), tile);
  ThreadPool::Turn turn(pool);
  for (std::int64_t row = 0; row < x.rows; row += rows)
    Pass(products, kernels, row, std::min(rows, x.rows - row)).run(turn, pool.threads());
}

}  // namespace weft::kernels
