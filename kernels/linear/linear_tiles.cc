#include "kernels/linear/linear_tiles.h"

#include <algorithm>
#include <atomic>

#include "kernels/quantised.h"

namespace weft::kernels {
namespace {

constexpr std::int64_t kFewRows = 4 * kAmxRows;           // up to so many, the panel would cost more than it saves
constexpr std::int64_t kFewTiles = 2;                     // tiles of rows, and of columns, whose sums are registers
constexpr std::int64_t kFewColumns = 4 * kAmxRows;        // columns of a task
constexpr std::int64_t kMostColumns = 256;                // of a panel: x is read once for all
constexpr std::int64_t kPanelSteps = 32;                  // a panel is at most half a MiB, a quarter of a second cache
constexpr std::int64_t kTogether = 2 * kAmxRows;          // rows, and columns, whose sums are registers
constexpr std::int64_t kMostRows = 1024;                  // of a pass: sums of a task take 1 MiB
constexpr std::int64_t kXBytes = std::int64_t{16} << 20;  // of x as tiles, unless that is less than 64 rows
constexpr std::int64_t kWorkOfThread = std::int64_t{1} << 17;  // weights; below, waking a thread costs more

/// Some rows of x against all weights of some products. Threads first turn x into tiles, then take tasks of columns,
/// both from one counter.
///
/// Few rows and weights of bf16: weights are multiplied as they lie, and tiles of sums are transposed.
/// Otherwise a task's weights become a panel of tiles, a block along k after the other; all rows pass through it.
class TilePass {
 public:
  TilePass(std::span<const Linear> products, const TileKernels& kernels, std::int64_t first_row, std::int64_t rows)
      : products_(products), kernels_(kernels), in_(products.front().x.cols), first_row_(first_row), rows_(rows),
        levels_(is_quantised(products.front().weight.dtype)), few_(rows <= kFewRows && !levels_),
        steps_(divide_up(in_, kAmxStep)), x_tiles_(divide_up(rows, kAmxRows)),
        x_rows_(few_ ? std::min(rows, kAmxRows) : kAmxRows) {
    for (const Linear& product : products) outputs_ += product.weight.rows;
  }

  void run(ThreadPool::Turn& turn, int threads) {
    x_ = turn.shared(static_cast<std::size_t>(x_tiles_ * x_tile()));
    const std::int64_t useful = 1 + outputs_ * in_ / kWorkOfThread * (1 + rows_ / 64);
    threads = static_cast<int>(std::min<std::int64_t>(threads, useful));
    task_columns_ =
        few_ ? kFewColumns : std::clamp(round_up(outputs_ / (4 * threads), kTogether), kTogether, kMostColumns);
    for (const Linear& product : products_) tasks_ += divide_up(product.weight.rows, task_columns_);
    turn.run(std::min<std::int64_t>(threads, std::max(tasks_, x_tiles_)),
             [&](std::int64_t, int thread) { work(turn, thread); });
  }

 private:
  /// Columns of one product.
  struct Task {
    const Linear* op;
    std::int64_t first, columns;
  };
  Task task(std::int64_t number) const {
    const Linear* op = products_.data();
    for (std::int64_t tasks; number >= (tasks = divide_up(op->weight.rows, task_columns_)); ++op) number -= tasks;
    const std::int64_t first = number * task_columns_;
    return {op, first, std::min(task_columns_, op->weight.rows - first)};
  }
  std::int64_t x_tile() const { return steps_ * kAmxTile / kAmxRows * x_rows_; }  // bytes of x_rows_ rows

  void work(ThreadPool::Turn& turn, int thread) {
    const std::int64_t blocks = divide_up(steps_, kPanelSteps);
    const std::int64_t panel_bytes = few_ ? 0 : task_columns_ / kAmxRows * std::min(steps_, kPanelSteps) * kAmxTile;
    const std::int64_t sums_rows = few_ || blocks > 1 ? round_up(rows_, kTogether) : kTogether;
    std::byte* const scratch =
        turn.scratch(thread, static_cast<std::size_t>(panel_bytes + sums_rows * task_columns_ * 4));
    float* const sums = reinterpret_cast<float*>(scratch + panel_bytes);
    std::int64_t mine = next_++;
    for (; mine < x_tiles_; mine = next_++) {
      to_tiles(mine);
      turned_.fetch_add(1, std::memory_order_release);
    }
    while (turned_.load(std::memory_order_acquire) < x_tiles_) std::this_thread::yield();  // tiles of other threads
    kernels_.begin(x_rows_);
    for (std::int64_t following; mine < x_tiles_ + tasks_; mine = following) {
      following = next_++;  // drawn one task early, to know what to prefetch
      const Task now = task(mine - x_tiles_);
      const Task next = following < x_tiles_ + tasks_ ? task(following - x_tiles_) : now;
      if (few_) few(now, next, sums);
      else many(now, next, scratch, sums);
    }
    kernels_.end();
  }

  void to_tiles(std::int64_t tile) {
    const ConstView& x = products_.front().x;
    const std::int64_t row = tile * kAmxRows;
    (few_ ? kernels_.round_pairs : kernels_.round_rows)({.from = x.as<float>() + (first_row_ + row) * x.stride,
                                                         .rows = std::min(kAmxRows, rows_ - row),
                                                         .k = in_,
                                                         .stride = x.stride,
                                                         .to = x_ + tile * x_tile(),
                                                         .tile = kAmxTile / kAmxRows * x_rows_});
  }

  static const bf16* weight(const Task& task, std::int64_t column, std::int64_t step) {
    return task.op->weight.as<bf16>() + (task.first + column) * task.op->weight.stride + step * kAmxStep;
  }

  void few(const Task& task, const Task& following, float* sums) {
    for (std::int64_t column = 0, tiles; column < task.columns; column += tiles * kAmxRows) {
      const std::int64_t left = task.columns - column;
      tiles = std::clamp<std::int64_t>(left / kAmxRows, 1, kFewTiles);
      const bf16* const soon =
          left > tiles * kAmxRows ? weight(task, column + tiles * kAmxRows, 0) : weight(following, 0, 0);
      for (std::int64_t tile = 0; tile < x_tiles_; tile += kFewTiles)
        kernels_.few[std::min(x_tiles_ - tile, kFewTiles) - 1][tiles - 1](
            {.x = x_ + tile * x_tile(),
             .x_rows = x_rows_,
             .weight = weight(task, column, 0),
             .prefetch = tile == 0 ? soon : weight(task, column, 0),
             .weight_stride = task.op->weight.stride,
             .k = in_,
             .columns = std::min(left, tiles * kAmxRows),
             .rows = rows_ - tile * kAmxRows,
             .sums = sums + tile * kAmxRows * task_columns_ + column,
             .sums_stride = task_columns_});
    }
    finish(task, 0, rows_, sums);
  }

  /// Makes a panel of a task's weights in some steps.
  void pair(const Task& task, std::int64_t step, std::int64_t steps, std::byte* panel) const {
    for (std::int64_t column = 0; column < round_up(task.columns, kTogether); column += kAmxRows)
      kernels_.pair_weights({.from = weight(task, std::min(column, task.columns - 1), step),
                             .rows = std::clamp<std::int64_t>(task.columns - column, 0, kAmxRows),
                             .k = std::min(steps * kAmxStep, in_ - step * kAmxStep),
                             .stride = task.op->weight.stride,
                             .to = panel + column / kAmxRows * steps * kAmxTile});
  }
  /// The same of levels. `soon` are the first that will be expanded after these.
  void expand(const Task& task, std::int64_t step, std::int64_t steps, const std::byte* soon, std::byte* panel) const {
    const QuantisedLayout layout = QuantisedLayout::of(task.op->weight);
    const auto expand_tile = layout.dtype == DType::i4 ? kernels_.expand4 : kernels_.expand8;
    for (std::int64_t column = 0; column < round_up(task.columns, kTogether); column += kAmxRows) {
      const bool there = column < task.columns;  // otherwise the tile has zeros
      expand_tile({.from = levels(task, there ? column : 0, step),
                   .group = layout.group,
                   .k = there ? std::min(steps * kAmxStep, in_ - step * kAmxStep) : 0,
                   .steps = steps,
                   .table = level_table(layout.table).data(),
                   .to = panel + column / kAmxRows * steps * kAmxTile,
                   .prefetch = column + kAmxRows < task.columns ? levels(task, column + kAmxRows, step) : soon});
    }
  }
  static const std::byte* levels(const Task& task, std::int64_t column, std::int64_t step) {
    const QuantisedLayout layout = QuantisedLayout::of(task.op->weight);
    return task.op->weight.as<std::byte>() + (task.first + column) / kAmxRows * layout.tile_bytes() +
           step * kAmxStep / layout.group * layout.group_bytes();
  }

  void many(const Task& task, const Task& following, std::byte* panel, float* sums) {
    const std::int64_t blocks = divide_up(steps_, kPanelSteps);
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t step = block * kPanelSteps, steps = std::min(kPanelSteps, steps_ - step);
      const bool last = block + 1 == blocks;
      const Task& next = last ? following : task;
      const std::int64_t next_step = last ? 0 : step + kPanelSteps;
      if (levels_) expand(task, step, steps, levels(next, 0, next_step), panel);
      else pair(task, step, steps, panel);
      // Each call of a kernel prefetches a part of the next panel's rows, if they are numbers.
      const std::int64_t calls = divide_up(rows_, kTogether) * divide_up(task.columns, kTogether);
      const std::int64_t part = divide_up(next.columns, calls);
      std::int64_t ahead = 0;
      for (std::int64_t row = 0; row < rows_; row += kTogether) {
        // Sums that are the result are stored as it.
        const bool direct = blocks == 1 && row + kTogether <= rows_ && is_sum(task);
        float* const row_sums = direct ? result(task, row) : blocks > 1 ? sums + row * task_columns_ : sums;
        const std::int64_t tile = row / kAmxRows;
        for (std::int64_t column = 0; column < task.columns; column += kTogether) {
          // Rows of the result that this call, or finish(), is the next to write.
          const bool turns = column + kTogether >= task.columns;
          const std::int64_t soon_row = direct && turns ? row + kTogether : row;
          const std::int64_t soon_column = !direct ? column : turns ? 0 : column + kTogether;
          const bool writes_soon = last && soon_row + kTogether <= rows_;
          const std::int64_t rows_ahead = levels_ ? 0 : std::clamp<std::int64_t>(next.columns - ahead, 0, part);
          kernels_.many[tile + 1 < x_tiles_ ? 1 : 0](
              {.x = x_ + tile * x_tile() + step * kAmxTile,
               .panel = panel + column / kAmxRows * steps * kAmxTile,
               .x_tile = x_tile(),
               .panel_tile = steps * kAmxTile,
               .steps = steps,
               .sums = row_sums + column,
               .sums_stride = direct ? task.op->out.stride : task_columns_,
               .first = block == 0,
               .prefetch = levels_ ? nullptr
                                   : reinterpret_cast<const std::byte*>(
                                         weight(next, std::min(ahead, next.columns - 1), next_step)),
               .prefetch_stride = next.op->weight.stride * 2,
               .prefetch_rows = rows_ahead,
               .soon = writes_soon ? result(task, soon_row) + soon_column : nullptr,
               .soon_stride = task.op->out.stride});
          ahead += rows_ahead;
        }
        if (last && !direct) finish(task, row, std::min(kTogether, rows_ - row), row_sums);
      }
    }
  }

  /// Whether a task's result is its sums, in whole tiles.
  static bool is_sum(const Task& task) {
    return !task.op->bias && task.op->activation == Activation::none && !task.op->accumulate &&
           task.columns % kTogether == 0;
  }
  float* result(const Task& task, std::int64_t row) const {
    return task.op->out.as<float>() + (first_row_ + row) * task.op->out.stride + task.first;
  }

  void finish(const Task& task, std::int64_t row, std::int64_t rows, const float* sums) const {
    const Linear& op = *task.op;
    const auto bias_size = static_cast<std::int64_t>(size_of(op.bias.dtype));
    kernels_.finish({.sums = sums,
                     .lane_step = 0,
                     .bias = op.bias ? op.bias.as<std::byte>() + task.first * bias_size : nullptr,
                     .bias_type = op.bias.dtype,
                     .activation = op.activation,
                     .accumulate = op.accumulate,
                     .out = result(task, row),
                     .columns = task.columns,
                     .rows = rows,
                     .sums_stride = task_columns_,
                     .out_stride = op.out.stride});
  }

  const std::span<const Linear> products_;
  const TileKernels& kernels_;
  const std::int64_t in_, first_row_, rows_;
  const bool levels_, few_;                      // levels_: whether weights are quantised
  const std::int64_t steps_, x_tiles_, x_rows_;  // x_rows_: of a tile
  std::int64_t outputs_ = 0, task_columns_ = 0, tasks_ = 0;
  std::byte* x_ = nullptr;  // [x tiles][steps] tiles
  alignas(64) std::atomic<std::int64_t> next_{0};
  alignas(64) std::atomic<std::int64_t> turned_{0};
};

}  // namespace

void linear_tiles(std::span<const Linear> products, const TileKernels& kernels, ThreadPool& pool) {
  const ConstView& x = products.front().x;
  const std::int64_t row_bytes = std::max<std::int64_t>(1, round_up(x.cols, kAmxStep)) * 2;
  const std::int64_t most = std::clamp<std::int64_t>(kXBytes / row_bytes / kTogether * kTogether, 64, kMostRows);
  const std::int64_t rows = round_up(divide_up(x.rows, divide_up(x.rows, most)), kTogether);
  ThreadPool::Turn turn(pool);
  for (std::int64_t row = 0; row < x.rows; row += rows)
    TilePass(products, kernels, row, std::min(rows, x.rows - row)).run(turn, pool.threads());
}

}  // namespace weft::kernels
