// kernels/rows/pointwise_cuda.cu: conversions, sums, norms and rotations of rows.
#include <algorithm>

#include "kernels/machine/device_cuda.h"
#include "kernels/machine/ops_cuda.h"
#include "kernels/rows/hadamard_cuda.h"

namespace weft::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256;

/// One row per blockIdx.x; the columns are spread over blockIdx.y and the threads.
template <class In, class Out, bool kAdd, int kPack>
__global__ void convert(const In* in, std::int64_t in_stride, Out* out, std::int64_t out_stride, std::int64_t cols) {
  in += blockIdx.x * in_stride;
  out += blockIdx.x * out_stride;
  const std::int64_t step = std::int64_t{gridDim.y} * kThreads * kPack;
  for (std::int64_t c = (std::int64_t{blockIdx.y} * kThreads + threadIdx.x) * kPack; c < cols; c += step) {
    const auto x = load_pack<kPack>(in + c);
    Pack<Out, kPack> y = {};
    if (kAdd) y = load_pack<kPack>(out + c);
    for (int i = 0; i < kPack; ++i) {
      const float value = to_float(x.at[i]);
      y.at[i] = from_float<Out>(kAdd ? to_float(y.at[i]) + value : value);
    }
    store_pack(out + c, y);
  }
}

/// Few rows of many columns are spread wider, so that one row alone does not leave the device idle.
dim3 grid_for(std::int64_t rows, std::int64_t cols) {
  return {static_cast<unsigned>(rows), static_cast<unsigned>(std::clamp<std::int64_t>(cols / (4 * kThreads), 1, 64))};
}

template <bool kAdd> void launch_convert(const ConstView& in, const View& out, Stream& stream) {
  if (in.rows == 0 || in.cols == 0) return;
  with_float_type(in.dtype, [&]<class In>() {
    with_float_type(out.dtype, [&]<class Out>() {
      const bool wide =
          in_packs(in.data, in.stride, in.cols, sizeof(In)) && in_packs(out.data, out.stride, out.cols, sizeof(Out));
      launch(wide ? convert<In, Out, kAdd, kWide> : convert<In, Out, kAdd, 1>, grid_for(in.rows, in.cols), kThreads, 0,
             static_cast<CudaStream&>(stream), static_cast<const In*>(in.data), in.stride, static_cast<Out*>(out.data),
             out.stride, in.cols);
    });
  });
}

/// One row of the result per blockIdx.x.
template <class In, class Out>
__global__ void gather_rows(const In* table, std::int64_t table_stride, const std::int32_t* ids, const std::int32_t* to,
                            Out* out, std::int64_t out_stride, std::int64_t cols) {
  table += ids[blockIdx.x] * table_stride;
  out += (to ? to[blockIdx.x] : static_cast<std::int32_t>(blockIdx.x)) * out_stride;
  const std::int64_t step = std::int64_t{gridDim.y} * kThreads;
  for (std::int64_t c = std::int64_t{blockIdx.y} * kThreads + threadIdx.x; c < cols; c += step)
    out[c] = from_float<Out>(to_float(table[c]));
}

/// One row per thread block, which is a single warp for rows as narrow as a head. A thread holds its packs of the row
/// in registers, if it has at most kHeld of them (0: it reads the row three times; the second and third time the caches
/// have it).
template <class In, class Out, int kPack, int kHeld>
__global__ void __launch_bounds__(kThreads, 4)
    layer_norm(const In* x, std::int64_t x_stride, Numbers weight, int weight_rows, Numbers bias, Out* out,
               std::int64_t out_stride, int cols, float eps, bool rms, bool plus_one) {
  WEFT_SHARED(float, partial, [kThreads / kWarp]);
  x += blockIdx.x * x_stride;
  out += blockIdx.x * out_stride;
  const int first = static_cast<int>(threadIdx.x) * kPack;
  const int step = static_cast<int>(blockDim.x) * kPack;
  Pack<In, kPack> held[kHeld > 0 ? kHeld : 1];
#pragma unroll
  for (int h = 0; h < kHeld; ++h)
    if (first + h * step < cols) held[h] = load_pack<kPack>(x + first + h * step);
  // Calls use(pack, column) for each of the thread's packs.
  const auto each = [&](const auto& use) {
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int h = 0; h < kHeld; ++h)
        if (first + h * step < cols) use(held[h], first + h * step);
    } else {
      for (int c = first; c < cols; c += step) use(load_pack<kPack>(x + c), c);
    }
  };
  float mean = 0;
  if (!rms) {
    float sum = 0;
    each([&](const Pack<In, kPack>& pack, int) {
      for (int i = 0; i < kPack; ++i) sum += to_float(pack.at[i]);
    });
    mean = block_reduce(sum, Sum{}, partial) / static_cast<float>(cols);
  }
  float squares = 0;
  each([&](const Pack<In, kPack>& pack, int) {
    for (int i = 0; i < kPack; ++i) {
      const float d = to_float(pack.at[i]) - mean;
      squares += d * d;
    }
  });
  const float scale = rsqrtf(block_reduce(squares, Sum{}, partial) / static_cast<float>(cols) + eps);
  const int own_weight = weight_rows > 1 ? static_cast<int>(blockIdx.x) % weight_rows * cols : 0;
  each([&](const Pack<In, kPack>& pack, int c) {
    Pack<float, kPack> factor = {}, shift = {};
    if (weight.data) factor = weight.at<kPack>(own_weight + c);
    if (bias.data) shift = bias.at<kPack>(c);
    Pack<Out, kPack> result = {};
    for (int i = 0; i < kPack; ++i) {
      float y = (to_float(pack.at[i]) - mean) * scale;
      if (weight.data) y *= plus_one ? 1 + factor.at[i] : factor.at[i];
      if (bias.data) y += shift.at[i];
      result.at[i] = from_float<Out>(y);
    }
    store_pack(out + c, result);
  });
}

__global__ void scale(float* x, std::int64_t x_stride, std::int64_t cols, float factor, float cap, Numbers by) {
  x += blockIdx.x * x_stride;
  if (by.data) factor *= by.at<1>(0).at[0];
  const std::int64_t step = std::int64_t{gridDim.y} * kThreads;
  for (std::int64_t c = std::int64_t{blockIdx.y} * kThreads + threadIdx.x; c < cols; c += step) {
    const float y = factor == 0 ? 0 : x[c] * factor;
    x[c] = cap > 0 ? cap * tanhf(y / cap) : y;
  }
}

template <class T, int kPack>
__global__ void multiply(T* x, std::int64_t x_stride, const T* y, std::int64_t y_stride, std::int64_t cols) {
  x += blockIdx.x * x_stride;
  y += blockIdx.x * y_stride;
  const std::int64_t step = std::int64_t{gridDim.y} * kThreads * kPack;
  for (std::int64_t c = (std::int64_t{blockIdx.y} * kThreads + threadIdx.x) * kPack; c < cols; c += step) {
    auto product = load_pack<kPack>(x + c);
    const auto factor = load_pack<kPack>(y + c);
    for (int i = 0; i < kPack; ++i) product.at[i] = from_float<T>(to_float(product.at[i]) * to_float(factor.at[i]));
    store_pack(x + c, product);
  }
}

template <class T>
__global__ void take_heads(const T* in, std::int64_t in_stride, int first, int heads_apart, int head_dim, T* out,
                           std::int64_t out_stride, std::int64_t cols) {
  in += blockIdx.x * in_stride;
  out += blockIdx.x * out_stride;
  const std::int64_t step = std::int64_t{gridDim.y} * kThreads;
  for (std::int64_t c = std::int64_t{blockIdx.y} * kThreads + threadIdx.x; c < cols; c += step)
    out[c] = in[(first + c / head_dim * heads_apart) * head_dim + c % head_dim];
}

/// Each thread turns pairs; a row has `pairs` of them. Pair i of a head begins at i * apart_pairs, and its numbers are
/// `apart`.
template <class T>
__global__ void rotate(T* x, std::int64_t x_stride, const std::int32_t* position, const float* frequencies, int count,
                       int head_dim, std::int64_t pairs, int apart_pairs, int apart, float magnitude) {
  x += blockIdx.x * x_stride;
  const std::int64_t step = std::int64_t{gridDim.y} * kThreads;
  for (std::int64_t p = std::int64_t{blockIdx.y} * kThreads + threadIdx.x; p < pairs; p += step) {
    const auto i = static_cast<int>(p % count);
    T* const pair = x + p / count * head_dim + i * apart_pairs;
    const float angle = static_cast<float>(position[blockIdx.x]) * frequencies[i];
    const float cosine = cosf(angle) * magnitude, sine = sinf(angle) * magnitude;
    const float a = to_float(pair[0]), b = to_float(pair[apart]);
    pair[0] = from_float<T>(a * cosine - b * sine);
    pair[apart] = from_float<T>(b * cosine + a * sine);
  }
}

/// A warp turns a head. Shared: a head for each warp.
__global__ void turn_heads(float* x, std::int64_t x_stride, std::int64_t heads, int heads_of_row, int head_dim) {
  WEFT_DYNAMIC_SHARED(float, shared);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const std::int64_t head = std::int64_t{blockIdx.x} * (kThreads / kWarp) + warp;
  if (head >= heads) return;
  float* const from = x + head / heads_of_row * x_stride + head % heads_of_row * head_dim;
  float* const mine = shared + warp * head_dim;
  for (int d = lane; d < head_dim; d += kWarp) mine[d] = from[d];
  __syncwarp();
  turn_head(mine, head_dim);
  for (int d = lane; d < head_dim; d += kWarp) from[d] = mine[d];
}

template <class In, class Out> void launch_norm(const LayerNorm& op, CudaStream& stream) {
  const auto aligned = [&](const ConstView& v) { return !v || in_packs(v.data, 0, v.cols, size_of(v.dtype)); };
  const bool wide = in_packs(op.x.data, op.x.stride, op.x.cols, sizeof(In)) &&
                    in_packs(op.out.data, op.out.stride, op.out.cols, sizeof(Out)) && aligned(op.weight) &&
                    aligned(op.bias);
  const int threads = op.x.cols <= kWarp * kWide ? kWarp : kThreads;
  constexpr int held = 4;  // packs: rows of up to 8192 numbers
  launch(wide ? op.x.cols <= held * threads * kWide ? layer_norm<In, Out, kWide, held> : layer_norm<In, Out, kWide, 0>
              : layer_norm<In, Out, 1, 0>,
         dim3(static_cast<unsigned>(op.x.rows)), threads, 0, stream, static_cast<const In*>(op.x.data), op.x.stride,
         Numbers{op.weight.data, op.weight.dtype}, static_cast<int>(op.weight.rows),
         Numbers{op.bias.data, op.bias.dtype}, static_cast<Out*>(op.out.data), op.out.stride,
         static_cast<int>(op.x.cols), op.eps, op.rms, op.plus_one);
}

}  // namespace

void CudaOps::run(const Convert& op, Stream& stream) const {
  check(op);
  launch_convert<false>(op.in, op.out, stream);
}

void CudaOps::run(const Add& op, Stream& stream) const {
  check(op);
  launch_convert<true>(op.y, op.x, stream);
}

void CudaOps::run(const Scale& op, Stream& stream) const {
  check(op);
  if (op.x.rows == 0 || op.x.cols == 0) return;
  launch(scale, grid_for(op.x.rows, op.x.cols), kThreads, 0, static_cast<CudaStream&>(stream), op.x.as<float>(),
         op.x.stride, op.x.cols, op.factor, op.cap, Numbers{op.by.data, op.by.dtype});
}

void CudaOps::run(const Multiply& op, Stream& stream) const {
  check(op);
  if (op.x.rows == 0 || op.x.cols == 0) return;
  with_float_type(op.x.dtype, [&]<class T>() {
    const bool wide = in_packs(op.x.data, op.x.stride, op.x.cols, sizeof(T)) &&
                      in_packs(op.y.data, op.y.stride, op.y.cols, sizeof(T));
    launch(wide ? multiply<T, kWide> : multiply<T, 1>, grid_for(op.x.rows, op.x.cols), kThreads, 0,
           static_cast<CudaStream&>(stream), static_cast<T*>(op.x.data), op.x.stride, static_cast<const T*>(op.y.data),
           op.y.stride, op.x.cols);
  });
}

void CudaOps::run(const Gather& op, Stream& any) const {
  check(op);
  auto& stream = static_cast<CudaStream&>(any);
  if (op.ids.empty() || op.out.cols == 0) return;
  const std::int32_t* const ids = stream.upload(op.ids);
  const std::int32_t* const to = op.to.empty() ? nullptr : stream.upload(op.to);
  with_float_type(op.table.dtype, [&]<class In>() {
    with_float_type(op.out.dtype, [&]<class Out>() {
      launch(gather_rows<In, Out>, grid_for(static_cast<std::int64_t>(op.ids.size()), op.out.cols), kThreads, 0, stream,
             static_cast<const In*>(op.table.data), op.table.stride, ids, to, static_cast<Out*>(op.out.data),
             op.out.stride, op.out.cols);
    });
  });
}

void CudaOps::run(const LayerNorm& op, Stream& any) const {
  check(op);
  auto& stream = static_cast<CudaStream&>(any);
  with_float_type(op.out.dtype, [&]<class Out>() {
    if (op.x.dtype == DType::f32) launch_norm<float, Out>(op, stream);
    else launch_norm<Out, Out>(op, stream);
  });
}

void CudaOps::run(const TakeHeads& op, Stream& stream) const {
  check(op);
  if (op.out.rows == 0 || op.out.cols == 0) return;
  with_float_type(op.in.dtype, [&]<class T>() {
    launch(take_heads<T>, grid_for(op.out.rows, op.out.cols), kThreads, 0, static_cast<CudaStream&>(stream),
           static_cast<const T*>(op.in.data), op.in.stride, op.first, op.step, op.head_dim,
           static_cast<T*>(op.out.data), op.out.stride, op.out.cols);
  });
}

void CudaOps::run(const Rotary& op, Stream& any) const {
  check(op);
  auto& stream = static_cast<CudaStream&>(any);
  const auto count = static_cast<int>(op.frequencies.size());
  const std::int64_t pairs = op.x.cols / op.head_dim * count;
  if (op.x.rows == 0 || pairs == 0) return;
  const std::int32_t* const position = stream.upload(op.position);
  const float* const frequencies = stream.upload(op.frequencies);
  with_float_type(op.x.dtype, [&]<class T>() {
    launch(rotate<T>, grid_for(op.x.rows, pairs), kThreads, 0, stream, static_cast<T*>(op.x.data), op.x.stride,
           position, frequencies, count, op.head_dim, pairs, op.alternate ? 2 : 1, op.alternate ? 1 : count,
           op.magnitude);
  });
}

void CudaOps::run(const Hadamard& op, Stream& stream) const {
  check(op);
  const std::int64_t heads = op.x.rows * (op.x.cols / op.head_dim);
  if (heads == 0) return;
  constexpr int warps = kThreads / kWarp;
  launch(turn_heads, dim3(blocks_for(heads, warps)), kThreads, std::size_t{warps} * op.head_dim * sizeof(float),
         static_cast<CudaStream&>(stream), op.x.as<float>(), op.x.stride, heads,
         static_cast<int>(op.x.cols / op.head_dim), op.head_dim);
}

}  // namespace weft::kernels
