#include "kernels/linear/linear_quantised.h"

#include <algorithm>
#include <atomic>
#include <span>

#include "kernels/quantised.h"

namespace weft::kernels {
namespace {

constexpr std::int64_t kLayoutRows = QuantisedLayout::kTileRows, kLineBytes = QuantisedLayout::kLine;
constexpr std::int64_t kTaskTiles = 4;                           // tiles of weights in a task, at most
constexpr std::int64_t kRowsWorthALook = 4;                      // for which it pays to look at all levels of a tile
constexpr std::int64_t kPartGroups = 16;                         // groups of a block of rows, handed out at once
constexpr std::int64_t kLevelBytes = std::int64_t{16} << 20;     // levels of x, unless that is less than 64 rows
constexpr std::int64_t kNearLevelBytes = std::int64_t{1} << 20;  // the same of AMX, for which L3 is too slow
constexpr std::int64_t kLevelWorkPerThread = std::int64_t{1} << 19;  // products; below, waking a thread costs more

std::int64_t bytes_of_levels(const QuantisedLayout& layout) {
  return layout.groups() * (layout.group + 2 * static_cast<std::int64_t>(sizeof(float)));
}

/// Some rows of x against all weights of some products, which have groups of one size. Threads first quantise parts of
/// blocks of rows, then take tasks of a few tiles each. The rows of a block lie interleaved, and a part is whole cache
/// lines, so that no two threads write the same.
class IntegerPass {
 public:
  IntegerPass(std::span<const Linear> products, const IntegerKernels& kernels, void (*finish_rows)(const Finish&),
              std::int64_t first_row, std::int64_t rows)
      : products_(products), kernels_(kernels), finish_(finish_rows),
        layout_(QuantisedLayout::of(products.front().weight)), first_row_(first_row), rows_(rows),
        block_rows_(whole_blocks() ? kernels.rows : divide_up(rows, divide_up(rows, kernels.rows))) {
    for (const Linear& product : products) {
      outputs_ += product.weight.rows;
      tiles_ += QuantisedLayout::of(product.weight).tiles();
    }
  }

  void run(ThreadPool::Turn& turn, int threads) {
    const std::int64_t blocks = divide_up(rows_, block_rows_), floats = blocks * block_floats();
    float* const shared = reinterpret_cast<float*>(turn.shared(static_cast<std::size_t>(2 * floats) * sizeof(float) +
                                                               static_cast<std::size_t>(blocks * block_levels())));
    scale_ = shared, sum_ = shared + floats;
    levels_ = reinterpret_cast<std::int8_t*>(shared + 2 * floats);
    parts_ = blocks * block_parts();
    const std::int64_t useful = 1 + rows_ * outputs_ * layout_.cols / kLevelWorkPerThread;
    threads = static_cast<int>(std::min<std::int64_t>(threads, useful));
    task_tiles_ = std::clamp<std::int64_t>(tiles_ / (8 * threads), 1, kTaskTiles);
    turn.run(std::min<std::int64_t>(threads, std::max(parts_, divide_up(tiles_, task_tiles_))),
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
    const std::int64_t sums_bytes = round_up(block_rows_ * kLayoutRows * 4, kLineBytes);
    std::byte* const scratch = turn.scratch(thread, static_cast<std::size_t>(sums_bytes + wide_tile_bytes()));
    float* const sums = reinterpret_cast<float*>(scratch);
    if (kernels_.begin != nullptr) kernels_.begin(layout_.group);
    const std::int64_t tasks = divide_up(tiles_, task_tiles_);
    for (; mine < parts_ + tasks; mine = next_++) {
      const std::int64_t first = (mine - parts_) * task_tiles_;
      for (std::int64_t tile = first; tile < std::min(first + task_tiles_, tiles_); ++tile)
        multiply(tile, sums, scratch + sums_bytes);
    }
    if (kernels_.end != nullptr) kernels_.end();
  }

  /// Whether blocks always have kernels_.rows rows.
  bool whole_blocks() const { return kernels_.begin != nullptr; }
  std::int64_t wide_tile_bytes() const {
    const QuantisedLayout wide{.dtype = DType::i8, .group = layout_.group, .rows = kLayoutRows, .cols = layout_.cols};
    return kernels_.widen == nullptr ? 0 : wide.tile_bytes();
  }
  std::int64_t block_parts() const { return divide_up(layout_.groups(), kPartGroups); }
  std::int64_t block_floats() const { return round_up(layout_.groups() * block_rows_, kLineBytes / 4); }
  std::int64_t block_levels() const { return round_up(layout_.groups() * layout_.group * block_rows_, kLineBytes); }

  /// Quantises some groups of the rows of a block.
  void quantise(std::int64_t part) {
    const std::int64_t block = part / block_parts(), group = part % block_parts() * kPartGroups;
    const std::int64_t first = block * block_rows_, rows = std::min(block_rows_, rows_ - first);
    const std::int64_t column = group * layout_.group;
    const ConstView& x = products_.front().x;
    const std::int64_t apart = whole_blocks() ? block_rows_ : rows,
                       groups = std::min(kPartGroups, layout_.groups() - group);
    std::int8_t* const to = levels_ + block * block_levels() + column * apart;
    float *const scale = scale_ + block * block_floats() + group * apart, *const sum = sum_ + (scale - scale_);
    for (std::int64_t row = 0; row < rows; ++row)
      kernels_.quantise({.from = x.as<float>() + (first_row_ + first + row) * x.stride + column,
                         .columns = layout_.cols - column,
                         .groups = groups,
                         .group = layout_.group,
                         .to = to + row * (whole_blocks() ? layout_.group : kQuad),
                         .scale = scale + row,
                         .sum = sum + row,
                         .rows = apart});
    for (std::int64_t g = 0; g < groups; ++g)
      for (std::int64_t row = rows; row < apart; ++row) scale[g * apart + row] = sum[g * apart + row] = 0;
  }

  const decltype(IntegerKernels::tile4)& kernels_of(const QuantisedLayout& weights, const std::byte* tile) const {
    if (weights.dtype != DType::i4 || kernels_.widen != nullptr) {
      const bool low = kernels_.all_below_64 != nullptr && rows_ >= kRowsWorthALook &&
                       kernels_.all_below_64(tile, weights.groups(), weights.group / kQuad);
      return low ? kernels_.tile8_below_64 : kernels_.tile8;
    }
    switch (weights.table) {
      case LevelTable::e2m1: return kernels_.tile_table[0];
      case LevelTable::iq4_nl:
      case LevelTable::nf4: return kernels_.tile_table[1];
      case LevelTable::even: break;
    }
    return kernels_.tile4;
  }

  /// `tile` counts the tiles of all products.
  void multiply(std::int64_t tile, float* sums, std::byte* wide) const {
    const Linear* op = products_.data();
    QuantisedLayout weights = layout_;
    for (; tile >= weights.tiles(); weights = QuantisedLayout::of((++op)->weight)) tile -= weights.tiles();
    const auto& table = level_table(weights.table);
    const std::byte* from = op->weight.as<std::byte>() + tile * weights.tile_bytes();
    const auto& kernels = kernels_of(weights, from);
    const bool widened = kernels_.widen != nullptr && weights.dtype == DType::i4;
    if (widened) {
      kernels_.widen({.from = from,
                      .groups = weights.groups(),
                      .quads = weights.group / kQuad,
                      .table = table.data(),
                      .to = wide});
      from = wide;
    }
    const std::int64_t column = tile * kLayoutRows;
    const auto bias_size = static_cast<std::int64_t>(size_of(op->bias.dtype));
    for (std::int64_t first = 0, block = 0; first < rows_; first += block_rows_, ++block) {
      const std::int64_t rows = std::min(block_rows_, rows_ - first);
      float* const out = op->out.as<float>() + (first_row_ + first) * op->out.stride + column;
      kernels[whole_blocks() ? block_rows_ - 1 : rows - 1]({.x = levels_ + block * block_levels(),
                                                            .x_scale = scale_ + block * block_floats(),
                                                            .x_sum = sum_ + block * block_floats(),
                                                            .weight = from,
                                                            .groups = weights.groups(),
                                                            .quads = weights.group / kQuad,
                                                            .table = table.data(),
                                                            .prefetch = first == 0 && !widened,
                                                            .sums = sums,
                                                            .soon = rows == block_rows_ ? out : nullptr,
                                                            .soon_stride = op->out.stride});
      finish_({.sums = sums,
               .lane_step = 0,
               .bias = op->bias ? op->bias.as<std::byte>() + column * bias_size : nullptr,
               .bias_type = op->bias.dtype,
               .activation = op->activation,
               .accumulate = op->accumulate,
               .out = out,
               .columns = std::min(kLayoutRows, weights.rows - column),
               .rows = rows,
               .sums_stride = kLayoutRows,
               .out_stride = op->out.stride});
    }
  }

  const std::span<const Linear> products_;
  const IntegerKernels& kernels_;
  void (*const finish_)(const Finish&);
  const QuantisedLayout layout_;  // of the first product
  const std::int64_t first_row_, rows_, block_rows_;
  std::int64_t outputs_ = 0, tiles_ = 0;  // of all products
  std::int64_t task_tiles_ = 1, parts_ = 0;
  std::int8_t* levels_ = nullptr;            // [blocks][quads][rows of the block][4], a block in whole cache lines
  float *scale_ = nullptr, *sum_ = nullptr;  // [blocks][groups][rows of the block], in the same way
  alignas(64) std::atomic<std::int64_t> next_{0};
  alignas(64) std::atomic<std::int64_t> quantised_{0};
};

}  // namespace

void linear_integer(std::span<const Linear> products, const IntegerKernels& kernels, void (*finish)(const Finish&),
                    ThreadPool& pool) {
  const std::int64_t all = products.front().x.rows;
  const std::int64_t row_bytes =
      std::max<std::int64_t>(1, bytes_of_levels(QuantisedLayout::of(products.front().weight)));
  const std::int64_t bytes = kernels.begin != nullptr ? kNearLevelBytes : kLevelBytes;
  const std::int64_t most = std::max<std::int64_t>(64, bytes / row_bytes);
  const std::int64_t rows = divide_up(all, divide_up(all, most));
  ThreadPool::Turn turn(pool);
  for (std::int64_t row = 0; row < all; row += rows)
    IntegerPass(products, kernels, finish, row, std::min(rows, all - row)).run(turn, pool.threads());
}

}  // namespace weft::kernels
