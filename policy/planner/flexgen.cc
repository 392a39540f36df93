#include "policy/planner/flexgen.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/error.h"
#include "policy/base/json.h"

namespace weft::policy {
namespace {

using System = FlexGenRun::System;

constexpr double kMostRate = 1e18;  // a larger rate is a typing error

double rate_from(Fields& fields, const char* key) { return fields.number(key, 1, kMostRate); }

/// Reads {"value": X, "why": "..."}: an assumption needs its reason.
double assumed_from(Fields& fields, const char* key, const std::string& where) {
  Fields assumed(fields.at(key), where + ": " + key, Blame::usage);
  const double value = assumed.number("value", 1, kMostRate);
  if (assumed.text("why").empty()) assumed.refuse_field("why", "a reason");
  assumed.refuse_unknown();
  return value;
}

/// Elements of a layer, of one of the two tables, and of a token's keys and values in a layer.
struct Elements {
  explicit Elements(const ModelSpec& model)
      : table(static_cast<double>(model.vocab) * model.embed), kv(2.0 * model.kv_heads * model.head_dim) {
    for (const Unit& unit : model_units(model))
      if (unit.layer == 0) layer += static_cast<double>(unit.elements());
  }
  double layer = 0, table, kv;
};

/// 4-bit elements are in groups of 64 with a scale and a minimum in fp16.
double bytes_per_element(int bits) { return bits == 4 ? 0.5 + 4.0 / 64 : 2; }

double link_of(const FlexGenMachine& machine, System system) {
  if (system == System::accelerate) return machine.accelerate_link;
  if (system == System::deepspeed) return machine.deepspeed_link;
  return machine.host_to_device;
}

/// KV slots that a head reads in a decode sweep, on average over the timed sweeps.
double mean_context(const FlexGenRun& run) {
  const int steps = run.timed_steps > 0 ? std::min(run.timed_steps, run.generation - 1) : run.generation - 1;
  double sum = 0;
  for (int step = 1; step <= steps; ++step)
    sum += run.slots > 0 ? std::min(run.slots, run.prompt + step) : run.prompt + step;
  return sum / std::max(steps, 1);
}

double prefill_layer(const ModelSpec& model, const FlexGenMachine& machine, const FlexGenRun& run) {
  const Elements elements(model);
  const double block = run.block_size(), prompt = run.prompt;
  const double kept = run.slots > 0 ? std::min(run.slots, run.prompt) : run.prompt;
  const double hidden_bytes = 2 * block * prompt * model.hidden * (1 - run.activations_on_device);
  const double to_device =
      (elements.layer * bytes_per_element(run.weight_bits) * (1 - run.weights_on_device) + hidden_bytes) /
      link_of(machine, run.system);
  const double kv_bytes = block * (kept + 1) * elements.kv * bytes_per_element(run.kv_bits) * (1 - run.kv_on_device);
  const double to_host = kv_bytes / machine.kv_to_host + hidden_bytes / machine.hidden_to_host;
  double compute = 2 * block * prompt * elements.layer / machine.prefill_products +
                   4 * block * prompt * prompt * model.heads * model.head_dim / machine.prefill_attention;
  const double unpack = machine.unpack_bytes / machine.device_memory;
  if (run.weight_bits == 4) compute += run.num_gpu_batches * elements.layer * unpack;
  if (run.kv_bits == 4) compute += block * kept * elements.kv * unpack;
  return run.system == System::accelerate ? to_device + to_host + compute : std::max({to_device, to_host, compute});
}

/// The share of host attention's rate that remains at this batch and width (cost_model.py, cpu_flops_real).
double host_attention_factor(const ModelSpec& model, const FlexGenMachine& machine, int batch) {
  const double small_batch = std::max(0.0, std::log2(64.0 / batch));
  const double small_hidden = std::max(0.0, std::log2(4096.0 / model.hidden));
  return std::max(0.5, 1 + machine.small_both_gain * small_batch * small_hidden -
                           machine.small_batch_loss * small_batch - machine.small_hidden_loss * small_hidden);
}

/// Seconds of each batch's products with `elements` weights, which every batch reads again.
double decode_products(const FlexGenMachine& machine, const FlexGenRun& run, double elements) {
  return run.num_gpu_batches *
         std::max(2 * run.gpu_batch_size * elements / machine.decode_products, 2 * elements / machine.device_memory);
}

FlexGenLayer decode_layer(const ModelSpec& model, const FlexGenMachine& machine, const FlexGenRun& run) {
  const Elements elements(model);
  const double block = run.block_size(), off_device = 1 - run.kv_on_device;
  const double hidden_bytes = 2 * block * model.hidden * (1 - run.activations_on_device);
  const double read = block * mean_context(run) * elements.kv;  // elements
  const double on_host = run.attention_on_host ? off_device : 0;
  const double unpack = machine.unpack_bytes / machine.device_memory;

  FlexGenLayer layer;
  layer.weights = (elements.layer * bytes_per_element(run.weight_bits) * (1 - run.weights_on_device) + hidden_bytes) /
                  link_of(machine, run.system);
  layer.kv = read * bytes_per_element(run.kv_bits) * (off_device - on_host) / machine.unpinned_kv;
  layer.to_host = hidden_bytes / machine.hidden_to_host;
  layer.products = decode_products(machine, run, elements.layer);
  if (run.weight_bits == 4) layer.unpacking += run.num_gpu_batches * elements.layer * unpack;
  if (run.kv_bits == 4) layer.unpacking += read * (1 - on_host) * unpack;
  layer.device_attention = 2 * read * (1 - on_host) / machine.device_attention;
  layer.host_attention =
      2 * read * on_host / (machine.host_attention * host_attention_factor(model, machine, run.gpu_batch_size));
  return layer;
}

/// Seconds of the embedding and the head in a decode sweep. FlexGen and DeepSpeed move the table for each of them.
/// Accelerate is configured to leave both on the device.
double decode_tables(const ModelSpec& model, const FlexGenMachine& machine, const FlexGenRun& run) {
  const double table = Elements(model).table;
  const double compute = decode_products(machine, run, table);
  if (run.system == System::accelerate) return compute;
  const double weights = 2 * 2 * table * (1 - run.weights_on_device) / link_of(machine, run.system);
  return run.system == System::deepspeed ? std::max(weights, compute) : weights + compute;
}

double seconds_of(const FlexGenLayer& layer, System system) {
  if (system == System::deepspeed) return std::max(layer.weights, layer.compute());
  return layer.weights + std::max({layer.kv, layer.to_host, layer.compute()});
}

}  // namespace

FlexGenMachine FlexGenMachine::from_json(const nlohmann::json& json, const std::string& where) {
  Fields fields(json, where, Blame::usage);
  FlexGenMachine machine;
  fields.integer("version", 1, 1, 1);
  machine.name = fields.text("name");
  machine.source = fields.text("source");

  Fields fitted(fields.at("fitted"), where + ": fitted", Blame::usage);
  for (const auto& [key, rate] : {std::pair{"host_to_device", &machine.host_to_device},
                                  {"kv_to_host", &machine.kv_to_host},
                                  {"hidden_to_host", &machine.hidden_to_host},
                                  {"prefill_products", &machine.prefill_products},
                                  {"decode_products", &machine.decode_products},
                                  {"prefill_attention", &machine.prefill_attention},
                                  {"device_attention", &machine.device_attention},
                                  {"host_attention", &machine.host_attention}})
    *rate = rate_from(fitted, key);
  machine.small_batch_loss = fitted.number("small_batch_loss", 0, 1);
  machine.small_hidden_loss = fitted.number("small_hidden_loss", 0, 1);
  machine.small_both_gain = fitted.number("small_both_gain", 0, 1);
  fitted.refuse_unknown();

  Fields assumed(fields.at("assumed"), where + ": assumed", Blame::usage);
  for (const auto& [key, value] : {std::pair{"device_memory", &machine.device_memory},
                                   {"unpack_bytes", &machine.unpack_bytes},
                                   {"unpinned_kv", &machine.unpinned_kv},
                                   {"accelerate_link", &machine.accelerate_link},
                                   {"deepspeed_link", &machine.deepspeed_link}})
    *value = assumed_from(assumed, key, where + ": assumed");
  assumed.refuse_unknown();
  fields.refuse_unknown();
  return machine;
}

void FlexGenRun::require_valid(const std::string& where) const {
  const auto refuse_run = [&](const std::string& what) { throw UsageError(where + ": " + what); };
  for (const int size : {gpu_batch_size, num_gpu_batches, prompt, generation})
    if (size < 1) refuse_run("batches, prompt and generation must be at least 1, got " + std::to_string(size));
  for (const double share : {weights_on_device, kv_on_device, activations_on_device})
    if (!(share >= 0 && share <= 1)) refuse_run("shares must be from 0 to 1, got " + std::to_string(share));
  for (const int bits : {weight_bits, kv_bits})
    if (bits != 16 && bits != 4) refuse_run("weights and KV must have 16 or 4 bits, got " + std::to_string(bits));
  if (slots < 0 || timed_steps < 0) refuse_run("slots and timed steps must not be negative");
  if (system != System::flexgen && (num_gpu_batches != 1 || kv_on_device != 1 || activations_on_device != 1 ||
                                    slots != 0 || weight_bits != 16 || kv_bits != 16))
    refuse_run("Accelerate and DeepSpeed take one batch at a time, all KV on the device, and 16 bits");
}

const char* FlexGenLayer::bound() const {
  const std::array<std::pair<double, const char*>, 7> terms{{{weights, "weights to the device"},
                                                             {kv, "KV to the device"},
                                                             {to_host, "hidden states to the host"},
                                                             {products, "products"},
                                                             {unpacking, "unpacking"},
                                                             {device_attention, "device attention"},
                                                             {host_attention, "host attention"}}};
  const auto longer = [](const auto& a, const auto& b) { return a.first < b.first; };
  return std::max_element(terms.begin(), terms.end(), longer)->second;
}

FlexGenTimes flexgen_times(const ModelSpec& model, const FlexGenMachine& machine, const FlexGenRun& run) {
  run.require_valid("a run to simulate");
  FlexGenTimes times;
  times.prefill = model.layers * prefill_layer(model, machine, run);
  if (run.generation > 1) {
    times.layer = decode_layer(model, machine, run);
    times.decode = (run.generation - 1) *
                   (model.layers * seconds_of(times.layer, run.system) + decode_tables(model, machine, run));
  }
  times.tokens_per_second = static_cast<double>(run.block_size()) * run.generation / (times.prefill + times.decode);
  return times;
}

double flexgen_weights_on_device(const ModelSpec& model, double device_percent) {
  const double hidden = model.hidden, ffn = model.ffn;
  const double query = hidden * model.heads * model.head_dim, key = hidden * model.kv_heads * model.head_dim;
  // The order is matrix, bias, matrix, bias ..., and the norm at the end (flex_opt.py, init_weight_list).
  const std::array<double, 10> attention{query, hidden, key, hidden, key, hidden, query, hidden, hidden, hidden};
  const std::array<double, 6> mlp{hidden * ffn, ffn, hidden * ffn, hidden, hidden, hidden};
  double on_device = 0, total = 0;
  const auto place = [&](const auto& tensors) {
    double sum = 0, end = 0;
    for (const double tensor : tensors) sum += tensor;
    for (const double tensor : tensors) {
      end += tensor;
      if ((end - tensor / 2) / sum * 100 >= 100 - device_percent) on_device += tensor;
    }
    total += sum;
  };
  place(attention);
  place(mlp);
  return on_device / total;
}

}  // namespace weft::policy
