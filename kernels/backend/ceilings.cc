#include "kernels/backend/ceilings.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/error.h"
#include "kernels/linear/linear_kernels.h"
#include "kernels/machine/cpu_features.h"
#include "kernels/quantised.h"
#include "kernels/small_floats.h"

namespace weft::kernels {
namespace {

/// Memory in huge pages. A row of weights is two small pages, and the TLB should not limit what is measured.
class HugeBuffer {
 public:
  explicit HugeBuffer(std::size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED)
      throw CapacityError("ceilings: " + std::to_string(bytes) +
                          " bytes wanted, the system has none; measure over less");
    madvise(data_, bytes, MADV_HUGEPAGE);
  }
  ~HugeBuffer() { munmap(data_, bytes_); }
  HugeBuffer(const HugeBuffer&) = delete;
  HugeBuffer& operator=(const HugeBuffer&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  float* floats() const { return static_cast<float*>(data_); }

 private:
  void* data_;
  std::size_t bytes_;
};

/// The memory of a buffer that ends with it.
std::shared_ptr<std::byte> huge_memory(std::size_t bytes) {
  const auto buffer = std::make_shared<HugeBuffer>(bytes);
  return {buffer, buffer->data()};
}

std::uint64_t mix(std::uint64_t x) {  // SplitMix64
  x = (x + 1) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// Normally distributed numbers, from a table of 65,536 drawn by Box and Muller: a GiB is filled in a second.
template <class T> class Normal {
 public:
  explicit Normal(double deviation) : table_(1 << 16) {
    for (std::size_t i = 0; i < table_.size(); ++i) {
      const double u = static_cast<double>((mix(2 * i) >> 11) + 1) * 0x1p-53,
                   v = static_cast<double>(mix(2 * i + 1)) * 0x1p-64;
      table_[i] = T(static_cast<float>(deviation * std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v)));
    }
  }
  void fill(ThreadPool& pool, T* to, std::int64_t count) const {
    constexpr std::int64_t block = 1 << 20;
    pool.run((count + block - 1) / block, [&](std::int64_t tile, int) {
      const std::int64_t end = std::min(count, (tile + 1) * block);
      for (std::int64_t i = tile * block; i < end; ++i) to[i] = table_[mix(static_cast<std::uint64_t>(i)) >> 48];
    });
  }

 private:
  std::vector<T> table_;
};

void fill_normal(ThreadPool& pool, DType type, std::byte* to, std::int64_t count, double deviation) {
  void* const data = to;
  if (type == DType::f16) Normal<f16>(deviation).fill(pool, static_cast<f16*>(data), count);
  else if (type == DType::bf16) Normal<bf16>(deviation).fill(pool, static_cast<bf16*>(data), count);
  else Normal<float>(deviation).fill(pool, static_cast<float*>(data), count);
}

/// Median seconds of `once(i)`, i = 0, 1, 2, .... The first call does not count; at least five follow, and more until
/// time is up.
template <class Once> double median_seconds(double seconds, const Once& once) {
  using clock = std::chrono::steady_clock;
  const auto since = [](clock::time_point start) {
    return std::chrono::duration<double>(clock::now() - start).count();
  };
  once(std::int64_t{0});
  std::vector<double> times;
  const auto start = clock::now();
  do {
    const auto begin = clock::now();
    once(static_cast<std::int64_t>(times.size()) + 1);
    times.push_back(since(begin));
  } while (times.size() < 5 || since(start) < seconds);
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

int read_plainly(const void* from, std::int64_t bytes, std::int64_t) {
  const auto* const words = static_cast<const std::uint64_t*>(from);
  std::uint64_t any = 0;
  for (std::int64_t i = 0; i < bytes / 8; ++i) any |= words[i];
  return any != 0;
}

std::int64_t numbers_of(const MeasuredWeights& weights) { return std::int64_t{weights.width} * weights.width; }

QuantisedLayout layout_of(const MeasuredWeights& weights) {
  return {weights.type, weights.type == DType::f8 ? kFloat8Group : weights.group, weights.width, weights.width};
}

void fill_weights(ThreadPool& pool, DType type, int width, std::byte* to) {
  fill_normal(pool, type, to, std::int64_t{width} * width, 1.0 / std::sqrt(width));
}

void quantise_matrix(ThreadPool& pool, const QuantisedLayout& layout, const ConstView& numbers, std::byte* to) {
  constexpr std::int64_t rows = QuantisedLayout::kTileRows;
  pool.run(layout.tiles(), [&](std::int64_t tile, int) {
    quantise_tile(layout, numbers.slice(tile * rows, rows), to + tile * layout.tile_bytes());
  });
}

/// Writes a matrix of 8-bit floats, those below normally distributed numbers of which the largest are near 448.
void fill_float8(ThreadPool& pool, const QuantisedLayout& layout, std::byte* to) {
  constexpr std::int64_t rows = QuantisedLayout::kTileRows;
  constexpr float kDeviation = 100;
  pool.run(layout.tiles(), [&](std::int64_t tile, int) {
    std::mt19937 random(static_cast<unsigned>(tile));
    std::normal_distribution<float> normal(0, kDeviation);
    std::vector<std::uint8_t> numbers(static_cast<std::size_t>(rows * layout.cols));
    for (std::uint8_t& number : numbers) {
      const float drawn = normal(random);
      std::uint8_t below = 0;  // numbers without a sign ascend with their bits
      for (int bit = 64; bit > 0; bit /= 2)
        if (const int above = below + bit; above < 127 && e4m3(static_cast<std::uint8_t>(above)) <= std::abs(drawn))
          below = static_cast<std::uint8_t>(above);
      number = static_cast<std::uint8_t>(below | (drawn < 0 ? 128 : 0));
    }
    const std::vector<float> scales(static_cast<std::size_t>(rows * layout.groups()), 0x1p-8f);
    pack_tile(layout, {.levels = numbers.data(), .wide_scales = scales.data()}, rows, to + tile * layout.tile_bytes());
  });
}

/// Fills in one matrix.
void fill_matrix(ThreadPool& pool, const MeasuredWeights& weights, std::byte* to) {
  if (!is_quantised(weights.type)) return fill_weights(pool, weights.type, weights.width, to);
  const QuantisedLayout layout = layout_of(weights);
  if (weights.type == DType::f8) return fill_float8(pool, layout, to);
  std::vector<float> numbers(static_cast<std::size_t>(numbers_of(weights)));
  fill_weights(pool, DType::f32, weights.width, reinterpret_cast<std::byte*>(numbers.data()));
  quantise_matrix(pool, layout, ConstView(numbers.data(), DType::f32, weights.width, weights.width), to);
}

}  // namespace

void read_memory(ThreadPool& pool, const void* from, std::size_t bytes, std::int64_t prefetch) {
  constexpr std::int64_t block = 1 << 20;
  const LinearKernels* const kernels = cpu_has_avx512() ? linear_kernels_avx512()
                                       : cpu_has_avx2() ? linear_kernels_avx2()
                                                        : nullptr;
  const auto read = kernels != nullptr ? kernels->read : read_plainly;
  const auto all = static_cast<std::int64_t>(bytes);
  std::atomic<int> sink{0};
  pool.run((all + block - 1) / block, [&](std::int64_t tile, int) {
    sink += read(static_cast<const std::byte*>(from) + tile * block, std::min(block, all - tile * block), prefetch);
  });
}

double measure_dram_read(ThreadPool& pool, std::size_t bytes, double seconds) {
  constexpr std::int64_t block = 1 << 20;
  const std::int64_t blocks = std::max<std::int64_t>(1, static_cast<std::int64_t>(bytes) / block);
  const HugeBuffer memory(static_cast<std::size_t>(blocks * block));
  pool.run(blocks, [&](std::int64_t tile, int) {
    std::fill_n(memory.data() + tile * block, block, static_cast<std::byte>(tile + 1));
  });
  double best = 0;
  for (const std::int64_t prefetch : {0, 1024, 4096}) {
    const double time = median_seconds(seconds / 3, [&](std::int64_t) {
      read_memory(pool, memory.data(), static_cast<std::size_t>(blocks * block), prefetch);
    });
    best = std::max(best, static_cast<double>(blocks * block) / time);
  }
  return best;
}

double measure_quantise(ThreadPool& pool, DType type, double seconds) {
  const MeasuredWeights weights{.type = type};
  const QuantisedLayout layout = layout_of(weights);
  const HugeBuffer numbers(static_cast<std::size_t>(numbers_of(weights)) * 2),
      levels(static_cast<std::size_t>(layout.bytes()));
  fill_weights(pool, DType::f16, weights.width, numbers.data());
  const ConstView view(numbers.data(), DType::f16, weights.width, weights.width);
  return static_cast<double>(numbers_of(weights)) /
         median_seconds(seconds, [&](std::int64_t) { quantise_matrix(pool, layout, view, levels.data()); });
}

std::size_t MeasuredWeights::bytes() const {
  return is_quantised(type) ? static_cast<std::size_t>(layout_of(*this).bytes()) : bytes_of(type, numbers_of(*this));
}

MeasuredProducts::MeasuredProducts(ThreadPool& pool, const MeasuredWeights& weights, std::size_t bytes)
    : pool_(pool), weights_(weights), count_(std::max<std::size_t>(1, bytes / weights.bytes())),
      matrices_(huge_memory(count_ * weights.bytes())) {
  std::byte* const first = matrices_.get();
  fill_matrix(pool, weights, first);
  pool.run(static_cast<std::int64_t>(count_) - 1, [&](std::int64_t matrix, int) {
    std::copy_n(first, weights.bytes(), first + static_cast<std::size_t>(matrix + 1) * weights.bytes());
  });
}

double MeasuredProducts::flops(int m, double seconds, Arithmetic arithmetic) const {
  const std::size_t activations = static_cast<std::size_t>(m) * static_cast<std::size_t>(weights_.width);
  const HugeBuffer x(activations * 4), y(activations * 4);
  fill_normal(pool_, DType::f32, x.data(), static_cast<std::int64_t>(activations), 1.0);
  const double time = median_seconds(seconds, [&](std::int64_t i) {
    const std::byte* const matrix = matrices_.get() + static_cast<std::size_t>(i) % count_ * weights_.bytes();
    Linear op;
    op.x = ConstView(x.data(), DType::f32, m, weights_.width);
    op.weight = ConstView(matrix, weights_.type, weights_.width, weights_.width);
    op.weight.group = is_quantised(weights_.type) ? layout_of(weights_).group : 0;
    op.weight.table = weights_.table;
    op.arithmetic = arithmetic;
    op.out = View(y.data(), DType::f32, m, weights_.width);
    linear_cpu(op, pool_);
  });
  return 2.0 * m * static_cast<double>(numbers_of(weights_)) / time;
}

}  // namespace weft::kernels
