// kernels/linear_cuda.cu: matrix products by cuBLAS over row-major weights, accumulated in fp32.
//
// cuBLAS multiplies operands of one type, so the rows of x are rounded to the weights' type first, a slice of rows at a
// time that fits the stream's workspace; the result, bias and activation stay fp32.
#include <algorithm>

#include "kernels/device_cuda.h"
#include "kernels/error.h"
#include "kernels/ops_cuda.h"

namespace weft::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr std::size_t kAlignment = 256;  // bytes

cudaDataType_t cuda_type(DType dtype) {
  return dtype == DType::f16 ? CUDA_R_16F : dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}

template <class T, int kPack>
__global__ void round_rows(const float* __restrict__ x, std::int64_t stride, T* __restrict__ out, int cols) {
  x += blockIdx.x * stride;
  out += std::int64_t{blockIdx.x} * cols;
  for (int c = (blockIdx.y * kThreads + threadIdx.x) * kPack; c < cols; c += gridDim.y * kThreads * kPack) {
    const auto in = load_pack<kPack>(x + c);
    Pack<T, kPack> rounded = {};
    for (int i = 0; i < kPack; ++i) rounded.at[i] = from_float<T>(in.at[i]);
    store_pack(out + c, rounded);
  }
}

__device__ float activated(float x, Activation activation) {
  switch (activation) {
    case Activation::none: return x;
    case Activation::relu: return fmaxf(x, 0.0f);
    case Activation::gelu: return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    case Activation::gelu_tanh: return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    case Activation::quick_gelu: return x / (1.0f + expf(-1.702f * x));
    case Activation::silu: return x / (1.0f + expf(-x));
    case Activation::tanh: return tanhf(x);
  }
  return x;
}

/// out = activation(y + bias), or out += that. y may be out.
template <class B, bool kAdd, int kPack>
__global__ void finish_rows(const float* y, std::int64_t y_stride, const B* __restrict__ bias, Activation activation,
                            float* out, std::int64_t out_stride, int cols) {
  y += blockIdx.x * y_stride;
  out += blockIdx.x * out_stride;
  for (int c = (blockIdx.y * kThreads + threadIdx.x) * kPack; c < cols; c += gridDim.y * kThreads * kPack) {
    auto x = load_pack<kPack>(y + c);
    Pack<float, kPack> before = {};
    Pack<B, kPack> shift = {};
    if (kAdd) before = load_pack<kPack>(out + c);
    if (bias) shift = load_pack<kPack>(bias + c);
    for (int i = 0; i < kPack; ++i) {
      x.at[i] = activated(bias ? x.at[i] + to_float(shift.at[i]) : x.at[i], activation);
      if (kAdd) x.at[i] += before.at[i];
    }
    store_pack(out + c, x);
  }
}

dim3 grid_for(std::int64_t rows, std::int64_t cols, int pack) {
  return {static_cast<unsigned>(rows), std::clamp(blocks_for(cols, std::int64_t{kThreads} * pack), 1u, 64u)};
}

void finish(const View& y, const Linear& op, const View& out, bool add, CudaStream& stream) {
  with_float_type(op.bias ? op.bias.dtype : DType::f32, [&]<class B>() {
    const bool wide = in_packs(y.data, y.stride, y.cols, sizeof(float)) &&
                      in_packs(out.data, out.stride, out.cols, sizeof(float)) &&
                      in_packs(op.bias.data, 0, out.cols, sizeof(B));
    launch(wide  ? add ? finish_rows<B, true, kWide> : finish_rows<B, false, kWide>
            : add ? finish_rows<B, true, 1>
                 : finish_rows<B, false, 1>,
           grid_for(out.rows, out.cols, wide ? kWide : 1), kThreads, 0, stream, static_cast<const float*>(y.data),
           y.stride, static_cast<const B*>(op.bias.data), op.activation, static_cast<float*>(out.data), out.stride,
           static_cast<int>(out.cols));
  });
}

/// x [rows, in] of the weights' type: itself, or a rounded copy at `to`. Products of one x that follow each other, as
/// those of q, k and v do, share the copy.
ConstView rounded(const ConstView& x, DType dtype, std::byte* to, CudaStream& stream) {
  if (dtype == DType::f32) return x;
  const ConstView copy{to, dtype, x.rows, x.cols};
  if (stream.has_rounded(x, copy)) return copy;
  with_float_type(dtype, [&]<class T>() {
    const bool wide = in_packs(x.data, x.stride, x.cols, sizeof(float));
    launch(wide ? round_rows<T, kWide> : round_rows<T, 1>, grid_for(x.rows, x.cols, wide ? kWide : 1), kThreads, 0,
           stream, static_cast<const float*>(x.data), x.stride, reinterpret_cast<T*>(to), static_cast<int>(x.cols));
  });
  stream.remember_rounded(x, copy);
  return copy;
}

/// out = x weight^T + beta out. In cuBLAS's column-major terms: out^T [n, rows] = weight [n, k] x^T [k, rows].
void multiply(const ConstView& x, const ConstView& weight, const View& out, float beta, CudaStream& stream) {
  const float alpha = 1;
  if (stream.repeats()) return;
  check(cublasGemmEx(stream.blas(), CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(out.cols), static_cast<int>(out.rows),
                     static_cast<int>(x.cols), &alpha, weight.data, cuda_type(weight.dtype),
                     static_cast<int>(weight.stride), x.data, cuda_type(x.dtype), static_cast<int>(x.stride), &beta,
                     out.data, CUDA_R_32F, static_cast<int>(out.stride), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx");
}

}  // namespace

void CudaOps::run(const Linear& op, Stream& any) const {
  check(op);
  if (is_quantised(op.weight.dtype))
    throw UsageError(std::string("linear: the GPU does not multiply ") + name_of(op.weight.dtype) +
                     " weights in this version; give --weight-dtype float16, or --backend cpu");
  auto& stream = static_cast<CudaStream&>(any);
  const std::int64_t rows = op.x.rows, in = op.x.cols, cols = op.out.cols;
  if (rows == 0 || cols == 0) return;
  const bool apart = op.accumulate && op.activation != Activation::none;  // the activation is of the product alone
  const auto x_bytes = op.weight.dtype == DType::f32 ? 0 : static_cast<std::size_t>(in) * size_of(op.weight.dtype);
  const auto y_bytes = apart ? static_cast<std::size_t>(cols) * sizeof(float) : 0;
  std::int64_t slice = rows;
  if (x_bytes + y_bytes > 0)
    slice = static_cast<std::int64_t>((CudaStream::kWorkspace - kAlignment) / (x_bytes + y_bytes));
  slice = std::clamp<std::int64_t>(slice, 1, rows);
  const std::size_t y_begin = (static_cast<std::size_t>(slice) * x_bytes + kAlignment - 1) / kAlignment * kAlignment;
  std::byte* const workspace = stream.workspace(y_begin + static_cast<std::size_t>(slice) * y_bytes);

  for (std::int64_t first = 0; first < rows; first += slice) {
    const std::int64_t count = std::min(slice, rows - first);
    const View out = op.out.slice(first, count);
    const ConstView x = rounded(op.x.slice(first, count), op.weight.dtype, workspace, stream);
    const View y = apart ? View(workspace + y_begin, DType::f32, count, cols) : out;
    multiply(x, op.weight, y, op.accumulate && !apart ? 1.0f : 0.0f, stream);
    if (apart || op.bias || op.activation != Activation::none) finish(y, op, out, apart, stream);
    stream.remember_rounded(op.x.slice(first, count), x);  // none of these wrote either: out does not overlap x
  }
}

}  // namespace weft::kernels
