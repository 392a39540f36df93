// offload/kv_store.cc
#include "offload/kv_store.h"

#include <algorithm>
#include <string>

#include "kernels/error.h"
#include "offload/memory.h"

namespace weft::offload {

KvShape::Offsets KvShape::offsets() const {
  const std::size_t heads = static_cast<std::size_t>(sequences) * static_cast<std::size_t>(kv_heads);
  const std::size_t places = heads * static_cast<std::size_t>(slots);
  Arena arena;  // counting
  Offsets at;
  at.k = arena.take(places * row_bytes(), 64);
  at.v = arena.take(places * row_bytes(), 64);
  at.score = arena.take(scores ? places * sizeof(float) : 0, 64);
  at.position = arena.take(places * sizeof(std::int32_t), 64);
  at.free_slot = arena.take(heads * sizeof(std::int32_t), 64);
  at.end = arena.used();
  return at;
}

std::size_t KvShape::bytes() const { return round_up(offsets().end, kPage); }

kernels::KvSlots KvShape::view(std::byte* base) const {
  const Offsets at = offsets();
  kernels::KvSlots slots_view;
  slots_view.k = base + at.k;
  slots_view.v = base + at.v;
  slots_view.score = scores ? reinterpret_cast<float*>(base + at.score) : nullptr;
  slots_view.position = reinterpret_cast<std::int32_t*>(base + at.position);
  slots_view.free_slot = reinterpret_cast<std::int32_t*>(base + at.free_slot);
  slots_view.dtype = dtype;
  slots_view.sequences = sequences;
  slots_view.kv_heads = kv_heads;
  slots_view.slots = slots;
  slots_view.head_dim = head_dim;
  return slots_view;
}

std::vector<ByteRange> changed_ranges(const KvShape& shape, std::span<const std::int32_t> free_slot,
                                      std::span<const std::int32_t> sequence) {
  const auto heads = static_cast<std::size_t>(shape.kv_heads), slots = static_cast<std::size_t>(shape.slots);
  if (free_slot.size() != static_cast<std::size_t>(shape.sequences) * heads)
    throw UsageError("changed_ranges: " + std::to_string(free_slot.size()) + " free slots for " +
                     std::to_string(shape.sequences) + " sequences of " + std::to_string(shape.kv_heads) + " heads");
  std::vector<std::size_t> rows;
  rows.reserve(sequence.size() * heads);
  for (const std::int32_t s : sequence) {
    if (s < 0 || s >= shape.sequences)
      throw UsageError("changed_ranges: sequence " + std::to_string(s) + " of " + std::to_string(shape.sequences));
    for (std::size_t head = static_cast<std::size_t>(s) * heads, end = head + heads; head < end; ++head) {
      if (free_slot[head] < 0 || free_slot[head] >= shape.slots)
        throw UsageError("changed_ranges: slot " + std::to_string(free_slot[head]) + " of " +
                         std::to_string(shape.slots));
      rows.push_back(head * slots + static_cast<std::size_t>(free_slot[head]));
    }
  }
  std::vector<ByteRange> ranges;
  if (rows.empty()) return ranges;
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());

  const KvShape::Offsets at = shape.offsets();
  ranges.reserve(2 * rows.size() + 1);
  const auto add = [&](std::size_t offset, std::size_t bytes) {
    if (!ranges.empty() && ranges.back().offset + ranges.back().bytes == offset) ranges.back().bytes += bytes;
    else ranges.push_back({offset, bytes});
  };
  for (const std::size_t base : {at.k, at.v})
    for (const std::size_t row : rows) add(base + row * shape.row_bytes(), shape.row_bytes());
  add(at.score, at.end - at.score);
  return ranges;
}

}  // namespace weft::offload
