// runtime/engine/storage_moves.cc: what the loads and stores of a schedule move.
#include "runtime/engine/storage.h"

namespace weft::runtime {

using offload::BufferId;
using policy::Op;
using policy::Tier;

std::uint64_t Storage::size_to_move(const Op& op) const {
  if (op.subject < footprint_.shape.activation_buffer(0)) return buffers_.bytes(buffer(op.subject));
  const std::int64_t tokens = tokens_[op.batch];
  return policy::hidden_layout(model_, footprint_.types, tokens).bytes;
}

std::uint64_t Storage::move(const Op& op, kernels::Stream& stream) {
  const policy::ScheduleShape& shape = footprint_.shape;
  if (op.subject >= shape.routed_buffer(0)) return routed_rows(op, stream);
  if (op.subject >= shape.exchange_buffer(0)) return exchange_rows(op, stream);
  const BufferId id = buffer(op.subject);
  const bool is_kv = op.subject >= shape.kv_buffer(0, 0) && op.subject < shape.activation_buffer(0);
  const bool is_activation = op.subject >= shape.activation_buffer(0);
  const offload::WindowId device = is_kv ? kv_window_ : is_activation ? activation_window_ : unit_window_;
  const offload::WindowId staging = is_kv ? kv_staging_ : is_activation ? activation_staging_ : unit_staging_;
  const bool for_host = is_kv && !op.prefill && shape.host_attends[op.subject - shape.kv_buffer(0, 0)];
  const offload::WindowId at_disk = for_host ? host_kv_window_ : shape.disk_reads_device ? device : staging;
  const std::uint64_t bytes = size_to_move(op);
  if (bytes == 0) return 0;
  // A unit that was read from a file lies in host memory as it does in the file.
  const bool of_file = op.subject < units_.size() && buffers_.home(id) == Tier::disk;
  const std::size_t skipped = of_file ? shift(op.subject) : 0;
  switch (op.lane) {
    case offload::Lane::disk_read:
      buffers_.read_from_disk(id, buffers_.slot(at_disk, static_cast<int>(op.to)), bytes);
      break;
    case offload::Lane::disk_write:
      buffers_.write_to_disk(id, buffers_.slot(at_disk, static_cast<int>(op.from)), bytes);
      break;
    case offload::Lane::host_to_device:
      if (is_kv && buffers_.home(id) == Tier::host) return bring_without_low_rows(op, stream);
      backend_.copy(place(op.subject, op.to, device), place(op.subject, op.from, staging) + skipped, bytes - skipped,
                    stream);
      break;
    case offload::Lane::device_to_host:
      backend_.copy(place(op.subject, op.to, staging), place(op.subject, op.from, device), bytes, stream);
      break;
    default: break;
  }
  return bytes;
}

/// Brings a KV buffer from its home on the host. Low rows stay there, where ops read them.
std::uint64_t Storage::bring_without_low_rows(const Op& op, kernels::Stream& stream) {
  const policy::ScheduleShape& shape = footprint_.shape;
  const int layer = static_cast<int>(op.subject - shape.kv_buffer(0, 0)) / shape.batches;
  const std::byte* from = buffers_.home_data(buffer(op.subject));
  std::byte* to = buffers_.slot(kv_window_, static_cast<int>(op.to));
  for (const offload::KvShape& run : footprint_.kv_runs(layer)) {
    const std::size_t end = run.bytes(), first = run.split ? run.offsets().low_k : end;
    backend_.copy(to, from, first, stream);
    if (const std::size_t second = first + run.low_bytes(); second < end)
      backend_.copy(to + second, from + second, end - second, stream);
    from += end, to += end;
  }
  return footprint_.kv_bytes_from_host(layer);
}

std::uint64_t Storage::move_experts(const Op& op, const std::vector<bool>& wanted, kernels::Stream& stream) {
  const BufferId id = buffer(op.subject);
  const std::vector<ByteRange> ranges = weights_.ranges_of(op.subject, wanted);
  std::uint64_t bytes = 0;
  for (const ByteRange& range : ranges) bytes += range.end - range.begin;
  if (op.lane == offload::Lane::disk_read) {
    std::byte* const to =
        buffers_.slot(footprint_.shape.disk_reads_device ? unit_window_ : unit_staging_, static_cast<int>(op.to));
    std::vector<offload::BufferStore::PartRead> parts;
    for (const ByteRange& range : ranges) parts.push_back({range.begin, range.end - range.begin, to + range.begin});
    if (!parts.empty()) buffers_.read_parts(id, parts);
    return bytes;
  }
  // A unit that was read from a file lies in staging as it does in the file.
  const std::byte* const from =
      place(op.subject, op.from, unit_staging_) - (buffers_.home(id) == Tier::disk ? 0 : shift(op.subject));
  std::byte* const to = place(op.subject, op.to, unit_window_) - shift(op.subject);
  for (const ByteRange& range : ranges)
    backend_.copy(to + range.begin, from + range.begin, range.end - range.begin, stream);
  return bytes;
}

std::uint64_t Storage::exchange_rows(const Op& op, kernels::Stream& stream) {
  // As many bytes as the widest layer has: an op does not know its layer.
  const Exchange device = exchange(op.batch, false, 0), host = exchange(op.batch, true, 0);
  const auto copy = [&](policy::Value value, const View& to, const View& from) {
    const std::uint64_t bytes = policy::widest_shape_of(value, model_, footprint_.types, begun_[op.batch]).bytes();
    if (bytes > 0) backend_.copy(to.data, from.data, bytes, stream);
    return bytes;
  };
  return copy(policy::Value::q, host.q, device.q) + copy(policy::Value::k, host.k, device.k) +
         copy(policy::Value::v, host.v, device.v);
}

/// Takes what the experts of a batch's rows read to the host.
std::uint64_t Storage::routed_rows(const Op& op, kernels::Stream& stream) {
  const std::int64_t tokens = tokens_[op.batch];
  const policy::HiddenLayout::Part part = policy::hidden_layout(model_, footprint_.types, tokens).mlp_input;
  if (tokens == 0) return 0;
  const std::uint32_t buffer = footprint_.shape.activation_buffer(op.batch);
  backend_.copy(experts_input().slice(op.batch * footprint_.workspace.host_experts.rows, tokens).data,
                place(buffer, op.from, activation_window_) + part.offset, part.shape.bytes(), stream);
  return part.shape.bytes();
}

}  // namespace weft::runtime
