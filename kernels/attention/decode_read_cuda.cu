// kernels/attention/decode_read_cuda.cu: decode attention over split slots (KvSlots::split), of which a step reads some
// with all their bits (Keep::read).
//
// All keys are read by their high rows first, and the slots are chosen by these logits. The low rows of the chosen keys
// are gathered by a list. Values are read once: a row comes with its low row if its slot was chosen.
#include "kernels/attention/decode_split_cuda.h"

namespace weft::kernels::cuda::decode {

// With one block more ptxas would spill in some of the kernels.
template <int kDim, int kHeads> constexpr int kBlocks<SplitTiles<kDim>, kHeads> = kDim > 64 || kHeads == 4 ? 2 : 3;
template <int kVector, int kLanes, int kSteps, int kHeads>
constexpr int kBlocks<Team<SplitRow, kVector, kLanes, kSteps>, kHeads> = kSteps > 1 || kHeads == 4 ? 2 : 3;

/// Rounds the new key and value into the pieces of the free slot; see decode_tile_cuda.h.
inline __device__ void write_token(const DecodeArgs& a, const Tile<SplitLevels>& t) {
  if (without_room(t)) return;
  WEFT_SHARED(std::uint32_t, levels, [kWarps * kKvGroup]);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, dim = a.slots.head_dim;
  const std::int32_t slot = *t.free_slot;
  const std::int64_t at = Tile<SplitLevels>::at(a, t.row);
  for (int i = warp; i < 2 * kv_groups(dim); i += kWarps) {
    const bool keys = i % 2 == 0;
    const float* const from = (keys ? a.k + t.index * a.k_stride : a.v + t.index * a.v_stride) + t.head * dim;
    write_split_group(from, dim, i / 2, {a.slots, keys, at}, {a.home, keys, at}, slot, levels + warp * kKvGroup);
  }
  write_score(a, t, slot);
  if (threadIdx.x != 0) return;
  t.position[slot] = t.row.position;
  if (t.home.k) t.home.position[slot] = t.row.position;
}

namespace {

constexpr int kDigits = 256;

/// The slots of a tile that a step reads with all their bits, and what it takes to choose them.
struct Reading {
  std::int32_t* reads;  // [slots]: whether, and before that the bits of shares
  std::int32_t* list;   // [slots]: those that are, in any order
};
struct ReadingShared {
  unsigned items[kDigits];
  float partial[kThreads / kWarp];
  int number[kThreads / kWarp];
  int digit, left, count;
  bool whole;  // all items of the digit are chosen
};

/// Whether a step reads all slots so, whatever their shares.
__device__ bool reads_all(const DecodeArgs& a, const Row& row) {
  return row.keep.read == 0 || row.keep.read >= a.slots.slots;
}

/// reads = the bits of each slot's share, by logits or given probabilities p [group, slots]. Shares are never negative,
/// so their bits have their order; those of slots that are read in any case are above all others.
__device__ void find_shares(const DecodeArgs& a, const Tile<SplitLevels>& t, const std::int32_t* position,
                            const float* p, Reading of, ReadingShared& shared) {
  constexpr float of_sink = 1e38f;
  const int slots = a.slots.slots;
  const auto logit = [&](float x) { return a.cap > 0 ? a.cap * fast_tanh(x / a.cap) : x; };
  for (int s = threadIdx.x; s < slots; s += kThreads) of.reads[s] = 0;
  for (int g = 0; g < a.group; ++g) {
    const float* const row = p + std::int64_t{g} * slots;
    float most = 0, inverse = 1;
    if (!a.probabilities) {
      const float* const sink = t.sink_logit(a, g);
      most = sink ? *sink : -INFINITY;
      for (int s = threadIdx.x; s < slots; s += kThreads)
        if (position[s] >= 0) most = fmaxf(most, logit(row[s]));
      most = block_reduce(most, Largest{}, shared.partial);
      float sum = sink && threadIdx.x == 0 ? __expf(*sink - most) : 0.0f;
      for (int s = threadIdx.x; s < slots; s += kThreads)
        if (position[s] >= 0) sum += __expf(logit(row[s]) - most);
      inverse = 1.0f / block_reduce(sum, Sum{}, shared.partial);
    }
    for (int s = threadIdx.x; s < slots; s += kThreads) {
      if (position[s] < 0) continue;
      const float share = a.probabilities ? row[s] : inverse * __expf(logit(row[s]) - most);
      of.reads[s] = __float_as_int(__int_as_float(of.reads[s]) + share);
    }
  }
  const Keep& keep = t.row.keep;
  const std::int32_t newest = t.row.position - keep.read_newest();  // the last that has to be chosen
  for (int s = threadIdx.x; s < slots; s += kThreads) {
    const float share = fmaxf(__int_as_float(of.reads[s]), 0.0f);  // 0 for what is not a number
    of.reads[s] = __float_as_int(position[s] > newest ? INFINITY : position[s] < keep.sinks ? of_sink : share);
  }
}

/// A slot's place in the order of the choice: of equal shares the older is first.
__device__ std::uint64_t key_of(const std::int32_t* shares, const std::int32_t* position, int slot) {
  return static_cast<std::uint64_t>(shares[slot]) << 32 | (0xFFFFFFFFu - static_cast<std::uint32_t>(position[slot]));
}

/// Finds the digit of the last of the `left` items that come first. The first warp calls it.
__device__ void find_digit(int left, ReadingShared& shared) {
  constexpr int each = kDigits / kWarp;
  const int lane = static_cast<int>(threadIdx.x), first = kDigits - 1 - lane * each;
  int before = 0;
  for (int i = 0; i < each; ++i) before += static_cast<int>(shared.items[first - i]);
  const int own = before;
  for (int step = 1; step < kWarp; step *= 2) {
    const int more = __shfl_up_sync(kWholeWarp, before, step);
    if (lane >= step) before += more;
  }
  before -= own;
  for (int i = 0; i < each; ++i) {
    const int items = static_cast<int>(shared.items[first - i]);
    if (before < left && before + items >= left)
      shared.digit = first - i, shared.left = left - before, shared.whole = items == left - before;
    before += items;
  }
}

/// The least key of the `wanted` slots that come first; there are as many. It finds digit after digit, the highest
/// first.
__device__ std::uint64_t least_chosen(const std::int32_t* shares, const std::int32_t* position, int slots, int wanted,
                                      ReadingShared& shared) {
  std::uint64_t prefix = 0;
  int left = wanted;
  for (int shift = 56; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < kDigits; i += kThreads) shared.items[i] = 0;
    __syncthreads();
    for (int s = threadIdx.x; s < slots; s += kThreads) {
      if (position[s] < 0) continue;
      const std::uint64_t key = key_of(shares, position, s);
      if (shift == 56 || key >> (shift + 8) == prefix) atomicAdd(&shared.items[key >> shift & (kDigits - 1)], 1u);
    }
    __syncthreads();
    if (threadIdx.x < kWarp) find_digit(left, shared);
    __syncthreads();
    prefix = prefix << 8 | static_cast<std::uint64_t>(shared.digit), left = shared.left;
    if (shared.whole) return prefix << shift;
  }
  return prefix;
}

/// Chooses the slots as Keep::read says; returns how many. All threads call it and see what it wrote. `p` as in
/// find_shares(); nothing reads it if all are chosen.
__device__ int choose_slots(const DecodeArgs& a, const Tile<SplitLevels>& t, const std::int32_t* position,
                            const float* p, Reading of, ReadingShared& shared) {
  const int slots = a.slots.slots;
  int visible = 0;
  for (int s = threadIdx.x; s < slots; s += kThreads) visible += position[s] >= 0 ? 1 : 0;
  visible = block_reduce(visible, Sum{}, shared.number);
  const bool all = reads_all(a, t.row) || t.row.keep.read >= visible;
  std::uint64_t least = 0;
  if (!all) {
    find_shares(a, t, position, p, of, shared);
    __syncthreads();
    least = least_chosen(of.reads, position, slots, t.row.keep.read, shared);
  }
  if (threadIdx.x == 0) shared.count = 0;
  __syncthreads();
  for (int s = threadIdx.x; s < slots; s += kThreads) {
    const bool chosen = position[s] >= 0 && (all || key_of(of.reads, position, s) >= least);
    of.reads[s] = chosen ? 1 : 0;
    if (chosen) of.list[atomicAdd(&shared.count, 1)] = s;
  }
  __syncthreads();
  return shared.count;
}

/// The rows of one head as find_logits() and weigh_values() take them: keys by their high rows; the keys of listed
/// slots with all bits; values, with all bits where `which` says so.
enum class Pass : std::uint8_t { high_keys, listed_keys, values };
template <Pass kPass> struct PassRows {
  SplitHead rows;
  int index, head;
  const std::int32_t* which;  // the list, or Reading::reads
  __device__ PassRows(const DecodeArgs& a, const Tile<SplitLevels>& t, const std::int32_t* slots = nullptr)
      : rows(a.slots, kPass != Pass::values, Tile<SplitLevels>::at(a, t.row)), index(t.index), head(t.head),
        which(slots) {}
  __device__ SplitRow key(const DecodeArgs&, int slot) const {
    if constexpr (kPass == Pass::high_keys) return rows.row(slot, false);
    else return rows.row(which[slot], true);
  }
  __device__ SplitRow value(const DecodeArgs&, int slot) const { return rows.row(slot, which[slot] != 0); }
};

/// p [kHeads, slots] = the logits of `count` listed slots by all bits. `made` [kHeads, stride] is room for them.
template <class Layout, int kHeads>
__device__ void find_listed_logits(const DecodeArgs& a, const Tile<SplitLevels>& t, int head, const std::int32_t* list,
                                   int count, float* made, std::int64_t stride, float* p) {
  const PassRows<Pass::listed_keys> keys(a, t, list);
  find_logits<Layout, kHeads>(a, keys, head, 0, count, list, made, stride);
  __syncthreads();
  for (int i = threadIdx.x; i < kHeads * count; i += kThreads)
    p[std::int64_t{i / count} * a.slots.slots + list[i % count]] = made[i / count * stride + i % count];
  __syncthreads();
}

/// Floats of shared memory of decode_read besides those of slot_floats().
template <class Layout> int reading_floats(int slots, int dim, int heads) {
  return (2 * slots + 3) / 4 * 4 + std::max(heads * slots, static_cast<int>(reduction_floats<Layout>(dim, heads)));
}

/// A whole step. Grid: KV heads, rows. Shared: that of fused_step(), then Reading, then listed logits or sums of
/// values.
template <class Layout, int kHeads>
__global__ void __launch_bounds__(kThreads, (kBlocks<Layout, kHeads>)) decode_read(DecodeArgs a) {
  WEFT_DYNAMIC_SHARED(std::int32_t, memory);
  WEFT_SHARED(ReadingShared, shared);
  const int slots = a.slots.slots, dim = a.slots.head_dim;
  std::int32_t* const after = memory + slot_floats(a.group, slots);
  const Reading reading{after, after + slots};
  float* const work = reinterpret_cast<float*>(after + (2 * slots + 3) / 4 * 4);
  fused_step<SplitLevels>(
      a,
      [&](const Tile<SplitLevels>& t, const std::int32_t* position, float* p) {
        for (int head = 0; head < a.group && !reads_all(a, t.row); head += kHeads)
          find_logits<Layout, kHeads>(a, PassRows<Pass::high_keys>(a, t), head, 0, slots, position, p + head * slots,
                                      slots);
        for (int i = threadIdx.x; i < a.group * slots; i += kThreads)
          if (reads_all(a, t.row) && position[i % slots] < 0) p[i] = -INFINITY;
        __syncthreads();
        const int count = choose_slots(a, t, position, p, reading, shared);
        for (int head = 0; head < a.group; head += kHeads)
          find_listed_logits<Layout, kHeads>(a, t, head, reading.list, count, work, slots, p + head * slots);
      },
      [&](const Tile<SplitLevels>& t, const std::int32_t* position, const float* p, float*, float* out) {
        if (a.probabilities) choose_slots(a, t, position, p, reading, shared);
        for (int head = 0; head < a.group; head += kHeads)
          weigh_values<Layout, kHeads>(a, PassRows<Pass::values>(a, t, reading.reads), 0, slots, position,
                                       p + head * slots, slots, work, out + head * dim, dim);
      });
}

/// decode_read in six kernels over a workspace: that of Split, and Reading of each tile with its count.
struct ReadSplit : Split {
  std::int32_t *reads, *list, *count;
};

/// Grid: KV heads, rows, splits.
template <class Layout, int kHeads>
__global__ void __launch_bounds__(kThreads, (kBlocks<Layout, kHeads>))
    decode_high_logits(DecodeArgs a, ReadSplit split) {
  const Tile<SplitLevels> t(a);
  if (reads_all(a, t.row)) return;
  const int slots = a.slots.slots, first = blockIdx.z * kSplitSlots, last = min(first + kSplitSlots, slots);
  float* const p = split.p + t.tile * a.group * slots;
  for (int head = 0; head < a.group; head += kHeads)
    find_logits<Layout, kHeads>(a, PassRows<Pass::high_keys>(a, t), head, first, last, split.position + t.tile * slots,
                                p + std::int64_t{head} * slots, slots);
}

/// Grid: KV heads, rows.
__global__ void __launch_bounds__(kThreads) decode_reading(DecodeArgs a, ReadSplit split) {
  WEFT_SHARED(ReadingShared, shared);
  const Tile<SplitLevels> t(a);
  const int slots = a.slots.slots;
  const std::int32_t* const position = split.position + t.tile * slots;
  float* const p = split.p + t.tile * a.group * slots;
  if (a.probabilities)
    for (int i = threadIdx.x; i < a.group * slots; i += kThreads)
      p[i] = a.probabilities[(t.probabilities_row(a) + i / slots) * a.probabilities_stride + i % slots];
  else if (reads_all(a, t.row))
    for (int i = threadIdx.x; i < a.group * slots; i += kThreads)
      if (position[i % slots] < 0) p[i] = -INFINITY;
  __syncthreads();
  const Reading reading{split.reads + t.tile * slots, split.list + t.tile * slots};
  const int count = choose_slots(a, t, position, p, reading, shared);
  if (threadIdx.x == 0) split.count[t.tile] = count;
}

/// Grid: KV heads, rows, splits of the list. Shared: kHeads * kSplitSlots logits.
template <class Layout, int kHeads>
__global__ void __launch_bounds__(kThreads, (kBlocks<Layout, kHeads>))
    decode_listed_logits(DecodeArgs a, ReadSplit split) {
  WEFT_DYNAMIC_SHARED(float, made);
  const Tile<SplitLevels> t(a);
  const int slots = a.slots.slots, first = blockIdx.z * kSplitSlots,
            count = min(split.count[t.tile] - first, kSplitSlots);
  float* const p = split.p + t.tile * a.group * slots;
  for (int head = 0; head < a.group && count > 0; head += kHeads)
    find_listed_logits<Layout, kHeads>(a, t, head, split.list + t.tile * slots + first, count, made, kSplitSlots,
                                       p + std::int64_t{head} * slots);
}

/// Grid: KV heads, rows, splits. Shared: sums of weigh_values().
template <class Layout, int kHeads>
__global__ void __launch_bounds__(kThreads, (kBlocks<Layout, kHeads>))
    decode_read_values(DecodeArgs a, ReadSplit split) {
  WEFT_DYNAMIC_SHARED(float, sums);
  const Tile<SplitLevels> t(a);
  const int slots = a.slots.slots, dim = a.slots.head_dim;
  const int first = blockIdx.z * kSplitSlots, last = min(first + kSplitSlots, slots);
  const std::int64_t tiles = std::int64_t{split.rows} * a.slots.kv_heads;
  float* const out = split.sums + (blockIdx.z * tiles + t.tile) * a.group * dim;
  const float* const p = split.p + t.tile * a.group * slots;
  for (int head = 0; head < a.group; head += kHeads)
    weigh_values<Layout, kHeads>(a, PassRows<Pass::values>(a, t, split.reads + t.tile * slots), first, last,
                                 split.position + t.tile * slots, p + std::int64_t{head} * slots, slots, sums,
                                 out + head * dim, dim);
}

/// Runs these kernels over as many rows at a time as the workspace holds.
template <class Layout, int kHeads> void run_read_split(DecodeArgs a, int rows, CudaStream& stream) {
  const int heads = a.slots.kv_heads, slots = a.slots.slots, dim = a.slots.head_dim;
  const int splits = (slots + kSplitSlots - 1) / kSplitSlots;
  const std::size_t places = std::size_t{1} * heads * slots, p = places * a.group,
                    sums = std::size_t{1} * splits * heads * a.group * dim;
  const std::size_t row_bytes = (p + sums + 3 * places + heads) * sizeof(float);
  const int at_once = static_cast<int>(std::clamp<std::size_t>(CudaStream::kWorkspace / row_bytes, 1, rows));
  auto* const memory = reinterpret_cast<float*>(stream.workspace(at_once * row_bytes));
  for (int first = 0; first < rows; first += at_once) {
    const int count = std::min(at_once, rows - first);
    a.first_row = first;
    auto* const position = reinterpret_cast<std::int32_t*>(memory + (p + sums) * count);
    const ReadSplit split{{memory, memory + p * count, position, count, splits, nullptr, nullptr},
                          position + places * count,
                          position + 2 * places * count,
                          position + 3 * places * count};
    const dim3 grid(heads, count), split_grid(heads, count, splits);
    launch(decode_begin<SplitLevels>, grid, kThreads, 0, stream, a, split);
    if (!a.probabilities) launch(decode_high_logits<Layout, kHeads>, split_grid, kThreads, 0, stream, a, split);
    launch(decode_reading, grid, kThreads, 0, stream, a, split);
    if (!a.probabilities)
      launch(decode_listed_logits<Layout, kHeads>, split_grid, kThreads, kHeads * kSplitSlots * sizeof(float), stream,
             a, split);
    launch(decode_choice<SplitLevels>, grid, kThreads, 0, stream, a, split);
    launch(decode_read_values<Layout, kHeads>, split_grid, kThreads,
           reduction_floats<Layout>(dim, kHeads) * sizeof(float), stream, a, split);
    sum_values(a, split, grid, stream);
  }
}

/// The whole step for slots in `Layout`, whatever their number.
template <class Layout, int kHeads> void run_read(const DecodeArgs& args, int rows, CudaStream& stream) {
  const KvSlots& of = args.slots;
  const std::size_t bytes = (static_cast<std::size_t>(slot_floats(args.group, of.slots)) +
                             static_cast<std::size_t>(reading_floats<Layout>(of.slots, of.head_dim, kHeads))) *
                            sizeof(float);
  if (leaves_idle(args, rows, stream) || bytes > kFusedShared)
    return run_read_split<Layout, kHeads>(args, rows, stream);
  launch(decode_read<Layout, kHeads>, dim3(of.kv_heads, rows), kThreads, bytes, stream, args);
}

/// The layout of split rows whose levels lie in lanes as those of a layout of int8 do.
template <class Fine> struct SplitLayout;
template <int kDim> struct SplitLayout<LevelTiles<Level<DType::i8>, kDim>> { using Type = SplitTiles<kDim>; };
template <int kVector, int kLanes, int kSteps> struct SplitLayout<Team<Level<DType::i8>, kVector, kLanes, kSteps>> {
  using Type = Team<SplitRow, kVector, kLanes, kSteps>;
};

}  // namespace

void run_split_slots(const DecodeArgs& args, int rows, CudaStream& stream) {
  with_layout<Level<DType::i8>>(args.slots.head_dim, args.group, [&]<class Fine, int kHeads>() {
    run_read<typename SplitLayout<Fine>::Type, kHeads>(args, rows, stream);
  });
}

}  // namespace weft::kernels::cuda::decode
