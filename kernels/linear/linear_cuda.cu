// kernels/linear/linear_cuda.cu: matrix products by cuBLAS over row-major weights, accumulated in fp32.
//
// cuBLAS multiplies operands of one type, so the rows of x are rounded to the weights' type first, a slice of rows at a
// time that fits the stream's workspace; the result, bias and activation stay fp32. A separate op unpacks quantised
// weights, once for all products. A product whose weights are not unpacked yet unpacks them into the workspace, for as
// many columns of the result at a time as fit.
#include <algorithm>
#include <bit>

#include "kernels/error.h"
#include "kernels/linear/activation_cuda.h"
#include "kernels/linear/linear_quantised_cuda.h"
#include "kernels/machine/device_cuda.h"
#include "kernels/machine/levels_cuda.h"
#include "kernels/machine/ops_cuda.h"
#include "kernels/quantised.h"

namespace weft::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr std::size_t kAlignment = 256;  // bytes
constexpr int kTileRows = QuantisedLayout::kTileRows;
constexpr std::size_t kUnpacked = 48 << 20;  // of the workspace, for unpacked weights

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

/// x [rows, in] in the weights' type: x itself, or a rounded copy at `to`. Products of one x that follow each other,
/// such as those of q, k and v, share the copy.
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

/// The layout of tiles as unpack_tiles() needs it: without divisions.
struct TileStrides {
  std::int32_t tile, group;  // bytes
  std::int32_t group_bits;   // a group has 2^group_bits times kWide columns
  std::int32_t rows, cols;
};

/// Unpacks tiles of quantised weights to rows of 16 bits, `cols` apart. A thread has kWide columns of four rows: it
/// reads 16 bytes of each line, and eight threads next to each other write 128 bytes of a row. Grid: tiles, columns.
template <DType kType, bool kWhole>
__global__ void unpack_tiles(const std::byte* __restrict__ weight, TileStrides of, __half* __restrict__ out) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int part = (static_cast<int>(blockIdx.y) * (kThreads / kWarp) + warp) * 8 + lane % 8, rows = lane / 8 * 4;
  const int first = part * kWide, to_row = static_cast<int>(blockIdx.x) * kTileRows + rows;
  if (first >= of.cols || to_row >= of.rows) return;
  const std::byte* const group = weight + std::int64_t{blockIdx.x} * of.tile + (part >> of.group_bits) * of.group;
  const auto scales = load_pack<2>(reinterpret_cast<const std::uint32_t*>(group) + rows / 2);
  const auto minima = load_pack<2>(reinterpret_cast<const std::uint32_t*>(group) + kTileRows / 2 + rows / 2);
  constexpr int kLines = kType == DType::i8 ? 2 : 1;  // of kWide columns
  Pack<std::uint32_t, 4> words[kLines];               // a word for each row
#pragma unroll
  for (int l = 0; l < kLines; ++l) {
    const int line = (part & ((1 << of.group_bits) - 1)) * kLines + l;
    words[l] = load_pack<4>(reinterpret_cast<const std::uint32_t*>(group + (line + 1) * QuantisedLayout::kLine) + rows);
  }
  out += std::int64_t{to_row} * of.cols + first;
#pragma unroll
  for (int r = 0; r < 4; ++r, out += of.cols) {
    if (to_row + r >= of.rows) return;
    std::uint32_t levels[4];
    if constexpr (kType == DType::i8) {
      levels[0] = byte_levels<0x4140>(words[0].at[r]), levels[1] = byte_levels<0x4342>(words[0].at[r]);
      levels[2] = byte_levels<0x4140>(words[1].at[r]), levels[3] = byte_levels<0x4342>(words[1].at[r]);
    } else {
      // Bytes 0, 2, 1, 3 in that order have the columns of each half next to each other.
      const std::uint32_t even = __byte_perm(words[0].at[r], 0, 0x3120), odd = even >> 8;
      for (int half = 0; half < 2; ++half)
        levels[2 * half] = half_byte_levels(even, half != 0), levels[2 * half + 1] = half_byte_levels(odd, half != 0);
    }
    const std::uint32_t scale = r % 2 == 0 ? low_twice(scales.at[r / 2]) : high_twice(scales.at[r / 2]);
    const std::uint32_t minimum = r % 2 == 0 ? low_twice(minima.at[r / 2]) : high_twice(minima.at[r / 2]);
    Pack<std::uint32_t, 4> numbers;
#pragma unroll
    for (int i = 0; i < 4; ++i) numbers.at[i] = fma_pair(levels[i], scale, minimum);
    if constexpr (kWhole) {
      store_pack(reinterpret_cast<std::uint32_t*>(out), numbers);
    } else {
      __half each[kWide];
      memcpy(each, &numbers, sizeof each);
#pragma unroll
      for (int i = 0; i < kWide; ++i)
        if (first + i < of.cols) out[i] = each[i];
    }
  }
}

/// Unpacks the first `rows` rows of tiles, all of `layout`'s columns.
void unpack(const std::byte* weight, const QuantisedLayout& layout, std::int64_t rows, __half* out,
            CudaStream& stream) {
  const bool whole = layout.cols % kWide == 0 && reinterpret_cast<std::uintptr_t>(out) % 16 == 0;
  const auto kernel = layout.dtype == DType::i8 ? whole ? unpack_tiles<DType::i8, true> : unpack_tiles<DType::i8, false>
                      : whole ? unpack_tiles<DType::i4, true>
                                                : unpack_tiles<DType::i4, false>;
  const TileStrides of{.tile = static_cast<std::int32_t>(layout.tile_bytes()),
                       .group = static_cast<std::int32_t>(layout.group_bytes()),
                       .group_bits = std::countr_zero(static_cast<unsigned>(layout.group / kWide)),
                       .rows = static_cast<std::int32_t>(rows),
                       .cols = static_cast<std::int32_t>(layout.cols)};
  launch(kernel, dim3(blocks_for(rows, kTileRows), blocks_for(layout.cols, kThreads / 4 * kWide)), kThreads, 0, stream,
         weight, of, out);
}

/// Computes `op` with weights of a float type, in `bytes` of workspace.
void multiply_dense(const Linear& op, std::byte* workspace, std::size_t bytes, CudaStream& stream) {
  const std::int64_t rows = op.x.rows, in = op.x.cols, cols = op.out.cols;
  if (rows == 0 || cols == 0) return;
  const bool apart = op.accumulate && op.activation != Activation::none;  // the activation applies to the product alone
  const auto x_bytes = op.weight.dtype == DType::f32 ? 0 : static_cast<std::size_t>(in) * size_of(op.weight.dtype);
  const auto y_bytes = apart ? static_cast<std::size_t>(cols) * sizeof(float) : 0;
  std::int64_t slice = rows;
  if (x_bytes + y_bytes > 0) slice = static_cast<std::int64_t>((bytes - kAlignment) / (x_bytes + y_bytes));
  slice = std::clamp<std::int64_t>(slice, 1, rows);
  const std::size_t y_begin = (static_cast<std::size_t>(slice) * x_bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (y_begin + static_cast<std::size_t>(slice) * y_bytes > bytes)
    throw CapacityError("linear: a row of [" + std::to_string(in) + "] to [" + std::to_string(cols) +
                        "] does not fit the workspace on the GPU");
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

/// Columns [first, first + count) of the result of `op`, with other weights.
Linear columns_of(const Linear& op, std::int64_t first, std::int64_t count, const ConstView& weight) {
  Linear part = op;
  part.weight = weight;
  part.out = View(static_cast<float*>(op.out.data) + first, DType::f32, op.out.rows, count, op.out.stride);
  if (op.bias)
    part.bias = ConstView(static_cast<const std::byte*>(op.bias.data) + bytes_of(op.bias.dtype, first), op.bias.dtype,
                          1, count);
  return part;
}

void multiply_quantised(const Linear& op, CudaStream& stream) {
  const QuantisedLayout layout = QuantisedLayout::of(op.weight);
  const auto row_bytes = static_cast<std::int64_t>(bytes_of(DType::f16, layout.cols));
  const std::int64_t most = static_cast<std::int64_t>(kUnpacked) / row_bytes / kTileRows * kTileRows;
  if (most == 0)
    throw CapacityError("linear: rows of " + std::to_string(layout.cols) + " quantised weights do not fit " +
                        mebibytes(kUnpacked) + " on the GPU");
  std::byte* const workspace = stream.workspace(CudaStream::kWorkspace);
  for (std::int64_t first = 0; first < layout.rows; first += most) {
    const std::int64_t count = std::min(most, layout.rows - first);
    unpack(static_cast<const std::byte*>(op.weight.data) + first / kTileRows * layout.tile_bytes(), layout, count,
           reinterpret_cast<__half*>(workspace), stream);
    multiply_dense(columns_of(op, first, count, ConstView(workspace, DType::f16, count, layout.cols)),
                   workspace + kUnpacked, CudaStream::kWorkspace - kUnpacked, stream);
  }
}

}  // namespace

void CudaOps::run(const Linear& op, Stream& any) const {
  check(op);
  auto& stream = static_cast<CudaStream&>(any);
  if (op.x.rows == 0 || op.out.cols == 0) return;
  if (!is_quantised(op.weight.dtype))
    multiply_dense(op, stream.workspace(CudaStream::kWorkspace), CudaStream::kWorkspace, stream);
  else if (!multiply_packed(op, stream)) multiply_quantised(op, stream);
}

void CudaOps::run(const UnpackWeights& op, Stream& any) const {
  check(op);
  const QuantisedLayout layout = QuantisedLayout::of(op.weight);
  if (layout.rows == 0 || layout.cols == 0) return;
  unpack(op.weight.as<std::byte>(), layout, layout.rows, static_cast<__half*>(op.out.data),
         static_cast<CudaStream&>(any));
}

}  // namespace weft::kernels
