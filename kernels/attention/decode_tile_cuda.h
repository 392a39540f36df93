// kernels/attention/decode_tile_cuda.h: the work of one thread block of decode attention: one row and KV head of a KV
// buffer.
#pragma once

#include "kernels/attention/coarse_row_cuda.h"
#include "kernels/machine/device_cuda.h"
#include "kernels/ops.h"
#include "kernels/random.h"

namespace weft::kernels::cuda::decode {

constexpr int kThreads = 128;

/// One row of the call, as the kernels see it.
struct Row {
  std::int32_t sequence, position;
  Keep keep;
};

struct DecodeArgs {
  const float *q, *k, *v;
  std::int64_t q_stride, k_stride, v_stride;
  const Row* rows;
  int first_row;  // the row of the call for blockIdx.y == 0
  KvSlots slots, home;
  std::int64_t k_row, v_row;  // elements of Tile's types in one slot's key and value
  int group;                  // query heads of one KV head
  float scale, decay;
  Scoring scoring;
  Statistic statistic;
  std::uint64_t seed;
  float* out;
  std::int64_t out_stride;
  const float* probabilities;
  std::int64_t probabilities_stride;
  std::int32_t* evicted;
  std::int64_t evicted_stride;
  float cap;
  const float* sink_logits;  // [heads] or null
};

/// One sequence and KV head of a KV buffer.
template <class T> struct Place {
  KeyOf<T>* k = nullptr;
  ValueOf<T>* v = nullptr;
  float* score = nullptr;
  std::int32_t *position = nullptr, *free_slot = nullptr;
  float *rest = nullptr, *key_sum = nullptr;

  __device__ Place(const DecodeArgs& a, const KvSlots& slots, std::int64_t at) {  // at: sequence * kv_heads + head
    if (!slots.k) return;
    const std::int64_t first = at * slots.slots;
    k = static_cast<KeyOf<T>*>(slots.k) + first * a.k_row;
    v = static_cast<ValueOf<T>*>(slots.v) + first * a.v_row;
    score = slots.score ? slots.score + first : nullptr;
    position = slots.position + first;
    free_slot = slots.free_slot + at;
    rest = slots.rest ? slots.rest + at * rest_numbers(slots.head_dim) : nullptr;
    key_sum = slots.key_sum ? slots.key_sum + at * slots.head_dim : nullptr;
  }
  __device__ KeyOf<T>* key(const DecodeArgs& a, int slot) const { return k + slot * a.k_row; }
  __device__ ValueOf<T>* value(const DecodeArgs& a, int slot) const { return v + slot * a.v_row; }
};

/// The work of one thread block, and the home that it updates too, if any.
template <class T> struct Tile : Place<T> {
  Place<T> home;
  Row row;
  int index, head;    // row of the call, KV head
  std::int64_t tile;  // its number in the launch

  /// The grid must be KV heads by rows.
  __device__ explicit Tile(const DecodeArgs& a) : Tile(a, a.rows[a.first_row + blockIdx.y]) {}
  __device__ Tile(const DecodeArgs& a, const Row& its_row)
      : Place<T>(a, a.slots, at(a, its_row)), home(a, a.home, at(a, its_row)), row(its_row),
        index(a.first_row + blockIdx.y), head(blockIdx.x),
        tile(std::int64_t{blockIdx.y} * a.slots.kv_heads + blockIdx.x) {}
  __device__ static std::int64_t at(const DecodeArgs& a, const Row& row) {
    return std::int64_t{row.sequence} * a.slots.kv_heads + blockIdx.x;
  }
  /// The sink logit of query head g of the group, or null.
  __device__ const float* sink_logit(const DecodeArgs& a, int g) const {
    return a.sink_logits ? a.sink_logits + head * a.group + g : nullptr;
  }
  /// The row of DecodeArgs::probabilities that belongs to the first query head.
  __device__ std::int64_t probabilities_row(const DecodeArgs& a) const {
    return (std::int64_t{index} * a.slots.kv_heads + head) * a.group;
  }
};

/// The part of a row of `dim` numbers that a lane holds, from `column` on, as floats: 16 bytes or one number of a float
/// type, 8 levels or one.
template <class T, int kVector> struct Vector {
  float at[kVector];
  __device__ void load(const T* row, int dim, int column) {
    const T* const from = row + column;
    if constexpr (is_level<T>) {
      load_levels<T::kType>(row, dim, column, at);
    } else if constexpr (kVector == 1) {
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

template <int kVector> struct Vector<CoarseRow, kVector> {
  float at[kVector];
  __device__ void load(const CoarseRow& row, int dim, int column) { load_coarse(row, dim, column, at); }
};

template <int kVector> struct Vector<SplitRow, kVector> {
  float at[kVector];
  __device__ void load(const SplitRow& row, int, int column) { load_split(row, column, at); }
};

/// The layout of a row of head_dim numbers in a team of kLanes lanes: kSteps vectors a lane, kLanes vectors apart.
template <class Number, int kVectorSize, int kTeamLanes, int kVectors> struct Team {
  using T = Number;
  static constexpr int kVector = kVectorSize, kLanes = kTeamLanes, kSteps = kVectors;
  static constexpr int kTeams = kThreads / kLanes;
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
  __device__ static int team() { return static_cast<int>(threadIdx.x) / kLanes; }
  /// The column of number `i` of the lane's vector. The numbers are neighbours; in int4 they are both halves of four
  /// bytes.
  __device__ static int column(int step, int i = 0) {
    const int vector = step * kLanes + lane();
    if constexpr (kVector > 1 && std::is_same_v<T, Level<DType::i4>>)
      return vector / 4 * kKvBlock + vector % 4 * 4 + i % 4 + i / 4 * (kKvBlock / 2);
    return vector * kVector + i;
  }
};

template <class Layout> inline constexpr bool of_teams = false;
template <class T, int kVector, int kLanes, int kSteps>
inline constexpr bool of_teams<Team<T, kVector, kLanes, kSteps>> = true;

/// The team of a layout for the keys, and that for the values.
template <class Layout>
using KeyTeam = Team<KeyOf<typename Layout::T>, Layout::kVector, Layout::kLanes, Layout::kSteps>;
template <class Layout>
using ValueTeam = Team<ValueOf<typename Layout::T>, Layout::kVector, Layout::kLanes, Layout::kSteps>;

/// Whether the row has no free slot. This is the caller's mistake, which the CPU refuses: here the row's output is NaN,
/// and its KV buffer stays as it is.
template <class T> __device__ bool without_room(const Tile<T>& t) { return *t.free_slot < 0; }

/// Adds the unit key [dim] to its head's sum, and stores the sum at `home` too unless that is null. A whole warp calls
/// it, and every lane gets the score (Scoring::keys).
__device__ inline float score_key(const float* key, int dim, float* sum, float* home) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float square = 0, of_sum = 0, dot = 0;
  for (int d = lane; d < dim; d += kWarp) square += key[d] * key[d];
  const float inverse = inverse_length(warp_reduce(square, Sum{}));
  for (int d = lane; d < dim; d += kWarp) {
    const float with = inverse > 0 ? sum[d] + key[d] * inverse : sum[d];
    sum[d] = with;
    if (home) home[d] = with;
    of_sum += with * with;
    dot += key[d] * with;
  }
  of_sum = inverse_length(warp_reduce(of_sum, Sum{}));
  dot = warp_reduce(dot, Sum{});
  return inverse > 0 && of_sum > 0 ? -dot * inverse * of_sum : 0.0f;
}

/// Writes the score with which the new token begins. All threads call it.
template <class T> __device__ void write_score(const DecodeArgs& a, const Tile<T>& t, std::int32_t slot) {
  const int dim = a.slots.head_dim;
  if (a.scoring == Scoring::none || threadIdx.x >= kWarp) return;
  float score = 0;
  if (a.scoring == Scoring::keys)
    score = score_key(a.k + t.index * a.k_stride + t.head * dim, dim, t.key_sum, t.home.key_sum);
  if (threadIdx.x != 0) return;
  if (a.scoring == Scoring::random)
    score = unit_float(random_bits(
        a.seed, std::uint64_t{static_cast<std::uint32_t>(t.head)} << 32 | static_cast<std::uint32_t>(t.row.position)));
  t.score[slot] = score;
}

/// Rounds the new key and value into the free slot. All threads call it; they are visible to the block after the next
/// barrier.
template <class T> __device__ void write_token(const DecodeArgs& a, const Tile<T>& t) {
  if (without_room(t)) return;
  const std::int32_t slot = *t.free_slot;
  const int dim = a.slots.head_dim;
  const float* const from_k = a.k + t.index * a.k_stride + t.head * dim;
  const float* const from_v = a.v + t.index * a.v_stride + t.head * dim;
  if constexpr (is_level<T>) {
    const float* const mean = a.slots.mean ? a.slots.mean + Tile<T>::at(a, t.row) * 2 * dim : nullptr;
    for (int i = threadIdx.x / kWarp; i < 2 * kv_groups(dim); i += kThreads / kWarp) {
      const std::int64_t k_row = slot * a.k_row, v_row = slot * a.v_row;
      if (i % 2 == 0)
        quantise_group<KeyOf<T>::kType>(from_k, dim, i / 2, t.k + k_row, t.home.k ? t.home.k + k_row : nullptr, mean);
      else
        quantise_group<ValueOf<T>::kType>(from_v, dim, i / 2, t.v + v_row, t.home.v ? t.home.v + v_row : nullptr,
                                          mean ? mean + dim : nullptr);
    }
  } else {
    const std::int64_t row = slot * a.k_row;
    for (int d = threadIdx.x; d < dim; d += kThreads) {
      const T k = from_float<T>(from_k[d]), v = from_float<T>(from_v[d]);
      t.k[row + d] = k, t.v[row + d] = v;
      if (t.home.k) t.home.k[row + d] = k, t.home.v[row + d] = v;
    }
  }
  write_score(a, t, slot);
  if (threadIdx.x != 0) return;
  t.position[slot] = t.row.position;
  if (t.home.k) t.home.position[slot] = t.row.position;
}

}  // namespace weft::kernels::cuda::decode
