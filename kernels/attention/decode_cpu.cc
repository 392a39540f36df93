// kernels/attention/decode_cpu.cc: one decode step over KV slots, a tile for each row and KV head.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/attention/cpu/kernels.h"
#include "kernels/error.h"
#include "kernels/machine/cpu_ops.h"

namespace weft::kernels {
namespace {

/// The index of the tile of one row and KV head in the KV buffer.
std::int64_t head_index(const DecodeAttention& op, std::int64_t row, std::int64_t head) {
  return std::int64_t{op.sequence[static_cast<std::size_t>(row)]} * op.slots.kv_heads + head;
}

/// Refuses rows without a free slot before anything is changed.
void check_free_slots(const DecodeAttention& op) {
  for (std::int64_t row = 0; row < op.q.rows; ++row)
    for (std::int64_t head = 0; head < op.slots.kv_heads; ++head) {
      const std::int32_t slot = op.slots.free_slot[head_index(op, row, head)];
      if (slot >= 0 && slot < op.slots.hot()) continue;
      throw UsageError("decode_attention: sequence " + std::to_string(op.sequence[static_cast<std::size_t>(row)]) +
                       " has no free slot in head " + std::to_string(head) + " (free_slot is " + std::to_string(slot) +
                       " of " + std::to_string(op.slots.hot()) + "); a block needs min(budget, tokens) + 1 slots");
    }
}

DecodeTile tile_of(const DecodeAttention& op, std::int64_t row, std::int64_t head) {
  const KvSlots& s = op.slots;
  const auto r = static_cast<std::size_t>(row);
  const std::int64_t index = head_index(op, row, head), first = index * s.slots;
  DecodeTile t{};
  t.group = op.heads / s.kv_heads;
  const std::int64_t query = head * t.group, column = query * s.head_dim;
  t.q = op.q.slice(row, 1).as<float>() + column;
  t.k = op.k.slice(row, 1).as<float>() + head * s.head_dim;
  t.v = op.v.slice(row, 1).as<float>() + head * s.head_dim;
  const auto rows = [index](void* all, std::int64_t count, std::size_t bytes) {
    return static_cast<std::byte*>(all) + index * count * static_cast<std::int64_t>(bytes);
  };
  t.slot_k = rows(s.k, s.hot(), s.key_bytes()), t.slot_v = rows(s.v, s.hot(), s.value_bytes());
  if (s.cold > 0) {
    t.cold_k = rows(s.cold_k, s.cold, coarse_row_bytes(s.coarse.keys, s.head_dim));
    t.cold_v = rows(s.cold_v, s.cold, coarse_row_bytes(s.coarse.values, s.head_dim));
  }
  t.hot = s.hot(), t.coarse = s.coarse;
  if (!op.alike.empty() && !is_quantised(s.dtype)) {
    const AlikeSlots& alike = op.alike[r];
    t.alike_at = (std::int64_t{alike.sequence} * s.kv_heads + head - index) * s.hot();
    t.alike = t.alike_at == 0 ? 0 : alike.count / kLanes * kLanes;
  }
  if (s.split) {
    t.low_k = rows(s.low_k, s.slots, s.low_key_bytes()), t.low_v = rows(s.low_v, s.slots, s.low_value_bytes());
    t.scale_k = rows(s.scale_k, s.slots, scales_bytes(s.head_dim));
    t.scale_v = rows(s.scale_v, s.slots, scales_bytes(s.head_dim));
  }
  t.score = op.scoring == Scoring::none ? nullptr : s.score + first;
  t.position = s.position + first;
  t.free_slot = s.free_slot + index;
  t.rest = s.rest ? s.rest + index * rest_numbers(s.head_dim) : nullptr;
  t.key_sum = s.key_sum ? s.key_sum + index * s.head_dim : nullptr;
  t.mean = s.mean ? s.mean + index * 2 * s.head_dim : nullptr;
  t.dtype = s.dtype, t.key_type = s.key_type(), t.slots = s.slots, t.head_dim = s.head_dim;
  t.token = op.position[r];
  t.keep = op.keep[r];
  t.scoring = op.scoring, t.statistic = op.statistic, t.scale = op.scale, t.cap = op.cap, t.decay = op.decay;
  if (!op.sink_logits.empty()) t.sink_logits = op.sink_logits.data() + query;
  if (op.scoring == Scoring::random) t.new_score = random_score(op.seed, static_cast<int>(head), t.token);
  if (op.probabilities) t.probabilities = op.probabilities.slice(row * op.heads + query, 1).as<float>();
  t.probabilities_stride = op.probabilities.stride;
  t.out = op.out.slice(row, 1).as<float>() + column;
  if (op.evicted) t.evicted = op.evicted.slice(row, 1).as<std::int32_t>() + head;
  return t;
}

/// A row and a KV head.
struct Place {
  std::int32_t row, head;
};

/// All tiles of a step. Rows that may read the same sequence's slots follow one another, head by head, so that a core's
/// cache still has what the row before has read.
std::vector<Place> places_of(const DecodeAttention& op) {
  const auto rows = static_cast<std::size_t>(op.q.rows), heads = static_cast<std::size_t>(op.slots.kv_heads);
  const auto reads = [&](std::int32_t row) {
    const auto r = static_cast<std::size_t>(row);
    return op.alike.empty() || op.alike[r].count == 0 ? op.sequence[r] : op.alike[r].sequence;
  };
  std::vector<std::int32_t> order(rows);
  std::iota(order.begin(), order.end(), 0);
  if (!op.alike.empty())
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return reads(a) < reads(b); });
  std::vector<Place> places;
  places.reserve(rows * heads);
  for (auto first = order.begin(); first != order.end();) {
    const auto last = std::find_if(first, order.end(), [&](std::int32_t row) { return reads(row) != reads(*first); });
    for (std::int32_t head = 0; head < op.slots.kv_heads; ++head)
      for (auto row = first; row != last; ++row) places.push_back({*row, head});
    first = last;
  }
  return places;
}

/// Copies the changes of a decoded tile to the buffer's home. `index` is its head_index(); the new token is in `slot`,
/// and one that became cold in the cold slot `cooled`, unless that is -1.
void write_back(const DecodeAttention& op, std::int64_t index, std::int32_t slot, std::int32_t cooled) {
  const KvSlots &from = op.slots, &to = op.home;
  const std::int64_t first = index * from.slots;
  const auto copy_row = [](const void* source, void* target, std::int64_t place, std::size_t row) {
    const std::size_t offset = static_cast<std::size_t>(place) * row;
    std::memcpy(static_cast<std::byte*>(target) + offset, static_cast<const std::byte*>(source) + offset, row);
  };
  copy_row(from.k, to.k, index * from.hot() + slot, from.key_bytes());
  copy_row(from.v, to.v, index * from.hot() + slot, from.value_bytes());
  if (cooled >= 0) {
    copy_row(from.cold_k, to.cold_k, index * from.cold + cooled, coarse_row_bytes(from.coarse.keys, from.head_dim));
    copy_row(from.cold_v, to.cold_v, index * from.cold + cooled, coarse_row_bytes(from.coarse.values, from.head_dim));
  }
  if (from.split) {
    const std::int64_t place = index * from.slots + slot;
    if (from.low_k != to.low_k) copy_row(from.low_k, to.low_k, place, from.low_key_bytes());
    if (from.low_v != to.low_v) copy_row(from.low_v, to.low_v, place, from.low_value_bytes());
    copy_row(from.scale_k, to.scale_k, place, scales_bytes(from.head_dim));
    copy_row(from.scale_v, to.scale_v, place, scales_bytes(from.head_dim));
  }
  if (op.scoring != Scoring::none) std::copy_n(from.score + first, from.slots, to.score + first);
  std::copy_n(from.position + first, from.slots, to.position + first);
  to.free_slot[index] = from.free_slot[index];
  const std::int64_t rest = rest_numbers(from.head_dim);
  if (from.rest) std::copy_n(from.rest + index * rest, rest, to.rest + index * rest);
  if (from.key_sum)
    std::copy_n(from.key_sum + index * from.head_dim, from.head_dim, to.key_sum + index * from.head_dim);
}

}  // namespace

void CpuOps::run(const DecodeAttention& op, Stream&) const {
  check(op);
  check_free_slots(op);
  const std::int64_t kv_heads = op.slots.kv_heads, heads = op.q.rows * kv_heads;
  // A tile has several heads, so that a thread knows what it reads next; but there are many tiles, because threads are
  // not equally fast.
  const std::int64_t at_once = std::clamp<std::int64_t>(heads / (std::int64_t{16} * pool_.threads()), 1, 16);
  const int slots = op.slots.slots, dim = op.slots.head_dim, group = op.heads / op.slots.kv_heads;
  const std::size_t scratch =
      (decode_scratch(dim, slots, group) + (op.slots.split ? split_scratch(dim, slots, group) : 0)) * sizeof(float);
  const std::vector<Place> places = places_of(op);
  ThreadPool::Turn turn(pool_);
  turn.run((heads + at_once - 1) / at_once, [&](std::int64_t tile, int thread) {
    float* const memory = reinterpret_cast<float*>(turn.scratch(thread, scratch));
    const Place* place = &places[static_cast<std::size_t>(tile * at_once)];
    DecodeTile next = tile_of(op, place->row, place->head);
    for (std::int64_t left = std::min(at_once, heads - tile * at_once); left > 0; --left) {
      DecodeTile t = next;
      const std::int64_t index = head_index(op, place->row, place->head);
      const std::int32_t slot = *t.free_slot;
      std::int32_t cooled = -1;
      t.scratch = memory, t.cooled = &cooled;
      if (left > 1) {
        ++place;
        next = tile_of(op, place->row, place->head);
        t.next = &next;
      }
      vectors_.decode(t);
      if (op.home.k) write_back(op, index, slot, cooled);
    }
  });
}

}  // namespace weft::kernels
