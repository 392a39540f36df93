// kernels/rows/experts_cuda.cu: which experts a row goes to, and what comes back from them.
#include <algorithm>

#include "kernels/machine/device_cuda.h"
#include "kernels/machine/ops_cuda.h"

namespace weft::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256, kWarps = 4;  // kWarps: rows of a thread block that routes
constexpr int kOfLane = kMostExperts / kWarp;

struct Routing {
  int experts, chosen, groups, groups_kept;
  bool sigmoid, normalise;
  float scale;
};

__device__ float key_of(float x) { return x != x ? -INFINITY : x; }  // NaN is the lowest

/// A key and where it is, the higher key first, the lower place among equals.
struct Best {
  float key;
  int place;
};
struct Better {
  __device__ Best operator()(Best a, Best b) const {
    return a.key > b.key || (a.key == b.key && a.place < b.place) ? a : b;
  }
};
__device__ Best best_of_warp(Best x) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const Best other{__shfl_xor_sync(kWholeWarp, x.key, step), __shfl_xor_sync(kWholeWarp, x.place, step)};
    x = Better{}(x, other);
  }
  return x;
}

/// The best of `count` keys that is not taken; at least one is not. All lanes get it.
__device__ Best best_left(const float* key, const int* taken, int count, int lane) {
  constexpr int none = 0x7FFFFFFF;
  Best mine{-INFINITY, none};
  for (int i = lane; i < count; i += kWarp)
    if (!taken[i]) mine = Better{}(mine, {key[i], i});
  return best_of_warp(mine);
}

/// A warp for each row. Grid: rows / kWarps.
__global__ void __launch_bounds__(kWarps* kWarp)
    route(const float* logits, std::int64_t stride, Numbers bias, Numbers by, int rows, Routing how,
          std::int32_t* expert, float* weight) {
  WEFT_SHARED(float, scores, [kWarps][kMostExperts]);
  WEFT_SHARED(float, keys, [kWarps][kMostExperts]);
  WEFT_SHARED(float, goods, [kWarps][kMostExperts]);
  WEFT_SHARED(int, takens, [kWarps][kMostExperts]);  // 0 or 1; words, which lanes write side by side
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int row = static_cast<int>(blockIdx.x) * kWarps + warp;
  if (row >= rows) return;
  float *const score = scores[warp], *const key = keys[warp], *const good = goods[warp];
  int* const taken = takens[warp];
  logits += row * stride;
  float most = -INFINITY, sum = 0;
  for (int e = lane; e < how.experts; e += kWarp) most = fmaxf(most, key_of(logits[e]));
  most = warp_reduce(most, Largest{});
  for (int e = lane; e < how.experts; e += kWarp) {
    score[e] = how.sigmoid ? 1 / (1 + expf(-logits[e])) : expf(logits[e] - most);
    sum += score[e];
  }
  sum = how.sigmoid ? 1 : warp_reduce(sum, Sum{});
  for (int e = lane; e < how.experts; e += kWarp) {
    score[e] /= sum;
    key[e] = key_of(bias.data ? score[e] + bias.at<1>(e).at[0] : score[e]);
    taken[e] = how.groups > 1 ? 1 : 0;
  }
  __syncwarp();
  if (how.groups > 1) {
    const int size = how.experts / how.groups;
    for (int group = lane; group < how.groups; group += kWarp) {
      float first = -INFINITY, second = -INFINITY;
      for (int e = group * size; e < (group + 1) * size; ++e) {
        if (key[e] > first) second = first, first = key[e];
        else if (key[e] > second) second = key[e];
      }
      good[group] = key_of(first + second);
    }
    __syncwarp();
    // While groups are chosen, `taken` of a group's first expert says that it is not; the others follow below.
    for (int i = 0; i < how.groups_kept; ++i) {
      Best mine{-INFINITY, 0x7FFFFFFF};
      for (int group = lane; group < how.groups; group += kWarp)
        if (taken[group * size]) mine = Better{}(mine, {good[group], group});
      const int best = best_of_warp(mine).place;
      __syncwarp();
      for (int e = best * size + lane; e < (best + 1) * size; e += kWarp) taken[e] = 0;
      __syncwarp();
    }
  }
  // Lane i % 32 keeps whether each of its experts is chosen, so that they come out in ascending order.
  bool chosen[kOfLane] = {};
  for (int i = 0; i < how.chosen; ++i) {
    const int best = best_left(key, taken, how.experts, lane).place;
    __syncwarp();
    if (best % kWarp == lane) taken[best] = 1, chosen[best / kWarp] = true;
    __syncwarp();
  }
  float total = 0;
  int before = 0;
  expert += row * how.chosen, weight += row * how.chosen;
  // Sums are in ascending order of experts, as on a CPU: each lane adds them all.
  for (int turn = 0; turn * kWarp < how.experts; ++turn) {
    const unsigned mask = __ballot_sync(kWholeWarp, chosen[turn]);
    for (unsigned left = mask; left != 0; left &= left - 1)
      total += score[turn * kWarp + __ffs(static_cast<int>(left)) - 1];
  }
  for (int turn = 0; turn * kWarp < how.experts; ++turn) {
    const unsigned mask = __ballot_sync(kWholeWarp, chosen[turn]);
    if (chosen[turn]) {
      const int place = before + __popc(static_cast<int>(mask & ((1u << lane) - 1))), e = turn * kWarp + lane;
      expert[place] = e;
      const float share = (how.normalise ? score[e] / (total + 1e-20f) : score[e]) * how.scale;
      weight[place] = by.data ? share * by.at<1>(e).at[0] : share;
    }
    before += __popc(static_cast<int>(mask));
  }
}

/// A row of y per blockIdx.x.
__global__ void __launch_bounds__(kThreads)
    add_rows(float* x, std::int64_t x_stride, const float* y, std::int64_t y_stride, const std::int32_t* to,
             const float* factor, std::int64_t cols) {
  x += to[blockIdx.x] * x_stride, y += blockIdx.x * y_stride;
  const float by = factor[blockIdx.x];
  for (std::int64_t c = std::int64_t{blockIdx.y} * kThreads + threadIdx.x; c < cols;
       c += std::int64_t{gridDim.y} * kThreads)
    x[c] += by * y[c];
}

/// A row per blockIdx.x.
__global__ void __launch_bounds__(kThreads)
    gate_rows(float* x, std::int64_t stride, const float* gate, std::int64_t gate_stride, std::int64_t cols) {
  x += blockIdx.x * stride;
  const float by = 1 / (1 + expf(-gate[blockIdx.x * gate_stride]));
  for (std::int64_t c = std::int64_t{blockIdx.y} * kThreads + threadIdx.x; c < cols;
       c += std::int64_t{gridDim.y} * kThreads)
    x[c] *= by;
}

/// A row per blockIdx.x. Comparisons leave NaN what it is.
template <class T>
__global__ void __launch_bounds__(kThreads) clamped_gate(T* x, std::int64_t x_stride, const T* y, std::int64_t y_stride,
                                                         std::int64_t cols, float slope, float limit) {
  x += blockIdx.x * x_stride, y += blockIdx.x * y_stride;
  for (std::int64_t c = std::int64_t{blockIdx.y} * kThreads + threadIdx.x; c < cols;
       c += std::int64_t{gridDim.y} * kThreads) {
    float g = to_float(x[c]), u = to_float(y[c]);
    g = g > limit ? limit : g;
    u = u > limit ? limit : u < -limit ? -limit : u;
    x[c] = from_float<T>(g / (1 + expf(-slope * g)) * (1 + u));
  }
}

dim3 grid_of_rows(std::int64_t rows, std::int64_t cols) {
  return {static_cast<unsigned>(rows), static_cast<unsigned>(std::clamp<std::int64_t>(cols / (4 * kThreads), 1, 64))};
}

}  // namespace

void CudaOps::run(const Route& op, Stream& any) const {
  check(op);
  const int rows = static_cast<int>(op.logits.rows);
  const Routing how{
      static_cast<int>(op.logits.cols), op.chosen, op.groups, op.groups_kept, op.sigmoid, op.normalise, op.scale};
  launch(route, dim3(static_cast<unsigned>((rows + kWarps - 1) / kWarps)), kWarps * kWarp, 0,
         static_cast<CudaStream&>(any), static_cast<const float*>(op.logits.data), op.logits.stride,
         Numbers{op.bias.data, op.bias.dtype}, Numbers{op.by.data, op.by.dtype}, rows, how, op.expert.data(),
         op.weight.data());
}

void CudaOps::run(const AddRows& op, Stream& any) const {
  check(op);
  auto& stream = static_cast<CudaStream&>(any);
  if (op.y.rows == 0) return;
  const std::int32_t* const to = stream.upload(op.to);
  const float* const factor = stream.upload(op.factor);
  launch(add_rows, grid_of_rows(op.y.rows, op.y.cols), kThreads, 0, stream, static_cast<float*>(op.x.data), op.x.stride,
         static_cast<const float*>(op.y.data), op.y.stride, to, factor, op.y.cols);
}

void CudaOps::run(const ClampedGate& op, Stream& any) const {
  check(op);
  if (op.x.rows == 0 || op.x.cols == 0) return;
  with_float_type(op.x.dtype, [&]<class T>() {
    launch(clamped_gate<T>, grid_of_rows(op.x.rows, op.x.cols), kThreads, 0, static_cast<CudaStream&>(any),
           static_cast<T*>(op.x.data), op.x.stride, static_cast<const T*>(op.y.data), op.y.stride, op.x.cols, op.slope,
           op.limit);
  });
}

void CudaOps::run(const GateRows& op, Stream& any) const {
  check(op);
  launch(gate_rows, grid_of_rows(op.x.rows, op.x.cols), kThreads, 0, static_cast<CudaStream&>(any),
         static_cast<float*>(op.x.data), op.x.stride, static_cast<const float*>(op.gate.data), op.gate.stride,
         op.x.cols);
}

}  // namespace weft::kernels
