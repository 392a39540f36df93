// kernels/linear/linear_quantised_cuda.cu: see linear_quantised_cuda.h. Weights are read once, by the warp that needs
// them, and become fp16 numbers in registers.
//
// Rows of weights are the rows of fragments (tensor_core_cuda.h), rows of x their columns. A warp has the 32 rows of
// two tiles: the words of 16 bytes that its lanes read (four rows of a line) are two fragments. Columns go 32 at a
// time, to thread blocks and to the warps of each; sums of thread blocks go through memory and are added in their
// order.
#include "kernels/linear/linear_quantised_cuda.h"

#include <algorithm>
#include <bit>

#include "kernels/linear/activation_cuda.h"
#include "kernels/machine/levels_cuda.h"
#include "kernels/machine/tensor_core_cuda.h"
#include "kernels/quantised.h"

namespace weft::kernels::cuda {
namespace {

constexpr int kThreads = 256, kTileRows = QuantisedLayout::kTileRows;
constexpr int kAlong = 4, kApart = 2;  // warps of a thread block along the rows of weights, and along their columns
constexpr int kColumns = 32;           // columns of weights at a time
constexpr int kLaneColumns = 8;        // of them a lane's; a group has several times as many
static_assert(kAlong * kApart * kWarp == kThreads);

struct Weights {
  const std::byte* data;
  std::int32_t tile, group;   // bytes
  std::int32_t group_bits;    // a group has 2^group_bits times kLaneColumns columns
  std::int32_t tiles, steps;  // steps: of kColumns columns, whole groups
  TableWords table;
};

/// What a lane needs of kColumns columns: a word for each of four rows and of its lines, and these rows' scales and
/// minima. `kTable`: levels of 4 bits stand for others by Weights::table.
template <DType kType, bool kTable = false> struct Step {
  static constexpr int kLines = kType == DType::i4 ? 1 : 2;
  Pack<std::uint32_t, 4> words[kLines];
  Pack<std::uint32_t, 2> scales, minima;  // of f8 the two words of the first two rows' scales, and of the others'

  __device__ void load(const Weights& w, const std::byte* tile, int step, int quad, int part) {
    const int column = step * (kColumns / kLaneColumns) + part;  // in kLaneColumns
    const std::byte* const group = tile + (column >> w.group_bits) * w.group;
    const int line = (column & ((1 << w.group_bits) - 1)) * kLines;
    const auto* const header = reinterpret_cast<const std::uint32_t*>(group);
    if constexpr (kType == DType::f8) {
      const auto four = load_pack<4>(header + quad * 4);
      scales = {{four.at[0], four.at[1]}}, minima = {{four.at[2], four.at[3]}};
    } else {
      scales = load_pack<2>(header + quad * 2), minima = load_pack<2>(header + kTileRows / 2 + quad * 2);
    }
#pragma unroll
    for (int l = 0; l < kLines; ++l)
      words[l] = load_pack<4>(reinterpret_cast<const std::uint32_t*>(group + (line + l + 1) * QuantisedLayout::kLine) +
                              quad * 4);
  }
  /// The numbers of row `row` (of four) in columns 0 and 2 (odd: 1 and 3) of the first or the second four of the lane's
  /// eight columns.
  __device__ std::uint32_t numbers(const Weights& w, int row, int four, int odd) const {
    if constexpr (kType == DType::f8) {
      const float of_row = float8_scale(row < 2 ? scales.at[row] : minima.at[row - 2]);
      return odd ? float8_numbers<0x3414>(words[four].at[row], of_row)
                 : float8_numbers<0x2404>(words[four].at[row], of_row);
    }
    const std::uint32_t scale = twice(scales, row), minimum = twice(minima, row);
    std::uint32_t levels;
    if constexpr (kType == DType::i8)
      levels = odd ? byte_levels<0x4341>(words[four].at[row]) : byte_levels<0x4240>(words[four].at[row]);
    else if constexpr (kTable)
      levels = table_levels(w.table, odd ? words[0].at[row] >> 8 : words[0].at[row], four != 0);
    else levels = half_byte_levels(odd ? words[0].at[row] >> 8 : words[0].at[row], four != 0);
    return fma_pair(levels, scale, minimum);
  }
};

/// x [rows, cols] in fp16, in the order of fragments: kColumns columns of all rows after another, and of each eight
/// columns 0, 2, 1, 3, 4, 6, 5, 7. Zeros fill the rows up to gridDim.x and the columns up to `padded`.
__global__ void round_to_order(Numbers x, std::int64_t stride, int rows, int cols, int padded,
                               __half* __restrict__ out) {
  constexpr int kEight = 8;
  const int row = static_cast<int>(blockIdx.x), c = (blockIdx.y * kThreads + threadIdx.x) * kEight;
  if (c >= padded) return;
  float in[kEight];
#pragma unroll
  for (int i = 0; i < kEight; ++i) in[i] = row < rows && c + i < cols ? x.at<1>(row * stride + c + i).at[0] : 0.0f;
  const Pack<std::uint32_t, 4> pairs = {{pack_pair<__half>(in[0], in[2]), pack_pair<__half>(in[1], in[3]),
                                         pack_pair<__half>(in[4], in[6]), pack_pair<__half>(in[5], in[7])}};
  const int at = (c / kColumns * gridDim.x + row) * kColumns + c % kColumns;
  store_pack(reinterpret_cast<std::uint32_t*>(out + at), pairs);
}

/// part [gridDim.y, rows, 16 tiles] = the sums of gridDim.y parts of the columns. x: kEights times 8 rows. Grid: tiles
/// by 2 kAlong, parts.
template <class Step, int kEights>
__device__ __forceinline__ void multiply_steps(const Weights& w, const __half* __restrict__ x, int rows, int steps_each,
                                               float* __restrict__ part, float* others) {
  constexpr int kSums = 2 * kEights * 4;
  constexpr int kAhead = kEights == 2 ? 3 : 2;  // steps on their way: as many as registers are for
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int along = warp % kAlong, apart = warp / kAlong, group = lane / 4, quad = group % 4, fourth = lane % 4;
  const int tile = (static_cast<int>(blockIdx.x) * kAlong + along) * 2 + group / 4;
  const std::byte* const from = w.data + std::int64_t{min(tile, w.tiles - 1)} * w.tile;
  const int first = (static_cast<int>(blockIdx.y) * kApart + apart) * steps_each,
            last = min(first + steps_each, w.steps);
  constexpr int kOfStep = kEights * 8 * kColumns / 2;  // words of x
  const auto* const columns = reinterpret_cast<const std::uint32_t*>(x) + (group * 4 + fourth) * 4;
  float sum[2][kEights][4] = {};
  Step step[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i)
    if (first + i < last) step[i].load(w, from, first + i, quad, fourth);
  for (int base = first; base < last; base += kAhead)
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (base + i >= last) break;
      std::uint32_t numbers[2][2][4];  // of each two rows: the lane's first and second four columns
#pragma unroll
      for (int two = 0; two < 2; ++two)
#pragma unroll
        for (int four = 0; four < 2; ++four)
#pragma unroll
          for (int n = 0; n < 4; ++n) numbers[two][four][n] = step[i].numbers(w, 2 * two + n % 2, four, n / 2);
      if (base + i + kAhead < last) step[i].load(w, from, base + i + kAhead, quad, fourth);
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
        const auto of_x = load_pack<4>(columns + (base + i) * kOfStep + e * 8 * kColumns / 2);
#pragma unroll
        for (int two = 0; two < 2; ++two)
#pragma unroll
          for (int four = 0; four < 2; ++four)
            multiply_tiles<__half>(sum[two][e], numbers[two][four], of_x.at[2 * four], of_x.at[2 * four + 1]);
      }
    }
  static_assert(kApart == 2);
  float* const shared = others + along * kSums * kWarp + lane;
  if (apart > 0)
#pragma unroll
    for (int i = 0; i < kSums; ++i) shared[i * kWarp] = sum[i / (kSums / 2)][i / 4 % kEights][i % 4];
  __syncthreads();
  if (apart > 0 || tile >= w.tiles) return;
#pragma unroll
  for (int i = 0; i < kSums; ++i) sum[i / (kSums / 2)][i / 4 % kEights][i % 4] += shared[i * kWarp];
  part += std::int64_t{blockIdx.y} * rows * w.tiles * kTileRows + tile * kTileRows + quad * 4;
#pragma unroll
  for (int e = 0; e < kEights; ++e)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = e * 8 + fourth * 2 + i;
      const Pack<float, 4> four = {{sum[0][e][i], sum[0][e][2 + i], sum[1][e][i], sum[1][e][2 + i]}};
      if (row < rows) store_pack(part + std::int64_t{row} * w.tiles * kTileRows, four);
    }
}

constexpr int blocks_at_once(int eights) { return eights == 1 ? 3 : eights == 8 ? 1 : 2; }

template <DType kType, int kEights>
__global__ void __launch_bounds__(kThreads, blocks_at_once(kEights))
    multiply_levels(Weights w, const __half* __restrict__ x, int rows, int steps_each, float* __restrict__ part) {
  WEFT_DYNAMIC_SHARED(float, others);
  multiply_steps<Step<kType>, kEights>(w, x, rows, steps_each, part, others);
}

template <int kEights>
__global__ void __launch_bounds__(kThreads, blocks_at_once(kEights))
    multiply_table(Weights w, const __half* __restrict__ x, int rows, int steps_each, float* __restrict__ part) {
  WEFT_DYNAMIC_SHARED(float, others);
  multiply_steps<Step<DType::i4, true>, kEights>(w, x, rows, steps_each, part, others);
}

/// out = activation(the sum of `parts` parts [rows, stride] + bias), or out += that. Grid: columns, rows.
template <class T>
__global__ void finish_parts(const float* __restrict__ part, int parts, int stride, Numbers bias, Activation activation,
                             bool accumulate, T* __restrict__ out, std::int64_t out_stride, int cols) {
  const int c = blockIdx.x * kThreads + threadIdx.x;
  if (c >= cols) return;
  part += std::int64_t{blockIdx.y} * stride + c;
  float sum = bias.data ? bias.at<1>(c).at[0] : 0.0f;
  for (int i = 0; i < parts; ++i) sum += part[std::int64_t{i} * gridDim.y * stride];
  T& to = out[blockIdx.y * out_stride + c];
  to = from_float<T>(activated(sum, activation) + (accumulate ? to_float(to) : 0.0f));
}

template <class F> void with_eights(std::int64_t rows, const F& f) {
  if (rows <= 8) f.template operator()<1>();
  else if (rows <= 16) f.template operator()<2>();
  else if (rows <= 32) f.template operator()<4>();
  else f.template operator()<8>();
}

}  // namespace

bool multiply_packed(const Linear& op, CudaStream& stream) {
  const QuantisedLayout layout = QuantisedLayout::of(op.weight);
  const std::int64_t rows = op.x.rows, padded = layout.groups() * layout.group, cols = layout.tiles() * kTileRows;
  if (rows > kPackedRows || padded % kColumns != 0 || stream.batch_invariant()) return false;
  const Weights weights{.data = op.weight.as<std::byte>(),
                        .tile = static_cast<std::int32_t>(layout.tile_bytes()),
                        .group = static_cast<std::int32_t>(layout.group_bytes()),
                        .group_bits = std::countr_zero(static_cast<unsigned>(layout.group / kLaneColumns)),
                        .tiles = static_cast<std::int32_t>(layout.tiles()),
                        .steps = static_cast<std::int32_t>(padded / kColumns),
                        .table = table_words(layout.table)};
  // As many parts as fill the device, of at least eight steps a warp. Registers are for two thread blocks a
  // multiprocessor, or for one with more than 32 rows.
  constexpr int kLeast = 8;
  const int at_once = (rows > 32 ? 1 : 2) * stream.multiprocessors();
  const auto along = static_cast<int>(blocks_for(weights.tiles, 2 * kAlong));
  const int most = std::max(1, weights.steps / (kLeast * kApart));
  const int wanted = std::clamp((at_once + along - 1) / along, 1, most);
  const int steps_each = (weights.steps + wanted * kApart - 1) / (wanted * kApart);
  const int parts = (weights.steps + steps_each * kApart - 1) / (steps_each * kApart);
  const std::int64_t x_rows = std::int64_t{8} * std::bit_ceil(static_cast<unsigned>((rows + 7) / 8));
  const auto x_bytes = static_cast<std::size_t>(x_rows * padded) * sizeof(__half);
  const std::size_t part_bytes = static_cast<std::size_t>(parts * rows * cols) * sizeof(float);
  if (x_bytes + part_bytes > CudaStream::kWorkspace) return false;
  std::byte* const copy = stream.workspace(CudaStream::kWorkspace);
  auto* const part = reinterpret_cast<float*>(copy + x_bytes);
  launch(round_to_order, dim3(static_cast<unsigned>(x_rows), blocks_for(padded, kThreads * 8)), kThreads, 0, stream,
         Numbers{op.x.data, op.x.dtype}, op.x.stride, static_cast<int>(rows), static_cast<int>(op.x.cols),
         static_cast<int>(padded), reinterpret_cast<__half*>(copy));
  with_eights(rows, [&]<int kEights>() {
    const auto kernel = layout.dtype == DType::i8          ? multiply_levels<DType::i8, kEights>
                        : layout.dtype == DType::f8        ? multiply_levels<DType::f8, kEights>
                        : layout.table == LevelTable::even ? multiply_levels<DType::i4, kEights>
                                                           : multiply_table<kEights>;
    launch(kernel, dim3(along, parts), kThreads, std::size_t{kAlong} * kWarp * 2 * kEights * 4 * sizeof(float), stream,
           weights, reinterpret_cast<const __half*>(copy), static_cast<int>(rows), steps_each, part);
  });
  with_float_type(op.out.dtype, [&]<class T>() {
    launch(finish_parts<T>, dim3(blocks_for(op.out.cols, kThreads), static_cast<unsigned>(rows)), kThreads, 0, stream,
           part, parts, static_cast<int>(cols), Numbers{op.bias.data, op.bias.dtype}, op.activation, op.accumulate,
           static_cast<T*>(op.out.data), op.out.stride, static_cast<int>(op.out.cols));
  });
  return true;
}

}  // namespace weft::kernels::cuda
