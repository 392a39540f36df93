#include "policy/layout/host_experts.h"

#include <algorithm>

#include "kernels/error.h"
#include "policy/layout/placement.h"

namespace weft::policy {
namespace {

constexpr std::int64_t kRowsAtOnce = 512;  // rows of an expert that fill the host's cores

/// Whether a unit's tensors are those of experts alone. What follows a layer's last expert comes last.
bool only_experts(const Unit& unit) {
  return unit.kind == Unit::Kind::experts && unit.tensors.back().expert < unit.experts;
}

/// The most experts of a layer that the host computes.
std::int64_t most_in_layer(const ScheduleShape& shape) {
  std::vector<std::int64_t> experts(static_cast<std::size_t>(shape.layers), 0);
  for (std::uint32_t s = 0; s < shape.sublayers.size(); ++s)
    if (shape.computed_on_host(s, false))
      experts[static_cast<std::size_t>(shape.sublayers[s].layer)] += shape.sublayers[s].experts;
  return experts.empty() ? 0 : *std::max_element(experts.begin(), experts.end());
}

/// The bytes in which an expert works. Its output is a part of what all experts make.
std::uint64_t work_bytes(const ModelSpec& model, const Types& types, std::int64_t rows) {
  std::uint64_t most = 0;
  for (const int layer : layer_of_each_kind(model)) {
    offload::Arena counting;
    for (const Value value : scratch_values(steps_of(model, Stage::expert, layer))) {
      if (value == Value::expert_output || value == Value::expert_sum) continue;
      take(counting, shape_of(value, model, types, rows, layer));
      counting.take(0, kValueAlignment);
    }
    most = std::max<std::uint64_t>(most, counting.used());
  }
  return most;
}

}  // namespace

Types host_types(const Types& types) {
  Types host = types;
  host.product = DType::f32;
  return host;
}

std::size_t units_for_host(const std::vector<Unit>& units) {
  return static_cast<std::size_t>(std::count_if(units.begin(), units.end(), only_experts));
}

std::vector<bool> host_computes(const ModelSpec& model, const std::vector<Unit>& units,
                                std::span<const std::uint64_t> unit_bytes, double share) {
  if (share == 0) return {};
  std::vector<std::size_t> can, bytes;
  for (std::size_t u = 0; u < units.size(); ++u)
    if (only_experts(units[u])) can.push_back(u), bytes.push_back(unit_bytes[u]);
  if (can.empty())
    throw UsageError("policy: a share of the experts is for the host, but " +
                     std::string(model.experts.count == 0
                                     ? "the model has no experts"
                                     : "each of the model's units of experts has other tensors too") +
                     "; leave --experts and \"experts\" out");
  const std::vector<Tier> side = spread(bytes, {1 - share, share, 0});
  std::vector<bool> computes(units.size(), false);
  for (std::size_t i = 0; i < can.size(); ++i) computes[can[i]] = side[i] == Tier::host;
  if (std::find(side.begin(), side.end(), Tier::host) == side.end())
    throw UsageError("policy: the host's share of the experts is less than half of one of the " +
                     std::to_string(can.size()) +
                     " units that can be shared out; give more, or leave --experts and \"experts\" out");
  return computes;
}

HostExpertsLayout host_experts_layout(const ModelSpec& model, const ScheduleShape& shape, const Types& types,
                                      std::int64_t rows, std::int64_t piece) {
  const std::int64_t in_layer = most_in_layer(shape);
  if (in_layer == 0) return {};
  HostExpertsLayout layout{.rows = rows, .at_once = std::min(piece, kRowsAtOnce)};
  layout.made = shape.batches * rows * std::min<std::int64_t>(in_layer, model.experts.chosen);
  offload::Arena counting;
  const auto place = [&](const ValueShape& value) { return counting.take(value.bytes(), offload::kPage); };
  layout.input = place(shape_of(Value::mlp_input, model, types, shape.batches * rows));
  layout.output = place(shape_of(Value::expert_output, model, types, layout.made));
  layout.work = counting.take(work_bytes(model, host_types(types), layout.at_once), offload::kPage);
  layout.bytes = offload::round_up(counting.used(), offload::kPage);
  return layout;
}

}  // namespace weft::policy
