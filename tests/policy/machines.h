// tests/policy/machines.h: machines of few numbers for the tests of cost, prediction and search.
#pragma once

#include "policy/planner/predict.h"

namespace weft::test {

struct Rates {
  double link = 12e9, disk = 1.5e9, flops = 20e12, memory = 250e9, host_attention = 60e9, launch = 8e-6;
};

/// Every table follows from two numbers: products are as fast as the flops or the memory let them be.
inline policy::Machine machine_of(const Rates& rates, std::array<std::uint64_t, 3> bytes,
                                  bool device_is_host_memory = false) {
  policy::Machine machine;
  machine.name = "made up";
  machine.source = "made up";
  machine.device_is_host_memory = device_is_host_memory;
  machine.bytes = bytes;
  machine.bytes_per_second = {rates.disk, rates.disk / 2, rates.link, rates.link, 1, 1};
  machine.spilled_read = rates.disk;
  machine.disk_rows_per_second = 1e5;
  for (auto& row : machine.together) row.fill(1);
  const auto engine = [&](double flops, double memory) {
    policy::Engine made;
    for (double rows = 1; rows <= 4096; rows *= 2)
      made.linear[static_cast<std::size_t>(DType::f16)].points.push_back({rows, 1, std::min(flops, rows * memory)});
    made.prefill_attention.points = made.column_sums.points = {{1, 1, flops / 2}};
    made.decode_attention.points = {{1, 1, memory}};
    made.pointwise = memory;
    made.launch = rates.launch;
    return made;
  };
  machine.device = engine(rates.flops, rates.memory);
  machine.host = engine(rates.flops, rates.host_attention);
  return machine;
}

/// A decoder of OPT's kind.
inline policy::ModelSpec decoder(int layers, int hidden, int heads, int vocab) {
  policy::ModelSpec model;
  model.architecture = "opt";
  model.layers = layers;
  model.hidden = model.embed = hidden;
  model.ffn = 4 * hidden;
  model.heads = model.kv_heads = heads;
  model.head_dim = hidden / heads;
  model.vocab = vocab;
  model.positions = 2048;
  model.position_offset = 2;
  model.activation = "relu";
  model.dtype = DType::f16;
  return model;
}

/// A decoder of Qwen3's kind with experts in all layers.
inline policy::ModelSpec sparse_decoder(int layers, int hidden, int heads, int vocab, const policy::Experts& experts) {
  policy::ModelSpec model = decoder(layers, hidden, heads, vocab);
  model.architecture = "qwen3_moe";
  model.rotary = {1};
  model.position_offset = 0;
  model.experts = experts;
  return model;
}

/// A problem with all that it refers to; does not move.
struct Made {
  policy::ModelSpec model;
  std::vector<policy::Unit> units;
  policy::Workload work;
  policy::SizingInputs sizing;
  policy::Machine machine;

  Made(policy::ModelSpec m, std::int64_t prompt, std::int64_t generation, std::optional<std::int64_t> requests,
       policy::Machine on, const policy::Retention& retention = {})
      : model(std::move(m)), units(policy::model_units(model)), machine(std::move(on)) {
    work = {.requests = requests,
            .longest_prompt = prompt,
            .slots = retention.slots(prompt, generation),
            .cold_slots = retention.cold_slots(prompt, generation),
            .longest_generation = generation};
    for (const policy::Unit& unit : units) {
      sizing.unit_bytes.push_back((static_cast<std::uint64_t>(unit.elements()) * 2 + 4095) / 4096 * 4096);
      sizing.unit_in_files.push_back(true);
    }
    sizing.kv = DType::f16;
    sizing.disk_reads_device = machine.device_is_host_memory;
  }
  Made(const Made&) = delete;
  Made& operator=(const Made&) = delete;
  policy::Problem problem() const { return {model, units, work, sizing, machine}; }
};

inline policy::Prediction predicted(const Made& made, const policy::Policy& policy) {
  return policy::predict(made.problem(), policy,
                         policy::footprint(made.model, made.units, policy, made.work, made.sizing));
}

/// The decode of 64 sequences of 600 and 40 tokens over int8, in a block of 16 x 4 with KV as `kv` says.
struct DecodeOfRule {
  policy::Footprint footprint;
  policy::Phase decode;
  double busy(offload::Lane lane) const { return decode.busy[static_cast<std::size_t>(lane)]; }
};
inline DecodeOfRule decode_of_rule(const char* rule, const policy::Fractions& kv) {
  const policy::Retention retention = policy::Retention::from_text(rule);
  const Made made(decoder(2, 512, 8, 1000), 600, 40, 64, machine_of({.launch = 1e-12}, {1 << 30, 1 << 30, 0}),
                  retention);
  policy::Policy policy;
  policy.gpu_batch_size = 16, policy.num_gpu_batches = 4;
  policy.retention = retention, policy.kv = kv;
  policy.kv_format = policy::KvFormat::from_text("int8", "x");
  policy::Footprint print = policy::footprint(made.model, made.units, policy, made.work, made.sizing);
  policy::Phase decode = policy::predict(made.problem(), policy, print).decode;
  return {std::move(print), std::move(decode)};
}

}  // namespace weft::test
