#include "runtime/storage.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/error.h"

namespace weft::runtime {
namespace {

using offload::BlockId;
using offload::Kind;
using policy::kNoSlot;
using policy::Op;
using policy::Tier;

std::int64_t pieces_total(std::span<const policy::Unit> units, policy::Unit::Kind kind) {
  return std::count_if(units.begin(), units.end(), [&](const policy::Unit& u) { return u.kind == kind; });
}

}  // namespace

View Scratch::take(DType dtype, std::int64_t rows, std::int64_t cols) {
  const auto bytes = static_cast<std::size_t>(rows * cols) * size_of(dtype);
  return {arena_.at(arena_.take(bytes, 64)), dtype, rows, cols};
}

Storage::Storage(const policy::ModelSpec& model, const std::vector<policy::Unit>& units, const policy::Policy& policy,
                 const policy::Footprint& footprint, const policy::Workload& workload, const policy::Facts& facts,
                 const Weights& weights, const Checkpoint* checkpoint, kernels::Backend& backend,
                 offload::DiskStore& disk, const std::string& spill_directory, const std::atomic<bool>& stop)
    : model_(model), units_(units), print_(footprint), weights_(weights), backend_(backend), disk_(disk),
      gpu_batch_size_(policy.gpu_batch_size),
      activation_(facts.activation), kv_shape_{.sequences = policy.gpu_batch_size,
                                               .kv_heads = model.kv_heads,
                                               .slots = static_cast<int>(workload.slots),
                                               .head_dim = model.head_dim,
                                               .dtype = facts.kv,
                                               .scores = policy.retention.scored() ||
                                                         policy.retention.rule == policy::Retention::Rule::random},
      tokens_(static_cast<std::size_t>(policy.num_gpu_batches)) {
  std::vector<offload::FileId> files;
  if (checkpoint)
    for (const auto& path : checkpoint->files()) files.push_back(disk.open(path.string()));
  add_blocks(files);
  blocks_.allocate(backend, disk, spill_directory);
  scratch_ = Scratch(blocks_.home_data(workspace_), print_.workspace.chunk);
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (stop) throw Interrupted{};
    fill(unit);
  }
}

/// In the order of ScheduleShape, so that a block's number there is its id here.
void Storage::add_blocks(std::span<const offload::FileId> files) {
  const policy::ScheduleShape& shape = print_.shape;
  for (std::size_t u = 0; u < units_.size(); ++u)
    blocks_.add(Kind::weights, weights_.unit_bytes()[u], shape.unit_home[u],
                weights_.in_files(u) ? weights_.parts(u, files) : std::vector<offload::FilePart>{});
  for (const Tier home : shape.kv_home) blocks_.add(Kind::kv, print_.kv_block_bytes, home);
  for (const Tier home : shape.activation_home) blocks_.add(Kind::activations, print_.activation_block_bytes, home);
  workspace_ = blocks_.add(Kind::workspace, print_.workspace.chunk, Tier::device);
  rows_ = blocks_.add(Kind::workspace, print_.workspace.rows, Tier::device);
  if (print_.workspace.exchange > 0) {
    exchange_device_ = blocks_.add(Kind::workspace, print_.workspace.exchange, Tier::device);
    exchange_host_ = blocks_.add(Kind::workspace, print_.workspace.exchange, Tier::host);
  }
  const auto window = [&](const policy::Window& w) {
    return w.slots == 0 ? offload::WindowId{} : blocks_.add_window(w.tier, static_cast<int>(w.slots), w.slot_bytes);
  };
  unit_window_ = window(print_.unit);
  kv_window_ = window(print_.kv);
  activation_window_ = window(print_.activation);
  unit_staging_ = window(print_.unit_staging);
  kv_staging_ = window(print_.kv_staging);
  activation_staging_ = window(print_.activation_staging);
  host_kv_window_ = window(print_.host_kv);
}

void Storage::fill(std::size_t unit) {
  const BlockId id = block(static_cast<std::uint32_t>(unit));
  const Tier home = blocks_.home(id);
  if (blocks_.read_only(id)) return;  // its file is its home
  const auto write = [&](std::byte* to) {
    weights_.in_files(unit) ? blocks_.read_from_disk(id, to) : weights_.make(unit, to);
  };
  if (home == Tier::host || (home == Tier::device && backend_.device_is_host_memory())) {
    write(blocks_.home_data(id));
    return;
  }
  const auto staging = backend_.allocate_host(blocks_.bytes(id));
  write(staging->data());
  if (home == Tier::disk) {
    blocks_.write_to_disk(id, staging->data());
    return;
  }
  const auto stream = backend_.make_stream();
  const auto event = backend_.make_event();
  backend_.copy(blocks_.home_data(id), staging->data(), blocks_.bytes(id), *stream);
  backend_.record(*event, *stream);
  backend_.synchronize(*event);
}

std::byte* Storage::place(std::uint32_t subject, std::uint32_t slot, offload::WindowId window) const {
  return slot == kNoSlot ? blocks_.home_data(block(subject)) : blocks_.slot(window, static_cast<int>(slot));
}

std::uint64_t Storage::size_to_move(std::uint32_t subject) const {
  if (subject < print_.shape.activation_block(0)) return blocks_.bytes(block(subject));
  const std::int64_t tokens = tokens_[subject - print_.shape.activation_block(0)];
  return static_cast<std::uint64_t>(tokens * model_.hidden) * size_of(activation_);
}

std::uint64_t Storage::move(const Op& op, kernels::Stream& stream) {
  const policy::ScheduleShape& shape = print_.shape;
  if (op.subject >= shape.exchange_block(0)) return exchange_rows(op, stream);
  const BlockId id = block(op.subject);
  const bool is_kv = op.subject >= shape.kv_block(0, 0) && op.subject < shape.activation_block(0);
  const bool is_activation = op.subject >= shape.activation_block(0);
  const offload::WindowId device = is_kv ? kv_window_ : is_activation ? activation_window_ : unit_window_;
  const offload::WindowId staging = is_kv ? kv_staging_ : is_activation ? activation_staging_ : unit_staging_;
  const bool for_host = is_kv && shape.attention_on_host && op.step > 0;
  const offload::WindowId at_disk = for_host ? host_kv_window_ : shape.disk_reads_device ? device : staging;
  const std::uint64_t bytes = size_to_move(op.subject);
  if (bytes == 0) return 0;
  switch (op.lane) {
    case offload::Lane::disk_read:
      blocks_.read_from_disk(id, blocks_.slot(at_disk, static_cast<int>(op.to)), bytes);
      break;
    case offload::Lane::disk_write:
      blocks_.write_to_disk(id, blocks_.slot(at_disk, static_cast<int>(op.from)), bytes);
      break;
    case offload::Lane::host_to_device:
      backend_.copy(place(op.subject, op.to, device), place(op.subject, op.from, staging), bytes, stream);
      break;
    case offload::Lane::device_to_host:
      backend_.copy(place(op.subject, op.to, staging), place(op.subject, op.from, device), bytes, stream);
      break;
    default: break;
  }
  return bytes;
}

std::uint64_t Storage::exchange_rows(const Op& op, kernels::Stream& stream) {
  const Exchange device = exchange(op.batch, false), host = exchange(op.batch, true);
  const std::int64_t rows = tokens_[op.batch];
  const auto copy = [&](const View& to, const View& from) {
    const auto bytes = static_cast<std::uint64_t>(rows * from.cols) * size_of(activation_);
    if (bytes > 0) backend_.copy(to.data, from.data, bytes, stream);
    return bytes;
  };
  if (op.lane == offload::Lane::host_to_device) return copy(device.out, host.out);
  return copy(host.q, device.q) + copy(host.k, device.k) + copy(host.v, device.v);
}

UnitViews Storage::unit(int unit, std::uint32_t slot) const {
  return weights_.views(static_cast<std::size_t>(unit), place(static_cast<std::uint32_t>(unit), slot, unit_window_));
}

kernels::KvSlots Storage::kv(int layer, int batch, std::uint32_t slot) const {
  return kv_shape_.view(place(print_.shape.kv_block(layer, batch), slot, kv_window_));
}

kernels::KvSlots Storage::host_kv(int layer, int batch, std::uint32_t slot) const {
  return kv_shape_.view(place(print_.shape.kv_block(layer, batch), slot, host_kv_window_));
}

View Storage::hidden(int batch, std::uint32_t slot, std::int64_t tokens) const {
  return {place(print_.shape.activation_block(batch), slot, activation_window_), activation_, tokens, model_.hidden};
}

View Storage::last_hidden(int batch) const {
  const std::int64_t rows = gpu_batch_size_;
  return View(blocks_.home_data(rows_), activation_, rows * print_.shape.batches, model_.hidden)
      .slice(batch * rows, rows);
}

View Storage::last_embed(int batch) const {
  const std::int64_t rows = gpu_batch_size_, all = rows * print_.shape.batches;
  const auto before =
      offload::round_up(static_cast<std::uint64_t>(all * model_.hidden) * size_of(activation_), offload::kPage);
  return View(blocks_.home_data(rows_) + before, activation_, all, model_.embed).slice(batch * rows, rows);
}

View Storage::logits(int batch) const {
  const std::int64_t rows = gpu_batch_size_, all = rows * print_.shape.batches;
  const auto before =
      offload::round_up(static_cast<std::uint64_t>(all * model_.hidden) * size_of(activation_), offload::kPage) +
      offload::round_up(static_cast<std::uint64_t>(all * model_.embed) * size_of(activation_), offload::kPage);
  return View(blocks_.home_data(rows_) + before, DType::f32, all, model_.vocab).slice(batch * rows, rows);
}

Storage::Exchange Storage::exchange(int batch, bool on_host) const {
  const std::int64_t rows = gpu_batch_size_, all = rows * print_.shape.batches;
  std::byte* at = blocks_.home_data(on_host ? exchange_host_ : exchange_device_);
  const auto part = [&](int heads) {
    const View whole(at, activation_, all, std::int64_t{heads} * model_.head_dim);
    at += static_cast<std::size_t>(all * whole.cols) * size_of(activation_);
    return whole.slice(batch * rows, rows);
  };
  return {part(model_.heads), part(model_.kv_heads), part(model_.kv_heads), part(model_.heads)};
}

View Storage::gather(policy::Unit::Kind kind, std::span<const std::int32_t> ids, Scratch& scratch) {
  std::size_t first = 0;
  while (units_[first].kind != kind) ++first;
  const auto pieces = static_cast<std::size_t>(pieces_total(units_, kind));
  std::vector<std::size_t> order(ids.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return ids[a] < ids[b]; });

  View rows;
  std::vector<offload::BlockStore::PartRead> reads;  // of the unit at hand
  std::size_t next = 0;
  for (std::size_t u = first; u < first + pieces; ++u) {
    const policy::TensorSpec& table = units_[u].tensors.front();
    const BlockId id = block(static_cast<std::uint32_t>(u));
    const std::byte* base = blocks_.home_data(id);
    const DType dtype = weights_.tensor_dtype(u, table.role);
    if (!rows) rows = scratch.take(dtype, static_cast<std::int64_t>(ids.size()), table.cols);
    const std::size_t row_bytes = static_cast<std::size_t>(table.cols) * size_of(dtype);
    auto* out = static_cast<std::byte*>(rows.data);
    reads.clear();
    std::vector<std::pair<std::size_t, std::size_t>> repeats;  // rows equal to one that is being read
    for (; next < order.size() && ids[order[next]] < table.first_row + table.rows; ++next) {
      const std::size_t to = order[next];
      const std::size_t offset =
          weights_.tensor_offset(u, table.role) + static_cast<std::size_t>(ids[to] - table.first_row) * row_bytes;
      if (base) {
        std::memcpy(out + to * row_bytes, base + offset, row_bytes);
      } else if (next > 0 && !reads.empty() && ids[order[next - 1]] == ids[to]) {
        repeats.emplace_back(order[next - 1], to);
      } else {
        reads.push_back({offset, row_bytes, out + to * row_bytes});
      }
    }
    if (!reads.empty()) blocks_.read_parts(id, reads);
    for (const auto& [same, to] : repeats) std::memcpy(out + to * row_bytes, out + same * row_bytes, row_bytes);
  }
  return rows;
}

}  // namespace weft::runtime
