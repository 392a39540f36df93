#include "policy/schedule/schedule.h"

#include <algorithm>
#include <array>
#include <utility>

namespace weft::policy {
namespace {

constexpr std::uint32_t kNone = UINT32_MAX;
using Clock = std::array<std::uint32_t, offload::kLanes.size()>;  // per lane: 1 + the last op known to have ended

/// A window in the generator: the next slot in turn, and the op after which each slot may be refilled.
struct SlotRing {
  std::vector<std::uint32_t> last_user;
  std::uint32_t turn = 0;
  explicit SlotRing(std::uint32_t slots) : last_user(slots, kNone) {}
  std::uint32_t take() {
    const std::uint32_t slot = turn;
    turn = (turn + 1) % static_cast<std::uint32_t>(last_user.size());
    return slot;
  }
};

class Generator {
 public:
  explicit Generator(const ScheduleShape& shape)
      : shape_(shape), unit_(shape.slots.unit), kv_(shape.slots.kv), activation_(shape.slots.activation),
        unit_staging_(shape.slots.unit_staging), kv_staging_(shape.slots.kv_staging),
        activation_staging_(shape.slots.activation_staging), host_kv_(shape.slots.host_kv),
        stored_(shape.buffers(), kNone), lane_clock_() {}

  Schedule run(std::uint32_t first_sweep, std::uint32_t sweeps) {
    for (sweep_ = first_sweep; sweep_ < first_sweep + sweeps; ++sweep_) {
      const int size = shape_.batches_of_pass(sweep_ == 0);
      for (int first = 0; first < shape_.batches; first += size) pass(first, std::min(first + size, shape_.batches));
    }
    return std::move(schedule_);
  }

 private:
  /// The batches from `first` to before `end` through all sublayers.
  void pass(int first, int end) {
    first_of_pass_ = first;
    for (std::uint32_t s = 0; s < shape_.sublayers.size();)
      s = host_attends(s) ? layers_of_batches(s) : sublayer(s, first, end);
  }
  bool on_host(int layer, int batch) const { return shape_.attended_on_host(layer, batch, sweep_ == 0); }
  /// Whether the host attends any batch in the layers that start at sublayer `s`.
  bool host_attends(std::uint32_t s) const {
    return sweep_ > 0 && shape_.sublayers[s].kind == Sublayer::Kind::attention && shape_.any_attended_on_host();
  }
  Tier kv_home(int layer, int batch) const { return shape_.kv_home[shape_.kv_index(layer, batch)]; }

  /// Appends an op with the dependencies of `after` that nothing else implies. Skips kNone entries.
  std::uint32_t add(Op op, std::initializer_list<std::uint32_t> after) {
    Clock known = lane_clock_[index(op.lane)];
    std::vector<std::uint32_t> deps(after);
    std::sort(deps.rbegin(), deps.rend());
    op.sweep = sweep_;
    op.prefill = sweep_ == 0;
    op.first_dep = static_cast<std::uint32_t>(schedule_.deps.size());
    for (const std::uint32_t dep : deps) {
      if (dep == kNone || known[index(schedule_.ops[dep].lane)] > dep) continue;
      schedule_.deps.push_back(dep);
      for (std::size_t l = 0; l < known.size(); ++l) known[l] = std::max(known[l], clocks_[dep][l]);
    }
    op.dep_count = static_cast<std::uint32_t>(schedule_.deps.size()) - op.first_dep;
    const auto id = static_cast<std::uint32_t>(schedule_.ops.size());
    known[index(op.lane)] = id + 1;
    clocks_.push_back(known);
    lane_clock_[index(op.lane)] = known;
    schedule_.ops.push_back(op);
    return id;
  }

  std::uint32_t load(Lane lane, int batch, std::uint32_t buffer, std::uint32_t from, std::uint32_t to,
                     std::initializer_list<std::uint32_t> after) {
    return add({.kind = Op::Kind::load,
                .lane = lane,
                .batch = static_cast<std::uint16_t>(batch),
                .subject = buffer,
                .from = from,
                .to = to,
                .router = router_of(buffer)},
               after);
  }
  std::uint32_t router_of(std::uint32_t buffer) const { return buffer == experts_ ? router_ : kNone; }
  std::uint32_t store(Lane lane, int batch, std::uint32_t buffer, std::uint32_t from, std::uint32_t to,
                      std::initializer_list<std::uint32_t> after) {
    return add({.kind = Op::Kind::store,
                .lane = lane,
                .batch = static_cast<std::uint16_t>(batch),
                .subject = buffer,
                .from = from,
                .to = to},
               after);
  }

  /// Brings a buffer from its home into a slot of a device window.
  std::uint32_t load_buffer(Tier home, int batch, std::uint32_t buffer, SlotRing& window, SlotRing& staging,
                            std::uint32_t slot) {
    const std::uint32_t written = stored_[buffer];
    if (home == Tier::host)
      return load(Lane::host_to_device, batch, buffer, kNoSlot, slot, {window.last_user[slot], written});
    if (shape_.disk_reads_device)
      return load(Lane::disk_read, batch, buffer, kNoSlot, slot, {window.last_user[slot], written});
    const std::uint32_t stage = staging.take();
    const std::uint32_t read =
        load(Lane::disk_read, batch, buffer, kNoSlot, stage, {staging.last_user[stage], written});
    return staging.last_user[stage] =
               load(Lane::host_to_device, batch, buffer, stage, slot, {read, window.last_user[slot]});
  }

  /// Takes a buffer home from a slot of a device window, after `compute`.
  void store_buffer(Tier home, int batch, std::uint32_t buffer, SlotRing& window, SlotRing& staging, std::uint32_t slot,
                    std::uint32_t compute) {
    std::uint32_t last;
    if (home == Tier::host) {
      last = window.last_user[slot] = store(Lane::device_to_host, batch, buffer, slot, kNoSlot, {compute});
    } else if (shape_.disk_reads_device) {
      last = window.last_user[slot] = store(Lane::disk_write, batch, buffer, slot, kNoSlot, {compute});
    } else {
      const std::uint32_t stage = staging.take();
      window.last_user[slot] =
          store(Lane::device_to_host, batch, buffer, slot, stage, {compute, staging.last_user[stage]});
      last = staging.last_user[stage] =
          store(Lane::disk_write, batch, buffer, stage, kNoSlot, {window.last_user[slot]});
    }
    stored_[buffer] = last;
  }

  /// A sublayer's unit ready for use: its window slot (none if resident), the op that loads it, and whether it still
  /// has to be unpacked.
  struct Loaded {
    std::uint32_t slot = kNoSlot, ready = kNone;
    bool packed = false;
  };
  Loaded load_unit(std::uint32_t s) {
    const int unit = shape_.sublayers[s].unit;
    if (unit < 0) return {};
    const bool packed = shape_.unpacks_for(s);
    const Tier home = shape_.unit_home[static_cast<std::size_t>(unit)];
    if (home == Tier::device) return {.packed = packed};
    const std::uint32_t slot = unit_.take();
    const auto buffer = static_cast<std::uint32_t>(unit);
    if (is_kind(s, Sublayer::Kind::experts)) experts_ = buffer;
    return {slot, load_buffer(home, first_of_pass_, buffer, unit_, unit_staging_, slot), packed};
  }
  /// Call it right before the first use, so that no gpu batch waits for a unit that only later ones need.
  void unpack(std::uint32_t s, Loaded& unit) {
    if (!unit.packed) return;
    unit.packed = false;
    unit.ready = add({.kind = Op::Kind::compute,
                      .part = Op::Part::unpack,
                      .lane = Lane::device_compute,
                      .batch = static_cast<std::uint16_t>(first_of_pass_),
                      .subject = s,
                      .unit_slot = unit.slot},
                     {unit.ready});
  }
  void used(const Loaded& unit, std::uint32_t last) {
    if (unit.slot != kNoSlot) unit_.last_user[unit.slot] = last;
  }

  /// The batches of a pass through one sublayer. Returns the next one.
  std::uint32_t sublayer(std::uint32_t s, int first, int end) {
    if (shape_.computed_on_host(s, sweep_ == 0)) return experts_on_host(s);
    Loaded unit = load_unit(s);
    unpack(s, unit);
    std::uint32_t last = kNone;
    for (int batch = first; batch < end; ++batch) last = compute(s, batch, Op::Part::whole, unit, {});
    used(unit, last);
    return s + 1;
  }

  /// Experts that the host computes for all batches at once, where their weights lie, while the device is busy with
  /// those before them. Returns the next sublayer. The device adds what they made in their turn, so that a row's sum
  /// has one order wherever its experts are computed.
  std::uint32_t experts_on_host(std::uint32_t s) {
    const std::uint32_t made =
        add({.kind = Op::Kind::compute, .part = Op::Part::core, .lane = Lane::host_compute, .subject = s}, {sent_});
    for (int batch = 0; batch < shape_.batches; ++batch) compute(s, batch, Op::Part::out, Loaded{kNoSlot, made}, {});
    return s + 1;
  }

  bool is_kind(std::uint32_t s, Sublayer::Kind kind) const {
    return s < shape_.sublayers.size() && shape_.sublayers[s].kind == kind;
  }

  /// An attention sublayer, its unit, and for each batch the host's op, if the host attends it.
  struct Attending {
    std::uint32_t sublayer = kNone;
    Loaded unit = {};
    std::vector<std::uint32_t> on_host;
  };
  void begin_attention(Attending& layer, int batch) {
    const std::uint32_t s = layer.sublayer;
    unpack(s, layer.unit);
    const int number = shape_.sublayers[s].layer;
    if (on_host(number, batch))
      layer.on_host[static_cast<std::size_t>(batch)] = attend_on_host(s, number, batch, layer.unit);
    else used(layer.unit, compute(s, batch, Op::Part::whole, layer.unit, {}));
  }
  void end_attention(const Attending& layer, int batch) {
    const std::uint32_t result = layer.on_host[static_cast<std::size_t>(batch)];
    if (result == kNone) return;
    used(layer.unit, compute(layer.sublayer, batch, Op::Part::out, Loaded{layer.unit.slot, result}, {}));
  }
  Attending attending(std::uint32_t s) {
    return {s, load_unit(s), std::vector<std::uint32_t>(static_cast<std::size_t>(shape_.batches), kNone)};
  }

  /// Decode through all layers, beginning with the attention of the first one, `s`. Returns the sublayer after them.
  /// Three units are in use at once: those of the last attention, the mlp and the next attention. With a parallel
  /// residual the mlp is part of the attention sublayer. Experts run for all batches, one unit after another; the next
  /// attention begins after them.
  std::uint32_t layers_of_batches(std::uint32_t s) {
    using Kind = Sublayer::Kind;
    Attending layer = attending(s);
    for (int batch = 0; batch < shape_.batches; ++batch) begin_attention(layer, batch);
    for (bool more = true; more;) {
      ++s;
      const bool has_mlp = is_kind(s, Kind::mlp);
      const std::uint32_t mlp = s;
      Loaded mlp_unit = has_mlp ? load_unit(mlp) : Loaded{};
      if (has_mlp) ++s;
      const bool sparse = is_kind(s, Kind::experts);
      more = is_kind(s, Kind::attention);
      Attending next = more ? attending(s) : Attending{};
      for (int batch = 0; batch < shape_.batches; ++batch) {
        end_attention(layer, batch);
        if (has_mlp) {
          unpack(mlp, mlp_unit);
          used(mlp_unit, compute(mlp, batch, Op::Part::whole, mlp_unit, {}));
        }
        if (more) begin_attention(next, batch);
      }
      if (sparse) {
        while (is_kind(s, Kind::experts)) s = sublayer(s, 0, shape_.batches);
        more = is_kind(s, Kind::attention);
        if (more) next = attending(s);
        for (int batch = 0; more && batch < shape_.batches; ++batch) begin_attention(next, batch);
      }
      layer = std::move(next);
    }
    return s;
  }

  /// The rows go to the host and are attended there. Returns that op; the device reads the results in host memory.
  /// Before that, the device attends prompts that join the sweep and writes their kept tokens to the host.
  std::uint32_t attend_on_host(std::uint32_t s, int layer, int batch, const Loaded& unit) {
    const std::uint32_t exchange = shape_.exchange_buffer(batch), kv = shape_.kv_buffer(layer, batch);
    const bool from_disk = kv_home(layer, batch) == Tier::disk;
    Loaded buffer{kNoSlot, stored_[kv]};
    if (from_disk) {
      buffer.slot = host_kv_.take();
      buffer.ready =
          load(Lane::disk_read, batch, kv, kNoSlot, buffer.slot, {host_kv_.last_user[buffer.slot], stored_[kv]});
    }
    const std::uint32_t projected =
        compute(s, batch, Op::Part::in, unit, {buffer.slot, shape_.refills ? buffer.ready : kNone});
    used(unit, projected);
    const std::uint32_t sent = store(Lane::device_to_host, batch, exchange, kNoSlot, kNoSlot, {projected});
    const std::uint32_t done = add({.kind = Op::Kind::compute,
                                    .part = Op::Part::core,
                                    .lane = Lane::host_compute,
                                    .batch = static_cast<std::uint16_t>(batch),
                                    .subject = s,
                                    .kv_slot = buffer.slot},
                                   {sent, buffer.ready});
    stored_[kv] = done;
    if (from_disk)
      stored_[kv] = host_kv_.last_user[buffer.slot] = store(Lane::disk_write, batch, kv, buffer.slot, kNoSlot, {done});
    return done;
  }

  /// `kv`: the KV of attention whose core runs on the host.
  std::uint32_t compute(std::uint32_t s, int batch, Op::Part part, const Loaded& unit, const Loaded& kv) {
    const Sublayer& sub = shape_.sublayers[s];
    using Kind = Sublayer::Kind;
    Op op{.kind = Op::Kind::compute,
          .part = part,
          .lane = Lane::device_compute,
          .batch = static_cast<std::uint16_t>(batch),
          .subject = s,
          .unit_slot = unit.slot,
          .kv_slot = kv.slot};
    const int hidden_place = shape_.hidden_place(batch, sweep_ == 0);
    const Tier hidden_home = shape_.activation_home[static_cast<std::size_t>(hidden_place)];
    const bool uses_hidden = sub.kind != Kind::head && hidden_home != Tier::device;
    const bool lends =
        sub.kind == Kind::attention && !shape_.lends_kv.empty() && shape_.lends_kv[static_cast<std::size_t>(sub.layer)];
    const bool writes_hidden =
        uses_hidden && sub.kind != Kind::output && (part != Op::Part::in || shape_.refills || lends);
    std::uint32_t hidden = kNone, cache = kv.ready;
    if (uses_hidden) {
      op.activation_slot = activation_.take();
      hidden = sub.kind == Kind::embed ? activation_.last_user[op.activation_slot]
                                       : load_buffer(hidden_home, batch, shape_.activation_buffer(hidden_place),
                                                     activation_, activation_staging_, op.activation_slot);
    }
    const Tier cache_home = sub.kind == Kind::attention ? kv_home(sub.layer, batch) : Tier::device;
    const bool uses_cache = part == Op::Part::whole && cache_home != Tier::device;
    if (uses_cache) {
      op.kv_slot = kv_.take();
      cache = sweep_ == 0
                  ? kv_.last_user[op.kv_slot]
                  : load_buffer(cache_home, batch, shape_.kv_buffer(sub.layer, batch), kv_, kv_staging_, op.kv_slot);
    }
    const std::uint32_t done = add(op, {unit.ready, hidden, cache});
    if (sub.kind == Kind::mlp) router_ = done;
    std::uint32_t last = done;  // the last op that needs the hidden states where they are
    if (shape_.sends_rows(s, sweep_ == 0))
      last = sent_ =
          store(Lane::device_to_host, batch, shape_.routed_buffer(batch), op.activation_slot, kNoSlot, {done});
    if (uses_hidden) {
      activation_.last_user[op.activation_slot] = last;
      if (writes_hidden)
        store_buffer(hidden_home, batch, shape_.activation_buffer(hidden_place), activation_, activation_staging_,
                     op.activation_slot, last);
    }
    if (!uses_cache) return done;
    const std::uint32_t buffer = shape_.kv_buffer(sub.layer, batch);
    if (sweep_ > 0 && cache_home == Tier::host)
      stored_[buffer] = kv_.last_user[op.kv_slot] = done;  // the op also writes it home
    else store_buffer(cache_home, batch, buffer, kv_, kv_staging_, op.kv_slot, done);
    return done;
  }

  const ScheduleShape& shape_;
  Schedule schedule_;
  SlotRing unit_, kv_, activation_, unit_staging_, kv_staging_, activation_staging_, host_kv_;
  std::vector<std::uint32_t> stored_;  // per buffer: the op that last wrote its home
  std::vector<Clock> clocks_;          // per op: the ops known to have ended when it ends
  std::array<Clock, offload::kLanes.size()> lane_clock_;
  std::uint32_t sweep_ = 0;
  std::uint32_t experts_ = kNone, router_ = kNone;  // the unit of experts that is loaded; the last op of an mlp
  std::uint32_t sent_ = kNone;  // the last op that sends rows of a layer to their experts on the host
  int first_of_pass_ = 0;
};

}  // namespace

Schedule zigzag(const ScheduleShape& shape, std::uint32_t first_sweep, std::uint32_t sweeps) {
  return Generator(shape).run(first_sweep, sweeps);
}

Schedule serialize(Schedule schedule) {
  schedule.deps.clear();
  for (std::uint32_t i = 0; i < schedule.ops.size(); ++i) {
    Op& op = schedule.ops[i];
    const bool chained = i > 0 && schedule.ops[i - 1].lane != op.lane;  // a lane's own order is a chain already
    op.first_dep = static_cast<std::uint32_t>(schedule.deps.size());
    op.dep_count = chained ? 1 : 0;
    if (chained) schedule.deps.push_back(i - 1);
  }
  return schedule;
}

int sweeps_per_segment(const Schedule& prefill) {
  constexpr std::size_t most_ops = 1 << 16, most_sweeps = 64;
  return static_cast<int>(std::clamp<std::size_t>(most_ops / prefill.ops.size(), 1, most_sweeps));
}

Schedule truncate(Schedule schedule, std::uint32_t sweeps) {
  if (schedule.ops.empty()) return schedule;
  const std::uint32_t end = schedule.ops.front().sweep + sweeps;
  std::size_t count = 0;
  while (count < schedule.ops.size() && schedule.ops[count].sweep < end) ++count;
  schedule.ops.resize(count);
  schedule.deps.resize(count == 0 ? 0 : schedule.ops.back().first_dep + schedule.ops.back().dep_count);
  return schedule;
}

}  // namespace weft::policy
