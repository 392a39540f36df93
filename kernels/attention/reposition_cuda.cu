// kernels/attention/reposition_cuda.cu: moves the tokens that heads hold to other positions.
#include <algorithm>
#include <vector>

#include "kernels/attention/kv_row_cuda.h"
#include "kernels/machine/device_cuda.h"
#include "kernels/machine/ops_cuda.h"
#include "kernels/rows/hadamard_cuda.h"

namespace weft::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr std::size_t kTargetBytes = 16 << 20;  // of the work space, for new positions

/// One sequence, as the kernel sees it.
struct Row {
  std::int32_t sequence, next;
};

struct Args {
  const Row* rows;
  const float* frequencies;
  int count;  // number of frequencies
  bool alternate, hadamard;
  KvSlots slots, home;
  std::int64_t row;  // elements of the kernel's type in one slot's key
};

/// A warp turns one key, and stores it at `home` too unless that is null. `key` is room for a head in shared memory,
/// for this warp alone.
template <class T>
__device__ void move_key(const Args& a, T* row, T* home, std::int32_t from, std::int32_t to, float* key) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, dim = a.slots.head_dim;
  for (int d = lane; d < dim; d += kWarp) {
    if constexpr (is_level<T>) {
      float number[1];
      load_levels(row, dim, d, number);
      key[d] = number[0];
    } else {
      key[d] = to_float(row[d]);
    }
  }
  __syncwarp();
  if (a.hadamard) turn_head(key, dim);
  for (int i = lane; i < a.count; i += kWarp) {
    const float back = static_cast<float>(from) * a.frequencies[i], on = static_cast<float>(to) * a.frequencies[i];
    const float back_cosine = cosf(back), back_sine = sinf(back), on_cosine = cosf(on), on_sine = sinf(on);
    const float cosine = on_cosine * back_cosine + on_sine * back_sine;
    const float sine = on_sine * back_cosine - on_cosine * back_sine;
    float& x = key[a.alternate ? 2 * i : i];
    float& y = key[a.alternate ? 2 * i + 1 : i + a.count];
    const float first = x, second = y;
    x = first * cosine - second * sine;
    y = second * cosine + first * sine;
  }
  __syncwarp();
  if (a.hadamard) turn_head(key, dim);
  if constexpr (is_level<T>) {
    for (int g = 0; g < kv_groups(dim); ++g) quantise_group<T::kType>(key, dim, g, row, home);
  } else {
    for (int d = lane; d < dim; d += kWarp) {
      row[d] = from_float<T>(key[d]);
      if (home) home[d] = row[d];
    }
  }
  __syncwarp();  // before the warp's next key comes to the same memory
}

/// Grid: KV heads, sequences. `target` [sequences, KV heads, slots]: new positions. Shared: a head for each warp.
template <class T> __global__ void __launch_bounds__(kThreads) reposition(Args a, std::int32_t* target) {
  WEFT_DYNAMIC_SHARED(float, keys);
  const int slots = a.slots.slots, warp = threadIdx.x / kWarp;
  const Row row = a.rows[blockIdx.y];
  const std::int64_t tile = std::int64_t{row.sequence} * a.slots.kv_heads + blockIdx.x;
  std::int32_t* const position = a.slots.position + tile * slots;
  std::int32_t* const to = target + (std::int64_t{blockIdx.y} * a.slots.kv_heads + blockIdx.x) * slots;
  for (int s = threadIdx.x; s < slots; s += kThreads) {
    const std::int32_t mine = position[s];
    int newer = 0;  // this one and those after it
    for (int i = 0; i < slots; ++i) newer += position[i] >= mine ? 1 : 0;
    to[s] = mine < 0 ? mine : row.next - newer;
  }
  __syncthreads();
  T* const k = static_cast<T*>(a.slots.k) + tile * slots * a.row;
  T* const home = a.home.k ? static_cast<T*>(a.home.k) + tile * slots * a.row : nullptr;
  if (a.count > 0)
    for (int s = warp; s < slots; s += kWarps)
      if (position[s] >= 0 && position[s] != to[s])
        move_key(a, k + s * a.row, home ? home + s * a.row : nullptr, position[s], to[s],
                 keys + warp * a.slots.head_dim);
  __syncthreads();
  for (int s = threadIdx.x; s < slots; s += kThreads) {
    position[s] = to[s];
    if (home) a.home.position[tile * slots + s] = to[s];
  }
}

}  // namespace

void CudaOps::run(const Reposition& op, Stream& any) const {
  check(op);
  auto& stream = static_cast<CudaStream&>(any);
  std::vector<Row> rows;
  for (std::size_t i = 0; i < op.sequence.size(); ++i) rows.push_back({op.sequence[i], op.next[i]});
  if (rows.empty()) return;
  const std::size_t each =
      static_cast<std::size_t>(op.slots.kv_heads) * static_cast<std::size_t>(op.slots.slots) * sizeof(std::int32_t);
  const std::size_t at_once = std::clamp<std::size_t>(kTargetBytes / each, 1, rows.size());
  auto* const target = reinterpret_cast<std::int32_t*>(stream.workspace(at_once * each));
  const Row* const all = stream.upload(std::span<const Row>(rows));
  Args args{.rows = all,
            .frequencies = op.frequencies.empty() ? nullptr : stream.upload(op.frequencies),
            .count = static_cast<int>(op.frequencies.size()),
            .alternate = op.alternate,
            .hadamard = op.hadamard,
            .slots = op.slots,
            .home = op.home,
            .row = static_cast<std::int64_t>(op.slots.key_bytes() /
                                             (is_quantised(op.slots.dtype) ? 1 : size_of(op.slots.dtype)))};
  const std::size_t shared = std::size_t{kWarps} * static_cast<std::size_t>(op.slots.head_dim) * sizeof(float);
  for (std::size_t first = 0; first < rows.size(); first += at_once) {
    args.rows = all + first;
    const dim3 grid(op.slots.kv_heads, static_cast<unsigned>(std::min(at_once, rows.size() - first)));
    with_slot_type(op.slots,
                   [&]<class T>() { launch(reposition<KeyOf<T>>, grid, kThreads, shared, stream, args, target); });
  }
}

}  // namespace weft::kernels
