#include "policy/planner/relaxation.h"

#include <algorithm>
#include <coin/ClpSimplex.hpp>
#include <limits>
#include <optional>

#include "policy/planner/timeline.h"

namespace weft::policy {
namespace {

using offload::Lane;
constexpr std::size_t kLaneCount = offload::kLanes.size();

/// Columns of the program: shares per tier, the share of KV that the host attends, seconds of the first and later
/// sweeps.
enum Column : std::size_t { weights = 0, kv = 3, activations = 6, on_host = 9, first_sweep = 10, sweep = 11, columns };
using Row = std::array<double, columns>;

Row operator+(Row a, const Row& b) {
  for (std::size_t c = 0; c < a.size(); ++c) a[c] += b[c];
  return a;
}
Row operator*(double factor, Row row) {
  for (double& value : row) value *= factor;
  return row;
}

/// Seconds of every lane alone in one sweep, as a linear function of the shares plus a constant.
struct Lanes {
  std::array<Row, kLaneCount> per_share{};
  std::array<double, kLaneCount> constant{};
};

/// The tiers that each kind of buffer may use.
struct Streamed {
  std::array<bool, 3> weights{}, kv{}, activations{};
  bool device_attends = true, host_attends = false;  // to KV off the device
};

/// Even shares of the tiers that may be used. They need every window that any placement within the choice needs.
Fractions even(const std::array<bool, 3>& tiers) {
  const auto count = double(std::count(tiers.begin(), tiers.end(), true));
  Fractions shares;
  for (std::size_t tier = 0; tier < 3; ++tier) shares.of[tier] = tiers[tier] ? 1 / count : 0;
  return shares;
}

/// Whether so many bytes have room in these tiers, of which the disk takes any. A hair too many are left to the program
/// to judge.
bool have_room(double bytes, const std::array<bool, 3>& tiers, const std::array<double, 3>& left) {
  constexpr double hair = 1e-6;
  return tiers[2] || bytes <= (1 + hair) * ((tiers[0] ? left[0] : 0) + (tiers[1] ? left[1] : 0));
}

/// One linear program: `add` rows, then solve.
class LinearProgram {
 public:
  LinearProgram() {
    lower_.fill(0);
    upper_.fill(1);
    upper_[first_sweep] = upper_[sweep] = std::numeric_limits<double>::infinity();
  }
  void forbid(std::size_t column) { upper_[column] = 0; }
  void fix(std::size_t column, double value) { lower_[column] = upper_[column] = value; }
  void add(const Row& row, double low, double high) {
    rows_.push_back(row);
    low_.push_back(low);
    high_.push_back(high);
  }

  /// By `simplex`, which all programs share, because setting one up takes half as long as solving.
  std::optional<Row> minimize(const Row& objective, ClpSimplex& simplex) const {
    std::vector<int> starts(columns + 1), row_of;
    std::vector<double> values;
    for (std::size_t c = 0; c < columns; ++c) {
      for (std::size_t r = 0; r < rows_.size(); ++r)
        if (rows_[r][c] != 0) row_of.push_back(static_cast<int>(r)), values.push_back(rows_[r][c]);
      starts[c + 1] = static_cast<int>(values.size());
    }
    simplex.loadProblem(static_cast<int>(columns), static_cast<int>(rows_.size()), starts.data(), row_of.data(),
                        values.data(), lower_.data(), upper_.data(), objective.data(), low_.data(), high_.data());
    simplex.dual();
    if (!simplex.isProvenOptimal()) return {};
    Row solution;
    std::copy_n(simplex.primalColumnSolution(), solution.size(), solution.begin());
    return solution;
  }

 private:
  Row lower_, upper_;
  std::vector<Row> rows_;
  std::vector<double> low_, high_;
};

/// One block shape and one set of tiers that may stream.
class Relaxation {
 public:
  Relaxation(const Problem& problem, const Policy& policy, const PartialPolicy& fixed, const Streamed& choice)
      : problem_(problem), fixed_(fixed), choice_(choice), policy_(with_windows(policy, choice)),
        footprint_(footprint(problem.model, problem.units, policy_, problem.work, problem.sizing)),
        cost_(problem.model, problem.units, policy_, footprint_, problem.sizing, problem.machine),
        alike_(footprint_.shape.sublayers.size()) {
    for (const std::uint32_t first : footprint_.first_alike()) ++alike_[first];
  }

  std::optional<Relaxed> solve(ClpSimplex& simplex) const {
    LinearProgram program;
    bound(program);
    if (!add_capacity(program)) return {};
    const Workload& work = problem_.work;
    const double prompt = work.prompt(), slots = double(work.most_slots());
    const std::int64_t block = policy_.block_size();
    // Places that are refilled are taken for as long as an answer is on average; others until the longest has ended.
    const bool refills = policy_.continuous && work.requests && *work.requests > block;
    const double longest = double(work.longest_generation);
    const double count = (refills ? work.generation() : longest) - 1;
    const double alive = refills ? 1 : std::min(1.0, work.generation() / longest);
    const auto live = static_cast<std::int64_t>(std::ceil(double(block) * alive));
    const double visible = (std::min(slots, prompt + 1) + std::min(slots, prompt + count)) / 2;
    const FirstSweep begins = policy::first_sweep(work, policy_.gpu_batch_size, policy_.num_gpu_batches);
    const Lanes prompts = lanes({.prefill = true, .live = block, .tokens = prompt, .own = begins.own});
    Lanes later = lanes({.live = live, .visible = visible});
    // Prompts that take places of others ride on the sweeps of decode: only the first of all rounds has its own sweep.
    double own_sweep = 1;
    if (refills && count >= 1) {
      own_sweep = double(block) / double(*work.requests);
      later.constant[index(Lane::device_compute)] +=
          (1 - own_sweep) / count * prompts.constant[index(Lane::device_compute)];
    }
    add_lanes(program, first_sweep, prompts);
    add_lanes(program, sweep, later);
    Row objective{};
    objective[first_sweep] = own_sweep;
    objective[sweep] = std::max(count, 0.0);
    const auto solved = program.minimize(objective, simplex);
    if (!solved) return {};
    const Row& at = *solved;
    const auto shares = [&](std::size_t first) {
      Fractions fractions{{at[first], at[first + 1], at[first + 2]}};
      for (double& share : fractions.of) share = std::clamp(share, 0.0, 1.0);
      const double sum = fractions.of[0] + fractions.of[1] + fractions.of[2];
      for (double& share : fractions.of) share /= sum;
      return fractions;
    };
    Relaxed result{shares(weights), shares(kv), shares(activations), 0,
                   own_sweep * at[first_sweep] + std::max(count, 0.0) * at[sweep]};
    const double off_device = 1 - result.kv.device();
    if (off_device > 1e-9) result.attention_on_host = std::clamp(at[on_host] / off_device, 0.0, 1.0);
    if (fixed_.attention_on_host) result.attention_on_host = *fixed_.attention_on_host;
    return result;
  }

 private:
  static Policy with_windows(Policy policy, const Streamed& choice) {
    policy.weights = even(choice.weights);
    policy.kv = even(choice.kv);
    policy.activations = even(choice.activations);
    policy.attention_on_host = choice.host_attends ? choice.device_attends ? 0.5 : 1 : 0;
    return policy;
  }

  void bound(LinearProgram& program) const {
    const auto kind = [&](std::size_t first, const std::array<bool, 3>& tiers, const std::optional<Fractions>& shares) {
      Row sum{};
      for (std::size_t tier = 0; tier < 3; ++tier) {
        sum[first + tier] = 1;
        if (shares) program.fix(first + tier, shares->of[tier]);
        else if (!tiers[tier]) program.forbid(first + tier);
      }
      program.add(sum, 1, 1);
    };
    kind(weights, choice_.weights, fixed_.weights);
    kind(kv, choice_.kv, fixed_.kv);
    kind(activations, choice_.activations, fixed_.activations);
    // The host attends a part of the KV off the device.
    Row attended{};
    attended[on_host] = 1;
    const double share = fixed_.attention_on_host.value_or(choice_.host_attends ? 1 : 0);
    attended[kv + 1] = -share;
    attended[kv + 2] = -share;
    const bool all = fixed_.attention_on_host.has_value() || !choice_.device_attends;
    program.add(attended, all ? 0 : -1, 0);
  }

  /// False if the windows alone do not fit or buffers have no room beside them. Most sets of tiers end here and need no
  /// program.
  bool add_capacity(LinearProgram& program) const {
    double unit_bytes = 0, spilled = 0;
    for (std::size_t u = 0; u < problem_.units.size(); ++u) {
      if (footprint_.shape.is_of_host(u)) continue;  // they are a part of Footprint::fixed
      unit_bytes += double(problem_.sizing.unit_bytes[u]);
      if (!problem_.sizing.unit_in_files[u]) spilled += double(problem_.sizing.unit_bytes[u]);
    }
    spilled += double(problem_.sizing.copy_bytes);  // all of it, however few units are there; search.cc asks again
    const double kv_bytes = kv_total(), hidden = double(footprint_.activation_bytes());
    std::array<double, 3> room{};
    std::array<bool, 3> any{};
    for (std::size_t tier = 0; tier < 3; ++tier) {
      room[tier] = double(policy_.budgets.bytes[tier]) - double(footprint_.fixed[tier]);
      any[tier] = choice_.weights[tier] || choice_.kv[tier] || choice_.activations[tier];
      if (room[tier] < 0) return false;
    }
    if (!have_room(unit_bytes, choice_.weights, room) || !have_room(kv_bytes, choice_.kv, room) ||
        !have_room(hidden, choice_.activations, room) || !have_room(unit_bytes + kv_bytes + hidden, any, room))
      return false;
    for (std::size_t tier = 0; tier < 3; ++tier) {
      const auto budget = double(policy_.budgets.bytes[tier]);
      Row row{};
      const double scale = std::max(budget, 1.0);
      row[weights + tier] = (tier == 2 ? spilled : unit_bytes) / scale;
      row[kv + tier] = kv_bytes / scale;
      row[activations + tier] = hidden / scale;
      program.add(row, -std::numeric_limits<double>::infinity(), room[tier] / scale);
    }
    return true;
  }

  double kv_total() const {
    if (!footprint_.layers_alike()) return double(footprint_.kv_bytes());
    return double(footprint_.kv_buffer_bytes(0)) * problem_.model.layers * policy_.num_gpu_batches;
  }
  /// The part of kv_total() that comes to the device if it is at home on the host.
  double kv_from_host() const {
    const int layers = problem_.model.layers;
    if (footprint_.layers_alike()) return double(footprint_.kv_bytes_from_host(0)) * layers * policy_.num_gpu_batches;
    double bytes = 0;
    for (int layer = 0; layer < layers; ++layer) bytes += double(footprint_.kv_bytes_from_host(layer));
    return bytes * policy_.num_gpu_batches;
  }
  double seconds_per_byte(Lane lane) const { return 1 / problem_.machine.bytes_per_second[index(lane)]; }

  Lanes lanes(const Sweep& sweep_of) const {
    Lanes result;
    add_compute(result, sweep_of);
    double streamed = 0, experts = 0, of_host = 0;
    for (std::size_t u = 0; u < problem_.units.size(); ++u)
      if (problem_.units[u].streamed)
        (footprint_.shape.is_of_host(u)                  ? of_host
         : problem_.units[u].kind == Unit::Kind::experts ? experts
                                                         : streamed) += double(problem_.sizing.unit_bytes[u]);
    const int batches = footprint_.shape.batches, size = footprint_.shape.batches_of_pass(sweep_of.prefill);
    double coming = 0, from_host = 0;  // in all passes over the weights; each router has run in time
    for (int first = 0; first < batches; first += size) {
      const double touched = experts + of_host > 0 ? cost_.touched(first, sweep_of) : 0;
      coming += streamed + touched * experts;
      if (sweep_of.prefill) from_host += touched * of_host;
    }
    come(result, weights, coming);
    result.constant[index(Lane::host_to_device)] += from_host * seconds_per_byte(Lane::host_to_device);
    Op op{.kind = Op::Kind::load, .lane = Lane::host_to_device};
    op.subject = footprint_.shape.activation_buffer(0);
    const double hidden = policy_.num_gpu_batches * cost_.bytes(op, sweep_of);
    op.subject = footprint_.shape.exchange_buffer(0);
    const double rows = policy_.num_gpu_batches * cost_.bytes(op, sweep_of) * problem_.model.layers;
    // The sublayers that read the hidden states; all but one also write them.
    const auto uses = double(std::count_if(footprint_.shape.sublayers.begin(), footprint_.shape.sublayers.end(),
                                           [](const Sublayer& sub) { return sub.layer >= 0; })) +
                      1;
    come(result, activations, uses * hidden);
    go(result, activations, uses * hidden);
    if (sweep_of.prefill) {
      go(result, kv, kv_total());
      return result;
    }
    come(result, kv, kv_total());
    // KV that the host attends stays there; only its rows move. A home on the host is updated along with its buffer.
    Row& in = result.per_share[index(Lane::host_to_device)];
    in[kv + 1] -= (kv_total() - kv_from_host()) * seconds_per_byte(Lane::host_to_device);
    in[on_host] -= kv_from_host() * seconds_per_byte(Lane::host_to_device);
    result.per_share[index(Lane::device_to_host)][on_host] += rows * seconds_per_byte(Lane::device_to_host);
    go_from_disk_only(result);
    return result;
  }

  /// come: buffers of a kind are loaded from their homes to the device; go: they are stored back.
  void come(Lanes& lanes, std::size_t kind, double bytes) const {
    lanes.per_share[index(Lane::host_to_device)][kind + 1] += bytes * seconds_per_byte(Lane::host_to_device);
    const bool files = kind == weights && problem_.sizing.unit_in_files.back();
    lanes.per_share[index(Lane::disk_read)][kind + 2] +=
        bytes * (files ? seconds_per_byte(Lane::disk_read) : 1 / problem_.machine.spilled_read);
    if (!problem_.sizing.disk_reads_device)
      lanes.per_share[index(Lane::host_to_device)][kind + 2] += bytes * seconds_per_byte(Lane::host_to_device);
  }
  void go(Lanes& lanes, std::size_t kind, double bytes) const {
    lanes.per_share[index(Lane::device_to_host)][kind + 1] += bytes * seconds_per_byte(Lane::device_to_host);
    lanes.per_share[index(Lane::disk_write)][kind + 2] += bytes * seconds_per_byte(Lane::disk_write);
    if (!problem_.sizing.disk_reads_device)
      lanes.per_share[index(Lane::device_to_host)][kind + 2] += bytes * seconds_per_byte(Lane::device_to_host);
  }
  void go_from_disk_only(Lanes& lanes) const {
    Lanes all;
    go(all, kv, kv_total());
    for (std::size_t lane = 0; lane < kLaneCount; ++lane) lanes.per_share[lane][kv + 2] += all.per_share[lane][kv + 2];
  }

  void add_compute(Lanes& result, const Sweep& sweep_of) const {
    double device = 0, core = 0, host = 0;
    for (std::uint32_t s = 0; s < footprint_.shape.sublayers.size(); ++s) {
      const Sublayer& sub = footprint_.shape.sublayers[s];
      if (alike_[s] == 0) continue;
      const double times = alike_[s] * policy_.num_gpu_batches;  // the batches of a full block are always alike
      Op op{.kind = Op::Kind::compute, .lane = Lane::device_compute, .subject = s};
      if (footprint_.shape.computed_on_host(s, sweep_of.prefill)) {
        op.part = Op::Part::out;
        device += times * cost_.seconds(op, sweep_of);
        op.part = Op::Part::core;
        result.constant[index(Lane::host_compute)] += alike_[s] * cost_.seconds(op, sweep_of);
        continue;
      }
      // With KV at home on the host, low rows are read over the link.
      const double over_link =
          sub.kind == Sublayer::Kind::attention && !sweep_of.prefill
              ? cost_.low_rows(sub.layer, sweep_of.with_rows(sweep_of.rows(0, policy_.gpu_batch_size)),
                               sweep_of.visible)
              : 0;
      const bool counted =
          over_link > 0 && footprint_.shape.kv_home[footprint_.shape.kv_index(sub.layer, 0)] == Tier::host;
      const double whole = cost_.seconds(op, sweep_of) - (counted ? over_link : 0);
      device += times * whole;
      result.per_share[index(Lane::device_compute)][kv + 1] += times * over_link;
      core += times * over_link;
      if (footprint_.shape.unpacks_for(s)) {  // once for all batches
        Op once = op;
        once.part = Op::Part::unpack;
        device += times / policy_.num_gpu_batches * cost_.seconds(once, sweep_of);
      }
      if (sub.kind != Sublayer::Kind::attention || sweep_of.prefill) continue;
      const auto part = [&](Op::Part p) {
        op.part = p;
        return cost_.seconds(op, sweep_of);
      };
      core += times * (whole - part(Op::Part::in) - part(Op::Part::out));
      host += times * part(Op::Part::core);
    }
    result.constant[index(Lane::device_compute)] = device;
    result.per_share[index(Lane::device_compute)][on_host] = -core;
    result.per_share[index(Lane::host_compute)][on_host] = host;
  }

  /// A sweep takes at least as long as each lane, and as any two lanes that slow each other down. Without overlap it
  /// takes the sum of all lanes.
  void add_lanes(LinearProgram& program, std::size_t seconds, const Lanes& lanes) const {
    const auto at_least = [&](Row row, double constant) {
      row[seconds] -= 1;
      program.add(row, -std::numeric_limits<double>::infinity(), -constant);
    };
    if (!policy_.overlap) {
      Row row{};
      double constant = 0;
      for (std::size_t a = 0; a < kLaneCount; ++a) row = row + lanes.per_share[a], constant += lanes.constant[a];
      return at_least(row, constant);
    }
    for (std::size_t a = 0; a < kLaneCount; ++a) {
      at_least(lanes.per_share[a], lanes.constant[a]);
      for (std::size_t b = 0; b < kLaneCount; ++b) {
        const double mine = problem_.machine.together[a][b], other = problem_.machine.together[b][a];
        if (a == b || mine >= 1) continue;
        const double share = (1 - mine) / other;  // the share of b's seconds that a loses
        at_least(lanes.per_share[a] + share * lanes.per_share[b], lanes.constant[a] + share * lanes.constant[b]);
      }
    }
  }

  const Problem& problem_;
  const PartialPolicy& fixed_;
  const Streamed choice_;
  const Policy policy_;
  const Footprint footprint_;
  const Cost cost_;
  std::vector<double> alike_;  // [sublayers] how many compute the shapes of each; 0: an earlier one's
};

using Tiers = std::array<bool, 3>;
Tiers used_by(const Fractions& shares) { return {shares.device() > 0, shares.host() > 0, shares.disk() > 0}; }

/// The sets of tiers over which a kind may be spread: the fixed ones, or the device alone and the device with the tiers
/// below it.
std::vector<Tiers> tiers_of(const std::optional<Fractions>& fixed, bool host_allowed, bool disk) {
  if (fixed) return {used_by(*fixed)};
  if (disk) return {{true, host_allowed, true}};
  if (host_allowed) return {{true, false, false}, {true, true, false}};
  return {{true, false, false}};
}

/// The choices to try. `weights_on_disk`, `kv_on_disk`: whether these may use the disk. KV on disk is read and written
/// in every sweep, so weights go there first, and neither does if memory is enough.
std::vector<Streamed> choices(const PartialPolicy& fixed, bool host_allowed, bool weights_on_disk, bool kv_on_disk) {
  std::vector<Streamed> result;
  for (const Tiers& weight_tiers : tiers_of(fixed.weights, host_allowed, weights_on_disk))
    for (const Tiers& kv_tiers : tiers_of(fixed.kv, host_allowed, kv_on_disk))
      for (const Tiers& hidden_tiers : tiers_of(fixed.activations, host_allowed, false)) {
        Streamed choice{weight_tiers, kv_tiers, hidden_tiers};
        const bool off_device = kv_tiers[1] || kv_tiers[2];
        const double share = fixed.attention_on_host.value_or(-1);
        if (share <= 0 || !off_device) result.push_back(choice);
        if (!off_device || share == 0 || !host_allowed) continue;
        choice.host_attends = true;
        choice.device_attends = share < 1;
        result.push_back(choice);
      }
  return result;
}

}  // namespace

std::vector<Relaxed> relax(const Problem& problem, const Policy& shape, const PartialPolicy& fixed, bool host_allowed) {
  std::vector<Relaxed> found;
  ClpSimplex simplex;
  simplex.setLogLevel(0);
  const std::vector<std::uint64_t>& unit_bytes = problem.sizing.unit_bytes;
  const std::vector<bool> of_host = host_computes(problem.model, problem.units, unit_bytes, shape.experts_on_host);
  double bytes = 0;
  for (std::size_t u = 0; u < unit_bytes.size(); ++u)
    if (of_host.empty() || !of_host[u]) bytes += double(unit_bytes[u]);
  std::array<double, 3> budgets{};
  std::copy_n(shape.budgets.bytes.begin(), budgets.size(), budgets.begin());
  for (const auto& [weights_on_disk, kv_on_disk] : {std::pair{false, false}, {true, false}, {true, true}}) {
    for (const Streamed& choice : choices(fixed, host_allowed, weights_on_disk, kv_on_disk))
      if (have_room(bytes, choice.weights, budgets))
        if (auto solved = Relaxation(problem, shape, fixed, choice).solve(simplex)) found.push_back(*solved);
    if (!found.empty()) break;
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Relaxed& a, const Relaxed& b) { return a.seconds < b.seconds; });
  return found;
}

}  // namespace weft::policy
