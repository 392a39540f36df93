#include "kernels/linear/linear_quantised.h"

#include <algorithm>
#include <atomic>

#include "kernels/quantised.h"

namespace weft::kernels {
namespace {

constexpr std::int64_t kLayoutRows = QuantisedLayout::kTileRows, kLineBytes = QuantisedLayout::kLine;
constexpr std::int64_t kTaskTiles = 4;                               // tiles of weights in a task, at most
constexpr std::int64_t kPartGroups = 16;                             // groups of a block of rows, handed out at once
constexpr std::int64_t kLevelBytes = std::int64_t{16} << 20;         // levels of x, unless that is less than 64 rows
constexpr std::int64_t kLevelWorkPerThread = std::int64_t{1} << 19;  // products; below, waking a thread costs more

/// Some rows of x against all weights. Threads first quantise parts of blocks of rows, then take tasks of a few tiles
/// each. The rows of a block lie interleaved, and a part is whole cache lines, so that no two threads write the same.
class IntegerPass {
 public:
  IntegerPass(const Linear& op, const IntegerKernels& kernels, void (*finish_row)(const Finish&),
              std::int64_t first_row, std::int64_t rows)
      : op_(op), kernels_(kernels), finish_(finish_row), layout_(QuantisedLayout::of(op.weight)), first_row_(first_row),
        rows_(rows), block_rows_(divide_up(rows, divide_up(rows, kernels.rows))) {}

  static std::int64_t row_bytes(const QuantisedLayout& layout) {
    return layout.groups() * (layout.group + 2 * static_cast<std::int64_t>(sizeof(float)));
  }

  void run(ThreadPool::Turn& turn, int threads) {
    const std::int64_t blocks = divide_up(rows_, block_rows_), floats = blocks * block_floats();
    float* const shared = reinterpret_cast<float*>(turn.shared(static_cast<std::size_t>(2 * floats) * sizeof(float) +
                                                               static_cast<std::size_t>(blocks * block_levels())));
    scale_ = shared, sum_ = shared + floats;
    levels_ = reinterpret_cast<std::int8_t*>(shared + 2 * floats);
    parts_ = blocks * block_parts();
    const std::int64_t useful = 1 + rows_ * layout_.rows * layout_.cols / kLevelWorkPerThread;
    threads = static_cast<int>(std::min<std::int64_t>(threads, useful));
    task_tiles_ = std::clamp<std::int64_t>(layout_.tiles() / (8 * threads), 1, kTaskTiles);
    turn.run(std::min<std::int64_t>(threads, std::max(parts_, divide_up(layout_.tiles(), task_tiles_))),
             [&](std::int64_t, int thread) { work(turn, thread); });
  }

 private:
  void work(ThreadPool::Turn& turn, int thread) {
    std::int64_t mine = next_++;
    for (; mine < parts_; mine = next_++) {
      quantise(mine);
      quantised_.fetch_add(1, std::memory_order_release);
    }
    while (quantised_.load(std::memory_order_acquire) < parts_) std::this_thread::yield();  // parts of other threads
    const std::size_t floats = static_cast<std::size_t>(block_rows_ * kLayoutRows);
    float* const sums = reinterpret_cast<float*>(turn.scratch(thread, floats * sizeof(float)));
    const std::int64_t tasks = divide_up(layout_.tiles(), task_tiles_);
    for (; mine < parts_ + tasks; mine = next_++) {
      const std::int64_t first = (mine - parts_) * task_tiles_;
      for (std::int64_t tile = first; tile < std::min(first + task_tiles_, layout_.tiles()); ++tile)
        multiply(tile, sums);
    }
  }

  std::int64_t block_parts() const { return divide_up(layout_.groups(), kPartGroups); }
  std::int64_t block_floats() const { return round_up(layout_.groups() * block_rows_, kLineBytes / 4); }
  std::int64_t block_levels() const { return round_up(layout_.groups() * layout_.group * block_rows_, kLineBytes); }

  /// Quantises some groups of the rows of a block.
  void quantise(std::int64_t part) {
    const std::int64_t block = part / block_parts(), group = part % block_parts() * kPartGroups;
    const std::int64_t first = block * block_rows_, rows = std::min(block_rows_, rows_ - first);
    const std::int64_t column = group * layout_.group;
    for (std::int64_t row = 0; row < rows; ++row)
      kernels_.quantise({.from = op_.x.as<float>() + (first_row_ + first + row) * op_.x.stride + column,
                         .columns = layout_.cols - column,
                         .groups = std::min(kPartGroups, layout_.groups() - group),
                         .group = layout_.group,
                         .to = levels_ + block * block_levels() + column * rows + row * kQuad,
                         .scale = scale_ + block * block_floats() + group * rows + row,
                         .sum = sum_ + block * block_floats() + group * rows + row,
                         .rows = rows});
  }

  const decltype(IntegerKernels::tile4)& kernels_of_weights() const {
    if (layout_.dtype != DType::i4) return kernels_.tile8;
    switch (layout_.table) {
      case LevelTable::e2m1: return kernels_.tile_table[0];
      case LevelTable::iq4_nl: return kernels_.tile_table[1];
      case LevelTable::even: break;
    }
    return kernels_.tile4;
  }

  void multiply(std::int64_t tile, float* sums) const {
    const auto& kernels = kernels_of_weights();
    const auto& table = level_table(layout_.table);
    for (std::int64_t first = 0, block = 0; first < rows_; first += block_rows_, ++block) {
      const std::int64_t rows = std::min(block_rows_, rows_ - first);
      kernels[rows - 1]({.x = levels_ + block * block_levels(),
                         .x_scale = scale_ + block * block_floats(),
                         .x_sum = sum_ + block * block_floats(),
                         .weight = op_.weight.as<std::byte>() + tile * layout_.tile_bytes(),
                         .groups = layout_.groups(),
                         .quads = layout_.group / kQuad,
                         .table = table.data(),
                         .prefetch = first == 0,
                         .sums = sums});
      for (std::int64_t row = 0; row < rows; ++row) finish(first + row, tile, sums + row * kLayoutRows);
    }
  }

  void finish(std::int64_t row, std::int64_t tile, const float* sums) const {
    const std::int64_t column = tile * kLayoutRows;
    const auto bias_size = static_cast<std::int64_t>(size_of(op_.bias.dtype));
    finish_({.sums = sums,
             .lane_step = 0,
             .bias = op_.bias ? op_.bias.as<std::byte>() + column * bias_size : nullptr,
             .bias_type = op_.bias.dtype,
             .activation = op_.activation,
             .accumulate = op_.accumulate,
             .out = op_.out.as<float>() + (first_row_ + row) * op_.out.stride + column,
             .columns = std::min(kLayoutRows, layout_.rows - column)});
  }

  const Linear& op_;
  const IntegerKernels& kernels_;
  void (*const finish_)(const Finish&);
  const QuantisedLayout layout_;
  const std::int64_t first_row_, rows_, block_rows_;
  std::int64_t task_tiles_ = 1, parts_ = 0;
  std::int8_t* levels_ = nullptr;            // [blocks][quads][rows of the block][4], a block in whole cache lines
  float *scale_ = nullptr, *sum_ = nullptr;  // [blocks][groups][rows of the block], in the same way
  alignas(64) std::atomic<std::int64_t> next_{0};
  alignas(64) std::atomic<std::int64_t> quantised_{0};
};

}  // namespace

void linear_integer(const Linear& op, const IntegerKernels& kernels, void (*finish)(const Finish&), ThreadPool& pool) {
  const std::int64_t row_bytes = std::max<std::int64_t>(1, IntegerPass::row_bytes(QuantisedLayout::of(op.weight)));
  const std::int64_t most = std::max<std::int64_t>(64, kLevelBytes / row_bytes);
  const std::int64_t rows = divide_up(op.x.rows, divide_up(op.x.rows, most));
  ThreadPool::Turn turn(pool);
  for (std::int64_t row = 0; row < op.x.rows; row += rows)
    IntegerPass(op, kernels, finish, row, std::min(rows, op.x.rows - row)).run(turn, pool.threads());
}

}  // namespace weft::kernels
