#include "kernels/linear_library.h"

#include <oneapi/dnnl/dnnl.hpp>

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/error.h"

extern "C" void omp_set_num_threads(int);  // the library's own threads are OpenMP's

namespace weft::kernels {
namespace {

constexpr std::int64_t kRows = 256;                          // of x in one call
constexpr std::int64_t kPanelBytes = std::int64_t{4} << 20;  // of weights in fp32
constexpr std::int64_t kMostColumns = 256;

float activate(float x, Activation activation) {
  switch (activation) {
    case Activation::none: return x;
    case Activation::relu: return x < 0 ? 0 : x;  // keeps a NaN
    case Activation::gelu: return 0.5f * x * (1 + std::erf(x * 0.707106781f));
    case Activation::gelu_tanh: return 0.5f * x * (1 + std::tanh(0.797884561f * (x + 0.044715f * x * x * x)));
    case Activation::quick_gelu: return x / (1 + std::exp(-1.702f * x));
    case Activation::silu: return x / (1 + std::exp(-x));
    case Activation::tanh: return std::tanh(x);
  }
  return x;
}

template <class T> void to_floats(const T* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
}
/// count numbers of row `row` of a matrix, from column `column` on.
void to_floats(const ConstView& m, std::int64_t row, std::int64_t column, std::int64_t count, float* to) {
  const std::int64_t at = row * m.stride + column;
  if (m.dtype == DType::f16) to_floats(m.as<f16>() + at, count, to);
  else if (m.dtype == DType::bf16) to_floats(m.as<bf16>() + at, count, to);
  else to_floats(m.as<float>() + at, count, to);
}

/// Columns [first, first + count) of every row.
class Columns {
 public:
  Columns(const Linear& op, std::int64_t first, std::int64_t count) : op_(op), first_(first), count_(count) {}

  static std::size_t scratch_bytes(const Linear& op, std::int64_t count) {
    return static_cast<std::size_t>(count * (op.x.cols + kRows + 1)) * 4;
  }
  void run(float* scratch) {
    float *const bias = scratch, *const product = bias + count_, *const converted = product + count_ * kRows;
    std::fill_n(bias, count_, 0.0f);
    if (op_.bias) to_floats(op_.bias, 0, first_, count_, bias);
    const float* panel = converted;
    std::int64_t stride = op_.x.cols;
    if (op_.weight.dtype == DType::f32) {
      panel = op_.weight.as<float>() + first_ * op_.weight.stride;
      stride = op_.weight.stride;
    } else {
      for (std::int64_t n = 0; n < count_; ++n) to_floats(op_.weight, first_ + n, 0, stride, converted + n * stride);
    }
    for (std::int64_t row = 0; row < op_.x.rows; row += kRows) {
      const std::int64_t rows = std::min(kRows, op_.x.rows - row);
      multiply(op_.x.as<float>() + row * op_.x.stride, rows, panel, stride, product);
      for (std::int64_t i = 0; i < rows; ++i)
        finish(product + i * count_, bias, op_.out.as<float>() + (row + i) * op_.out.stride + first_);
    }
  }

 private:
  void multiply(const float* x, std::int64_t rows, const float* weight, std::int64_t stride, float* to) const {
    const std::int64_t k = op_.x.cols;
    if (k == 0) return void(std::fill_n(to, rows * count_, 0.0f));
    const dnnl_status_t status = dnnl_sgemm('N', 'T', rows, count_, k, 1.0f, x, std::max(k, op_.x.stride), weight,
                                            std::max(k, stride), 0.0f, to, count_);
    if (status != dnnl_success)
      throw DeviceError("linear: oneDNN's sgemm of [" + std::to_string(rows) + ", " + std::to_string(k) + "] by [" +
                        std::to_string(count_) + ", " + std::to_string(k) + "] failed with status " +
                        std::to_string(status));
  }
  void finish(const float* product, const float* bias, float* out) const {
    for (std::int64_t n = 0; n < count_; ++n) {
      const float y = activate(product[n] + bias[n], op_.activation);
      out[n] = op_.accumulate ? out[n] + y : y;
    }
  }

  const Linear& op_;
  const std::int64_t first_, count_;
};

}  // namespace

bool has_linear_library() { return true; }

void linear_library(const Linear& op, ThreadPool& pool) {
  const std::int64_t row_bytes = std::max<std::int64_t>(1, op.x.cols) * 4;
  const std::int64_t most = std::clamp<std::int64_t>(kPanelBytes / row_bytes, 16, kMostColumns);
  ThreadPool::Turn turn(pool);
  turn.run((op.weight.rows + most - 1) / most, [&](std::int64_t tile, int thread) {
    omp_set_num_threads(1);  // a setting of the calling thread
    const std::int64_t first = tile * most, count = std::min(most, op.weight.rows - first);
    Columns(op, first, count).run(reinterpret_cast<float*>(turn.scratch(thread, Columns::scratch_bytes(op, most))));
  });
}

struct LibraryProduct::Impl {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::memory::desc x, plain, y;
  dnnl::matmul::primitive_desc product;
  dnnl::matmul matmul;
};

LibraryProduct::LibraryProduct(std::int64_t rows, std::int64_t in, std::int64_t out, int threads)
    : impl_(std::make_unique<Impl>()) {
  using dnnl::memory;
  omp_set_num_threads(threads);
  const auto f32 = memory::data_type::f32;
  impl_->x = memory::desc({rows, in}, f32, memory::format_tag::ab);
  impl_->plain = memory::desc({in, out}, f32, memory::format_tag::ba);  // weight^T, in the order in which it is stored
  impl_->y = memory::desc({rows, out}, f32, memory::format_tag::ab);
  const memory::desc any({in, out}, f32, memory::format_tag::any);
  impl_->product = dnnl::matmul::primitive_desc(dnnl::matmul::desc(impl_->x, any, impl_->y), impl_->engine);
  impl_->matmul = dnnl::matmul(impl_->product);
}

LibraryProduct::~LibraryProduct() = default;

std::size_t LibraryProduct::weight_bytes() const { return impl_->product.weights_desc().get_size(); }

void LibraryProduct::reorder(const float* weight, void* to) {
  dnnl::memory from(impl_->plain, impl_->engine, const_cast<float*>(weight));
  dnnl::memory into(impl_->product.weights_desc(), impl_->engine, to);
  dnnl::reorder(from, into).execute(impl_->stream, from, into);
  impl_->stream.wait();
}

void LibraryProduct::run(const float* x, const void* reordered, float* y) {
  const dnnl::memory in(impl_->x, impl_->engine, const_cast<float*>(x));
  const dnnl::memory weights(impl_->product.weights_desc(), impl_->engine, const_cast<void*>(reordered));
  const dnnl::memory out(impl_->y, impl_->engine, y);
  impl_->matmul.execute(impl_->stream, {{DNNL_ARG_SRC, in}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, out}});
  impl_->stream.wait();
}

}  // namespace weft::kernels
