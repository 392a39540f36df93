// kernels/attention/decode_team_cuda.h: decode attention by teams of lanes that take a slot each: logits, weighted
// values, and the kernel that does a whole row and KV head if the probabilities fit shared memory.
#pragma once

#include <type_traits>

#include "kernels/attention/decode_choice_cuda.h"

namespace weft::kernels::cuda::decode {

constexpr int kHeadsAtOnce = 4;              // query heads at most whose rows a lane holds in registers
constexpr std::size_t kFusedShared = 40960;  // bytes; every card has room for several times as much

template <class Row> inline constexpr bool has_planes = std::is_same_v<Row, CoarseRow> || std::is_same_v<Row, SplitRow>;

/// Slots that a team has in flight. Rows of planes whose levels are read one by one would take too many registers.
template <class Layout>
constexpr int kUnroll = has_planes<typename Layout::T>&& Layout::kSteps > 1 ? 1
                        : Layout::kSteps* Layout::kVector > 8               ? 2
                                                                            : 4;

/// p[h * stride + slot] = the logit of query head `head` + h for the slots from `first` to `last`; -inf if empty.
/// `position` holds those of all slots, `t` their rows: a Tile, or ColdRows.
template <class Layout, int kHeads, class Rows>
requires of_teams<Layout> __device__ void find_logits(const DecodeArgs& a, const Rows& t, int head, int first, int last,
                                                      const std::int32_t* position, float* p, std::int64_t stride) {
  using Keys = KeyTeam<Layout>;
  const int dim = a.slots.head_dim;
  float q[kHeads][Keys::kSteps * Keys::kVector];
#pragma unroll
  for (int h = 0; h < kHeads; ++h)
#pragma unroll
    for (int s = 0; s < Keys::kSteps; ++s)
#pragma unroll
      for (int i = 0; i < Keys::kVector; ++i) {
        const int d = Keys::column(s, i);
        q[h][s * Keys::kVector + i] =
            d < dim ? a.scale * a.q[t.index * a.q_stride + (t.head * a.group + head + h) * dim + d] : 0.0f;
      }
  for (int base = first; base < last; base += Keys::kTeams * kUnroll<Layout>) {
    Vector<typename Keys::T, Keys::kVector> key[kUnroll<Layout>][Keys::kSteps];
    bool visible[kUnroll<Layout>];
#pragma unroll
    for (int u = 0; u < kUnroll<Layout>; ++u) {
      const int slot = base + u * Keys::kTeams + Keys::team();
      visible[u] = slot < last && position[slot] >= 0;
#pragma unroll
      for (int s = 0; s < Keys::kSteps; ++s) {
        key[u][s] = {};
        if (visible[u] && Keys::column(s) < dim) key[u][s].load(t.key(a, slot), dim, Keys::column(s));
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll<Layout>; ++u) {
      const int slot = base + u * Keys::kTeams + Keys::team();
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        float dot = 0;
#pragma unroll
        for (int s = 0; s < Keys::kSteps; ++s)
#pragma unroll
          for (int i = 0; i < Keys::kVector; ++i) dot += q[h][s * Keys::kVector + i] * key[u][s].at[i];
        dot = warp_reduce<Keys::kLanes>(dot, Sum{});
        if (Keys::lane() == 0 && slot < last) p[h * stride + slot] = visible[u] ? dot : -INFINITY;
      }
    }
  }
}

/// Writes the numbers of a row [dim] that the lanes of a team hold into shared memory, in words of 16 bytes. Eight
/// lanes write at once. Half of them begin with their second word, which avoids bank conflicts.
template <class Layout> __device__ void store_row(const float* numbers, int dim, float* row) {
#pragma unroll
  for (int s = 0; s < Layout::kSteps; ++s) {
    const float* const mine = numbers + s * Layout::kVector;
    if (Layout::column(s) >= dim) continue;
    if constexpr (Layout::kVector == 8) {
      const int second = Layout::lane() / 4 % 2;
#pragma unroll
      for (int w = 0; w < 2; ++w) {
        Pack<float, 4> word;
#pragma unroll
        for (int i = 0; i < 4; ++i) word.at[i] = (w ^ second) == 0 ? mine[i] : mine[4 + i];
        store_pack<4>(row + Layout::column(s, (w ^ second) * 4), word);
      }
    } else {
#pragma unroll
      for (int i = 0; i < Layout::kVector; ++i) row[Layout::column(s, i)] = mine[i];
    }
  }
}

/// out[h * out_stride + d] = the sum over the slots from `first` to `last` of p[h * stride + slot] v[slot, d], or with
/// kAdds += that sum. `shared` holds kTeams * kHeads * head_dim floats and begins at a multiple of 16 bytes.
template <class Layout, int kHeads, bool kAdds = false, class Rows>
requires of_teams<Layout> __device__ void weigh_values(const DecodeArgs& a, const Rows& t, int first, int last,
                                                       const std::int32_t* position, const float* p,
                                                       std::int64_t stride, float* shared, float* out,
                                                       std::int64_t out_stride) {
  using Values = ValueTeam<Layout>;
  const int dim = a.slots.head_dim;
  float sum[kHeads][Values::kSteps * Values::kVector] = {};
  for (int base = first; base < last; base += Values::kTeams * kUnroll<Layout>) {
    Vector<typename Values::T, Values::kVector> value[kUnroll<Layout>][Values::kSteps];
#pragma unroll
    for (int u = 0; u < kUnroll<Layout>; ++u) {
      const int slot = base + u * Values::kTeams + Values::team();
      const bool visible = slot < last && position[slot] >= 0;
#pragma unroll
      for (int s = 0; s < Values::kSteps; ++s) {
        value[u][s] = {};
        if (visible && Values::column(s) < dim) value[u][s].load(t.value(a, slot), dim, Values::column(s));
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll<Layout>; ++u) {
      const int slot = base + u * Values::kTeams + Values::team();
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float weight = slot < last ? p[h * stride + slot] : 0.0f;
#pragma unroll
        for (int s = 0; s < Values::kSteps; ++s)
#pragma unroll
          for (int i = 0; i < Values::kVector; ++i) sum[h][s * Values::kVector + i] += weight * value[u][s].at[i];
      }
    }
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) store_row<Values>(sum[h], dim, shared + (Values::team() * kHeads + h) * dim);
  add_parts<Values::kTeams, kAdds>(shared, kHeads, dim, out, out_stride);
}

template <class Layout> constexpr std::size_t reduction_floats(int dim, int heads) {
  return static_cast<std::size_t>(Layout::kTeams) * heads * dim;
}

/// Thread blocks that fit a multiprocessor at once. ptxas derives from it how many registers it may use.
template <class Layout, int kHeads>
constexpr int kBlocks =
    Layout::kSteps != 1                                                            ? 3
    : kHeads == 4 && std::is_same_v<ValueOf<typename Layout::T>, Level<DType::i4>> ? 3  // sm_75 would spill
    : kHeads != 1                                                                  ? 4
    : is_level<typename Layout::T>                                                 ? 5
    : std::is_same_v<typename Layout::T, float>                                    ? 6  // with 8 ptxas would spill
                                                                                   : 8;

/// Grid: KV heads, rows. Shared: positions [slots], probabilities [group, slots], sums of weigh_values(). It takes
/// kHeads query heads at a time; kHeads divides the group.
template <class Layout, int kHeads>
__global__ void __launch_bounds__(kThreads, (kBlocks<Layout, kHeads>)) decode_fused(DecodeArgs a) {
  using T = typename Layout::T;
  const int slots = a.slots.slots, dim = a.slots.head_dim;
  fused_step<T>(
      a,
      [&](const Tile<T>& t, const std::int32_t* position, float* p) {
        for (int head = 0; head < a.group; head += kHeads)
          find_logits<Layout, kHeads>(a, t, head, 0, slots, position, p + head * slots, slots);
      },
      [&](const Tile<T>& t, const std::int32_t* position, const float* p, float* sums, float* out) {
        for (int head = 0; head < a.group; head += kHeads)
          weigh_values<Layout, kHeads>(a, t, 0, slots, position, p + head * slots, slots, sums, out + head * dim, dim);
      });
}

}  // namespace weft::kernels::cuda::decode
