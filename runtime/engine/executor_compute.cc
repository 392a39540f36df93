// runtime/engine/executor_compute.cc: the compute ops of a schedule, as calls of layers.
#include <algorithm>
#include <vector>

#include "runtime/engine/executor.h"

namespace weft::runtime {

using policy::Op;
using policy::Sublayer;

void Executor::compute(const Op& op, kernels::Stream& stream) {
  const Sublayer& sub = footprint_.shape.sublayers[op.subject];
  const int batch = op.batch;
  const BatchRows& rows = run_->places.rows(batch);
  if (sub.kind == Sublayer::Kind::experts && op.part == Op::Part::core) return experts_on_host(op);
  if (sub.kind == Sublayer::Kind::embed) {
    gather_rows(op);
    if (rows.live() == 0) return;  // other batches took the last waiting sequences
  }
  std::vector<UnitViews> units(static_cast<std::size_t>(std::max(1, sub.experts)));
  for (std::size_t expert = 0; expert < units.size() && sub.unit >= 0; ++expert)
    units[expert] = storage_.unit(sub.unit, op.unit_slot, static_cast<int>(expert));
  unpack(op, units, stream);
  if (op.part == Op::Part::unpack) return;
  const UnitViews& unit = units.front();
  const HiddenRows hidden = storage_.hidden(op, rows.rows());
  switch (sub.kind) {
    case Sublayer::Kind::embed: layers_.embed(unit, rows, hidden, stream); break;
    case Sublayer::Kind::attention: attention(op, unit, hidden, stream); break;
    case Sublayer::Kind::mlp:
      if (routing_.empty()) {
        layers_.mlp(sub.layer, unit, hidden, {}, stream);
      } else {
        const RoutedBatch routed = storage_.routed(op, rows.rows());
        layers_.mlp(sub.layer, unit, hidden, routed, stream);
        if (footprint_.shape.sublayers[op.subject + 1].kind == Sublayer::Kind::experts)
          routing_.of(batch).chosen(routed, routing_.when(op.sweep, sub.layer), stream);
      }
      break;
    case Sublayer::Kind::experts: experts(op, units, hidden.hidden, stream); break;
    case Sublayer::Kind::output:
      layers_.output(unit, rows, hidden.hidden, storage_.last_hidden(batch), storage_.last_embed(batch), stream);
      break;
    case Sublayer::Kind::head: {
      const policy::TensorSpec& piece = storage_.piece(sub.unit);
      const View logits = storage_.logits(batch);
      const View columns(static_cast<float*>(logits.data) + piece.first_row, DType::f32, rows.live(), piece.rows,
                         logits.stride);
      layers_.head(unit, storage_.last_embed(batch).slice(0, rows.live()), columns, stream);
      if (ends_step(op))
        token_choice_.queue_sampling(run_->places.batch(batch), rows, logits.slice(0, rows.live()), stream);
      break;
    }
  }
}

void Executor::attention(const Op& op, const UnitViews& unit, const HiddenRows& hidden, kernels::Stream& stream) {
  const int layer = footprint_.shape.sublayers[op.subject].layer, batch = op.batch;
  const BatchRows& rows = run_->places.rows(batch);
  switch (op.part) {
    case Op::Part::whole:
      layers_.attention(layer, unit, rows, hidden,
                        {storage_.kv(layer, batch, op.kv_slot, op.prefill),
                         op.prefill ? HeadRunSlots{} : storage_.kv_home(layer, batch)},
                        stream);
      break;
    case Op::Part::in:
      layers_.attention_in(layer, unit, rows, hidden, storage_.exchange(batch, false, layer),
                           storage_.host_kv(layer, batch, op.kv_slot), stream);
      break;
    case Op::Part::core:
      layers_.attention_core(layer, rows, storage_.exchange(batch, true, layer),
                             storage_.host_kv(layer, batch, op.kv_slot));
      break;
    case Op::Part::out:
      layers_.attention_out(layer, unit, rows, hidden.hidden, storage_.exchange(batch, true, layer).attended, stream);
      break;
    case Op::Part::unpack: break;  // handled by compute()
  }
}

void Executor::experts(const Op& op, std::span<const UnitViews> units, View hidden, kernels::Stream& stream) {
  const Sublayer& sub = footprint_.shape.sublayers[op.subject];
  Routing& routing = routing_.of(op.batch);
  const RoutedBatch routed = storage_.routed(op, run_->places.rows(op.batch).rows());
  for (int expert = 0; expert < sub.experts; ++expert) {
    const int of_layer = sub.first_expert + expert;
    const ExpertRows of = routing.rows_of(of_layer);
    if (of.rows.empty()) continue;
    if (op.part == Op::Part::out)
      layers_.add_expert_rows(sub.layer, hidden, routed, of, host_experts_->made(of_layer, op.batch), stream);
    else layers_.expert(sub.layer, units[static_cast<std::size_t>(expert)], hidden, routed, of, stream);
  }
  if (policy::has_last_expert(layers_.model(), sub))
    layers_.end_experts(sub.layer, storage_.unit(sub.unit, op.unit_slot, sub.experts), hidden, routed, stream);
}

void Executor::experts_on_host(const Op& op) {
  const Sublayer& sub = footprint_.shape.sublayers[op.subject];
  std::vector<std::int64_t> rows;
  for (int batch = 0; batch < footprint_.shape.batches; ++batch)
    rows.push_back(run_->places.alive(batch) ? run_->places.rows(batch).rows() : 0);
  host_experts_->compute(sub, routing_.when(op.sweep, sub.layer), rows);
}

bool Executor::few_rows(const Sublayer& sub) const {
  const double share = policy::rows_share(layers_.model(), sub.kind);
  for (int batch = 0; batch < policy_.num_gpu_batches; ++batch)
    if (run_->places.alive(batch) && double(run_->places.rows(batch).rows()) * share > double(backend_.packed_rows()))
      return false;
  return true;
}

void Executor::unpack(const Op& op, std::span<UnitViews> units, kernels::Stream& stream) {
  if (footprint_.shape.computed_on_host(op.subject, op.prefill)) return;
  char& packed = packed_[op.subject];
  if (op.part == Op::Part::unpack) packed = few_rows(footprint_.shape.sublayers[op.subject]) ? 1 : 0;
  if (packed) return;
  const auto unpacked = storage_.unpacked(op.subject, units);
  for (std::size_t expert = 0; expert < unpacked.size(); ++expert)
    for (std::size_t role = 0; role < policy::kRoles; ++role) {
      const View& to = unpacked[expert][role];
      if (!to) continue;
      ConstView& matrix = units[expert][role];
      if (op.part == Op::Part::unpack) backend_.ops().run(kernels::UnpackWeights{matrix, to}, stream);
      matrix = to;
    }
}

}  // namespace weft::runtime
