#include "kernels/linear_cpu.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "kernels/cpu_features.h"
#include "kernels/error.h"
#include "kernels/linear_kernels.h"
#include "kernels/linear_library.h"

namespace weft::kernels {
namespace {

constexpr std::int64_t kDirectRows = 24;      // up to here converting a weight once per tile of rows beats the panel
constexpr std::int64_t kDirectColumns = 24, kPanelColumns = 48;  // columns of a task
constexpr std::int64_t kPanelK = 512;         // 2 panels of 6 x 512 floats are half of the first cache
constexpr std::int64_t kDirectTileFloats = 4096;  // of x: also half of the first cache
constexpr std::int64_t kPackedBytes = std::int64_t{16} << 20;
constexpr std::int64_t kWorkPerThread = std::int64_t{1} << 17;  // products; below, waking a thread costs more

std::int64_t round_up(std::int64_t n, std::int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

/// Rows of x whose K-block and sums fill two thirds of the second cache.
std::int64_t rows_in_cache() {
  static const long cache = sysconf(_SC_LEVEL2_CACHE_SIZE);
  const std::int64_t bytes = std::max<std::int64_t>(cache, 512 << 10) * 2 / 3;
  return std::clamp<std::int64_t>(bytes / ((kPanelColumns * kPartialSums + kPanelK) * 4), 64, 256) / 4 * 4;
}

/// How one pass over the weights is cut: rows into chunks and tiles, columns into tasks, k into blocks.
struct Cut {
  Cut(const LinearKernels& kernels, std::int64_t m, std::int64_t n, std::int64_t k) : rows(m), columns(n), in(k) {
    direct = m <= kDirectRows;
    const std::int64_t most = direct ? kernels.direct_rows : kernels.panel_rows;
    const std::int64_t tiles = (m + most - 1) / most;
    tile_rows = direct ? (m + tiles - 1) / tiles : most;
    padded_rows = tiles * tile_rows;
    const std::int64_t chunks = direct ? 1 : (padded_rows + rows_in_cache() - 1) / rows_in_cache();
    chunk_rows = round_up((padded_rows + chunks - 1) / chunks, tile_rows);
    task_columns = direct ? kDirectColumns : kPanelColumns;
    group = direct ? kernels.direct_columns[tile_rows - 1] : 2 * kernels.panel_columns;
    ahead = direct ? 2 * group : group;
    k_block = direct ? std::bit_floor(static_cast<std::uint64_t>(kDirectTileFloats / tile_rows)) : kPanelK;
    k_blocks = std::max<std::int64_t>(1, (k + k_block - 1) / k_block);
    tasks = (n + task_columns - 1) / task_columns;
  }
  std::int64_t block_length(std::int64_t k0) const { return std::min(k_block, in - k0); }

  std::size_t packed_bytes() const { return static_cast<std::size_t>(padded_rows * round_up(in, kPartialSums)) * 4; }
  std::size_t sums_bytes() const { return static_cast<std::size_t>(chunk_rows * task_columns * kPartialSums) * 4; }
  std::size_t panel_bytes() const { return direct ? 0 : static_cast<std::size_t>(group * kPanelK) * 4; }

  std::int64_t rows, columns, in;
  bool direct;
  std::int64_t tile_rows, padded_rows, chunk_rows;
  std::int64_t task_columns, tasks;
  std::int64_t group, ahead;  // columns of an inner loop; how many columns before their use weights are prefetched
  std::int64_t k_block, k_blocks;
};

/// One pass: some rows of x against all weights. Threads first pack x, then take tasks, both from one counter.
class Pass {
 public:
  Pass(const Linear& op, const LinearKernels& kernels, std::int64_t first_row, std::int64_t rows)
      : op_(op),
        kernels_(kernels),
        cut_(kernels, rows, op.weight.rows, op.x.cols),
        type_(static_cast<int>(op.weight.dtype)),
        first_row_(first_row) {}

  void run(ThreadPool::Turn& turn, int threads) {
    packed_ = reinterpret_cast<float*>(turn.shared(cut_.packed_bytes()));
    const std::int64_t useful = 1 + cut_.rows * cut_.columns * cut_.in / kWorkPerThread;
    turn.run(std::min<std::int64_t>({threads, cut_.tasks, useful}), [&](std::int64_t, int thread) { work(turn, thread); });
  }

 private:
  void work(ThreadPool::Turn& turn, int thread) {
    std::byte* const scratch = turn.scratch(thread, cut_.sums_bytes() + cut_.panel_bytes());
    float* const sums = reinterpret_cast<float*>(scratch);
    float* const panel = reinterpret_cast<float*>(scratch + cut_.sums_bytes());
    const std::int64_t tiles = cut_.padded_rows / cut_.tile_rows * cut_.k_blocks;
    std::int64_t mine = next_++;
    for (; mine < tiles; mine = next_++) {
      pack(mine);
      packed_tiles_.fetch_add(1, std::memory_order_release);
    }
    while (packed_tiles_.load(std::memory_order_acquire) < tiles) std::this_thread::yield();  // those begun elsewhere
    for (std::int64_t following; mine < tiles + cut_.tasks; mine = following) {
      following = next_++;  // drawn one task early, to know what to prefetch
      const Task task{mine - tiles, following - tiles};
      if (cut_.direct) direct(task, sums);
      else panels(task, sums, panel);
    }
  }

  struct Task {
    std::int64_t number, following;
  };
  std::int64_t first_column(const Task& task) const { return task.number * cut_.task_columns; }
  std::int64_t columns(const Task& task) const { return std::min(cut_.task_columns, cut_.columns - first_column(task)); }

  /// [k block][row tile][step][tile_rows][16]: the kernels read it straight on; rows far apart would share cache sets.
  float* tile_of(std::int64_t k0, std::int64_t row) const {
    return packed_ + k0 * cut_.padded_rows + row * round_up(cut_.block_length(k0), kPartialSums);
  }
  void pack(std::int64_t tile) {
    const std::int64_t row0 = tile / cut_.k_blocks * cut_.tile_rows, k0 = tile % cut_.k_blocks * cut_.k_block;
    const std::int64_t length = cut_.block_length(k0), step = cut_.tile_rows * kPartialSums;
    float* const to = tile_of(k0, row0);
    for (std::int64_t i = 0; i < cut_.tile_rows; ++i) {
      if (row0 + i < cut_.rows) {
        const float* const from = op_.x.as<float>() + (first_row_ + row0 + i) * op_.x.stride + k0;
        kernels_.convert[static_cast<int>(DType::f32)](from, length, from + op_.x.stride, to + i * kPartialSums, step);
      } else {
        for (std::int64_t s = 0; s * kPartialSums < length; ++s)
          std::memset(to + s * step + i * kPartialSums, 0, kPartialSums * 4);
      }
    }
  }

  const std::byte* weight(std::int64_t column, std::int64_t k0) const {
    return op_.weight.as<std::byte>() + (column * op_.weight.stride + k0) * static_cast<std::int64_t>(size_of(op_.weight.dtype));
  }
  /// What is multiplied `ahead` columns after column `n` of the task: a short way, for a line on its way holds one of
  /// the few fill buffers.
  const std::byte* soon(const Task& task, std::int64_t n, std::int64_t k0) const {
    const std::int64_t have = columns(task), last = cut_.columns - 1;
    n += cut_.ahead;
    if (n < have) return weight(first_column(task) + n, k0);
    n = (n - have) % cut_.task_columns;
    if (k0 + cut_.k_block < cut_.in) return weight(std::min(first_column(task) + n, last), k0 + cut_.k_block);
    return weight(task.following < cut_.tasks ? std::min(task.following * cut_.task_columns + n, last) : last, 0);
  }

  void direct(const Task& task, float* sums) {
    const std::int64_t have = columns(task), stride = cut_.task_columns * kPartialSums;
    for (std::int64_t block = 0; block < cut_.k_blocks; ++block) {
      const std::int64_t k0 = block * cut_.k_block, length = cut_.block_length(k0);
      for (std::int64_t n = 0, width; n < have; n += width) {
        width = n + cut_.group <= have ? cut_.group : 1;
        const DirectKernel kernel = (width == cut_.group ? kernels_.direct : kernels_.single)[type_][cut_.tile_rows - 1];
        const std::byte *from = weight(first_column(task) + n, k0), *next = soon(task, n, k0);
        for (std::int64_t row = 0; row < cut_.padded_rows; row += cut_.tile_rows)
          kernel({.x = tile_of(k0, row), .weight = from, .prefetch = row == 0 ? next : from,
                  .weight_stride = op_.weight.stride, .k = length, .sums = sums + row * stride + n * kPartialSums,
                  .sums_stride = stride, .first = block == 0});
      }
    }
    finish(task, 0, cut_.rows, sums);
  }

  void panels(const Task& task, float* sums, float* panel) {
    for (std::int64_t row0 = 0; row0 < cut_.padded_rows; row0 += cut_.chunk_rows) {
      const std::int64_t rows = std::min(cut_.chunk_rows, cut_.padded_rows - row0);
      for (std::int64_t block = 0; block < cut_.k_blocks; ++block)
        for (std::int64_t n = 0; n < columns(task); n += cut_.group) {
          convert_group(task, n, block * cut_.k_block, panel);
          multiply_group(row0, rows, n, block * cut_.k_block, panel, sums);
        }
      finish(task, row0, std::min(rows, cut_.rows - row0), sums);
    }
  }
  void convert_group(const Task& task, std::int64_t n, std::int64_t k0, float* panel) {
    const std::int64_t width = kernels_.panel_columns, length = cut_.block_length(k0);
    const std::int64_t floats = round_up(length, kPartialSums) * width;  // of one panel of the two
    for (std::int64_t j = 0; j < cut_.group; ++j) {  // columns past the last repeat it and are never stored
      const std::int64_t column = std::min(first_column(task) + n + j, cut_.columns - 1);
      kernels_.convert[type_](weight(column, k0), length, soon(task, n + j, k0),
                              panel + j / width * floats + j % width * kPartialSums, width * kPartialSums);
    }
  }
  void multiply_group(std::int64_t row0, std::int64_t rows, std::int64_t n, std::int64_t k0, const float* panel, float* sums) {
    const std::int64_t width = kernels_.panel_columns, stride = cut_.task_columns * kPartialSums;
    const std::int64_t floats = round_up(cut_.block_length(k0), kPartialSums);
    for (std::int64_t row = 0; row < rows; row += cut_.tile_rows) {
      const float* const x = tile_of(k0, row0 + row);
      float* const to = sums + row * stride + n * kPartialSums;
      const std::int64_t half_tile = floats * cut_.tile_rows / 2;
      for (std::int64_t half = 0; half < 2; ++half)
        kernels_.panel({.x = x, .panel = panel + half * floats * width, .prefetch_x = x + (2 + half) * half_tile,
                        .prefetch_sums = half == 0 ? to + width * kPartialSums : to + cut_.tile_rows * stride,
                        .steps = floats / kPartialSums, .sums = to + half * width * kPartialSums, .sums_stride = stride,
                        .first = k0 == 0});
    }
  }

  void finish(const Task& task, std::int64_t row0, std::int64_t rows, const float* sums) {
    const std::int64_t column = first_column(task);
    const auto bias_size = static_cast<std::int64_t>(size_of(op_.bias.dtype));
    for (std::int64_t row = 0; row < rows; ++row)
      kernels_.finish({.sums = sums + row * cut_.task_columns * kPartialSums,
                       .bias = op_.bias ? op_.bias.as<std::byte>() + column * bias_size : nullptr,
                       .bias_type = op_.bias.dtype, .activation = op_.activation, .accumulate = op_.accumulate,
                       .out = op_.out.as<float>() + (first_row_ + row0 + row) * op_.out.stride + column,
                       .columns = columns(task)});
  }

  const Linear& op_;
  const LinearKernels& kernels_;
  const Cut cut_;
  const int type_;
  const std::int64_t first_row_;
  float* packed_ = nullptr;
  alignas(64) std::atomic<std::int64_t> next_{0};
  alignas(64) std::atomic<std::int64_t> packed_tiles_{0};
};

void linear_by(const LinearKernels& kernels, const Linear& op, ThreadPool& pool) {
  // So few rows at a time that the packed ones stay within kPackedBytes; the passes as even as they can be.
  const std::int64_t row_bytes = std::max<std::int64_t>(1, round_up(op.x.cols, kPartialSums)) * 4;
  const std::int64_t most = std::max<std::int64_t>(64, kPackedBytes / row_bytes / 4 * 4);
  const std::int64_t passes = (op.x.rows + most - 1) / most;
  const std::int64_t rows = std::min(most, round_up((op.x.rows + passes - 1) / passes, 4));
  ThreadPool::Turn turn(pool);
  for (std::int64_t row = 0; row < op.x.rows; row += rows)
    Pass(op, kernels, row, std::min(rows, op.x.rows - row)).run(turn, pool.threads());
}

const LinearKernels* kernels_of(LinearPath path) {
  if (path == LinearPath::avx512 && cpu_has_avx512()) return linear_kernels_avx512();
  if (path == LinearPath::avx2 && cpu_has_avx2()) return linear_kernels_avx2();
  return nullptr;
}

}  // namespace

const char* name_of(LinearPath path) {
  switch (path) {
    case LinearPath::automatic: return "automatic";
    case LinearPath::avx512: return "avx512";
    case LinearPath::avx2: return "avx2";
    case LinearPath::library: return "library";
  }
  return "?";
}

std::vector<LinearPath> linear_paths() {
  std::vector<LinearPath> paths;
  for (const LinearPath path : {LinearPath::avx512, LinearPath::avx2})
    if (kernels_of(path) != nullptr) paths.push_back(path);
  paths.push_back(LinearPath::library);
  return paths;
}

void linear_cpu(const Linear& op, ThreadPool& pool, LinearPath path) {
  if (op.x.rows == 0 || op.weight.rows == 0) return;
  static const LinearPath best = linear_paths().front();
  if (path == LinearPath::automatic) path = best;
  if (path == LinearPath::library) return linear_library(op, pool);
  const LinearKernels* const kernels = kernels_of(path);
  if (kernels == nullptr)
    throw UsageError(std::string("linear: this processor does not have ") + name_of(path) + "; use " +
                     name_of(best));
  linear_by(*kernels, op, pool);
}

}  // namespace weft::kernels
