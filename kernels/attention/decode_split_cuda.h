// kernels/attention/decode_split_cuda.h: one decode step over slots of type T. The slots are split over thread blocks
// where decode_team_cuda.h's kernel has no room or would leave the device idle. The sources that
// include this instantiate run_teams() or run_layout() for some types, so that they compile in parallel.
#pragma once

#include <algorithm>
#include <string>
#include <type_traits>

#include "kernels/attention/decode_cold_cuda.h"
#include "kernels/attention/decode_levels_cuda.h"
#include "kernels/attention/decode_rest_cuda.h"
#include "kernels/error.h"
#include "kernels/machine/ops_cuda.h"

namespace weft::kernels::cuda::decode {

constexpr int kSplitSlots = 256;  // slots of one thread block, if they are split

/// decode_fused in four kernels over a workspace: probabilities [rows, heads, slots], positions [rows, kv_heads,
/// slots], sums [splits, rows, heads, head_dim]. A rest needs a fifth, with its probabilities [rows, heads] and victims
/// [rows, kv_heads]; cold slots need one, and `victim` has what keep_scores() returns.
struct Split {
  float *p, *sums;
  std::int32_t* position;
  int rows, splits;
  float* rest;
  std::int32_t* victim;
};

/// Adds up the splits' sums of values, after decode_values.
void sum_values(const DecodeArgs& a, const Split& split, dim3 grid, CudaStream& stream);

/// Grid: KV heads, rows.
template <class T> __global__ void __launch_bounds__(kThreads, 4) decode_begin(DecodeArgs a, Split split) {
  const Tile<T> t(a);
  write_token(a, t);
  __syncthreads();
  const int slots = a.slots.slots;
  std::int32_t* const position = split.position + t.tile * slots;
  for (int s = threadIdx.x; s < slots; s += kThreads) position[s] = t.position[s];
}

/// Grid: KV heads, rows, splits.
template <class Layout, int kHeads>
__global__ void __launch_bounds__(kThreads, (kBlocks<Layout, kHeads>)) decode_logits(DecodeArgs a, Split split) {
  const Tile<typename Layout::T> t(a);
  const int slots = a.slots.slots, first = blockIdx.z * kSplitSlots, last = min(first + kSplitSlots, slots);
  const std::int32_t* const position = split.position + t.tile * slots;
  float* const p = split.p + t.tile * a.group * slots;
  for (int head = 0; head < a.group; head += kHeads)
    find_logits<Layout, kHeads>(a, t, head, first, last, position, p + std::int64_t{head} * slots, slots);
}

/// Grid: KV heads, rows.
template <class T> __global__ void __launch_bounds__(kThreads, 4) decode_choice(DecodeArgs a, Split split) {
  WEFT_SHARED(float, partial, [kThreads / kWarp]);
  WEFT_SHARED(ChoiceShared, choice);
  const Tile<T> t(a);
  const int slots = a.slots.slots;
  const std::int32_t* const position = split.position + t.tile * slots;
  float* const p = split.p + t.tile * a.group * slots;
  if (without_room(t)) {
    for (int i = threadIdx.x; i < a.group * slots; i += kThreads) p[i] = NAN;
    for (int g = threadIdx.x; t.rest && g < a.group; g += kThreads) split.rest[t.tile * a.group + g] = NAN;
    if (threadIdx.x == 0 && (has_cold<T> || t.rest)) split.victim[t.tile] = -1;
    return;
  }
  float* const rest = t.rest ? split.rest + t.tile * a.group : nullptr;
  if (rest && !a.probabilities) {
    find_rest_logits(a, t, rest);
    __syncthreads();
  }
  for (int g = 0; g < a.group; ++g) {
    float* const row = p + std::int64_t{g} * slots;
    if (!a.probabilities) {
      if (a.cap > 0) cap_logits(row, position, slots, a.cap);
      softmax(row, slots, partial, t.sink_logit(a, g), rest ? rest + g : nullptr);
      continue;
    }
    if (rest && threadIdx.x == 0) rest[g] = 0;
    const float* const given = a.probabilities + (t.probabilities_row(a) + g) * a.probabilities_stride;
    for (int s = threadIdx.x; s < slots; s += kThreads) row[s] = position[s] >= 0 ? given[s] : 0.0f;
    __syncthreads();
  }
  const int victim = keep_scores(a, t, position, p, slots, choice);
  if (threadIdx.x == 0 && (has_cold<T> || rest)) split.victim[t.tile] = victim;
}

/// Grid: KV heads, rows, splits. Shared: sums of weigh_values().
template <class Layout, int kHeads>
__global__ void __launch_bounds__(kThreads, (kBlocks<Layout, kHeads>)) decode_values(DecodeArgs a, Split split) {
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

/// Handles the rest, after the sum of the splits. Grid: KV heads, rows.
template <class T> __global__ void __launch_bounds__(kThreads) decode_rest(DecodeArgs a, Split split) {
  const Tile<T> t(a);
  add_rest_values(a, t, split.rest + t.tile * a.group,
                  a.out + t.index * a.out_stride + t.head * a.group * a.slots.head_dim);
  __syncthreads();
  add_to_rest(a, t, split.victim[t.tile]);
}

/// Moves a token to a cold slot, when all rows have been read. Grid: KV heads, rows.
template <class T> __global__ void __launch_bounds__(kThreads) decode_cool(DecodeArgs a, Split split) {
  const Tile<T> t(a);
  move_cold(a, t, split.victim[t.tile]);
}

/// Calls f.operator()<Layout, kHeads>() with the layout for rows of `dim` numbers, and with as many heads at a time as
/// divide the group. Rows of 64 and 128 levels go to tensor cores. Else a lane takes 16 bytes if rows are multiples of
/// that; 8 levels of int8, or of int4 in whole blocks. In fp32 and odd rows, which no model of note stores, it takes
/// one number.
template <class T, class F> void with_layout(int dim, int group, const F& f) {
  constexpr int vector = is_level<T> ? 8 : 16 / static_cast<int>(sizeof(T));
  constexpr int whole = std::is_same_v<ValueOf<T>, Level<DType::i4>> ? kKvBlock : vector;
  const auto with_heads = [&]<class Layout>() {
    if constexpr (sizeof(T) <= 2) {
      if (group % kHeadsAtOnce == 0) return f.template operator()<Layout, kHeadsAtOnce>();
      if (group % 2 == 0) return f.template operator()<Layout, 2>();
    }
    f.template operator()<Layout, 1>();
  };
  if constexpr (is_level<T>) {
    if (dim == 64) return with_heads.template operator()<LevelTiles<T, 64>>();
    if (dim == 128) return with_heads.template operator()<LevelTiles<T, 128>>();
    if (dim % whole == 0 && dim <= 16 * vector) return f.template operator()<Team<T, vector, 16, 1>, 1>();
  } else {
    if (dim % whole == 0 && dim <= 8 * vector) return with_heads.template operator()<Team<T, vector, 8, 1>>();
    if (dim % whole == 0 && dim <= 16 * vector) return with_heads.template operator()<Team<T, vector, 16, 1>>();
  }
  constexpr int most = 512, most_odd = 256;  // the largest heads, as Gemma 4 has, and those of other rows
  if (dim % whole == 0 && dim <= 32 * vector) with_heads.template operator()<Team<T, vector, 32, 1>>();
  else if (dim <= most_odd) f.template operator()<Team<T, 1, 32, most_odd / 32>, 1>();
  else if (dim % whole == 0 && dim <= most) f.template operator()<Team<T, vector, 32, most / vector / 32>, 1>();
  else
    throw UsageError("decode_attention: head_dim is " + std::to_string(dim) + ", on a GPU at most " +
                     std::to_string(dim % whole == 0 ? most : most_odd));
}

/// Runs the split kernels over as many rows at a time as the workspace holds.
template <class Layout, int kHeads> void run_split(DecodeArgs a, int rows, CudaStream& stream) {
  using T = typename Layout::T;
  const int heads = a.slots.kv_heads, slots = a.slots.slots, dim = a.slots.head_dim;
  const int splits = (slots + kSplitSlots - 1) / kSplitSlots;
  const std::size_t p = std::size_t{1} * heads * a.group * slots,
                    sums = std::size_t{1} * splits * heads * a.group * dim;
  const std::size_t positions = std::size_t{1} * heads * slots,
                    rest = a.slots.rest ? std::size_t{1} * heads * a.group : 0,
                    victims = rest > 0 || has_cold<T> ? std::size_t{1} * heads : 0;
  const std::size_t row_bytes = (p + sums + positions + rest + victims) * sizeof(float);
  const int at_once = static_cast<int>(std::clamp<std::size_t>(CudaStream::kWorkspace / row_bytes, 1, rows));
  auto* const memory = reinterpret_cast<float*>(stream.workspace(at_once * row_bytes));
  for (int first = 0; first < rows; first += at_once) {
    const int count = std::min(at_once, rows - first);
    a.first_row = first;
    float* const after = memory + (p + sums + positions) * count;
    const Split split{memory,
                      memory + p * count,
                      reinterpret_cast<std::int32_t*>(memory + (p + sums) * count),
                      count,
                      splits,
                      after,
                      reinterpret_cast<std::int32_t*>(after + rest * count)};
    const dim3 grid(heads, count), split_grid(heads, count, splits);
    launch(decode_begin<T>, grid, kThreads, 0, stream, a, split);
    if (!a.probabilities) launch(decode_logits<Layout, kHeads>, split_grid, kThreads, 0, stream, a, split);
    launch(decode_choice<T>, grid, kThreads, 0, stream, a, split);
    launch(decode_values<Layout, kHeads>, split_grid, kThreads, reduction_floats<Layout>(dim, kHeads) * sizeof(float),
           stream, a, split);
    sum_values(a, split, grid, stream);
    if constexpr (has_cold<T>) launch(decode_cool<T>, grid, kThreads, 0, stream, a, split);
    else if (a.slots.rest) launch(decode_rest<T>, grid, kThreads, 0, stream, a, split);
  }
}

/// Thread blocks of a multiprocessor that keep memory busy: a block has some 8 KiB of loads in flight, but not while it
/// chooses.
constexpr int kBlocksThatFill = 6;

/// Whether one thread block for each row and KV head would leave the device idle.
inline bool leaves_idle(const DecodeArgs& args, int rows, CudaStream& stream) {
  return !stream.fill(rows * args.slots.kv_heads, kBlocksThatFill) && args.slots.slots > 2 * kSplitSlots;
}

/// The whole step for slots in `Layout`, whatever their number.
template <class Layout, int kHeads> void run_layout(const DecodeArgs& args, int rows, CudaStream& stream) {
  const KvSlots& of = args.slots;
  const std::size_t floats = slot_floats(args.group, of.slots) + reduction_floats<Layout>(of.head_dim, kHeads);
  // Only the split kernels handle a rest: the fused one has no registers to spare for it.
  if (of.rest || leaves_idle(args, rows, stream) || floats * sizeof(float) > kFusedShared)
    return run_split<Layout, kHeads>(args, rows, stream);
  launch(decode_fused<Layout, kHeads>, dim3(of.kv_heads, rows), kThreads, floats * sizeof(float), stream, args);
}

/// The same for slots of type T.
template <class T> void run_teams(const DecodeArgs& args, int rows, CudaStream& stream) {
  with_layout<std::conditional_t<has_cold<T>, KeyOf<T>, T>>(
      args.slots.head_dim, args.group, [&]<class Layout, int kHeads>() {
        if constexpr (has_cold<T>) run_layout<ColdTiles<Layout>, kHeads>(args, rows, stream);
        else run_layout<Layout, kHeads>(args, rows, stream);
      });
}

}  // namespace weft::kernels::cuda::decode
