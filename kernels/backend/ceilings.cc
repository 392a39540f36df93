#include "kernels/backend/ceilings.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/error.h"
#include "kernels/linear/linear_kernels.h"
#include "kernels/machine/cpu_features.h"
#include "kernels/quantised.h"

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

constexpr std::size_t matrix_numbers = std::size_t{kMeasuredWidth} * kMeasuredWidth;
double flops(int m) { return 2.0 * m * static_cast<double>(matrix_numbers); }

constexpr int kMeasuredGroup = 64;
QuantisedLayout quantised_matrix(DType type) {
  return {type, type == DType::f8 ? kFloat8Group : kMeasuredGroup, kMeasuredWidth, kMeasuredWidth};
}

void quantise_matrix(ThreadPool& pool, DType type, const ConstView& numbers, std::byte* to) {
  const QuantisedLayout layout = quantised_matrix(type);
  constexpr std::int64_t rows = QuantisedLayout::kTileRows;
  pool.run(layout.tiles(), [&](std::int64_t tile, int) {
    quantise_tile(layout, numbers.slice(tile * rows, rows), to + tile * layout.tile_bytes());
  });
}

/// Fills `count` matrices with random numbers of 8 bits.
void fill_float8(ThreadPool& pool, const QuantisedLayout& layout, std::byte* to, std::size_t count) {
  constexpr std::uint64_t kNoNan = 0xF7F7F7F7F7F7F7F7u;
  pool.run(static_cast<std::int64_t>(count) * layout.tiles(), [&](std::int64_t tile, int) {
    std::byte* out = to + tile * layout.tile_bytes();
    for (std::int64_t at = 0; at < layout.tile_bytes(); at += 8) {
      const std::uint64_t bits = mix(static_cast<std::uint64_t>(tile * layout.tile_bytes() + at)) & kNoNan;
      std::memcpy(out + at, &bits, sizeof bits);
    }
    for (std::int64_t g = 0; g < layout.groups(); ++g, out += layout.group_bytes())
      std::fill_n(reinterpret_cast<float*>(out), QuantisedLayout::kTileRows, 0x1p-8f);
  });
}

/// Fills in the same matrix `count` times.
void fill_quantised(ThreadPool& pool, DType type, std::byte* to, std::size_t count) {
  const auto bytes = static_cast<std::size_t>(quantised_matrix(type).bytes());
  if (type == DType::f8) return fill_float8(pool, quantised_matrix(type), to, count);
  std::vector<float> numbers(matrix_numbers);
  fill_normal(pool, DType::f32, reinterpret_cast<std::byte*>(numbers.data()), static_cast<std::int64_t>(matrix_numbers),
              1.0 / std::sqrt(kMeasuredWidth));
  quantise_matrix(pool, type, ConstView(numbers.data(), DType::f32, kMeasuredWidth, kMeasuredWidth), to);
  for (std::size_t i = 1; i < count; ++i) std::copy_n(to, bytes, to + i * bytes);
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
  const HugeBuffer numbers(matrix_numbers * 2), levels(static_cast<std::size_t>(quantised_matrix(type).bytes()));
  fill_normal(pool, DType::f16, numbers.data(), static_cast<std::int64_t>(matrix_numbers),
              1.0 / std::sqrt(kMeasuredWidth));
  const ConstView view(numbers.data(), DType::f16, kMeasuredWidth, kMeasuredWidth);
  return static_cast<double>(matrix_numbers) /
         median_seconds(seconds, [&](std::int64_t) { quantise_matrix(pool, type, view, levels.data()); });
}

std::size_t measured_matrix_bytes(DType weights) {
  return is_quantised(weights) ? static_cast<std::size_t>(quantised_matrix(weights).bytes())
                               : bytes_of(weights, static_cast<std::int64_t>(matrix_numbers));
}

double measure_linear(ThreadPool& pool, int m, DType weights, std::size_t weight_bytes_in_rotation, double seconds,
                      LinearPath path, Arithmetic arithmetic, LevelTable table) {
  const std::size_t bytes = measured_matrix_bytes(weights),
                    count = std::max<std::size_t>(1, weight_bytes_in_rotation / bytes);
  const std::size_t activations = static_cast<std::size_t>(m) * kMeasuredWidth;
  const HugeBuffer w(bytes * count), x(activations * 4), y(activations * 4);
  if (is_quantised(weights)) fill_quantised(pool, weights, w.data(), count);
  else
    fill_normal(pool, weights, w.data(), static_cast<std::int64_t>(matrix_numbers * count),
                1.0 / std::sqrt(kMeasuredWidth));
  fill_normal(pool, DType::f32, x.data(), static_cast<std::int64_t>(activations), 1.0);
  const double time = median_seconds(seconds, [&](std::int64_t i) {
    Linear op;
    op.x = ConstView(x.data(), DType::f32, m, kMeasuredWidth);
    op.weight =
        ConstView(w.data() + static_cast<std::size_t>(i) % count * bytes, weights, kMeasuredWidth, kMeasuredWidth);
    op.weight.group = is_quantised(weights) ? quantised_matrix(weights).group : 0;
    op.weight.table = table;
    op.arithmetic = arithmetic;
    op.out = View(y.data(), DType::f32, m, kMeasuredWidth);
    linear_cpu(op, pool, path);
  });
  return flops(m) / time;
}

}  // namespace weft::kernels
