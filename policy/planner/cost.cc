#include "policy/planner/cost.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace weft::policy {
namespace {

/// The share of a table's pieces that is on disk, by elements.
double on_disk(const std::vector<Unit>& units, const ScheduleShape& shape, Unit::Kind kind) {
  double all = 0, disk = 0;
  for (std::size_t u = 0; u < units.size(); ++u) {
    if (units[u].kind != kind) continue;
    all += double(units[u].elements());
    if (shape.unit_home[u] == Tier::disk) disk += double(units[u].elements());
  }
  return all > 0 ? disk / all : 0;
}

/// The seconds of work that is done in parts of `each`, and a last one with the rest.
template <class Seconds> double in_parts(double all, double each, const Seconds& seconds) {
  const double whole = std::floor(all / each), rest = all - whole * each;
  return (whole > 0 ? whole * seconds(each) : 0) + (rest > 1e-9 ? seconds(rest) : 0);
}

}  // namespace

Cost::Cost(const ModelSpec& model, const std::vector<Unit>& units, const Policy& policy, const Footprint& footprint,
           const SizingInputs& sizing, const Machine& machine)
    : model_(model), units_(units), policy_(policy), footprint_(footprint), sizing_(sizing), machine_(machine),
      embedding_on_disk_(on_disk(units, footprint.shape, Unit::Kind::embedding)),
      positions_on_disk_(on_disk(units, footprint.shape, Unit::Kind::positions)),
      layer_inputs_on_disk_(on_disk(units, footprint.shape, Unit::Kind::layer_inputs)) {
  for (const Value value : {Value::q, Value::k, Value::v})
    exchanged_row_ += double(widest_shape_of(value, model, footprint.types, 1).bytes());
  for (const int layer : layer_of_each_kind(model))
    for (std::size_t stage = 0; stage < kStages; ++stage)
      steps_[static_cast<std::size_t>(kind_of_layer(model, layer))][stage] =
          steps_of(model, static_cast<Stage>(stage), layer);
}

double Cost::rows_of_pass(int first, const Sweep& sweep) const {
  const ScheduleShape& shape = footprint_.shape;
  const int end = std::min(first + shape.batches_of_pass(sweep.prefill), shape.batches);
  double rows = sweep.joining;
  for (int batch = first; batch < end; ++batch)
    rows += sweep.with_rows(sweep.rows(batch, policy_.gpu_batch_size)) * sweep.tokens;
  return rows;
}

double Cost::touched(int first, const Sweep& sweep) const { return touched_share(model_, rows_of_pass(first, sweep)); }

double Cost::bytes(const Op& op, const Sweep& sweep, bool routed) const {
  const ScheduleShape& shape = footprint_.shape;
  if (op.subject < shape.kv_buffer(0, 0))
    return double(sizing_.unit_bytes[op.subject]) * (routed ? touched(op.batch, sweep) : 1);
  if (op.subject < shape.activation_buffer(0)) {
    const std::uint32_t buffer = op.subject - shape.kv_buffer(0, 0);
    const int layer = static_cast<int>(buffer) / shape.batches;
    const bool comes = op.lane == offload::Lane::host_to_device && shape.kv_home[buffer] == Tier::host;
    return double(comes ? footprint_.kv_bytes_from_host(layer) : footprint_.kv_buffer_bytes(layer));
  }
  const std::int64_t sequences = sweep.rows(op.batch, policy_.gpu_batch_size);
  const double rows = double(sequences);
  if (op.subject < shape.exchange_buffer(0))
    return sweep.with_rows(sequences) * sweep.tokens *
           double(hidden_layout(model_, footprint_.types, 1).bytes_without_gaps);
  if (op.subject >= shape.routed_buffer(0))
    return (sweep.with_rows(sequences) * sweep.tokens) *
           double(shape_of(Value::mlp_input, model_, footprint_.types, 1).bytes());
  return rows * exchanged_row_;
}

double Cost::seconds(const Op& op, const Sweep& sweep, bool routed) const {
  const bool of_unit = op.kind != Op::Kind::compute && op.subject < footprint_.shape.kv_buffer(0, 0);
  if (sweep.rows(op.batch, policy_.gpu_batch_size) == 0)
    return 0;  // an empty batch of a partly filled block, or a pass of empty ones
  if (op.kind == Op::Kind::compute) return compute(op, sweep);
  const bool spilled = op.lane == offload::Lane::disk_read && !(of_unit && sizing_.unit_in_files[op.subject]);
  return bytes(op, sweep, routed) /
         (spilled ? machine_.spilled_read : machine_.bytes_per_second[static_cast<std::size_t>(op.lane)]);
}

double Cost::pointwise(double bytes) const {
  return std::max(machine_.device.launch, bytes / machine_.device.pointwise);
}

/// Bits of a quantised number, with its part of a scale and a minimum in fp16.
double Cost::bits() const {
  const WeightFormat format = sizing_.weight_format.value_or(WeightFormat{});
  return bits_of(format.dtype) + 32.0 / format.group;
}

bool Cost::packed(const Sublayer& sub, const Sweep& sweep) const {
  const double rows = sweep.with_rows(sweep.rows(0, policy_.gpu_batch_size)) * sweep.tokens;
  return rows * rows_share(model_, sub.kind) <= double(machine_.packed_rows);
}

double Cost::product(double elements, double rows, DType weights, bool packed) const {
  const double width = std::sqrt(elements);
  const bool unpacks = is_quantised(weights) && !sizing_.unpacked_bytes.empty();
  const double rate = unpacks && packed ? machine_.linear_packed(bits(), rows, width)
                                        : machine_.linear(unpacks ? DType::f16 : weights, rows, width);
  return std::max(machine_.device.launch, 2 * rows * elements / rate);
}

/// The type of weights whose rates apply to a stage's matrices.
DType Cost::weights_of(Stage stage) const {
  const std::optional<WeightFormat>& format = sizing_.weight_format;
  const bool levels = format && format->quantised();
  // policy::quantises() is false for the matrices of these stages, unless the head has levels of its own.
  const bool left = stage == Stage::embed || stage == Stage::output || stage == Stage::head;
  DType type = !format || (levels && left) ? sizing_.kv : format->dtype;
  if (levels && stage == Stage::head && model_.quantisation.head) type = *model_.quantisation.head;
  if (!machine_.device_is_host_memory || !format) return type;
  // On a CPU levels that become bf16 numbers are multiplied as fast as these are. With few rows that takes about as
  // long as to read the numbers would. Exact products take equally long with both 16-bit types.
  if (format->arithmetic == Arithmetic::bfloat16) return is_quantised(type) ? DType::bf16 : type;
  const bool exact = levels || format->arithmetic == Arithmetic::exact;
  return type == DType::bf16 && exact ? DType::f16 : type;
}

double Cost::steps(Stage stage, int layer, double rows, bool packed) const {
  double seconds = 0;
  for (const Step& step :
       steps_[static_cast<std::size_t>(kind_of_layer(model_, layer))][static_cast<std::size_t>(stage)]) {
    if (const double elements = products(model_, step, layer, 1); elements > 0)
      seconds += product(elements, rows, weights_of(stage), packed);
    if (const double bytes = pointwise_bytes(model_, footprint_.types, step, layer, rows); bytes > 0)
      seconds += pointwise(bytes);
  }
  return seconds;
}

/// Seconds to read a unit's levels and scales and write `bytes` of 16-bit numbers, with a kernel for each matrix.
double Cost::unpack(const Unit& unit, double bytes) const {
  const auto matrices = std::count_if(unit.tensors.begin(), unit.tensors.end(),
                                      [&](const TensorSpec& tensor) { return quantises(unit, tensor); });
  return std::max(double(matrices) * machine_.device.launch, bytes * (1 + bits() / 16) / machine_.device.pointwise);
}

double Cost::compute(const Op& op, const Sweep& sweep) const {
  const Sublayer& sub = footprint_.shape.sublayers[op.subject];
  if (op.part == Op::Part::unpack) {
    const auto unit = static_cast<std::size_t>(sub.unit);
    return packed(sub, sweep) ? 0 : unpack(units_[unit], double(sizing_.unpacked_bytes[unit]));
  }
  const std::int64_t sequences = sweep.rows(op.batch, policy_.gpu_batch_size);
  const double rows = sweep.with_rows(sequences) * sweep.tokens;
  switch (sub.kind) {
    case Sublayer::Kind::embed: return pieces(Stage::embed, 0, rows, false) + disk_rows(rows);
    case Sublayer::Kind::attention: return attention(op, sequences, sweep);
    case Sublayer::Kind::mlp: return pieces(Stage::mlp, sub.layer, rows, packed(sub, sweep));
    case Sublayer::Kind::experts:
      if (op.part == Op::Part::core) return experts_on_host(sub, rows_of_pass(0, sweep));
      if (op.part == Op::Part::out) return add_experts(sub, rows);
      return experts(sub, rows, packed(sub, sweep));
    case Sublayer::Kind::output: return steps(Stage::output, 0, double(sequences), false);
    case Sublayer::Kind::head:
      return head(units_[sub.unit], op.subject + 1 == footprint_.shape.sublayers.size(), double(sequences),
                  packed(sub, sweep));
  }
  return 0;
}

/// Seconds to read embedding rows whose pieces are on disk. Each distinct row of a chunk is read once.
double Cost::disk_rows(double rows) const {
  const double chunk = std::min(rows, double(footprint_.workspace.piece_tokens)), chunks = rows / chunk;
  const double read = chunks * ((embedding_on_disk_ + layer_inputs_on_disk_) * std::min(chunk, double(model_.vocab)) +
                                positions_on_disk_ * std::min(chunk, double(model_.positions)));
  return read > 0 ? read / machine_.disk_rows_per_second : 0;
}

double Cost::prefill_core(int layer, double sequences, double keeping, double prompt) const {
  const double rows = sequences * prompt;
  const int head_dim = model_.head_dim_of(layer);
  const auto bytes_of_row = [&](Value value) {
    return double(shape_of(value, model_, footprint_.types, 1, layer).bytes());
  };
  const double stored = bytes_of_row(Value::stored_k) + bytes_of_row(Value::stored_v);
  const int window = model_.window(layer);
  const double seen = window > 0 ? std::min<double>(window, prompt) : prompt;  // by the last row
  const double pairs = sequences * model_.heads * (seen * (seen + 1) / 2 + (prompt - seen) * seen);
  const Engine& device = machine_.device;
  // Attention rounds if KV is bf16 and products with weights round.
  const bool rounds = footprint_.types.kv == DType::bf16 && weights_of(Stage::attention_in) == DType::bf16;
  const auto rate = [&](const RateTable& exact, const RateTable& rounded) {
    return (rounds && !rounded.empty() ? rounded : exact).at(prompt, head_dim);
  };
  double seconds = 4 * pairs * head_dim / rate(device.prefill_attention, device.prefill_bfloat16);
  // Products write keys and values as they are stored, unless slots are filled from fp32 numbers.
  const DType stored_type = footprint_.types.kv;
  const bool quantises_kv = is_quantised(policy_.kv_format.dtype.value_or(stored_type));
  if (stored_type != DType::f32 && (stored_type != footprint_.types.product || quantises_kv))
    for (const auto& [from, to] : {std::pair{Value::k, Value::stored_k}, {Value::v, Value::stored_v}})
      seconds += pointwise(rows * (bytes_of_row(from) + bytes_of_row(to)));
  if (policy_.retention.scored() && !policy_.retention.everything(layer)) {
    // Only the rows of the observation window are multiplied again.
    const double rest = policy_.retention.observation > 0 ? std::max(0.0, prompt - policy_.retention.observation) : 0;
    const double scored = std::min(pairs, sequences * model_.heads * (prompt * (prompt + 1) - rest * (rest + 1)) / 2);
    seconds += 2 * scored * head_dim / rate(device.column_sums, device.column_sums_bfloat16);
  }
  if (policy_.retention.rule == Retention::Rule::keydiff)
    seconds += pointwise(2 * rows * bytes_of_row(Value::stored_k));
  if (policy_.kv_format.rotates())
    for (const Value value : {Value::k, Value::v}) seconds += pointwise(2 * rows * bytes_of_row(value));
  return seconds + pointwise(2 * keeping * prompt * stored);  // into the slots
}

double Cost::decode_core(const Engine& engine, std::span<const offload::KvShape> runs, double sequences,
                         double tokens) const {
  double seconds = 0;
  for (const offload::KvShape& kv : runs) {
    const double visible = std::min(tokens, double(kv.slots)), fine = std::min(visible, double(kv.hot()));
    const auto rate = [&](DType type) { return engine.decode(type).at(visible, kv.head_dim); };
    double each = fine * double(kv.bytes_per_step()) / rate(kv.dtype);  // seconds of a head of a sequence
    // The time of a cold row is mostly that of its numbers, which are unpacked as those of int4 are.
    if (kv.cold > 0) each += (visible - fine) * double(kv.bytes_per_step_as(DType::i4)) / rate(DType::i4);
    if (kv.split) {  // high rows count as rows of int4, and those that are read in full as rows of int8 on top
      const double read = kv.read > 0 ? std::min(visible, double(kv.read)) : visible;
      each = visible * double(kv.bytes_per_step_as(DType::i4)) / rate(DType::i4) +
             read * double(kv.bytes_per_step_as(DType::i8)) / rate(DType::i8);
    }
    seconds += std::max(engine.launch, sequences * kv.kv_heads * each);
  }
  if (policy_.kv_format.rotates())  // the same time on each engine: small next to the slots
    for (const Value value : {Value::q, Value::k, Value::v, Value::attended})
      seconds += pointwise(2 * sequences * double(shape_of(value, model_, footprint_.types, 1).bytes()));
  return seconds;
}

double Cost::low_rows(int layer, double sequences, double tokens) const {
  if (footprint_.shape.disk_reads_device) return 0;  // there the device's memory is the host's
  double bytes = 0;
  for (const offload::KvShape& kv : footprint_.kv_runs(layer)) {
    const double visible = std::min(tokens, double(kv.slots));
    bytes += sequences * kv.kv_heads * (kv.read > 0 ? std::min(visible, double(kv.read)) : visible) *
             double(kv.low_bytes_per_step());
  }
  return bytes / machine_.bytes_per_second[static_cast<std::size_t>(offload::Lane::host_to_device)];
}

double Cost::attention(const Op& op, std::int64_t sequences, const Sweep& sweep) const {
  using Part = Op::Part;
  const Sublayer& sub = footprint_.shape.sublayers[op.subject];
  const int layer = sub.layer;
  const std::vector<offload::KvShape>& kv = footprint_.kv_runs(layer);
  if (op.part == Part::core) return decode_core(machine_.host, kv, double(sequences), sweep.visible);
  const bool at_host = footprint_.shape.kv_home[footprint_.shape.kv_index(layer, op.batch)] == Tier::host;
  // Chunks of whole sequences, as Layers::chunks() cuts them.
  const double all = sweep.with_rows(sequences);
  const auto per_chunk =
      std::clamp<double>(std::floor(double(footprint_.workspace.chunk_tokens) / sweep.tokens), 1, all);
  return in_parts(all, per_chunk, [&](double count) {
    const double rows = count * sweep.tokens;
    double seconds = 0;
    if (op.part != Part::out) seconds += pieces(Stage::attention_in, layer, rows, packed(sub, sweep));
    if (op.part == Part::whole)
      seconds += sweep.prefill ? prefill_core(layer, count, count * double(sequences) / all, sweep.tokens)
                               : decode_core(machine_.device, kv, count, sweep.visible) +
                                     (at_host ? low_rows(layer, count, sweep.visible) : 0);
    if (op.part != Part::in) seconds += pieces(Stage::attention_out, layer, rows, packed(sub, sweep));
    return seconds;
  });
}

double Cost::pieces(Stage stage, int layer, double rows, bool packed) const {
  return in_parts(rows, double(footprint_.workspace.piece_tokens),
                  [&](double some) { return steps(stage, layer, some, packed); });
}

double Cost::experts(const Sublayer& sub, double rows, bool packed) const {
  // An expert that no row chose takes no time.
  const double share = rows_share(model_, sub.kind), touched = touched_share(model_, rows);
  if (touched == 0) return 0;
  return sub.experts * touched * pieces(Stage::expert, sub.layer, rows * share / touched, packed) +
         (has_last_expert(model_, sub) ? pieces(Stage::experts_end, sub.layer, rows, packed) : 0);
}

double Cost::experts_on_host(const Sublayer& sub, double rows) const {
  const double each = rows * rows_share(model_, sub.kind) / std::max(touched_share(model_, rows), 1e-12);
  double seconds = 0;
  for (const Step& step :
       steps_[static_cast<std::size_t>(kind_of_layer(model_, sub.layer))][static_cast<std::size_t>(Stage::expert)])
    if (const double elements = products(model_, step, sub.layer, 1); elements > 0)
      seconds += host_product(elements, each);
  return sub.experts * touched_share(model_, rows) * seconds;
}

double Cost::add_experts(const Sublayer& sub, double rows) const {
  const double made = rows * rows_share(model_, sub.kind) * sub.experts;
  const double bytes = made * double(shape_of(Value::expert_output, model_, footprint_.types, 1).bytes());
  const double link = machine_.bytes_per_second[static_cast<std::size_t>(offload::Lane::host_to_device)];
  return std::max(machine_.device.launch * sub.experts * touched_share(model_, rows), bytes / link) +
         (has_last_expert(model_, sub) ? pieces(Stage::experts_end, sub.layer, rows, false) : 0);
}

/// A product of an expert on the host. Machine files have no rates of these beside a device. Weights are then taken to
/// be read as fast as keys and values are attended, with a few rows in the time of one.
double Cost::host_product(double elements, double rows) const {
  constexpr double few = 8;
  const DType type = weights_of(Stage::expert);
  if (machine_.device_is_host_memory) return product(elements, rows, type, false);
  const double bytes = elements * (is_quantised(type) ? bits() : bits_of(type)) / 8;
  const double rate = machine_.host.decode(DType::f16).at(1 << 20, model_.head_dim);
  return std::max(machine_.host.launch, bytes / rate * std::max(1.0, rows / few));
}

/// Seconds of one piece of the head.
double Cost::head(const Unit& unit, bool last, double rows, bool packed) const {
  const double choice = last ? pointwise(rows * model_.vocab * 4.0) : 0;
  return product(double(unit.elements()), rows, weights_of(Stage::head), packed) + choice;
}

}  // namespace weft::policy
