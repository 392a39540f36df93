#include "policy/cost.h"

#include <cmath>

namespace weft::policy {
namespace {

/// The share of a table, in pieces, that lies on disk.
double on_disk(const std::vector<Unit>& units, const ScheduleShape& shape, Unit::Kind kind) {
  double all = 0, disk = 0;
  for (std::size_t u = 0; u < units.size(); ++u) {
    if (units[u].kind != kind) continue;
    all += double(units[u].elements());
    if (shape.unit_home[u] == Tier::disk) disk += double(units[u].elements());
  }
  return all > 0 ? disk / all : 0;
}

}  // namespace

Cost::Cost(const ModelSpec& model, const std::vector<Unit>& units, const Policy& policy, const Footprint& footprint,
           const SizingInputs& sizing, const Machine& machine, const Compression& compression)
    : model_(model), units_(units), policy_(policy), footprint_(footprint), sizing_(sizing), machine_(machine),
      compression_(compression), hidden_bytes_(double(size_of(sizing.activation))),
      embedding_on_disk_(on_disk(units, footprint.shape, Unit::Kind::embedding)),
      positions_on_disk_(on_disk(units, footprint.shape, Unit::Kind::positions)) {}

double Cost::bytes(const Op& op, const Sweep& sweep) const {
  const ScheduleShape& shape = footprint_.shape;
  if (op.subject < shape.kv_buffer(0, 0))
    return double(sizing_.unit_bytes[op.subject]) * Compression::left(compression_.weight_bits);
  if (op.subject < shape.activation_buffer(0))
    return double(footprint_.kv_buffer_bytes) * Compression::left(compression_.kv_bits);
  const double rows = double(sweep.rows(op.batch, policy_.gpu_batch_size));
  if (op.subject < shape.exchange_buffer(0)) return rows * sweep.tokens * model_.hidden * hidden_bytes_;
  return rows * (model_.heads + 2.0 * model_.kv_heads) * model_.head_dim * hidden_bytes_;
}

double Cost::seconds(const Op& op, const Sweep& sweep) const {
  const bool of_unit = op.kind != Op::Kind::compute && op.subject < footprint_.shape.kv_buffer(0, 0);
  if (!of_unit && sweep.rows(op.batch, policy_.gpu_batch_size) == 0) return 0;  // a batch of a block that is not full
  if (op.kind == Op::Kind::compute) return compute(op, sweep);
  const bool spilled = op.lane == offload::Lane::disk_read && !(of_unit && sizing_.unit_in_files[op.subject]);
  return bytes(op, sweep) /
         (spilled ? machine_.spilled_read : machine_.bytes_per_second[static_cast<std::size_t>(op.lane)]);
}

double Cost::pointwise(double bytes) const {
  return std::max(machine_.device.launch, bytes / machine_.device.pointwise);
}

double Cost::products(const Unit& unit, double rows, std::initializer_list<Role> roles) const {
  double seconds = 0;
  for (const TensorSpec& tensor : unit.tensors) {
    if (std::find(roles.begin(), roles.end(), tensor.role) == roles.end()) continue;
    const auto elements = double(tensor.elements());
    const double rate = machine_.linear(sizing_.kv, rows, std::sqrt(elements));
    seconds += std::max(machine_.device.launch, 2 * rows * elements / rate);
    if (compression_.weight_bits == 4)  // unpacked once into 16 bits, then read from there
      seconds += elements * 2 * (1 + Compression::left(4)) / machine_.device.pointwise;
  }
  return seconds;
}

double Cost::compute(const Op& op, const Sweep& sweep) const {
  const Sublayer& sub = footprint_.shape.sublayers[op.subject];
  const Unit* const unit = sub.unit < 0 ? nullptr : &units_[static_cast<std::size_t>(sub.unit)];
  const std::int64_t sequences = sweep.rows(op.batch, policy_.gpu_batch_size);
  const double rows = double(sequences) * sweep.tokens;
  switch (sub.kind) {
    case Sublayer::Kind::embed: return embed(unit, rows);
    case Sublayer::Kind::attention: return attention(op, *unit, sequences, sweep);
    case Sublayer::Kind::mlp: return mlp(*unit, rows);
    case Sublayer::Kind::output: return output(unit, double(sequences));
    case Sublayer::Kind::head:
      return head(*unit, op.subject + 1 == footprint_.shape.sublayers.size(), double(sequences));
  }
  return 0;
}

double Cost::embed(const Unit* unit, double rows) const {
  double seconds = pointwise(rows * (model_.embed + 4.0 * model_.hidden) * hidden_bytes_);
  if (unit) seconds += products(*unit, rows, {Role::project_in});
  // Each distinct row of a chunk is read once.
  const double chunk = std::min(rows, double(footprint_.workspace.chunk_tokens)), chunks = rows / chunk;
  const double read = chunks * (embedding_on_disk_ * std::min(chunk, double(model_.vocab)) +
                                positions_on_disk_ * std::min(chunk, double(model_.positions)));
  return seconds + (read > 0 ? read / machine_.disk_rows_per_second : 0);
}

double Cost::prefill_core(double sequences, double prompt) const {
  const double rows = sequences * prompt, kv = double(model_.kv_heads) * model_.head_dim;
  const double pairs = sequences * model_.heads * prompt * (prompt + 1) / 2;
  const Engine& device = machine_.device;
  double seconds = 4 * pairs * model_.head_dim / device.prefill_attention.at(prompt, model_.head_dim);
  seconds += 2 * pointwise(rows * kv * (hidden_bytes_ + double(size_of(sizing_.kv))));  // to the type of the cache
  if (policy_.retention.scored())
    seconds += 2 * pairs * model_.head_dim / device.column_sums.at(prompt, model_.head_dim);
  return seconds + pointwise(4 * rows * kv * double(size_of(sizing_.kv)));  // into the slots
}

double Cost::decode_core(const Engine& engine, double sequences, double visible) const {
  const double row = model_.head_dim * double(size_of(sizing_.kv)) * Compression::left(compression_.kv_bits);
  const double slot = 2 * row + (policy_.retention.scored() ? 12 : 4);  // scores are read and written
  return std::max(engine.launch,
                  sequences * model_.kv_heads * visible * slot / engine.decode_attention.at(visible, model_.head_dim));
}

double Cost::attention(const Op& op, const Unit& unit, std::int64_t sequences, const Sweep& sweep) const {
  using Part = Op::Part;
  if (op.part == Part::core) return decode_core(machine_.host, double(sequences), sweep.visible);
  // Chunks of whole sequences, as Layers::chunks() cuts them.
  const auto per_chunk =
      std::clamp<double>(std::floor(double(footprint_.workspace.chunk_tokens) / sweep.tokens), 1, double(sequences));
  double seconds = 0;
  for (double left = double(sequences); left > 0; left -= per_chunk) {
    const double count = std::min(left, per_chunk), rows = count * sweep.tokens;
    if (op.part != Part::out) {
      seconds += pointwise(2 * rows * model_.hidden * hidden_bytes_);
      seconds += products(unit, rows, {Role::q_weight, Role::k_weight, Role::v_weight, Role::qkv_weight});
    }
    if (op.part == Part::whole)
      seconds += sweep.prefill ? prefill_core(count, sweep.tokens) : decode_core(machine_.device, count, sweep.visible);
    if (op.part != Part::in) seconds += products(unit, rows, {Role::o_weight});
    if (op.part != Part::in && model_.parallel_residual) seconds += mlp(unit, rows);
  }
  return seconds;
}

double Cost::mlp(const Unit& unit, double rows) const {
  double seconds = 0;
  for (double left = rows; left > 0; left -= double(footprint_.workspace.chunk_tokens)) {
    const double count = std::min(left, double(footprint_.workspace.chunk_tokens));
    seconds += pointwise(2 * count * model_.hidden * hidden_bytes_);
    seconds += products(unit, count, {Role::gate_weight, Role::up_weight, Role::down_weight});
  }
  return seconds;
}

double Cost::output(const Unit* unit, double rows) const {
  return 2 * pointwise(2 * rows * model_.hidden * hidden_bytes_) +
         (unit ? products(*unit, rows, {Role::project_out}) : 0);
}

double Cost::head(const Unit& unit, bool last, double rows) const {
  const double choice = last ? pointwise(rows * model_.vocab * 4.0) : 0;
  return products(unit, rows, {Role::token_embedding, Role::head}) + choice;
}

}  // namespace weft::policy
