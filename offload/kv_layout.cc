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

std::size_t mean_bytes(const KvShape& shape) {
  return shape.means ? 2 * static_cast<std::size_t>(shape.head_dim) * sizeof(float) : 0;
}

}  // namespace

KvShape::Offsets KvShape::offsets() const {
  const std::size_t heads = static_cast<std::size_t>(sequences) * static_cast<std::size_t>(kv_heads);
  const std::size_t places = heads * static_cast<std::size_t>(slots);
  Arena arena;  // counting
  Offsets at;
  const std::size_t of_hot = heads * static_cast<std::size_t>(hot()), of_cold = heads * static_cast<std::size_t>(cold);
  at.k = arena.take(lent ? 0 : of_hot * key_bytes(), 64);
  at.v = arena.take(lent ? 0 : of_hot * value_bytes(), 64);
  at.cold_k = arena.take(of_cold * cold_key_bytes(), 64);
  at.cold_v = arena.take(of_cold * cold_value_bytes(), 64);
  at.low_k = arena.take(places * low_key_bytes(), 64);
  at.low_v = arena.take(places * low_value_bytes(), 64);
  at.scale_k = arena.take(places * split_scales_bytes(), 64);
  at.scale_v = arena.take(places * split_scales_bytes(), 64);
  at.score = arena.take(scores ? places * sizeof(float) : 0, 64);
  at.position = arena.take(places * sizeof(std::int32_t), 64);
  at.free_slot = arena.take(heads * sizeof(std::int32_t), 64);
  at.rest = rest ? arena.take(heads * rest_bytes(*this), 64) : arena.used();
  at.key_sum = key_sums ? arena.take(heads * key_sum_bytes(*this), 64) : arena.used();
  at.mean = means ? arena.take(heads * mean_bytes(*this), 64) : arena.used();
  at.end = arena.used();
  return at;
}

KvShape::Parts KvShape::parts() const {
  using Per = Part::Per;
  const Offsets at = offsets();
  return {Part{at.k, lent ? 0 : key_bytes(), Per::hot},
          Part{at.v, lent ? 0 : value_bytes(), Per::hot},
          Part{at.cold_k, cold_key_bytes(), Per::cold},
          Part{at.cold_v, cold_value_bytes(), Per::cold},
          Part{at.low_k, low_key_bytes(), Per::slot},
          Part{at.low_v, low_value_bytes(), Per::slot},
          Part{at.scale_k, split_scales_bytes(), Per::slot},
          Part{at.scale_v, split_scales_bytes(), Per::slot},
          Part{at.score, scores ? sizeof(float) : 0, Per::slot},
          Part{at.position, sizeof(std::int32_t), Per::slot},
          Part{at.free_slot, sizeof(std::int32_t), Per::head},
          Part{at.rest, rest_bytes(*this), Per::head},
          Part{at.key_sum, key_sum_bytes(*this), Per::head},
          Part{at.mean, mean_bytes(*this), Per::head}};
}

std::size_t KvShape::bytes() const { return round_up(offsets().end, kPage); }

kernels::KvSlots KvShape::view(std::byte* base) const {
  const Offsets at = offsets();
  kernels::KvSlots slots_view;
  if (!lent) slots_view.k = base + at.k, slots_view.v = base + at.v;
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
  slots_view.mean = means ? reinterpret_cast<float*>(base + at.mean) : nullptr;
  slots_view.cold = cold;
  if (cold > 0) slots_view.cold_k = base + at.cold_k, slots_view.cold_v = base + at.cold_v, slots_view.coarse = coarse;
  if (split) {
    slots_view.split = true, slots_view.coarse = coarse;
    slots_view.low_k = base + at.low_k, slots_view.low_v = base + at.low_v;
    slots_view.scale_k = base + at.scale_k, slots_view.scale_v = base + at.scale_v;
  }
  return slots_view;
}

}  // namespace weft::offload
