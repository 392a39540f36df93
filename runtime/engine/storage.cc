#include "runtime/engine/storage.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <stdexcept>

#include "kernels/error.h"
#include "runtime/base/parallel.h"

namespace weft::runtime {
namespace {

using offload::BufferId;
using offload::Kind;
using policy::kNoSlot;
using policy::Op;
using policy::Tier;

/// Opens the files of a checkpoint in the disk store. Throws DataError unless they are those whose headers were read.
std::vector<offload::FileId> open_files(const Checkpoint* checkpoint, offload::DiskStore& disk) {
  std::vector<offload::FileId> files;
  for (std::size_t i = 0; checkpoint && i < checkpoint->files().size(); ++i) {
    const std::filesystem::path& path = checkpoint->files()[i];
    files.push_back(disk.open(path.string()));
    const auto named = FileState::of(path);
    if (!named || !named->same_file(checkpoint->state(i)))
      throw DataError(path.string() + ": is another file than the one whose header was read; start again");
  }
  return files;
}

/// Writes to every page, on all cores: the first write to a page takes a system longer than many a step, and memory
/// that is promised but not there is missed now and not in the midst of the work.
void touch(std::span<std::byte> memory, const std::atomic<bool>& stop) {
  constexpr std::int64_t kPiece = std::int64_t{32} << 20, kPage = 4096;
  const auto bytes = static_cast<std::int64_t>(memory.size());
  for_each_of((bytes + kPiece - 1) / kPiece, [&](std::int64_t piece) {
    if (stop) throw Interrupted{};
    for (std::int64_t at = piece * kPiece; at < std::min((piece + 1) * kPiece, bytes); at += kPage)
      memory[static_cast<std::size_t>(at)] = std::byte{0};
  });
}

}  // namespace

Storage::Storage(const ModelSource& source, const PackedCopy* copy, const policy::Footprint& footprint,
                 kernels::Backend& backend, offload::DiskStore& disk, const std::string& spill_directory,
                 const std::atomic<bool>& stop, const OnLoaded& on_loaded)
    : model_(source.spec), units_(source.units), footprint_(footprint), weights_(*source.weights), copy_(copy),
      backend_(backend), tokens_(footprint.shape.batches), begun_(footprint.shape.batches) {
  const auto files = open_files(source.checkpoint.get(), disk),
             copy_files = open_files(copy ? &copy->file : nullptr, disk);
  add_buffers(files, copy_files);
  buffers_.allocate(backend, disk, spill_directory);
  if (backend.device_is_host_memory())
    for (const std::span<std::byte> memory : buffers_.memory()) touch(memory, stop);
  check_reach();
  gathered_ = backend.make_event();
  load(source, stop, on_loaded);
  if (source.checkpoint) source.checkpoint->require_unchanged();
}

std::optional<double> SlowQuantising::add(std::int64_t weights, double seconds) {
  constexpr double kEnough = 2, kLong = 60;
  left_ -= weights, done_ += weights, seconds_ += seconds;
  if (said_ || done_ == 0 || seconds_ < kEnough) return {};
  const double rest = seconds_ / double(done_) * double(left_);
  if (rest <= kLong) return {};
  said_ = true;
  return rest;
}

void Storage::load(const ModelSource& source, const std::atomic<bool>& stop, const OnLoaded& on_loaded) {
  using Clock = std::chrono::steady_clock;
  std::int64_t to_quantise = 0;
  for (std::size_t unit = 0; unit < units_.size(); ++unit)
    if (made(unit)) to_quantise += weights_.quantised_elements(unit);
  SlowQuantising slow(to_quantise);
  FillAhead ahead([&](std::size_t bytes) { return backend_.allocate_host(bytes); });
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (stop) throw Interrupted{};
    const auto begin = Clock::now();
    fill(unit, stop, ahead);
    if (const std::int64_t quantised = made(unit) ? weights_.quantised_elements(unit) : 0; quantised > 0)
      if (const auto rest = slow.add(quantised, std::chrono::duration<double>(Clock::now() - begin).count());
          rest && source.quantises_slowly)
        source.quantises_slowly(*rest);
    if (on_loaded) on_loaded(double(unit + 1) / double(units_.size()));
  }
  ahead.finish();
}

/// Checks that the device reaches the host memory that it uses without a copy: it writes KV to its home, reads the
/// host's attention and gathers rows of tables.
void Storage::check_reach() const {
  const auto refuse_at = [&](const std::byte* data, std::size_t bytes, const char* what) {
    if (!backend_.device_reaches(data, bytes))
      throw CapacityError(std::string("the system lets too little host memory be pinned for ") + what +
                          " on the host; raise the limit (ulimit -l), lower --host-memory or place more on the device");
  };
  const auto refuse_unless = [&](offload::BufferId id, const char* what) {
    refuse_at(buffers_.home_data(id), buffers_.bytes(id), what);
  };
  if (footprint_.workspace.exchange_host.bytes > 0) refuse_unless(exchange_host_, "attention");
  if (footprint_.workspace.host_experts.bytes > 0) refuse_unless(experts_, "experts");
  if (footprint_.workspace.routing > 0) refuse_unless(routing_, "the choices of experts");
  if (footprint_.workspace.gather > 0) refuse_unless(gather_, "rows of the embedding from disk");
  for (std::uint32_t unit = 0; unit < units_.size(); ++unit)
    if (units_[unit].gathered && buffers_.home(buffer(unit)) == Tier::host)
      refuse_unless(buffer(unit), "the embedding");
  for (std::uint32_t kv = footprint_.shape.kv_buffer(0, 0); kv < footprint_.shape.activation_buffer(0); ++kv)
    if (buffers_.home(buffer(kv)) == Tier::host) refuse_unless(buffer(kv), "KV");
  for (std::uint32_t slot = 0; footprint_.shape.refills && slot < footprint_.host_kv.slots; ++slot)
    refuse_at(buffers_.slot(host_kv_window_, static_cast<int>(slot)), footprint_.host_kv.slot_bytes, "KV from disk");
}

/// Adds the buffers in the order of ScheduleShape, so that a buffer's number there is its id here.
void Storage::add_buffers(std::span<const offload::FileId> files, std::span<const offload::FileId> copy_files) {
  using offload::Use;
  const policy::ScheduleShape& shape = footprint_.shape;
  for (std::size_t u = 0; u < units_.size(); ++u)
    buffers_.add(Kind::weights, weights_.unit_bytes()[u], shape.unit_home[u], parts(u, files, copy_files),
                 units_[u].gathered ? Use::in_place : Use::copied);
  for (int layer = 0; layer < shape.layers; ++layer)
    for (int batch = 0; batch < shape.batches; ++batch)
      buffers_.add(Kind::kv, footprint_.kv_buffer_bytes(layer), shape.kv_home[shape.kv_index(layer, batch)], {},
                   Use::in_place);
  for (int batch = 0; batch < shape.batches; ++batch)
    buffers_.add(Kind::activations, footprint_.activation_buffer_bytes(batch),
                 shape.activation_home[static_cast<std::size_t>(batch)]);
  workspace_ = buffers_.add(Kind::workspace, footprint_.workspace.chunk, Tier::device);
  output_ = buffers_.add(Kind::workspace, footprint_.workspace.output.bytes, Tier::device);
  if (footprint_.workspace.unpacked.bytes > 0)
    unpacked_ = buffers_.add(Kind::workspace, footprint_.workspace.unpacked.bytes, Tier::device);
  if (footprint_.workspace.exchange_device.bytes > 0) {
    exchange_device_ = buffers_.add(Kind::workspace, footprint_.workspace.exchange_device.bytes, Tier::device);
    exchange_host_ =
        buffers_.add(Kind::workspace, footprint_.workspace.exchange_host.bytes, Tier::host, {}, Use::in_place);
  }
  if (footprint_.workspace.host_experts.bytes > 0)
    experts_ = buffers_.add(Kind::workspace, footprint_.workspace.host_experts.bytes, Tier::host, {}, Use::in_place);
  if (footprint_.workspace.routing > 0)
    routing_ = buffers_.add(Kind::workspace, static_cast<std::uint64_t>(shape.batches) * footprint_.workspace.routing,
                            shape.disk_reads_device ? Tier::device : Tier::host, {}, Use::in_place);
  if (footprint_.workspace.gather > 0)
    gather_ = buffers_.add(Kind::workspace, footprint_.workspace.gather,
                           footprint_.shape.disk_reads_device ? Tier::device : Tier::host, {}, Use::in_place);
  const auto window = [&](const policy::Window& w, Use use = Use::copied) {
    return w.slots == 0 ? offload::WindowId{}
                        : buffers_.add_window(w.tier, static_cast<int>(w.slots), w.slot_bytes, use);
  };
  unit_window_ = window(footprint_.unit);
  kv_window_ = window(footprint_.kv);
  activation_window_ = window(footprint_.activation);
  unit_staging_ = window(footprint_.unit_staging);
  kv_staging_ = window(footprint_.kv_staging);
  activation_staging_ = window(footprint_.activation_staging);
  host_kv_window_ = window(footprint_.host_kv, Use::in_place);
}

/// The parts of files that hold a unit as it is used; empty if the unit has to be made.
std::vector<offload::FilePart> Storage::parts(std::size_t unit, std::span<const offload::FileId> files,
                                              std::span<const offload::FileId> copy_files) const {
  if (copied(unit)) return {copy_->units.part(unit, copy_files)};
  return weights_.in_files(unit) ? weights_.parts(unit, files) : std::vector<offload::FilePart>{};
}

/// Whether the unit is made and not read from a file.
bool Storage::made(std::size_t unit) const {
  const BufferId id = buffer(static_cast<std::uint32_t>(unit));
  return !buffers_.read_only(id) && !weights_.in_files(unit) && !copied(unit);
}

/// Brings a unit to its home, or on its way there.
void Storage::fill(std::size_t unit, const std::atomic<bool>& stop, FillAhead& ahead) {
  const BufferId id = buffer(static_cast<std::uint32_t>(unit));
  const Tier home = buffers_.home(id);
  if (buffers_.read_only(id)) return;  // its file is its home
  const auto write = [&](std::byte* to) {
    made(unit) ? weights_.make(unit, to, stop) : buffers_.read_from_disk(id, to - shift(unit));
  };
  if (home == Tier::host || (home == Tier::device && backend_.device_is_host_memory())) {
    write(buffers_.home_data(id));
    return;
  }
  std::byte* const staging = ahead.next(buffers_.bytes(id));
  write(staging);
  if (home == Tier::disk) {
    ahead.carry([this, id, staging] { buffers_.write_to_disk(id, staging); });
    return;
  }
  ahead.carry([this, id, staging] {
    const auto stream = backend_.make_stream();
    const auto event = backend_.make_event();
    backend_.copy(buffers_.home_data(id), staging, buffers_.bytes(id), *stream);
    backend_.record(*event, *stream);
    backend_.synchronize(*event);
  });
}

bool Storage::reads_files(bool of_copy) const {
  for (std::uint32_t unit = 0; unit < units_.size(); ++unit)
    if (buffers_.home(buffer(unit)) == Tier::disk && (of_copy ? copied(unit) : weights_.in_files(unit))) return true;
  return false;
}

std::size_t Storage::shift(std::size_t unit) const {
  return backend_.device_is_host_memory() ? 0 : weights_.shift(unit);
}

std::byte* Storage::place(std::uint32_t subject, std::uint32_t slot, offload::WindowId window) const {
  return slot == kNoSlot ? buffers_.home_data(buffer(subject)) : buffers_.slot(window, static_cast<int>(slot));
}

UnitViews Storage::unit(int unit, std::uint32_t slot, int expert) const {
  const auto index = static_cast<std::uint32_t>(unit);
  const std::byte* const at = place(index, slot, unit_window_);
  if (!at) return {};  // a table on the disk, whose rows are gathered
  return weights_.views(index, at - shift(index), expert);
}

std::vector<std::array<View, policy::kRoles>> Storage::unpacked(std::uint32_t sublayer,
                                                                std::span<const UnitViews> unit) const {
  if (!footprint_.shape.unpacks_for(sublayer)) return {};
  const policy::UnpackedLayout& layout = footprint_.workspace.unpacked;
  const std::size_t space = footprint_.shape.unpacked_space(sublayer);
  offload::Arena arena(buffers_.home_data(unpacked_) + layout.at[space], layout.size[space], Tier::device);
  std::vector<std::array<View, policy::kRoles>> views(unit.size());
  for (std::size_t expert = 0; expert < unit.size(); ++expert)
    for (std::size_t role = 0; role < policy::kRoles; ++role) {
      const ConstView& packed = unit[expert][role];
      if (!is_quantised(packed.dtype)) continue;
      views[expert][role] =
          View(arena.at(take_unpacked(arena, packed.rows * packed.cols)), DType::f16, packed.rows, packed.cols);
    }
  return views;
}

HeadRunSlots Storage::kv(int layer, int batch, std::uint32_t slot, bool prefill) const {
  HeadRunSlots slots = runs(layer, place(footprint_.shape.kv_buffer(layer, batch), slot, kv_window_));
  if (const int lender = footprint_.lender(layer); lender != layer) {
    const HeadRunSlots lent = runs(lender, buffers_.home_data(buffer(footprint_.shape.kv_buffer(lender, batch))));
    for (std::size_t run = 0; run < slots.size(); ++run) slots[run].k = lent[run].k, slots[run].v = lent[run].v;
  }
  if (prefill) return slots;
  const HeadRunSlots home = kv_home(layer, batch);
  for (std::size_t run = 0; run < home.size(); ++run)
    slots[run].low_k = home[run].low_k, slots[run].low_v = home[run].low_v;
  return slots;
}

HeadRunSlots Storage::kv_home(int layer, int batch) const {
  const BufferId id = buffer(footprint_.shape.kv_buffer(layer, batch));
  if (buffers_.home(id) != Tier::host) return {};
  return runs(layer, buffers_.home_data(id));
}

HeadRunSlots Storage::host_kv(int layer, int batch, std::uint32_t slot) const {
  return runs(layer, place(footprint_.shape.kv_buffer(layer, batch), slot, host_kv_window_));
}

HeadRunSlots Storage::runs(int layer, std::byte* buffer) const {
  HeadRunSlots runs;
  for (const offload::KvShape& shape : footprint_.kv_runs(layer)) {
    runs.push_back(shape.view(buffer));
    buffer += shape.bytes();
  }
  return runs;
}

std::byte* Storage::idle_kv_window() const {
  const std::vector<Tier>& homes = footprint_.shape.kv_home;
  if (std::find(homes.begin(), homes.end(), Tier::disk) == homes.end()) return nullptr;
  return buffers_.slot(footprint_.shape.disk_reads_device ? kv_window_ : kv_staging_, 0);
}

std::byte* Storage::hidden_place(const Op& op) const {
  const policy::ScheduleShape& shape = footprint_.shape;
  const std::uint32_t buffer = shape.activation_buffer(shape.hidden_place(op.batch, op.prefill));
  return place(buffer, op.activation_slot, activation_window_);
}

HiddenRows Storage::hidden(const Op& op, std::int64_t tokens) const {
  return hidden_rows(model_, footprint_.types, hidden_place(op), tokens, footprint_.shape.sublayers[op.subject].layer);
}

RoutedBatch Storage::routed(const Op& op, std::int64_t tokens) const {
  const policy::HiddenLayout layout = policy::hidden_layout(model_, footprint_.types, tokens);
  const auto view = [&](const policy::HiddenLayout::Part& part) {
    const policy::ValueShape& shape = part.shape;
    return shape.rows > 0 ? View(hidden_place(op) + part.offset, shape.dtype, shape.rows, shape.cols) : View();
  };
  std::byte* const at = buffers_.home_data(routing_) + op.batch * footprint_.workspace.routing;
  const std::span<std::int32_t> choices = this->choices(op.batch, tokens);
  return {.mlp_input = view(layout.mlp_input),
          .mlp_output = view(layout.mlp_output),
          .expert_sum = view(layout.expert_sum),
          .expert = choices,
          .weight = {reinterpret_cast<float*>(at + footprint_.workspace.routing / 2), choices.size()}};
}

std::span<std::int32_t> Storage::choices(int batch, std::int64_t tokens) const {
  std::byte* const at = buffers_.home_data(routing_) + static_cast<std::size_t>(batch) * footprint_.workspace.routing;
  return {reinterpret_cast<std::int32_t*>(at), static_cast<std::size_t>(tokens * model_.experts.chosen)};
}

View Storage::experts_input() const {
  const policy::HostExpertsLayout& layout = footprint_.workspace.host_experts;
  const auto shape =
      policy::shape_of(policy::Value::mlp_input, model_, footprint_.types, footprint_.shape.batches * layout.rows);
  return {buffers_.home_data(experts_) + layout.input, shape.dtype, shape.rows, shape.cols};
}

View Storage::experts_output() const {
  const policy::HostExpertsLayout& layout = footprint_.workspace.host_experts;
  const auto shape = policy::shape_of(policy::Value::expert_output, model_, footprint_.types, layout.made);
  return {buffers_.home_data(experts_) + layout.output, shape.dtype, shape.rows, shape.cols};
}

std::span<std::byte> Storage::experts_workspace() const {
  const policy::HostExpertsLayout& layout = footprint_.workspace.host_experts;
  return {buffers_.home_data(experts_) + layout.work, layout.bytes - layout.work};
}

void Storage::set_rows(const Op& op, std::int64_t tokens, std::int64_t begun) {
  const std::uint64_t room = op.prefill ? footprint_.prefill_hidden_bytes : footprint_.decode_hidden_bytes;
  if (policy::hidden_layout(model_, footprint_.types, tokens).bytes > room)
    throw std::logic_error("a sweep of " + std::to_string(tokens) + " rows has more than its batch has room for");
  tokens_[op.batch] = tokens;
  begun_[op.batch] = begun;
}

std::span<std::byte> Storage::workspace() const { return {buffers_.home_data(workspace_), buffers_.bytes(workspace_)}; }

/// A batch's rows of a matrix that begins at `at` and has a row for each place of the block.
View Storage::rows_of(policy::Value value, std::byte* at, int batch) const {
  const std::int64_t rows = footprint_.gpu_batch_size;
  const auto shape = policy::shape_of(value, model_, footprint_.types, rows * footprint_.shape.batches);
  return View(at, shape.dtype, shape.rows, shape.cols).slice(batch * rows, rows);
}

View Storage::last_hidden(int batch) const {
  return rows_of(policy::Value::last_hidden, buffers_.home_data(output_) + footprint_.workspace.output.last_hidden,
                 batch);
}

View Storage::last_embed(int batch) const {
  return rows_of(policy::Value::last_embed, buffers_.home_data(output_) + footprint_.workspace.output.last_embed,
                 batch);
}

View Storage::logits(int batch) const {
  return rows_of(policy::Value::logits, buffers_.home_data(output_) + footprint_.workspace.output.logits, batch);
}

Exchange Storage::exchange(int batch, bool on_host, int layer) const {
  const policy::ExchangeLayout& layout =
      on_host ? footprint_.workspace.exchange_host : footprint_.workspace.exchange_device;
  std::byte* const base = buffers_.home_data(on_host ? exchange_host_ : exchange_device_);
  const std::int64_t rows = footprint_.gpu_batch_size;
  const auto view = [&](policy::Value value, std::byte* at) {
    const auto shape = policy::shape_of(value, model_, footprint_.types, rows, layer);
    const std::size_t of_batch = policy::widest_shape_of(value, model_, footprint_.types, rows).bytes();
    return View(at + static_cast<std::size_t>(batch) * of_batch, shape.dtype, shape.rows, shape.cols);
  };
  return {view(policy::Value::q, base + layout.q), view(policy::Value::k, base + layout.k),
          view(policy::Value::v, base + layout.v),
          on_host ? view(policy::Value::attended, base + layout.attended) : View{}};
}

void Storage::gather(policy::Unit::Kind kind, std::span<const std::int32_t> ids, View out, kernels::Stream& stream) {
  std::vector<std::int32_t> order(ids.size());  // places in `out`, by id
  std::iota(order.begin(), order.end(), 0);
  const auto id_at = [&](std::size_t i) { return ids[static_cast<std::size_t>(order[i])]; };
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return ids[static_cast<std::size_t>(a)] < ids[static_cast<std::size_t>(b)];
  });
  std::size_t next = 0;
  std::vector<std::int32_t> rows;  // of the current piece
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (units_[unit].kind != kind) continue;
    const policy::TensorSpec& table = units_[unit].tensors.front();
    const std::size_t first = next;
    rows.clear();
    for (; next < ids.size() && id_at(next) < table.first_row + table.rows; ++next)
      rows.push_back(static_cast<std::int32_t>(id_at(next) - table.first_row));
    if (rows.empty()) continue;
    const std::byte* const home = buffers_.home_data(buffer(static_cast<std::uint32_t>(unit)));
    const ConstView piece = home ? ConstView(home - shift(unit) + weights_.tensor_offset(unit, table.role),
                                             weights_.tensor_dtype(unit, table.role), table.rows, table.cols)
                                 : read_rows(unit, table, rows);
    const std::span<const std::int32_t> to = std::span(order).subspan(first, next - first);
    backend_.ops().run(kernels::Gather{.table = piece, .ids = rows, .to = to, .out = out}, stream);
    if (!home) backend_.record(*gathered_, stream);
  }
}

/// Reads the rows `ids`, ascending, of a piece on disk, each row once. Renumbers `ids` to the rows that were read.
ConstView Storage::read_rows(std::size_t unit, const policy::TensorSpec& table, std::span<std::int32_t> ids) {
  backend_.synchronize(*gathered_);
  const DType dtype = weights_.tensor_dtype(unit, table.role);
  const std::size_t row_bytes = bytes_of(dtype, table.cols);
  std::byte* const to = buffers_.home_data(gather_);
  std::vector<offload::BufferStore::PartRead> reads;
  std::int32_t last = -1;
  for (std::int32_t& id : ids) {
    if (id != last)
      reads.push_back({weights_.tensor_offset(unit, table.role) + static_cast<std::size_t>(id) * row_bytes, row_bytes,
                       to + reads.size() * row_bytes});
    last = id;
    id = static_cast<std::int32_t>(reads.size()) - 1;
  }
  buffers_.read_parts(buffer(static_cast<std::uint32_t>(unit)), reads);
  return {to, dtype, static_cast<std::int64_t>(reads.size()), table.cols};
}

}  // namespace weft::runtime
