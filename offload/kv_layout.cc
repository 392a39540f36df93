// offload/kv_layout.cc
#include "offload/kv_layout.h"

#include "kernels/ops.h"
#include "offload/memory.h"

namespace weft::offload {
namespace {

/// Bytes of the rest of one head.
std::size_t rest_bytes(const KvShape& shape) {
  return shape.rest ? static_cast<std::size_t>(kernels::rest_numbers(shape.head_dim)) * sizeof(float) : 0;
}

std::size_t key_sum_bytes(const KvShape& shape) {
  return shape.key_sums ? static_cast<std::size_t>(shape.head_dim) * sizeof(float) : 0;
}

}  // namespace

KvShape::Offsets KvShape::offsets() const {
  const std::size_t heads = static_cast<std::size_t>(sequences) * static_cast<std::size_t>(kv_heads);
  const std::size_t places = heads * static_cast<std::size_t>(slots);
  Arena arena;  // counting
  Offsets at;
  at.k = arena.take(places * key_bytes(), 64);
  at.v = arena.take(places * value_bytes(), 64);
  at.score = arena.take(scores ? places * sizeof(float) : 0, 64);
  at.position = arena.take(places * sizeof(std::int32_t), 64);
  at.free_slot = arena.take(heads * sizeof(std::int32_t), 64);
  at.rest = rest ? arena.take(heads * rest_bytes(*this), 64) : arena.used();
  at.key_sum = key_sums ? arena.take(heads * key_sum_bytes(*this), 64) : arena.used();
  at.end = arena.used();
  return at;
}

std::array<KvShape::Part, 7> KvShape::parts() const {
  const Offsets at = offsets();
  return {Part{at.k, key_bytes()},
          Part{at.v, value_bytes()},
          Part{at.score, scores ? sizeof(float) : 0},
          Part{at.position, sizeof(std::int32_t)},
          Part{at.free_slot, sizeof(std::int32_t), false},
          Part{at.rest, rest_bytes(*this), false},
          Part{at.key_sum, key_sum_bytes(*this), false}};
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
  slots_view.rest = rest ? reinterpret_cast<float*>(base + at.rest) : nullptr;
  slots_view.int8_keys = int8_keys;
  slots_view.key_sum = key_sums ? reinterpret_cast<float*>(base + at.key_sum) : nullptr;
  return slots_view;
}

}  // namespace weft::offload
