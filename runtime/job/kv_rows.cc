#include "runtime/job/kv_rows.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "kernels/attention_ops.h"

namespace weft::runtime {
namespace {

using offload::KvShape;
using offload::Tier;

/// The shape of a record's sequence. A record has keys and values wherever they lie.
KvShape for_one(const KvShape& shape) {
  KvShape one = shape.with_rows();
  one.sequences = 1;
  return one;
}

std::size_t record_bytes_of(const KvShape& shape, KvShape::Slots slots) {
  std::size_t bytes = 0;
  for (const KvShape::Part& part : shape.with_rows().parts())
    bytes += static_cast<std::size_t>(shape.kv_heads) * part.head_bytes(slots);
  return bytes;
}

std::size_t largest_of_one(const policy::Footprint& footprint) {
  std::size_t largest = 0;
  for (const auto& runs : footprint.kv_shapes)
    for (const KvShape& shape : runs) largest = std::max(largest, for_one(shape).bytes());
  return largest;
}

std::string kind_of(const KvShape& shape) {
  return std::to_string(shape.kv_heads) + " heads of " + std::to_string(shape.head_dim) + " " + name_of(shape.dtype) +
         ", " + std::to_string(shape.key_bytes()) + " and " + std::to_string(shape.value_bytes()) + " bytes each" +
         (shape.scores ? ", scored" : "") + (shape.rest ? ", with a rest" : "") +
         (shape.key_sums ? ", with sums of keys" : "") + (shape.means ? ", less means" : "") +
         (shape.cold > 0 ? ", cold ones of " + std::to_string(shape.cold_key_bytes()) + " and " +
                               std::to_string(shape.cold_value_bytes())
                         : "") +
         (shape.split ? ", in pieces, others of " + std::to_string(shape.low_key_bytes()) + " and " +
                            std::to_string(shape.low_value_bytes())
                      : "") +
         (shape.cold > 0 || shape.split ? ", stretched" : "");  // kernels::coarse_stretch()
}

}  // namespace

SlotRecords::SlotRecords(const Storage& storage, const policy::Footprint& footprint, kernels::Backend& backend)
    : buffers_(storage.buffers()), footprint_(footprint), backend_(backend), window_(storage.idle_kv_window()),
      staging_(backend.allocate_host(largest_of_one(footprint))), stream_(backend.make_stream()),
      copied_(backend.make_event()) {}

std::string SlotRecords::kind(const policy::Footprint& footprint) {
  std::set<std::string> kinds;
  for (const auto& runs : footprint.kv_shapes)
    for (const KvShape& shape : runs) kinds.insert(kind_of(shape));
  std::string text;
  for (const std::string& kind : kinds) text += (text.empty() ? "" : "; ") + kind;
  return text;
}

std::vector<SlotRecords::Run> SlotRecords::runs(const policy::Footprint& footprint) {
  std::vector<Run> all;
  for (int layer = 0; layer < footprint.shape.layers; ++layer)
    for (int run = 0; run < std::ssize(footprint.kv_runs(layer)); ++run) all.push_back({layer, run});
  return all;
}

std::size_t SlotRecords::record_bytes(Run run, KvShape::Slots slots) const {
  return record_bytes_of(footprint_.kv_runs(run.layer)[static_cast<std::size_t>(run.run)], slots);
}

std::optional<KvShape::Slots> SlotRecords::slots_of(Run run, std::size_t hot, std::uint64_t bytes) const {
  const KvShape& shape = footprint_.kv_runs(run.layer)[static_cast<std::size_t>(run.run)];
  const std::uint64_t without = record_bytes_of(shape, {hot, 0}), each = record_bytes_of(shape, {hot, 1}) - without;
  if (bytes == without) return KvShape::Slots{hot, 0};
  if (shape.cold == 0 || bytes < without || (bytes - without) % each != 0) return {};
  return KvShape::Slots{hot, static_cast<std::size_t>((bytes - without) / each)};
}

void SlotRecords::select(int layer, int batch, int run) {
  const auto begin_in = [&](int of_layer) {
    std::size_t begin = 0;
    for (int before = 0; before < run; ++before)
      begin += footprint_.kv_runs(of_layer)[static_cast<std::size_t>(before)].bytes();
    return begin;
  };
  const KvShape& shape = footprint_.kv_runs(layer)[static_cast<std::size_t>(run)];
  begin_ = begin_in(layer), parts_ = shape.parts();
  shape_ = shape.with_rows();
  one_ = for_one(shape_);
  lent_ = nullptr;
  if (!shape.lent) return;
  const int lender = footprint_.lender(layer);
  lent_ =
      buffers_.home_data(static_cast<offload::BufferId>(footprint_.shape.kv_buffer(lender, batch))) + begin_in(lender);
}

/// Where a part of the selected run lies in memory.
std::byte* SlotRecords::place(std::size_t part) const {
  const KvShape::Part whole = shape_.parts()[part];
  return parts_[part].bytes == whole.bytes ? at_ + begin_ + parts_[part].offset : lent_ + whole.offset;
}

/// Copies all slots of a sequence between the open buffer and staging_.
void SlotRecords::copy_all(std::int64_t sequence, bool to_buffer) {
  const bool by_device = buffers_.home(open_) == Tier::device && !backend_.device_is_host_memory();
  const auto parts = shape_.parts(), own = one_.parts();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t bytes = static_cast<std::size_t>(shape_.kv_heads) * parts[i].head_bytes(shape_.all_slots());
    std::byte* const there = place(i) + static_cast<std::size_t>(sequence) * bytes;
    std::byte* const here = staging_->data() + own[i].offset;
    if (bytes == 0) continue;
    if (by_device) backend_.copy(to_buffer ? there : here, to_buffer ? here : there, bytes, *stream_);
    else std::memcpy(to_buffer ? there : here, to_buffer ? here : there, bytes);
  }
  if (!by_device) return;
  backend_.record(*copied_, *stream_);
  backend_.synchronize(*copied_);
}

std::span<const std::byte> SlotRecords::read(Run run, int batch, std::int64_t sequence, std::uint32_t& hot) {
  open_ = static_cast<offload::BufferId>(footprint_.shape.kv_buffer(run.layer, batch));
  select(run.layer, batch, run.run);
  const auto parts = shape_.parts(), own = one_.parts();
  const auto heads = static_cast<std::size_t>(shape_.kv_heads);
  if (buffers_.home(open_) == Tier::disk) {
    std::vector<offload::BufferStore::PartRead> reads;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::size_t bytes = heads * parts[i].head_bytes(shape_.all_slots());
      if (bytes > 0)
        reads.push_back({begin_ + parts[i].offset + static_cast<std::size_t>(sequence) * bytes, bytes,
                         staging_->data() + own[i].offset});
    }
    buffers_.read_parts(open_, reads);
  } else {
    at_ = buffers_.home_data(open_);
    copy_all(sequence, false);
  }

  const kernels::KvSlots view = one_.view(staging_->data());
  std::int32_t used = 0, cold = 0;
  for (std::int32_t head = 0; head < shape_.kv_heads; ++head) {
    const std::int32_t* const position = view.position + std::int64_t{head} * shape_.slots;
    used = std::max(used, view.free_slot[head] + 1);
    for (std::int32_t slot = used; slot < shape_.hot(); ++slot)
      if (position[slot] >= 0) used = slot + 1;
    for (std::int32_t slot = cold; slot < shape_.cold; ++slot)
      if (position[shape_.hot() + slot] >= 0) cold = slot + 1;
  }
  hot = static_cast<std::uint32_t>(std::min(used, shape_.hot()));
  const KvShape::Slots slots{hot, static_cast<std::size_t>(cold)};
  record_.resize(record_bytes_of(shape_, slots));
  each_piece(slots, [to = record_.data()](std::byte* in_buffer, std::size_t bytes) mutable {
    std::memcpy(to, in_buffer, bytes);
    to += bytes;
  });
  return record_;
}

/// Calls f with each piece of staging_ that belongs to so many slots of its heads, in the order of a record.
template <class F> void SlotRecords::each_piece(KvShape::Slots slots, F f) const {
  using Per = KvShape::Part::Per;
  const std::size_t hot = shape_.all_slots().hot;
  for (const KvShape::Part& part : one_.parts()) {
    if (part.bytes == 0) continue;
    std::byte* of_head = staging_->data() + part.offset;
    for (int head = 0; head < shape_.kv_heads; ++head, of_head += part.head_bytes(shape_.all_slots())) {
      // The cold slots begin where those of this buffer do.
      if (part.per == Per::slot)
        f(of_head, slots.hot * part.bytes), f(of_head + hot * part.bytes, slots.cold * part.bytes);
      else f(of_head, part.head_bytes(slots));
    }
  }
}

void SlotRecords::open(int layer, int batch, bool fresh) {
  layer_ = layer, batch_ = batch;
  open_ = static_cast<offload::BufferId>(footprint_.shape.kv_buffer(layer, batch));
  if (buffers_.home(open_) != Tier::disk) {
    at_ = buffers_.home_data(open_);
    return;
  }
  at_ = window_;
  if (fresh) std::memset(at_, 0, buffers_.bytes(open_));
  else buffers_.read_from_disk(open_, at_);
}

void SlotRecords::close() {
  if (buffers_.home(open_) == Tier::disk) buffers_.write_to_disk(open_, at_);
}

bool SlotRecords::write(int run, std::int64_t sequence, KvShape::Slots slots, std::span<const std::byte> record) {
  select(layer_, batch_, run);
  if (slots.hot > shape_.all_slots().hot || slots.cold > shape_.all_slots().cold ||
      record.size() != record_bytes_of(shape_, slots))
    return false;
  std::memset(staging_->data(), 0, one_.bytes());
  each_piece(slots, [from = record.data()](std::byte* in_buffer, std::size_t bytes) mutable {
    std::memcpy(in_buffer, from, bytes);
    from += bytes;
  });
  const kernels::KvSlots view = one_.view(staging_->data());
  for (std::int32_t head = 0; head < shape_.kv_heads; ++head) {
    if (view.free_slot[head] < 0 || view.free_slot[head] >= shape_.hot()) return false;
    std::int32_t* const position = view.position + std::int64_t{head} * shape_.slots;
    std::fill(position + slots.hot, position + shape_.hot(), -1);
    std::fill(position + shape_.hot() + slots.cold, position + shape_.slots, -1);
  }
  copy_all(sequence, true);
  return true;
}

}  // namespace weft::runtime
