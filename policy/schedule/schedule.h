// policy/schedule/schedule.h: the order of a run as data. FlexGen's zig-zag block schedule (arXiv 2303.06865): the
// sublayers in the outer loop, the gpu batches of the block in the inner one, so that one pass over the weights serves
// the block.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offload/tier.h"
#include "policy/model/model.h"

namespace weft::policy {

using offload::Lane;
using offload::Tier;

inline constexpr std::uint32_t kNoSlot = UINT32_MAX;

/// One load, compute or store. The ops of a lane run in list order; an op starts once its dependencies have ended.
struct Op {
  enum class Kind : std::uint8_t { load, compute, store } kind;
  /// The part of its sublayer that a compute op runs. An attention sublayer whose KV is attended on the host runs in
  /// three parts, the core on host_compute. Experts that the host computes have a core there, one for all gpu batches,
  /// and an out on the device, which adds what they made. unpack precedes the first op that uses a sublayer's unit,
  /// once a sweep for all gpu batches.
  enum class Part : std::uint8_t { whole, in, core, out, unpack } part = Part::whole;
  Lane lane;                     ///< the lane that it occupies
  std::uint32_t sweep = 0;       ///< number of the sweep, counted from the block's prefill
  std::uint16_t batch = 0;       ///< gpu batch of the block; of ops for all batches of a pass the first one
  bool prefill = false;          ///< whether this is the block's first sweep
  std::uint32_t subject = 0;     ///< load, store: a buffer (ScheduleShape numbers them); compute: a sublayer
  std::uint32_t from = kNoSlot;  ///< load, store: the window slot it reads; kNoSlot: the buffer's home
  std::uint32_t to = kNoSlot;    ///< load, store: the window slot it fills; kNoSlot: the buffer's home
  std::uint32_t unit_slot = kNoSlot, kv_slot = kNoSlot, activation_slot = kNoSlot;  ///< compute: its buffers' slots
  /// load of experts: the last op that chooses among them. If it has ended when the load begins, only chosen ones move.
  std::uint32_t router = kNoSlot;
  std::uint32_t first_dep = 0, dep_count = 0;  ///< a range of Schedule::deps, all earlier ops
};

struct Schedule {
  std::vector<Op> ops;
  std::vector<std::uint32_t> deps;
  std::span<const std::uint32_t> deps_of(const Op& op) const {
    return std::span(deps).subspan(op.first_dep, op.dep_count);
  }
};

/// Slots per window. The slots of a window are equally large; a streamed buffer takes the next one in turn.
/// unit, kv and activation are on the device. The staging windows (for disks that cannot read into device memory) and
/// host_kv (for attention on the host over KV from disk) are on the host.
struct WindowSlots {
  std::uint32_t unit = 0, kv = 0, activation = 0;
  std::uint32_t unit_staging = 0, kv_staging = 0, activation_staging = 0, host_kv = 0;
};

/// Everything that determines the order of a run. Buffers are numbered: units, then KV [layer * batches + batch], then
/// hidden states [batch], then the query, key and value rows that go to the host [batch], then the rows whose experts
/// the host computes [batch].
struct ScheduleShape {
  std::vector<Sublayer> sublayers;
  std::vector<Tier> unit_home, kv_home, activation_home;
  std::vector<bool> unpacks = {};  ///< [units] whether the weights are unpacked to 16 bits before use; empty: none are
  int layers = 0, batches = 1;
  std::vector<bool>
      host_attends;  ///< [layer * batches + batch]: attended on the host in decode; false for KV on the device
  /// [units] experts that the host computes in every sweep but the first; their home is the host. Empty: none.
  std::vector<bool> host_computes = {};
  bool disk_reads_device = false;  ///< Backend::device_is_host_memory()
  /// [layers] Whether attention writes keys and values beside the hidden states (ModelSpec::lends_kv()). Empty: none.
  std::vector<bool> lends_kv = {};
  bool refills = false;  ///< prompts join later sweeps; the device attends them even if the host attends in decode
  /// The gpu batches of one pass over the weights in the block's first sweep; 0: all. Those of one pass need room for
  /// the hidden states of their prompts at the same time, those of the next pass take the same buffers.
  int prefill_batches = 0;
  WindowSlots slots;

  std::size_t kv_index(int layer, int batch) const {
    return static_cast<std::size_t>(layer) * static_cast<std::size_t>(batches) + static_cast<std::size_t>(batch);
  }
  bool unpacks_for(std::uint32_t sublayer) const {
    return sublayers[sublayer].unit >= 0 && !unpacks.empty() &&
           unpacks[static_cast<std::size_t>(sublayers[sublayer].unit)];
  }
  /// The space into which a sublayer's unit is unpacked. All share one unless the host attends. Then the units of three
  /// sublayers are in use at once: two attentions and the mlp between them.
  static constexpr std::size_t kUnpackedSpaces = 3;
  std::size_t unpacked_space(std::uint32_t sublayer) const;
  bool any_attended_on_host() const;
  bool attended_on_host(int layer, int batch, bool prefill) const {
    return !prefill && host_attends[kv_index(layer, batch)];
  }
  /// Whether a unit has experts that the host computes.
  bool is_of_host(std::size_t unit) const { return !host_computes.empty() && host_computes[unit]; }
  /// Whether the host computes the experts of a sublayer in this sweep.
  bool computed_on_host(std::uint32_t sublayer, bool prefill) const;
  /// Whether a sublayer is an mlp with such experts behind it, so that its rows go to the host.
  bool sends_rows(std::uint32_t sublayer, bool prefill) const;
  std::uint32_t kv_buffer(int layer, int batch) const {
    return static_cast<std::uint32_t>(unit_home.size()) + static_cast<std::uint32_t>(kv_index(layer, batch));
  }
  std::uint32_t activation_buffer(int batch) const { return kv_buffer(layers, batch); }
  int batches_of_pass(bool prefill) const { return prefill && prefill_batches > 0 ? prefill_batches : batches; }
  /// The batch whose buffer has the hidden states of `batch` in a sweep.
  int hidden_place(int batch, bool prefill) const { return batch % batches_of_pass(prefill); }
  std::uint32_t exchange_buffer(int batch) const {
    return activation_buffer(batches) + static_cast<std::uint32_t>(batch);
  }
  std::uint32_t routed_buffer(int batch) const { return exchange_buffer(batches) + static_cast<std::uint32_t>(batch); }
  std::uint32_t buffers() const { return routed_buffer(batches); }
  /// The fewest slots that this shape needs, plus `ahead` per window to load ahead of use.
  WindowSlots slots_needed(std::uint32_t ahead) const;
};

/// The sweeps [first_sweep, first_sweep + sweeps) of one block. Sweep 0 is its prefill. If the host attends some KV, a
/// gpu batch runs without a break from the end of one layer's attention to the beginning of the next one's. So layers
/// are no barriers: while the host attends one gpu batch, the device works on the others. Between two layers with
/// experts are barriers: the experts serve all gpu batches, one unit after another. Every window that is used
/// must have at least one slot. Sweep 0 is one pass over the weights or several, see ScheduleShape::prefill_batches.
/// The schedule omits dependencies that the lanes' order or another dependency implies.
Schedule zigzag(const ScheduleShape& shape, std::uint32_t first_sweep, std::uint32_t sweeps);

/// The same ops one after another. This is slower; it defines the results that overlap must not change.
Schedule serialize(Schedule schedule);

/// The number of decode sweeps in one segment, given the schedule of prefill. It bounds the memory of a schedule.
/// Between two segments the lanes run empty once.
int sweeps_per_segment(const Schedule& prefill);

/// The ops of the first `sweeps` sweeps.
Schedule truncate(Schedule schedule, std::uint32_t sweeps);

}  // namespace weft::policy
