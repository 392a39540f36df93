// A schedule is checked against a model of memory that knows nothing of how it was made: every slot and home has an
// owner and a version, and every access must be ordered after what it depends on by the lanes' order and the
// dependencies alone.
#include "policy/schedule/schedule.h"

#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <string>
#include <tuple>

#include "policy/layout/placement.h"
#include "policy/schedule/simulate.h"
#include "tests/policy/shapes.h"

using namespace weft;
using namespace weft::policy;
using offload::Lane;
using offload::Tier;

namespace {

enum class Place {
  home,
  unit,
  unpacked,
  kv,
  activation,
  unit_staging,
  kv_staging,
  activation_staging,
  host_kv,
  rows_device,
  rows_host,
  result_host,
  input,  // of experts, behind the hidden states in their window slot
  input_host,
  made_host
};
using Resource = std::tuple<Place, std::uint32_t>;

struct Access {
  Resource resource;
  std::uint32_t block;
  bool reads, writes;
  bool computes = false;  // a write that makes a new version
};

struct Content {
  std::uint32_t block = UINT32_MAX, version = 0, writer = UINT32_MAX;
  std::vector<std::uint32_t> readers;
};

class Checker {
 public:
  Checker(const ScheduleShape& shape, const Schedule& schedule) : shape_(shape), schedule_(schedule) {}

  /// The first fault, or nothing.
  std::string run() {
    std::array<std::array<std::uint32_t, offload::kLanes.size()>, offload::kLanes.size()> lanes{};
    for (std::uint32_t i = 0; i < schedule_.ops.size(); ++i) {
      const Op& op = schedule_.ops[i];
      auto clock = lanes[static_cast<std::size_t>(op.lane)];
      for (const std::uint32_t dep : schedule_.deps_of(op)) {
        if (dep >= i) return fault(i, "depends on a later op");
        for (std::size_t l = 0; l < clock.size(); ++l) clock[l] = std::max(clock[l], clocks_[dep][l]);
      }
      before_ = clock;
      for (const Access& access : accesses(op))
        if (std::string f = apply(i, access); !f.empty()) return f;
      clock[static_cast<std::size_t>(op.lane)] = i + 1;
      lanes[static_cast<std::size_t>(op.lane)] = clock;
      clocks_.push_back(clock);
    }
    return {};
  }

 private:
  static constexpr std::uint32_t kInput = 3000, kMade = 4000;  // blocks with numbers of their own

  /// What experts read of a batch whose hidden states are in `slot` or at home.
  static Resource input_at(std::uint32_t slot, std::uint32_t hidden) {
    return slot == kNoSlot ? Resource{Place::home, hidden + kInput} : Resource{Place::input, slot};
  }
  /// What the host makes of a unit's experts. All layers share that memory.
  static Resource made_at(const Sublayer& sub) {
    return {Place::made_host, static_cast<std::uint32_t>(sub.first_expert)};
  }
  bool is_experts(std::uint32_t sublayer) const {
    return sublayer < shape_.sublayers.size() && shape_.sublayers[sublayer].kind == Sublayer::Kind::experts;
  }
  bool ended(std::uint32_t op) const { return before_[static_cast<std::size_t>(schedule_.ops[op].lane)] > op; }
  static std::string fault(std::uint32_t op, const std::string& what) {
    return "op " + std::to_string(op) + " " + what;
  }

  std::string apply(std::uint32_t op, const Access& access) {
    Content& content = contents_[access.resource];
    const std::uint32_t latest = latest_[access.block];
    if (access.reads) {
      if (content.writer != UINT32_MAX && !ended(content.writer)) return fault(op, "reads what may not be written yet");
      const bool initial = std::get<0>(access.resource) == Place::home && content.writer == UINT32_MAX && latest == 0;
      if (!initial && (content.block != access.block || content.version != latest))
        return fault(op, "reads something else");
    }
    if (access.writes) {
      if (content.writer != UINT32_MAX && !ended(content.writer)) return fault(op, "writes over what is being written");
      for (const std::uint32_t reader : content.readers)
        if (!ended(reader)) return fault(op, "writes over what is being read");
      if (access.computes) ++latest_[access.block];
      content = {access.block, latest_[access.block], op, {}};
    } else {
      content.readers.push_back(op);
    }
    return {};
  }

  std::vector<Access> accesses(const Op& op) const {
    if (op.kind == Op::Kind::compute) return compute_accesses(op);
    const std::uint32_t b = op.subject;
    if (b >= shape_.routed_buffer(0)) {
      const std::uint32_t hidden = shape_.activation_buffer(op.batch);
      return {{input_at(op.from, hidden), hidden + kInput, true, false},
              {{Place::input_host, op.batch}, hidden + kInput, false, true}};
    }
    if (b >= shape_.exchange_buffer(0)) {
      const std::uint32_t k = op.batch;
      return {{{Place::rows_device, k}, b, true, false}, {{Place::rows_host, k}, b, false, true}};
    }
    const bool kv = b >= shape_.kv_buffer(0, 0) && b < shape_.activation_buffer(0), unit = b < shape_.kv_buffer(0, 0);
    const Place device = unit ? Place::unit : kv ? Place::kv : Place::activation;
    const Place staging = unit ? Place::unit_staging : kv ? Place::kv_staging : Place::activation_staging;
    const Place disk_side = kv && op.sweep > 0 && shape_.host_attends[b - shape_.kv_buffer(0, 0)] ? Place::host_kv
                            : shape_.disk_reads_device                                            ? device
                                                                                                  : staging;
    std::vector<Access> list = moves(op, device, staging, disk_side);
    // What experts read moves with the hidden states.
    for (std::size_t i = 0; !unit && !kv && i < 2; ++i) {
      Access with = list[i];
      auto& [place, at] = with.resource;
      if (place == Place::home) at += kInput;
      else if (place == Place::activation) place = Place::input;
      else at += kInput;
      with.block += kInput;
      list.push_back(with);
    }
    return list;
  }

  std::vector<Access> moves(const Op& op, Place device, Place staging, Place disk_side) const {
    const std::uint32_t b = op.subject;
    const auto at = [&](Place place, std::uint32_t slot) {
      return slot == kNoSlot ? Resource{Place::home, b} : Resource{place, slot};
    };
    switch (op.lane) {
      case Lane::disk_read: return {{{Place::home, b}, b, true, false}, {{disk_side, op.to}, b, false, true}};
      case Lane::disk_write: return {{{disk_side, op.from}, b, true, false}, {{Place::home, b}, b, false, true}};
      case Lane::host_to_device: return {{at(staging, op.from), b, true, false}, {{device, op.to}, b, false, true}};
      default: return {{{device, op.from}, b, true, false}, {at(staging, op.to), b, false, true}};
    }
  }

  std::vector<Access> compute_accesses(const Op& op) const {
    const Sublayer& sub = shape_.sublayers[op.subject];
    std::vector<Access> list;
    const auto at = [&](Place place, std::uint32_t slot, std::uint32_t block) {
      return slot == kNoSlot ? Resource{Place::home, block} : Resource{place, slot};
    };
    const std::uint32_t hidden = shape_.activation_buffer(shape_.hidden_place(op.batch, op.prefill)), k = op.batch,
                        exchange = shape_.exchange_buffer(op.batch);
    const bool experts = sub.kind == Sublayer::Kind::experts;
    if (experts && op.part == Op::Part::core) {
      const auto u = static_cast<std::uint32_t>(sub.unit);
      list.push_back({{Place::home, u}, u, true, false});
      for (int batch = 0; batch < shape_.batches; ++batch)
        list.push_back({{Place::input_host, static_cast<std::uint32_t>(batch)},
                        shape_.activation_buffer(batch) + kInput,
                        true,
                        false});
      list.push_back({made_at(sub), u + kMade, false, true, true});
      return list;
    }
    if (experts && op.part == Op::Part::out) {
      const auto u = static_cast<std::uint32_t>(sub.unit);
      list.push_back({made_at(sub), u + kMade, true, false});
      list.push_back({at(Place::activation, op.activation_slot, hidden), hidden, true, true, true});
      return list;
    }
    if (sub.unit >= 0 && op.part != Op::Part::core) {
      const auto u = static_cast<std::uint32_t>(sub.unit);
      list.push_back({at(Place::unit, op.unit_slot, u), u, true, false});
      // Unpacked a unit is another block, with a version for each sweep.
      const Resource space{Place::unpacked, static_cast<std::uint32_t>(shape_.unpacked_space(op.subject))};
      const bool unpacks = op.part == Op::Part::unpack;
      if (unpacks || shape_.unpacks_for(op.subject)) list.push_back({space, u + 2000, !unpacks, unpacks, unpacks});
      if (unpacks) return list;
    }
    const Resource hidden_at = at(Place::activation, op.activation_slot, hidden);
    if (op.part == Op::Part::core) {
      const std::uint32_t kv = shape_.kv_buffer(sub.layer, op.batch);
      list.push_back({{Place::rows_host, k}, exchange, true, false});
      list.push_back({at(Place::host_kv, op.kv_slot, kv), kv, true, true, true});
      list.push_back({{Place::result_host, k}, exchange + 1000, false, true, true});
      return list;
    }
    if (op.part == Op::Part::in) {
      list.push_back({hidden_at, hidden, true, shape_.refills, true});
      const std::uint32_t kv = shape_.kv_buffer(sub.layer, op.batch);
      if (shape_.refills) list.push_back({at(Place::host_kv, op.kv_slot, kv), kv, true, true, true});
      list.push_back({{Place::rows_device, k}, exchange, false, true, true});
      return list;
    }
    if (op.part == Op::Part::out) list.push_back({{Place::result_host, k}, exchange + 1000, true, false});
    if (sub.kind == Sublayer::Kind::attention && op.part == Op::Part::whole) {
      const std::uint32_t kv = shape_.kv_buffer(sub.layer, op.batch);
      list.push_back({at(Place::kv, op.kv_slot, kv), kv, op.sweep > 0, true, true});
      const bool at_host = shape_.kv_home[kv - shape_.kv_buffer(0, 0)] == Tier::host;
      if (at_host && op.sweep > 0) list.push_back({{Place::home, kv}, kv, false, true});  // what the step changed
    }
    const bool routes = is_experts(op.subject + 1) && sub.kind == Sublayer::Kind::mlp;
    if (routes || experts || sub.kind == Sublayer::Kind::embed)
      list.push_back({input_at(op.activation_slot, hidden), hidden + kInput, experts, !experts, !experts});
    if (sub.kind == Sublayer::Kind::output) list.push_back({hidden_at, hidden, true, false});
    else if (sub.kind != Sublayer::Kind::head)
      list.push_back({hidden_at, hidden, sub.kind != Sublayer::Kind::embed, true, true});
    return list;
  }

  const ScheduleShape& shape_;
  const Schedule& schedule_;
  std::map<Resource, Content> contents_;
  std::map<std::uint32_t, std::uint32_t> latest_;
  std::vector<std::array<std::uint32_t, offload::kLanes.size()>> clocks_;
  std::array<std::uint32_t, offload::kLanes.size()> before_{};
};

std::string check(const ScheduleShape& shape, const Schedule& schedule) { return Checker(shape, schedule).run(); }

Schedule without_dep(const Schedule& schedule, std::size_t dep) {
  Schedule copy = schedule;
  copy.deps.erase(copy.deps.begin() + static_cast<std::ptrdiff_t>(dep));
  for (Op& op : copy.ops) {
    if (op.first_dep > dep) --op.first_dep;
    else if (dep < op.first_dep + op.dep_count) --op.dep_count;
  }
  return copy;
}

}  // namespace

TEST_CASE("a schedule orders every access, and none of its dependencies can be spared", "[policy]") {
  std::mt19937 random(GENERATE(range(1, 61)));
  const ScheduleShape shape = test::random_shape(random);
  const Schedule schedule = zigzag(shape, 0, 3);
  CAPTURE(shape.batches, shape.layers, shape.host_attends, shape.disk_reads_device, shape.refills, schedule.ops.size(),
          schedule.deps.size());
  REQUIRE(check(shape, schedule) == "");
  for (std::size_t dep = 0; dep < schedule.deps.size(); ++dep) {
    CAPTURE(dep);
    REQUIRE(check(shape, without_dep(schedule, dep)) != "");
  }
}

TEST_CASE("prefill loads every streamed unit once a pass, for the batches of the pass", "[policy]") {
  std::mt19937 random(GENERATE(range(1, 61)));
  const ScheduleShape shape = test::random_shape(random);
  const auto passes =
      static_cast<std::size_t>((shape.batches + shape.batches_of_pass(true) - 1) / shape.batches_of_pass(true));
  std::array<std::size_t, 2> loads{};                 // of units, by sweep
  std::map<std::uint32_t, std::vector<int>> batches;  // by sublayer, in the order of prefill
  std::map<std::uint32_t, int> decode_loads;          // by unit
  for (const Op& op : zigzag(shape, 0, 2).ops) {
    if (op.kind == Op::Kind::load && op.subject < shape.kv_buffer(0, 0) && op.to != kNoSlot &&
        (op.lane == Lane::host_to_device || shape.disk_reads_device)) {
      if (!shape.is_of_host(op.subject)) ++loads[op.sweep];
      if (op.sweep == 1) CHECK(++decode_loads[op.subject] == 1);
    }
    if (op.kind == Op::Kind::compute && op.part == Op::Part::whole && op.prefill)
      batches[op.subject].push_back(op.batch);
    if (op.prefill && op.subject >= shape.activation_buffer(0) && op.kind != Op::Kind::compute)
      CHECK(op.subject < shape.activation_buffer(shape.batches_of_pass(true)));
  }
  CHECK(loads[0] == passes * loads[1]);
  for (const auto& [sublayer, order] : batches) {
    CAPTURE(sublayer);
    REQUIRE(order.size() == static_cast<std::size_t>(shape.batches));
    for (std::size_t i = 0; i < order.size(); ++i) CHECK(order[i] == static_cast<int>(i));
  }
}

TEST_CASE("experts of the host are loaded in the first sweep alone, then computed once a sweep and added in their turn",
          "[policy][experts]") {
  std::mt19937 random(GENERATE(range(1, 121)));
  const ScheduleShape shape = test::random_shape(random);
  CAPTURE(shape.batches, shape.layers, shape.host_computes);
  std::map<std::uint32_t, int> cores;              // by sublayer
  std::map<int, std::vector<std::uint32_t>> adds;  // by batch: sublayers of experts, in the device's order
  for (const Op& op : zigzag(shape, 0, 2).ops) {
    if (op.sweep == 0) {
      CHECK(op.lane != Lane::host_compute);
      continue;
    }
    if (op.kind != Op::Kind::compute) {
      if (op.subject < shape.kv_buffer(0, 0)) CHECK_FALSE(shape.is_of_host(op.subject));
      continue;
    }
    if (shape.sublayers[op.subject].kind != Sublayer::Kind::experts) continue;
    const bool on_host = shape.computed_on_host(op.subject, false);
    if (op.part == Op::Part::core) {
      CHECK(on_host);
      CHECK(op.lane == Lane::host_compute);
      ++cores[op.subject];
    } else if (op.part != Op::Part::unpack) {
      CHECK(op.part == (on_host ? Op::Part::out : Op::Part::whole));
      CHECK((!on_host || op.unit_slot == kNoSlot));
      adds[op.batch].push_back(op.subject);
    }
  }
  std::vector<std::uint32_t> all;
  for (std::uint32_t s = 0; s < shape.sublayers.size(); ++s) {
    if (shape.sublayers[s].kind == Sublayer::Kind::experts) all.push_back(s);
    CHECK(cores[s] == (shape.computed_on_host(s, false) ? 1 : 0));
  }
  for (const auto& [batch, order] : adds) CHECK(order == all);
}

TEST_CASE("a sweep unpacks every unit that is to be unpacked once, before any batch uses it", "[policy]") {
  std::mt19937 random(GENERATE(range(1, 61)));
  const ScheduleShape shape = test::random_shape(random);
  const auto passes = [&](bool prefill) { return (shape.batches - 1) / shape.batches_of_pass(prefill) + 1; };
  std::map<std::tuple<std::uint32_t, int, std::uint32_t>, int> unpacked;  // by sweep, pass and sublayer
  for (const Op& op : zigzag(shape, 0, 3).ops) {
    if (op.kind != Op::Kind::compute || op.part == Op::Part::core || !shape.unpacks_for(op.subject) ||
        shape.computed_on_host(op.subject, op.prefill))
      continue;
    int& times = unpacked[{op.sweep, op.batch / shape.batches_of_pass(op.prefill), op.subject}];
    if (op.part == Op::Part::unpack) ++times;
    CHECK(times == 1);
  }
  std::size_t wanted = 0;
  for (std::uint32_t s = 0; s < shape.sublayers.size(); ++s)
    if (shape.unpacks_for(s)) wanted += passes(true) + (shape.computed_on_host(s, false) ? 0 : 2);
  CHECK(unpacked.size() == wanted);
}

TEST_CASE("a serialized schedule is the same ops, one after another", "[policy]") {
  std::mt19937 random(GENERATE(range(1, 21)));
  const ScheduleShape shape = test::random_shape(random);
  const Schedule plain = zigzag(shape, 0, 3), serial = serialize(plain);
  CHECK(check(shape, serial) == "");
  REQUIRE(plain.ops.size() == serial.ops.size());
  const auto second = [](const Op&, bool) { return 1.0; };
  const Trace trace = simulate(serial, second);
  for (std::size_t i = 0; i < serial.ops.size(); ++i) CHECK(trace.spans[i].begin == double(i));
  CHECK(simulate(plain, second).seconds() <= trace.seconds());
}

TEST_CASE("truncating keeps the first sweeps, and a schedule continues where another ended", "[policy]") {
  std::mt19937 random(7);
  const ScheduleShape shape = test::random_shape(random);
  const Schedule all = zigzag(shape, 0, 4), part = truncate(all, 2);
  REQUIRE(!part.ops.empty());
  CHECK(part.ops.back().sweep == 1);
  CHECK(all.ops[part.ops.size()].sweep == 2);
  CHECK(check(shape, part) == "");
  CHECK(zigzag(shape, 2, 2).ops.size() + part.ops.size() == all.ops.size());
}

TEST_CASE("the simulator keeps lanes busy one op at a time and waits for dependencies", "[policy]") {
  std::mt19937 random(GENERATE(range(1, 11)));
  const ScheduleShape shape = test::random_shape(random);
  const Schedule schedule = zigzag(shape, 0, 3);
  std::uniform_real_distribution<double> length(0.1, 2);
  std::vector<double> cost(schedule.ops.size());
  for (double& c : cost) c = length(random);
  std::size_t next = 0;
  const Trace trace = simulate(schedule, [&](const Op&, bool) { return cost[next++]; });
  std::array<double, offload::kLanes.size()> end{};
  for (std::size_t i = 0; i < schedule.ops.size(); ++i) {
    const auto lane = static_cast<std::size_t>(schedule.ops[i].lane);
    CHECK(trace.spans[i].begin >= end[lane]);
    for (const std::uint32_t dep : schedule.deps_of(schedule.ops[i]))
      CHECK(trace.spans[i].begin >= trace.spans[dep].end);
    CHECK(trace.spans[i].end == trace.spans[i].begin + cost[i]);
    end[lane] = trace.spans[i].end;
  }
}
