// kernels/attention_cuda.cu: one decode step over KV slots: attention, scores and the choice of the victim.
//
// Bandwidth is what it costs: keys and values are read once each, 16 bytes a lane, by teams of lanes that take a slot
// each. Where the probabilities of a row and KV head fit shared memory and there are blocks enough to fill the device,
// one kernel does it all, a block for each row and KV head; else the slots are split over blocks, and the logits go
// through memory.
#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/device_cuda.h"
#include "kernels/error.h"
#include "kernels/ops_cuda.h"
#include "kernels/random.h"

namespace weft::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 128;
constexpr int kHeadsAtOnce = 4;              // query heads at most whose rows a lane holds in registers
constexpr int kUnroll = 4;                   // slots that a team has in flight
constexpr std::size_t kFusedShared = 40960;  // bytes; what every card has room for several times
constexpr int kSplitSlots = 256;             // slots of one block where they are split

/// What the kernels know of one row of the call.
struct Row {
  std::int32_t sequence, position;
  Keep keep;
};

struct Args {
  const float *q, *k, *v;
  std::int64_t q_stride, k_stride, v_stride;
  const Row* rows;
  int first_row;  // of the call, for blockIdx.y == 0
  KvSlots slots, home;
  int group;  // query heads of one KV head
  float scale, decay;
  Scoring scoring;
  std::uint64_t seed;
  float* out;
  std::int64_t out_stride;
  const float* probabilities;
  std::int64_t probabilities_stride;
  std::int32_t* evicted;
  std::int64_t evicted_stride;
};

/// One row and KV head of a block.
template <class T> struct Place {
  T *k = nullptr, *v = nullptr;
  float* score = nullptr;
  std::int32_t *position = nullptr, *free_slot = nullptr;

  __device__ Place(const KvSlots& slots, std::int64_t at) {  // at: sequence * kv_heads + head
    if (!slots.k) return;
    const std::int64_t first = at * slots.slots;
    k = static_cast<T*>(slots.k) + first * slots.head_dim;
    v = static_cast<T*>(slots.v) + first * slots.head_dim;
    score = slots.score ? slots.score + first : nullptr;
    position = slots.position + first;
    free_slot = slots.free_slot + at;
  }
};

/// Where a block of threads works, and the home that hears of its changes, if any.
template <class T> struct Tile : Place<T> {
  Place<T> home;
  Row row;
  int index, head;    // row of the call, KV head
  std::int64_t tile;  // among those of the launch

  /// Of a grid of KV heads and rows.
  __device__ explicit Tile(const Args& a) : Tile(a, a.rows[a.first_row + blockIdx.y]) {}
  __device__ Tile(const Args& a, const Row& its_row)
      : Place<T>(a.slots, at(a, its_row)), home(a.home, at(a, its_row)), row(its_row), index(a.first_row + blockIdx.y),
        head(blockIdx.x), tile(std::int64_t{blockIdx.y} * a.slots.kv_heads + blockIdx.x) {}
  __device__ static std::int64_t at(const Args& a, const Row& row) {
    return std::int64_t{row.sequence} * a.slots.kv_heads + blockIdx.x;
  }
  /// The row of Args::probabilities that belongs to the first query head.
  __device__ std::int64_t probabilities_row(const Args& a) const {
    return (std::int64_t{index} * a.slots.kv_heads + head) * a.group;
  }
};

/// 16 bytes or one number of T, as floats.
template <class T, int kVector> struct Vector {
  float at[kVector];
  __device__ void load(const T* from) {
    if constexpr (kVector == 1) {
      at[0] = to_float(*from);
    } else {
      const uint4 raw = *reinterpret_cast<const uint4*>(from);
      T numbers[kVector];
      static_assert(sizeof numbers == sizeof raw);
      memcpy(numbers, &raw, sizeof raw);
#pragma unroll
      for (int i = 0; i < kVector; ++i) at[i] = to_float(numbers[i]);
    }
  }
};

/// How a team of kLanes lanes holds a row of head_dim numbers: kSteps vectors a lane, kLanes vectors apart.
template <class Number, int kVectorSize, int kTeamLanes, int kVectors> struct Team {
  using T = Number;
  static constexpr int kVector = kVectorSize, kLanes = kTeamLanes, kSteps = kVectors;
  static constexpr int kTeams = kThreads / kLanes;
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
  __device__ static int team() { return static_cast<int>(threadIdx.x) / kLanes; }
  __device__ static int column(int step) { return (step * kLanes + lane()) * kVector; }
};

/// The caller's mistake, which the CPU refuses: the row's output is NaN, and its block stays as it is.
template <class T> __device__ bool without_room(const Tile<T>& t) { return *t.free_slot < 0; }

/// Rounds the new key and value into the free slot. All threads; visible to the block after the next barrier.
template <class T> __device__ void write_token(const Args& a, const Tile<T>& t) {
  if (without_room(t)) return;
  const std::int32_t slot = *t.free_slot;
  const int dim = a.slots.head_dim;
  for (int d = threadIdx.x; d < dim; d += kThreads) {
    const std::int64_t to = std::int64_t{slot} * dim + d;
    const T k = from_float<T>(a.k[t.index * a.k_stride + t.head * dim + d]);
    const T v = from_float<T>(a.v[t.index * a.v_stride + t.head * dim + d]);
    t.k[to] = k, t.v[to] = v;
    if (t.home.k) t.home.k[to] = k, t.home.v[to] = v;
  }
  if (threadIdx.x != 0) return;
  t.position[slot] = t.row.position;
  if (t.home.k) t.home.position[slot] = t.row.position;
  if (a.scoring == Scoring::none) return;
  const std::uint64_t key =
      std::uint64_t{static_cast<std::uint32_t>(t.head)} << 32 | static_cast<std::uint32_t>(t.row.position);
  t.score[slot] = a.scoring == Scoring::random ? unit_float(random_bits(a.seed, key)) : 0.0f;
}

/// p[h * stride + slot] = the logit of query head `head` + h for the slots from `first` to `last`; -inf where empty.
/// `position`: of all slots.
template <class Layout, int kHeads>
__device__ void find_logits(const Args& a, const Tile<typename Layout::T>& t, int head, int first, int last,
                            const std::int32_t* position, float* p, std::int64_t stride) {
  using T = typename Layout::T;
  const int dim = a.slots.head_dim;
  float q[kHeads][Layout::kSteps * Layout::kVector];
#pragma unroll
  for (int h = 0; h < kHeads; ++h)
#pragma unroll
    for (int s = 0; s < Layout::kSteps; ++s)
#pragma unroll
      for (int i = 0; i < Layout::kVector; ++i) {
        const int d = Layout::column(s) + i;
        q[h][s * Layout::kVector + i] =
            d < dim ? a.scale * a.q[t.index * a.q_stride + (t.head * a.group + head + h) * dim + d] : 0.0f;
      }
  for (int base = first; base < last; base += Layout::kTeams * kUnroll) {
    Vector<T, Layout::kVector> key[kUnroll][Layout::kSteps];
    bool visible[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int slot = base + u * Layout::kTeams + Layout::team();
      visible[u] = slot < last && position[slot] >= 0;
#pragma unroll
      for (int s = 0; s < Layout::kSteps; ++s) {
        key[u][s] = {};
        if (visible[u] && Layout::column(s) < dim) key[u][s].load(t.k + std::int64_t{slot} * dim + Layout::column(s));
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int slot = base + u * Layout::kTeams + Layout::team();
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        float dot = 0;
#pragma unroll
        for (int s = 0; s < Layout::kSteps; ++s)
#pragma unroll
          for (int i = 0; i < Layout::kVector; ++i) dot += q[h][s * Layout::kVector + i] * key[u][s].at[i];
        dot = warp_reduce<Layout::kLanes>(dot, Sum{});
        if (Layout::lane() == 0 && slot < last) p[h * stride + slot] = visible[u] ? dot : -INFINITY;
      }
    }
  }
}

/// Turns the logits of one head into probabilities; 0 where empty. All threads; `shared` holds a float per warp.
__device__ void softmax(float* p, int slots, float* shared) {
  float most = -INFINITY;
  for (int s = threadIdx.x; s < slots; s += kThreads) most = fmaxf(most, p[s]);
  most = block_reduce(most, Largest{}, shared);
  float sum = 0;
  for (int s = threadIdx.x; s < slots; s += kThreads) {
    const float e = __expf(p[s] - most);
    p[s] = e;
    sum += e;
  }
  const float inverse = 1.0f / block_reduce(sum, Sum{}, shared);
  for (int s = threadIdx.x; s < slots; s += kThreads) p[s] *= inverse;
  __syncthreads();
}

/// A slot that may be evicted. What is no number goes last.
struct Candidate {
  float score;
  std::int32_t position, slot;
};
struct First {
  __device__ Candidate operator()(const Candidate& a, const Candidate& b) const {
    if (a.slot < 0 || b.slot < 0) return a.slot < 0 ? b : a;
    const bool a_number = a.score == a.score, b_number = b.score == b.score;
    if (a_number != b_number) return a_number ? a : b;
    if (a_number && a.score != b.score) return a.score < b.score ? a : b;
    return a.position < b.position ? a : b;
  }
};
template <class Op> __device__ Candidate block_reduce_candidate(Candidate x, Op op, Candidate* shared) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const Candidate other{__shfl_xor_sync(kWholeWarp, x.score, step), __shfl_xor_sync(kWholeWarp, x.position, step),
                          __shfl_xor_sync(kWholeWarp, x.slot, step)};
    x = op(x, other);
  }
  __syncthreads();
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  x = shared[0];
  for (int w = 1; w < kThreads / kWarp; ++w) x = op(x, shared[w]);
  return x;
}
struct Lowest {
  __device__ int operator()(int a, int b) const { return a < b ? a : b; }
};

struct ChoiceShared {
  Candidate candidate[kThreads / kWarp];
  int number[kThreads / kWarp];
};

/// Adds the probabilities p [group, slots] to the scores and frees a slot: the victim's once the budget is full, else
/// the first empty one. All threads.
template <class T>
__device__ void keep_scores(const Args& a, const Tile<T>& t, const std::int32_t* position, const float* p,
                            std::int64_t stride, ChoiceShared& shared) {
  const int slots = a.slots.slots;
  const std::int64_t newest = std::int64_t{t.row.position} - t.row.keep.recent - t.row.keep.grace;
  Candidate mine{0, 0, -1};
  int visible = 0, empty = slots;
  for (int s = threadIdx.x; s < slots; s += kThreads) {
    const std::int32_t at = position[s];
    if (at < 0) {
      empty = min(empty, s);
      continue;
    }
    ++visible;
    float score = a.scoring == Scoring::none ? 0.0f : t.score[s];
    if (a.scoring == Scoring::attention) {
      float sum = 0;
      for (int g = 0; g < a.group; ++g) sum += p[g * stride + s];
      score = a.decay * score + sum;
      t.score[s] = score;
    }
    if (t.home.k && a.scoring != Scoring::none) t.home.score[s] = score;
    if (at >= t.row.keep.sinks && at <= newest) mine = First{}(mine, Candidate{score, at, s});
  }
  visible = block_reduce(visible, Sum{}, shared.number);
  empty = block_reduce(empty, Lowest{}, shared.number);
  const Candidate victim = block_reduce_candidate(mine, First{}, shared.candidate);
  if (threadIdx.x != 0) return;
  const bool evicts = visible > t.row.keep.budget() && victim.slot >= 0;
  const std::int32_t free_slot = evicts ? victim.slot : empty < slots ? empty : -1;
  if (evicts) t.position[victim.slot] = -1;
  *t.free_slot = free_slot;
  if (t.home.k) {
    if (evicts) t.home.position[victim.slot] = -1;
    *t.home.free_slot = free_slot;
  }
  if (a.evicted) a.evicted[t.index * a.evicted_stride + t.head] = evicts ? victim.position : -1;
}

/// out[h * out_stride + d] = the sum over the slots from `first` to `last` of p[h * stride + slot] v[slot, d]. `shared`
/// holds kTeams * kHeads * head_dim floats.
template <class Layout, int kHeads>
__device__ void weigh_values(const Args& a, const Tile<typename Layout::T>& t, int first, int last,
                             const std::int32_t* position, const float* p, std::int64_t stride, float* shared,
                             float* out, std::int64_t out_stride) {
  using T = typename Layout::T;
  const int dim = a.slots.head_dim;
  float sum[kHeads][Layout::kSteps * Layout::kVector] = {};
  for (int base = first; base < last; base += Layout::kTeams * kUnroll) {
    Vector<T, Layout::kVector> value[kUnroll][Layout::kSteps];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int slot = base + u * Layout::kTeams + Layout::team();
      const bool visible = slot < last && position[slot] >= 0;
#pragma unroll
      for (int s = 0; s < Layout::kSteps; ++s) {
        value[u][s] = {};
        if (visible && Layout::column(s) < dim) value[u][s].load(t.v + std::int64_t{slot} * dim + Layout::column(s));
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int slot = base + u * Layout::kTeams + Layout::team();
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float weight = slot < last ? p[h * stride + slot] : 0.0f;
#pragma unroll
        for (int s = 0; s < Layout::kSteps; ++s)
#pragma unroll
          for (int i = 0; i < Layout::kVector; ++i) sum[h][s * Layout::kVector + i] += weight * value[u][s].at[i];
      }
    }
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h)
#pragma unroll
    for (int s = 0; s < Layout::kSteps; ++s)
#pragma unroll
      for (int i = 0; i < Layout::kVector; ++i) {
        const int d = Layout::column(s) + i;
        if (d < dim) shared[(Layout::team() * kHeads + h) * dim + d] = sum[h][s * Layout::kVector + i];
      }
  __syncthreads();
  for (int i = threadIdx.x; i < kHeads * dim; i += kThreads) {
    float total = 0;
    for (int team = 0; team < Layout::kTeams; ++team) total += shared[team * kHeads * dim + i];
    out[i / dim * out_stride + i % dim] = total;
  }
  __syncthreads();
}

template <class Layout> constexpr std::size_t reduction_floats(int dim, int heads) {
  return static_cast<std::size_t>(Layout::kTeams) * heads * dim;
}

/// Blocks on a multiprocessor that registers must leave room for; without a number ptxas would rather spill.
template <class Layout, int kHeads> constexpr int kBlocks = kHeads == 1 && Layout::kSteps == 1 ? 8 : 4;

/// Grid: KV heads, rows. Shared: positions [slots], probabilities [group, slots], sums of weigh_values(). kHeads, which
/// divides the group, at a time.
template <class Layout, int kHeads>
__global__ void __launch_bounds__(kThreads, (kBlocks<Layout, kHeads>)) decode_fused(Args a) {
  using T = typename Layout::T;
  WEFT_DYNAMIC_SHARED(std::int32_t, position);
  WEFT_SHARED(float, partial, [kThreads / kWarp]);
  WEFT_SHARED(ChoiceShared, choice);
  const int slots = a.slots.slots, dim = a.slots.head_dim;
  float* const p = reinterpret_cast<float*>(position + slots);
  float* const sums = p + a.group * slots;
  const Tile<T> t(a);
  float* const out = a.out + t.index * a.out_stride + t.head * a.group * dim;
  if (without_room(t)) {
    for (int i = threadIdx.x; i < a.group * dim; i += kThreads) out[i] = NAN;
    return;
  }
  write_token(a, t);
  __syncthreads();
  for (int s = threadIdx.x; s < slots; s += kThreads) position[s] = t.position[s];
  __syncthreads();
  if (a.probabilities) {
    for (int i = threadIdx.x; i < a.group * slots; i += kThreads) {
      const float* const given = a.probabilities + (t.probabilities_row(a) + i / slots) * a.probabilities_stride;
      p[i] = position[i % slots] >= 0 ? given[i % slots] : 0.0f;
    }
    __syncthreads();
  } else {
    for (int head = 0; head < a.group; head += kHeads)
      find_logits<Layout, kHeads>(a, t, head, 0, slots, position, p + head * slots, slots);
    __syncthreads();
    for (int g = 0; g < a.group; ++g) softmax(p + g * slots, slots, partial);
  }
  keep_scores(a, t, position, p, slots, choice);
  for (int head = 0; head < a.group; head += kHeads)
    weigh_values<Layout, kHeads>(a, t, 0, slots, position, p + head * slots, slots, sums, out + head * dim, dim);
}

/// The same in four kernels over a workspace: probabilities [rows, heads, slots], positions [rows, kv_heads, slots],
/// sums [splits, rows, heads, head_dim].
struct Split {
  float *p, *sums;
  std::int32_t* position;
  int rows, splits;
};

/// Grid: KV heads, rows.
template <class T> __global__ void __launch_bounds__(kThreads) decode_begin(Args a, Split split) {
  const Tile<T> t(a);
  write_token(a, t);
  __syncthreads();
  const int slots = a.slots.slots;
  std::int32_t* const position = split.position + t.tile * slots;
  for (int s = threadIdx.x; s < slots; s += kThreads) position[s] = t.position[s];
}

/// Grid: KV heads, rows, splits.
template <class Layout, int kHeads>
__global__ void __launch_bounds__(kThreads, (kBlocks<Layout, kHeads>)) decode_logits(Args a, Split split) {
  const Tile<typename Layout::T> t(a);
  const int slots = a.slots.slots, first = blockIdx.z * kSplitSlots, last = min(first + kSplitSlots, slots);
  const std::int32_t* const position = split.position + t.tile * slots;
  float* const p = split.p + t.tile * a.group * slots;
  for (int head = 0; head < a.group; head += kHeads)
    find_logits<Layout, kHeads>(a, t, head, first, last, position, p + std::int64_t{head} * slots, slots);
}

/// Grid: KV heads, rows.
template <class T> __global__ void __launch_bounds__(kThreads, 4) decode_choice(Args a, Split split) {
  WEFT_SHARED(float, partial, [kThreads / kWarp]);
  WEFT_SHARED(ChoiceShared, choice);
  const Tile<T> t(a);
  const int slots = a.slots.slots;
  const std::int32_t* const position = split.position + t.tile * slots;
  float* const p = split.p + t.tile * a.group * slots;
  if (without_room(t)) {
    for (int i = threadIdx.x; i < a.group * slots; i += kThreads) p[i] = NAN;
    return;
  }
  for (int g = 0; g < a.group; ++g) {
    float* const row = p + std::int64_t{g} * slots;
    if (!a.probabilities) {
      softmax(row, slots, partial);
      continue;
    }
    const float* const given = a.probabilities + (t.probabilities_row(a) + g) * a.probabilities_stride;
    for (int s = threadIdx.x; s < slots; s += kThreads) row[s] = position[s] >= 0 ? given[s] : 0.0f;
    __syncthreads();
  }
  keep_scores(a, t, position, p, slots, choice);
}

/// Grid: KV heads, rows, splits. Shared: sums of weigh_values().
template <class Layout, int kHeads>
__global__ void __launch_bounds__(kThreads, (kBlocks<Layout, kHeads>)) decode_values(Args a, Split split) {
  WEFT_DYNAMIC_SHARED(float, sums);
  const Tile<typename Layout::T> t(a);
  const int slots = a.slots.slots, dim = a.slots.head_dim;
  const int first = blockIdx.z * kSplitSlots, last = min(first + kSplitSlots, slots);
  const std::int64_t tiles = std::int64_t{split.rows} * a.slots.kv_heads;
  float* const out = split.sums + (blockIdx.z * tiles + t.tile) * a.group * dim;
  const float* const p = split.p + t.tile * a.group * slots;
  for (int head = 0; head < a.group; head += kHeads)
    weigh_values<Layout, kHeads>(a, t, first, last, split.position + t.tile * slots, p + std::int64_t{head} * slots,
                                 slots, sums, out + head * dim, dim);
}

/// Grid: KV heads, rows.
__global__ void __launch_bounds__(kThreads) decode_sum(Args a, Split split) {
  const int width = a.group * a.slots.head_dim;
  const std::int64_t tile = std::int64_t{blockIdx.y} * a.slots.kv_heads + blockIdx.x;
  const std::int64_t tiles = std::int64_t{split.rows} * a.slots.kv_heads;
  for (int i = threadIdx.x; i < width; i += kThreads) {
    float sum = 0;
    for (int s = 0; s < split.splits; ++s) sum += split.sums[(s * tiles + tile) * width + i];
    a.out[(a.first_row + blockIdx.y) * a.out_stride + std::int64_t{blockIdx.x} * width + i] = sum;
  }
}

/// Calls f.operator()<Layout, kHeads>() with the layout for rows of `dim` numbers, 16 bytes a lane if rows are
/// multiples of it, and as many heads at a time as divide the group. fp32 and odd rows, which no model of note stores,
/// take one.
template <class T, class F> void with_layout(int dim, int group, const F& f) {
  constexpr int vector = 16 / static_cast<int>(sizeof(T));
  const auto with_heads = [&]<class Layout>() {
    if constexpr (sizeof(T) == 2) {
      if (group % kHeadsAtOnce == 0) return f.template operator()<Layout, kHeadsAtOnce>();
      if (group % 2 == 0) return f.template operator()<Layout, 2>();
    }
    f.template operator()<Layout, 1>();
  };
  if (dim % vector == 0 && dim <= 8 * vector) with_heads.template operator()<Team<T, vector, 8, 1>>();
  else if (dim % vector == 0 && dim <= 16 * vector) with_heads.template operator()<Team<T, vector, 16, 1>>();
  else if (dim % vector == 0 && dim <= 32 * vector) with_heads.template operator()<Team<T, vector, 32, 1>>();
  else if (dim <= 256) f.template operator()<Team<T, 1, 32, 8>, 1>();
  else throw UsageError("decode_attention: head_dim is " + std::to_string(dim) + ", on a GPU at most 256");
}

Args args_of(const DecodeAttention& op, CudaStream& stream) {
  std::vector<Row> rows;
  for (std::size_t r = 0; r < op.keep.size(); ++r) rows.push_back({op.sequence[r], op.position[r], op.keep[r]});
  return {.q = static_cast<const float*>(op.q.data),
          .k = static_cast<const float*>(op.k.data),
          .v = static_cast<const float*>(op.v.data),
          .q_stride = op.q.stride,
          .k_stride = op.k.stride,
          .v_stride = op.v.stride,
          .rows = stream.upload(std::span<const Row>(rows)),
          .first_row = 0,
          .slots = op.slots,
          .home = op.home,
          .group = op.heads / op.slots.kv_heads,
          .scale = op.scale,
          .decay = op.decay,
          .scoring = op.scoring,
          .seed = op.seed,
          .out = static_cast<float*>(op.out.data),
          .out_stride = op.out.stride,
          .probabilities = static_cast<const float*>(op.probabilities.data),
          .probabilities_stride = op.probabilities.stride,
          .evicted = static_cast<std::int32_t*>(op.evicted.data),
          .evicted_stride = op.evicted.stride};
}

/// As many rows at once as the workspace holds.
template <class Layout, int kHeads> void run_split(Args a, int rows, CudaStream& stream) {
  using T = typename Layout::T;
  const int heads = a.slots.kv_heads, slots = a.slots.slots, dim = a.slots.head_dim;
  const int splits = (slots + kSplitSlots - 1) / kSplitSlots;
  const std::size_t p = std::size_t{1} * heads * a.group * slots,
                    sums = std::size_t{1} * splits * heads * a.group * dim;
  const std::size_t row_bytes = (p + sums + std::size_t{1} * heads * slots) * sizeof(float);
  const int at_once = static_cast<int>(std::clamp<std::size_t>(CudaStream::kWorkspace / row_bytes, 1, rows));
  auto* const memory = reinterpret_cast<float*>(stream.workspace(at_once * row_bytes));
  for (int first = 0; first < rows; first += at_once) {
    const int count = std::min(at_once, rows - first);
    a.first_row = first;
    const Split split{memory, memory + p * count, reinterpret_cast<std::int32_t*>(memory + (p + sums) * count), count,
                      splits};
    const dim3 grid(heads, count), split_grid(heads, count, splits);
    launch(decode_begin<T>, grid, kThreads, 0, stream, a, split);
    if (!a.probabilities) launch(decode_logits<Layout, kHeads>, split_grid, kThreads, 0, stream, a, split);
    launch(decode_choice<T>, grid, kThreads, 0, stream, a, split);
    launch(decode_values<Layout, kHeads>, split_grid, kThreads, reduction_floats<Layout>(dim, kHeads) * sizeof(float),
           stream, a, split);
    launch(decode_sum, grid, kThreads, 0, stream, a, split);
  }
}

}  // namespace

void CudaOps::run(const DecodeAttention& op, Stream& any) const {
  check(op);
  auto& stream = static_cast<CudaStream&>(any);
  const int rows = static_cast<int>(op.q.rows);
  if (rows == 0) return;
  const Args args = args_of(op, stream);
  with_float_type(op.slots.dtype, [&]<class T>() {
    with_layout<T>(op.slots.head_dim, args.group, [&]<class Layout, int kHeads>() {
      const std::size_t floats =
          std::size_t{1} * (args.group + 1) * op.slots.slots + reduction_floats<Layout>(op.slots.head_dim, kHeads);
      const bool few = rows * op.slots.kv_heads < stream.multiprocessors() && op.slots.slots > 2 * kSplitSlots;
      if (few || floats * sizeof(float) > kFusedShared) return run_split<Layout, kHeads>(args, rows, stream);
      launch(decode_fused<Layout, kHeads>, dim3(op.slots.kv_heads, rows), kThreads, floats * sizeof(float), stream,
             args);
    });
  });
}

}  // namespace weft::kernels
