// tests/policy/shapes.h: random models and placements for the tests of the schedule.
#pragma once

#include <random>

#include "policy/schedule/schedule.h"

namespace weft::test {

inline std::vector<offload::Tier> random_tiers(std::mt19937& random, std::size_t count) {
  std::vector<offload::Tier> tiers(count);
  // Some shapes have a single tier for a kind, some mix all three.
  const int choice = std::uniform_int_distribution<int>(0, 4)(random);
  for (auto& tier : tiers)
    tier = static_cast<offload::Tier>(choice < 3 ? choice : std::uniform_int_distribution<int>(0, 2)(random));
  return tiers;
}

inline policy::ScheduleShape random_shape(std::mt19937& random) {
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  policy::ModelSpec model;
  const int family = pick(0, 3);
  model.parallel_residual = family == 0;
  const bool sparse = family == 1;
  model.architecture = model.parallel_residual ? "gpt_neox" : sparse ? "qwen3_moe" : "opt";
  model.layers = pick(1, 3);
  model.hidden = 16;
  model.ffn = 32;
  model.heads = model.kv_heads = 2;
  model.head_dim = 8;
  model.vocab = pick(10, 300);
  model.embed = pick(0, 1) || model.parallel_residual || sparse ? 16 : 8;
  model.positions = 32;
  model.tied_head = pick(0, 1) == 1;
  if (sparse) {
    model.rotary = {1};
    model.experts = {.count = pick(1, 7), .chosen = 1, .ffn = 8};
    for (int layer = 0; layer < model.layers; ++layer) model.experts.sparse.push_back(pick(0, 2) > 0);
  }
  const auto units = policy::model_units(model);
  policy::ScheduleShape shape;
  shape.sublayers = policy::model_sublayers(model, units);
  shape.layers = model.layers;
  shape.batches = pick(1, 4);
  shape.unit_home = random_tiers(random, units.size());
  shape.kv_home = random_tiers(random, static_cast<std::size_t>(shape.layers * shape.batches));
  shape.activation_home = random_tiers(random, static_cast<std::size_t>(shape.batches));
  shape.prefill_batches = pick(0, shape.batches);
  const int attends = pick(0, 2);  // the host: nothing, what is not on the device, some of it
  for (const offload::Tier home : shape.kv_home)
    shape.host_attends.push_back(home != offload::Tier::device && (attends == 1 || (attends == 2 && pick(0, 1) == 1)));
  shape.disk_reads_device = pick(0, 1) == 1;
  shape.refills = pick(0, 1) == 1;
  const int computes = pick(0, 2);  // the host: no experts, all, some of them
  for (std::size_t u = 0; sparse && computes > 0 && u < units.size(); ++u) {
    shape.host_computes.push_back(units[u].kind == policy::Unit::Kind::experts && (computes == 1 || pick(0, 1) == 1));
    if (shape.host_computes.back()) shape.unit_home[u] = offload::Tier::host;
  }
  shape.slots = shape.slots_needed(static_cast<std::uint32_t>(pick(0, 3)));
  const int unpacked = pick(0, 2);  // nothing, every unit of a layer, some of them
  for (const policy::Unit& unit : units)
    shape.unpacks.push_back(unit.layer >= 0 && (unpacked == 1 || (unpacked == 2 && pick(0, 1) == 1)));
  return shape;
}

}  // namespace weft::test
