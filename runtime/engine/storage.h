// runtime/engine/storage.h: the memory of a run: all buffers, windows and work spaces of a footprint, and how to reach
// them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "offload/buffer_store.h"
#include "offload/kv_layout.h"
#include "policy/layout/footprint.h"
#include "runtime/base/fill_ahead.h"
#include "runtime/engine/layer_data.h"
#include "runtime/model/model_source.h"

namespace weft::runtime {

/// Called with the share of the weights that has been brought to its home.
using OnLoaded = std::function<void(double share)>;

/// Says once that weights will be quantised for more than a minute longer.
class SlowQuantising {
 public:
  explicit SlowQuantising(std::int64_t weights) : left_(weights) {}
  /// So many of the weights were quantised in so many seconds. Returns the seconds that the rest takes at the rate so
  /// far, the first time that these are over a minute; nothing before the rate is that of two seconds.
  std::optional<double> add(std::int64_t weights, double seconds);

 private:
  std::int64_t left_, done_ = 0;
  double seconds_ = 0;
  bool said_ = false;
};

/// Allocates exactly what the footprint counted and brings the weights to their homes. Afterwards no address changes.
/// The schedule decides when a buffer may be used; nothing here synchronises.
class Storage : public TableRows {
 public:
  /// All references but `stop` must outlive the storage. `copy` holds the units that the checkpoint does not have as
  /// they are used, packed; it may be null. Throws CapacityError, IoError, DataError or Interrupted; nothing is left
  /// behind then.
  Storage(const ModelSource& source, const PackedCopy* copy, const policy::Footprint& footprint,
          kernels::Backend& backend, offload::DiskStore& disk, const std::string& spill_directory,
          const std::atomic<bool>& stop, const OnLoaded& on_loaded = {});

  /// Whether units are read from the checkpoint's files, or from the packed copy, during the run.
  bool reads_checkpoint() const { return reads_files(false); }
  bool reads_copy() const { return reads_files(true); }
  /// Runs a load or store op of the schedule on the calling lane's thread. Returns the bytes moved.
  std::uint64_t move(const policy::Op& op, kernels::Stream& stream);
  /// The same for a load of a unit of experts of which only some are used. `wanted` has an entry for each of them.
  std::uint64_t move_experts(const policy::Op& op, const std::vector<bool>& wanted, kernels::Stream& stream);

  UnitViews unit(int unit, std::uint32_t slot, int expert = 0) const;
  /// Room for the quantised matrices of the sublayer's unit once unpacked, by role, for each of its experts; a view is
  /// empty for a matrix that stays as it is. No entries if the unit is not unpacked.
  std::vector<std::array<View, policy::kRoles>> unpacked(std::uint32_t sublayer, std::span<const UnitViews> unit) const;
  /// `slot` is of the device window. After the first sweep the low rows of a buffer at home on the host are those
  /// there.
  HeadRunSlots kv(int layer, int batch, std::uint32_t slot, bool prefill) const;
  HeadRunSlots kv_home(int layer, int batch) const;                      ///< empty unless the home is host memory
  HeadRunSlots host_kv(int layer, int batch, std::uint32_t slot) const;  ///< `slot` is of the host window
  /// Host memory with room for a KV buffer, which no op uses between two sweeps; null unless some KV is at home on the
  /// disk.
  std::byte* idle_kv_window() const;
  /// [tokens, hidden] of a compute op's batch, and what its layer finds beside them.
  HiddenRows hidden(const policy::Op& op, std::int64_t tokens) const;
  /// The choices of a sparse layer for a compute op's batch.
  RoutedBatch routed(const policy::Op& op, std::int64_t tokens) const;
  std::span<std::int32_t> choices(int batch, std::int64_t tokens) const;  ///< RoutedBatch::expert alone
  /// Host memory for the experts that the host computes, as policy::HostExpertsLayout has it.
  View experts_input() const;
  View experts_output() const;
  std::span<std::byte> experts_workspace() const;
  /// Sets how many rows the hidden states of a batch have now, and how many of these may go to the host to be attended.
  /// Ops that move them then move that many rows. Throws std::logic_error if there is no room for them.
  void set_rows(const policy::Op& op, std::int64_t tokens, std::int64_t begun);

  std::span<std::byte> workspace() const;  ///< memory for one chunk, on the device
  View last_hidden(int batch) const;       ///< [gpu_batch_size, hidden]
  View last_embed(int batch) const;        ///< [gpu_batch_size, embed]
  View logits(int batch) const;            ///< [gpu_batch_size, vocab]
  /// Rows for attention on the host, [gpu_batch_size, heads * head_dim] each: q, k, v, and the result on the host only.
  Exchange exchange(int batch, bool on_host, int layer) const;

  /// Pieces on disk are read by the calling thread, which must be the device lane's.
  void gather(policy::Unit::Kind kind, std::span<const std::int32_t> ids, View out, kernels::Stream& stream) override;

  const policy::TensorSpec& piece(int unit) const { return units_[static_cast<std::size_t>(unit)].tensors.front(); }
  const offload::BufferStore& buffers() const { return buffers_; }

 private:
  offload::BufferId buffer(std::uint32_t subject) const { return static_cast<offload::BufferId>(subject); }
  bool copied(std::size_t unit) const { return copy_ && copy_->units.has(unit); }
  bool reads_files(bool of_copy) const;
  HeadRunSlots runs(int layer, std::byte* buffer) const;
  std::vector<offload::FilePart> parts(std::size_t unit, std::span<const offload::FileId> files,
                                       std::span<const offload::FileId> copy_files) const;
  void add_buffers(std::span<const offload::FileId> files, std::span<const offload::FileId> copy_files);
  void check_reach() const;
  bool made(std::size_t unit) const;
  void load(const ModelSource& source, const std::atomic<bool>& stop, const OnLoaded& on_loaded);
  void fill(std::size_t unit, const std::atomic<bool>& stop, FillAhead& ahead);
  std::size_t shift(std::size_t unit) const;  // Weights::shift() on a GPU, else 0
  std::byte* place(std::uint32_t subject, std::uint32_t slot, offload::WindowId window) const;
  std::uint64_t exchange_rows(const policy::Op& op, kernels::Stream& stream);
  std::uint64_t bring_without_low_rows(const policy::Op& op, kernels::Stream& stream);
  std::uint64_t routed_rows(const policy::Op& op, kernels::Stream& stream);
  std::uint64_t size_to_move(const policy::Op& op) const;
  View rows_of(policy::Value value, std::byte* at, int batch) const;
  std::byte* hidden_place(const policy::Op& op) const;
  ConstView read_rows(std::size_t unit, const policy::TensorSpec& table, std::span<std::int32_t> ids);

  const policy::ModelSpec& model_;
  const std::vector<policy::Unit>& units_;
  const policy::Footprint& footprint_;
  const Weights& weights_;
  const PackedCopy* const copy_;
  kernels::Backend& backend_;
  offload::BufferStore buffers_;
  offload::WindowId unit_window_{}, kv_window_{}, activation_window_{}, unit_staging_{}, kv_staging_{},
      activation_staging_{}, host_kv_window_{};
  offload::BufferId workspace_{}, output_{}, unpacked_{}, exchange_device_{}, exchange_host_{}, gather_{}, routing_{},
      experts_{};
  std::unique_ptr<kernels::Event> gathered_;               // the last rows read have left the work space
  std::vector<std::atomic<std::int64_t>> tokens_, begun_;  // [batches]
};

}  // namespace weft::runtime
