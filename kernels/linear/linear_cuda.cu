// kernels/linear/linear_cuda.cu: matrix products by cuBLASLt over row-major weights, accumulated in fp32.
//
// cuBLASLt multiplies operands of one type. Rows of another type are rounded to the weights' type first, a slice of
// rows at a time that fits the stream's workspace. Its epilogue adds a bias of the result's type, applies the
// activations that it knows and rounds; what it cannot do is done by a pass over the result. A separate op unpacks
// quantised weights, once for all products. A product whose weights are not unpacked yet unpacks them into the
// workspace, for as many columns of the result at a time as fit.
#include <algorithm>
#include <bit>
#include <span>

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
using Part = LinearGroup::Part;

constexpr int kThreads = 256;
constexpr std::size_t kAlignment = 256;  // bytes
constexpr int kTileRows = QuantisedLayout::kTileRows;
constexpr std::size_t kUnpacked = 48 << 20;  // of the workspace, for unpacked weights

/// Rows of numbers in another float type.
template <class T, int kPack>
__global__ void round_rows(Numbers x, std::int64_t stride, T* __restrict__ out, std::int64_t out_stride, int cols) {
  const std::int64_t row = blockIdx.x * stride;
  out += blockIdx.x * out_stride;
  for (int c = (blockIdx.y * kThreads + threadIdx.x) * kPack; c < cols; c += gridDim.y * kThreads * kPack) {
    const auto in = x.at<kPack>(row + c);
    Pack<T, kPack> rounded = {};
    for (int i = 0; i < kPack; ++i) rounded.at[i] = from_float<T>(in.at[i]);
    store_pack(out + c, rounded);
  }
}

/// out = activation(y + bias), or out += that. y may be out.
template <class T, bool kAdd, int kPack>
__global__ void finish_rows(const T* y, std::int64_t y_stride, Numbers bias, Activation activation, T* out,
                            std::int64_t out_stride, int cols) {
  y += blockIdx.x * y_stride;
  out += blockIdx.x * out_stride;
  for (int c = (blockIdx.y * kThreads + threadIdx.x) * kPack; c < cols; c += gridDim.y * kThreads * kPack) {
    const auto in = load_pack<kPack>(y + c);
    Pack<T, kPack> result = {};
    Pack<float, kPack> shift = {};
    if (kAdd) result = load_pack<kPack>(out + c);
    if (bias.data) shift = bias.at<kPack>(c);
    for (int i = 0; i < kPack; ++i) {
      const float x = to_float(in.at[i]);
      const float value = activated(bias.data ? x + shift.at[i] : x, activation);
      result.at[i] = from_float<T>(kAdd ? value + to_float(result.at[i]) : value);
    }
    store_pack(out + c, result);
  }
}

dim3 grid_for(std::int64_t rows, std::int64_t cols, int pack) {
  return {static_cast<unsigned>(rows), std::clamp(blocks_for(cols, std::int64_t{kThreads} * pack), 1u, 64u)};
}

void finish(const View& y, const ConstView& bias, Activation activation, const View& out, bool add,
            CudaStream& stream) {
  with_float_type(out.dtype, [&]<class T>() {
    const bool wide = in_packs(y.data, y.stride, y.cols, sizeof(T)) &&
                      in_packs(out.data, out.stride, out.cols, sizeof(T)) &&
                      in_packs(bias.data, 0, out.cols, size_of(bias.dtype));
    const auto kernel = [&] {
      if constexpr (std::is_same_v<T, float>)
        if (add) return wide ? finish_rows<T, true, kWide> : finish_rows<T, true, 1>;
      return wide ? finish_rows<T, false, kWide> : finish_rows<T, false, 1>;
    }();
    launch(kernel, grid_for(out.rows, out.cols, wide ? kWide : 1), kThreads, 0, stream, static_cast<const T*>(y.data),
           y.stride, Numbers{bias.data, bias.dtype}, activation, static_cast<T*>(out.data), out.stride,
           static_cast<int>(out.cols));
  });
}

/// Writes `x` to `out`, a matrix of the same shape and another type.
void round(const ConstView& x, const View& out, CudaStream& stream) {
  with_float_type(out.dtype, [&]<class T>() {
    const bool wide =
        in_packs(x.data, x.stride, x.cols, size_of(x.dtype)) && in_packs(out.data, out.stride, out.cols, sizeof(T));
    launch(wide ? round_rows<T, kWide> : round_rows<T, 1>, grid_for(x.rows, x.cols, wide ? kWide : 1), kThreads, 0,
           stream, Numbers{x.data, x.dtype}, x.stride, static_cast<T*>(out.data), out.stride, static_cast<int>(x.cols));
  });
}

/// The layout of tiles as unpack_tiles() needs it: without divisions.
struct TileStrides {
  std::int32_t tile, group;  // bytes
  std::int32_t group_bits;   // a group has 2^group_bits times kWide columns
  std::int32_t rows, cols;
  TableWords table;
};

/// Unpacks tiles of quantised weights to rows of 16 bits, `cols` apart. A thread has kWide columns of four rows: it
/// reads 16 bytes of each line, and eight threads next to each other write 128 bytes of a row. Grid: tiles, columns.
template <DType kType, bool kTable, bool kWhole>
__device__ __forceinline__ void unpack_tile(const std::byte* __restrict__ weight, const TileStrides& of,
                                            __half* __restrict__ out) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int part = (static_cast<int>(blockIdx.y) * (kThreads / kWarp) + warp) * 8 + lane % 8, rows = lane / 8 * 4;
  const int first = part * kWide, to_row = static_cast<int>(blockIdx.x) * kTileRows + rows;
  if (first >= of.cols || to_row >= of.rows) return;
  const std::byte* const group = weight + std::int64_t{blockIdx.x} * of.tile + (part >> of.group_bits) * of.group;
  constexpr bool kFloat8 = kType == DType::f8;
  const auto* const header = reinterpret_cast<const std::uint32_t*>(group);
  Pack<std::uint32_t, 2> scales, minima;
  Pack<std::uint32_t, 4> wide_scales;
  if constexpr (kFloat8) wide_scales = load_pack<4>(header + rows);
  else scales = load_pack<2>(header + rows / 2), minima = load_pack<2>(header + kTileRows / 2 + rows / 2);
  constexpr int kLines = kType == DType::i4 ? 1 : 2;  // of kWide columns
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
    Pack<std::uint32_t, 4> numbers;
    std::uint32_t levels[4];
    if constexpr (kFloat8) {
      const float scale = float8_scale(wide_scales.at[r]);
#pragma unroll
      for (int l = 0; l < kLines; ++l) {
        numbers.at[2 * l] = float8_numbers<0x1404>(words[l].at[r], scale);
        numbers.at[2 * l + 1] = float8_numbers<0x3424>(words[l].at[r], scale);
      }
    } else if constexpr (kType == DType::i8) {
      levels[0] = byte_levels<0x4140>(words[0].at[r]), levels[1] = byte_levels<0x4342>(words[0].at[r]);
      levels[2] = byte_levels<0x4140>(words[1].at[r]), levels[3] = byte_levels<0x4342>(words[1].at[r]);
    } else {
      // Bytes 0, 2, 1, 3 in that order have the columns of each half next to each other.
      const std::uint32_t even = __byte_perm(words[0].at[r], 0, 0x3120), odd = even >> 8;
      for (int half = 0; half < 2; ++half) {
        const auto levels_of_half = [&](std::uint32_t word) {
          if constexpr (kTable) return table_levels(of.table, word, half != 0);
          else return half_byte_levels(word, half != 0);
        };
        levels[2 * half] = levels_of_half(even), levels[2 * half + 1] = levels_of_half(odd);
      }
    }
    if constexpr (!kFloat8) {
      const std::uint32_t scale = twice(scales, r), minimum = twice(minima, r);
#pragma unroll
      for (int i = 0; i < 4; ++i) numbers.at[i] = fma_pair(levels[i], scale, minimum);
    }
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

template <DType kType, bool kWhole>
__global__ void unpack_tiles(const std::byte* __restrict__ weight, TileStrides of, __half* __restrict__ out) {
  unpack_tile<kType, false, kWhole>(weight, of, out);
}
/// The same of levels of 4 bits that stand for others by TileStrides::table.
template <bool kWhole>
__global__ void unpack_by_table(const std::byte* __restrict__ weight, TileStrides of, __half* __restrict__ out) {
  unpack_tile<DType::i4, true, kWhole>(weight, of, out);
}

/// Unpacks the first `rows` rows of tiles, all of `layout`'s columns.
void unpack(const std::byte* weight, const QuantisedLayout& layout, std::int64_t rows, __half* out,
            CudaStream& stream) {
  const bool whole = layout.cols % kWide == 0 && reinterpret_cast<std::uintptr_t>(out) % 16 == 0;
  const auto kernel = layout.dtype == DType::i8 ? whole ? unpack_tiles<DType::i8, true> : unpack_tiles<DType::i8, false>
                      : layout.dtype == DType::f8
                          ? whole ? unpack_tiles<DType::f8, true> : unpack_tiles<DType::f8, false>
                      : layout.table != LevelTable::even ? whole ? unpack_by_table<true> : unpack_by_table<false>
                      : whole ? unpack_tiles<DType::i4, true>
                                                         : unpack_tiles<DType::i4, false>;
  const TileStrides of{.tile = static_cast<std::int32_t>(layout.tile_bytes()),
                       .group = static_cast<std::int32_t>(layout.group_bytes()),
                       .group_bits = std::countr_zero(static_cast<unsigned>(layout.group / kWide)),
                       .rows = static_cast<std::int32_t>(rows),
                       .cols = static_cast<std::int32_t>(layout.cols),
                       .table = table_words(layout.table)};
  launch(kernel, dim3(blocks_for(rows, kTileRows), blocks_for(layout.cols, kThreads / 4 * kWide)), kThreads, 0, stream,
         weight, of, out);
}

/// Products of one x with weights of a float type, one or several.
struct Work {
  ConstView x;
  std::span<const Part> parts;
  Activation activation = Activation::none;  // of a single part
  bool accumulate = false;
};

/// The numbers of one's type from one matrix to the other.
std::int64_t apart(const ConstView& one, const ConstView& other) {
  return (reinterpret_cast<std::intptr_t>(other.data) - reinterpret_cast<std::intptr_t>(one.data)) /
         static_cast<std::intptr_t>(size_of(one.dtype));
}

/// How many parts, from the first on, can be one product: they are alike and lie at equal distances.
std::size_t alike(std::span<const Part> parts) {
  const auto same = [](const ConstView& a, const ConstView& b) {
    return a.dtype == b.dtype && a.rows == b.rows && a.cols == b.cols && a.stride == b.stride && !a.data == !b.data;
  };
  std::size_t count = 1;
  for (; count < parts.size(); ++count) {
    const Part &first = parts[0], &second = parts[1], &before = parts[count - 1], &next = parts[count];
    const bool fits = same(first.weight, next.weight) && same(first.bias, next.bias) && same(first.out, next.out) &&
                      apart(before.weight, next.weight) > 0 && apart(before.out, next.out) > 0 &&
                      apart(first.weight, second.weight) == apart(before.weight, next.weight) &&
                      apart(first.bias, second.bias) == apart(before.bias, next.bias) &&
                      apart(first.out, second.out) == apart(before.out, next.out);
    if (!fits) break;
  }
  return count;
}

/// Computes rows [first, first + rows) of the result. cuBLASLt does what it can of it; `product` has all but the rows.
/// `aside` is where the product goes if its activation must not reach what is added, else empty.
void multiply_rows(const Work& op, Product product, const ConstView& x, const View& aside, std::int64_t first,
                   CudaStream& stream) {
  const auto rows_of = [&](const Part& part) { return part.out.slice(first, x.rows); };
  const bool whole = !aside && ProductLibrary::has(op.activation);
  product.x = x, product.out = aside ? aside : rows_of(op.parts[0]);
  product.activation = whole ? op.activation : Activation::none;
  const bool done = stream.multiply(product);
  if (done && whole) return;
  for (const Part& part : op.parts) {
    const View out = rows_of(part), y = aside ? aside : out;
    if (!done) stream.multiply({.x = x, .weight = part.weight, .bias = {}, .out = y, .accumulate = product.accumulate});
    finish(y, done ? ConstView{} : part.bias, op.activation, out, bool(aside), stream);
  }
}

/// Computes parts that are alike, in `bytes` of workspace: their biases in the result's type, rows of x in the
/// weights', and the product alone where an activation must not reach what is added.
void multiply_alike(const Work& op, std::byte* workspace, std::size_t bytes, CudaStream& stream) {
  const Part& part = op.parts[0];
  const auto count = static_cast<std::int64_t>(op.parts.size());
  const std::int64_t rows = op.x.rows, cols = part.out.cols;
  const DType type = part.weight.dtype, out_type = part.out.dtype;
  const bool rounds = op.x.dtype != type, converts = part.bias && part.bias.dtype != out_type,
             aside = op.accumulate && op.activation != Activation::none;
  const auto up = [](std::size_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; };
  const std::size_t bias_bytes = converts ? up(bytes_of(out_type, cols)) : 0,
                    before = bias_bytes * static_cast<std::size_t>(count) + kAlignment,
                    row_bytes = (rounds ? bytes_of(type, op.x.cols) : 0) + (aside ? bytes_of(out_type, cols) : 0);
  const std::int64_t slice =
      row_bytes == 0 ? rows : std::min<std::int64_t>(rows, bytes < before ? 0 : (bytes - before) / row_bytes);
  if (slice == 0 || before > bytes)
    throw CapacityError("linear: a row of [" + std::to_string(op.x.cols) + "] to [" + std::to_string(cols) +
                        "] does not fit the workspace on the GPU");
  std::byte* const x_at = workspace + before - kAlignment;
  std::byte* const y_at = x_at + (rounds ? up(bytes_of(type, slice * op.x.cols)) : 0);

  Product product{.x = {},
                  .weight = part.weight,
                  .bias = part.bias,
                  .out = {},
                  .accumulate = op.accumulate && !aside,
                  .parts = static_cast<int>(count)};
  if (count > 1) {
    product.weight_step = apart(part.weight, op.parts[1].weight), product.out_step = apart(part.out, op.parts[1].out);
    product.bias_step = apart(part.bias, op.parts[1].bias);
  }
  if (converts) {
    const auto step = static_cast<std::int64_t>(bias_bytes / size_of(out_type));
    round(ConstView(part.bias.data, part.bias.dtype, count, cols, count > 1 ? product.bias_step : cols),
          View(workspace, out_type, count, cols, step), stream);
    product.bias = ConstView(workspace, out_type, 1, cols), product.bias_step = step;
  }
  for (std::int64_t first = 0; first < rows; first += slice) {
    const std::int64_t number = std::min(slice, rows - first);
    const ConstView x = op.x.slice(first, number);
    const View copy(x_at, type, number, x.cols);
    if (rounds) round(x, copy, stream);
    multiply_rows(op, product, rounds ? ConstView(copy) : x, aside ? View(y_at, out_type, number, cols) : View{}, first,
                  stream);
  }
}

/// Computes products with weights of a float type, in `bytes` of workspace.
void multiply_dense(Work op, std::byte* workspace, std::size_t bytes, CudaStream& stream) {
  while (!op.parts.empty()) {
    const std::size_t count = alike(op.parts);
    Work some = op;
    some.parts = op.parts.first(count), op.parts = op.parts.subspan(count);
    if (some.parts[0].out.cols > 0) multiply_alike(some, workspace, bytes, stream);
  }
}

/// Columns [first, first + count) of the result of `part`, with other weights.
Part columns_of(const Part& part, std::int64_t first, std::int64_t count, const ConstView& weight) {
  Part some{weight, {}, part.out.columns(first, count)};
  if (part.bias) some.bias = part.bias.columns(first, count);
  return some;
}

void multiply_quantised(const Work& op, const Part& part, CudaStream& stream) {
  const QuantisedLayout layout = QuantisedLayout::of(part.weight);
  const auto row_bytes = static_cast<std::int64_t>(bytes_of(DType::f16, layout.cols));
  const std::int64_t most = static_cast<std::int64_t>(kUnpacked) / row_bytes / kTileRows * kTileRows;
  if (most == 0)
    throw CapacityError("linear: rows of " + std::to_string(layout.cols) + " quantised weights do not fit " +
                        mebibytes(kUnpacked) + " on the GPU");
  std::byte* const workspace = stream.workspace(CudaStream::kWorkspace);
  for (std::int64_t first = 0; first < layout.rows; first += most) {
    const std::int64_t count = std::min(most, layout.rows - first);
    unpack(static_cast<const std::byte*>(part.weight.data) + first / kTileRows * layout.tile_bytes(), layout, count,
           reinterpret_cast<__half*>(workspace), stream);
    const Part some = columns_of(part, first, count, ConstView(workspace, DType::f16, count, layout.cols));
    multiply_dense({op.x, {&some, 1}, op.activation, op.accumulate}, workspace + kUnpacked,
                   CudaStream::kWorkspace - kUnpacked, stream);
  }
}

void multiply(const Work& op, CudaStream& stream) {
  const auto quantised = [](const Part& part) { return is_quantised(part.weight.dtype); };
  if (op.x.rows == 0) return;
  if (std::none_of(op.parts.begin(), op.parts.end(), quantised))
    return multiply_dense(op, stream.workspace(CudaStream::kWorkspace), CudaStream::kWorkspace, stream);
  for (const Part& part : op.parts) {
    if (part.out.cols == 0) continue;
    if (!quantised(part))
      multiply_dense({op.x, {&part, 1}, op.activation, op.accumulate}, stream.workspace(CudaStream::kWorkspace),
                     CudaStream::kWorkspace, stream);
    else if (!multiply_packed({.x = op.x,
                               .weight = part.weight,
                               .bias = part.bias,
                               .out = part.out,
                               .activation = op.activation,
                               .accumulate = op.accumulate},
                              stream))
      multiply_quantised(op, part, stream);
  }
}

}  // namespace

void CudaOps::run(const Linear& op, Stream& stream) const {
  check(op);
  const Part part{op.weight, op.bias, op.out};
  multiply({op.x, {&part, 1}, op.activation, op.accumulate}, static_cast<CudaStream&>(stream));
}

void CudaOps::run(const LinearGroup& op, Stream& stream) const {
  check(op);
  multiply({.x = op.x, .parts = op.parts}, static_cast<CudaStream&>(stream));
}

void CudaOps::run(const UnpackWeights& op, Stream& any) const {
  check(op);
  const QuantisedLayout layout = QuantisedLayout::of(op.weight);
  if (layout.rows == 0 || layout.cols == 0) return;
  unpack(op.weight.as<std::byte>(), layout, layout.rows, static_cast<__half*>(op.out.data),
         static_cast<CudaStream&>(any));
}

}  // namespace weft::kernels
