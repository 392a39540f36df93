#include "runtime/engine/layers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <string>
#include <utility>

#include "kernels/error.h"
#include "runtime/base/stop.h"
#include "runtime/engine/layer_values.h"
#include "runtime/model/kernel_terms.h"

namespace weft::runtime {
namespace {

using policy::Role;
using policy::Stage;
using policy::Step;
using policy::StepOp;
using policy::Value;

const ConstView& of(const UnitViews& unit, Role role) { return unit[static_cast<std::size_t>(role)]; }

/// The number of steps, from the first on, that are products of one input and nothing else.
std::size_t products_of_one_input(std::span<const Step> steps) {
  const auto fits = [&](const Step& s) {
    return s.op == StepOp::linear && s.in == steps.front().in && !s.accumulate && !s.activation;
  };
  return static_cast<std::size_t>(std::find_if_not(steps.begin(), steps.end(), fits) - steps.begin());
}

/// The steps of an expert that add its rows to those of the batch, or those before them.
std::vector<Step> parted(std::vector<Step> steps, bool adds) {
  std::erase_if(steps, [&](const Step& step) { return (step.op == StepOp::add_routed) != adds; });
  return steps;
}

float attention_scale(const policy::ModelSpec& model) {
  return model.attention_scale > 0 ? model.attention_scale : 1 / std::sqrt(static_cast<float>(model.head_dim));
}

void place_routed(std::array<View, policy::kValues>& values, const RoutedBatch& routed) {
  value_at(values, Value::mlp_input) = routed.mlp_input;
  value_at(values, Value::mlp_output) = routed.mlp_output;
  value_at(values, Value::expert_sum) = routed.expert_sum;
}

}  // namespace

std::vector<Step> in_memory_order(std::vector<Step> steps, const UnitViews& unit) {
  for (std::size_t i = 0; i < steps.size();) {
    const std::size_t count = products_of_one_input(std::span<const Step>(steps).subspan(i));
    const auto begin = steps.begin() + static_cast<std::ptrdiff_t>(i);
    std::sort(begin, begin + static_cast<std::ptrdiff_t>(count), [&](const Step& a, const Step& b) {
      return std::less<const void*>()(of(unit, a.weight).data, of(unit, b.weight).data);
    });
    i += std::max<std::size_t>(count, 1);
  }
  return steps;
}

Layers::Layers(const LayersPlan& plan, const StepsOf& steps_of, std::span<std::byte> workspace, TableRows& tables,
               kernels::Backend& backend, const GracePeriod& stop)
    : model_(plan.model), retention_(plan.retention), types_(plan.types), rotate_(plan.rotate),
      activation_(activation_named(plan.model.activation, plan.model.architecture)), chunk_tokens_(plan.chunk_tokens),
      piece_tokens_(plan.piece_tokens),
      // Rows that are rotated in place, but attended to as they were, serve one chunk.
      prefix_tokens_(plan.rotate && plan.types.kv == DType::f32 ? 0 : plan.prefix_tokens), arithmetic_(plan.arithmetic),
      scale_(attention_scale(plan.model)), sink_logits_(plan.sink_logits),
      scratch_(workspace.data(), workspace.size(), offload::Tier::device), tables_(tables), backend_(backend),
      ops_(plan.on_host ? backend.host_ops() : backend.ops()), stop_(stop),
      random_cache_(plan.model, plan.retention, plan.types.kv, backend) {
  for (int layer = 0; layer < model_.layers; ++layer) {
    auto& stages = steps_.emplace_back();
    for (std::size_t stage = 0; stage < stages.size(); ++stage)
      stages[stage] = steps_of(static_cast<policy::Stage>(stage), layer);
  }
}

Layers::Layers(const LayersPlan& plan, std::span<std::byte> workspace, TableRows& tables, kernels::Backend& backend,
               const GracePeriod& stop)
    : Layers(
          plan, [&](Stage stage, int layer) { return policy::steps_of(plan.model, stage, layer); }, workspace, tables,
          backend, stop) {}

void Layers::begin_chunk(std::size_t used) {
  if (stop_.over()) throw Interrupted{};
  scratch_.rewind(used);
}

const std::vector<Step>& Layers::steps(Stage stage, int layer) const {
  return steps_[layer][static_cast<std::size_t>(stage)];
}

View Layers::take(Value value, std::int64_t rows, int layer, const Chunk& chunk) {
  const policy::ValueShape shape = policy::shape_of(value, model_, types_, rows, layer);
  const bool narrow = value == Value::qkv && chunk.narrow_qkv;
  return {scratch_.at(policy::take(scratch_, shape)), narrow ? types_.product : shape.dtype, shape.rows, shape.cols};
}

void Layers::run(Stage stage, int layer, const UnitViews& unit, const Chunk& chunk, Values& values,
                 kernels::Stream& stream) {
  const std::int64_t rows =
      stage == Stage::expert ? std::ssize(chunk.routed.rows) : value_at(values, Value::hidden).rows;
  run(steps(stage, layer), rows, layer, unit, chunk, values, stream);
}

void Layers::run(const std::vector<Step>& steps, std::int64_t rows, int layer, const UnitViews& unit,
                 const Chunk& chunk, Values& values, kernels::Stream& stream) {
  const std::vector<Step> all = in_memory_order(steps, unit);
  for (const Value value : policy::scratch_values(all))
    if (!value_at(values, value)) value_at(values, value) = take(value, rows, layer, chunk);
  for (std::span<const Step> rest(all); !rest.empty();) {
    const std::size_t products = run_products(rest, unit, values, stream);
    if (products == 0) run(rest.front(), layer, unit, chunk, values, stream);
    rest = rest.subspan(std::max<std::size_t>(products, 1));
  }
}

void Layers::run_pieces(Stage stage, int layer, const UnitViews& unit, const Chunk& chunk, const Values& whole,
                        kernels::Stream& stream) {
  const std::size_t used = scratch_.used();
  const std::int64_t rows = value_at(whole, Value::hidden).rows;
  const auto piece = [&](const auto& of_rows, std::int64_t first, std::int64_t count, int each = 1) {
    return of_rows.empty()
               ? of_rows
               : of_rows.subspan(static_cast<std::size_t>(first * each), static_cast<std::size_t>(count * each));
  };
  for (std::int64_t first = 0; first < rows; first += piece_tokens_) {
    const std::int64_t count = std::min(piece_tokens_, rows - first);
    begin_chunk(used);
    Values values;
    for (std::size_t value = 0; value < values.size(); ++value)
      if (whole[value]) values[value] = whole[value].slice(first, count);
    Chunk own = chunk;
    own.tokens = piece(chunk.tokens, first, count), own.position = piece(chunk.position, first, count);
    own.expert = piece(chunk.expert, first, count, model_.experts.chosen);
    own.weight = piece(chunk.weight, first, count, model_.experts.chosen);
    run(stage, layer, unit, own, values, stream);
  }
  scratch_.rewind(used);
}

std::size_t Layers::run_products(std::span<const Step> steps, const UnitViews& unit, const Values& values,
                                 kernels::Stream& stream) const {
  const std::size_t count = products_of_one_input(steps);
  if (count < 2) return 0;
  std::vector<kernels::LinearGroup::Part> parts;
  for (const Step& step : steps.first(count))
    parts.push_back({of(unit, step.weight), of(unit, step.bias), value_at(values, step.out)});
  const View in =
      value_at(values, steps.front().in) ? value_at(values, steps.front().in) : value_at(values, Value::hidden);
  ops_.run(kernels::LinearGroup{in, parts, arithmetic_}, stream);
  return count;
}

void Layers::run(const Step& step, int layer, const UnitViews& unit, const Chunk& chunk, const Values& values,
                 kernels::Stream& stream) const {
  const View out = value_at(values, step.out);
  const View in = value_at(values, step.in) ? value_at(values, step.in) : value_at(values, Value::hidden);
  switch (step.op) {
    case StepOp::gather_tokens: return tables_.gather(policy::Unit::Kind::embedding, chunk.tokens, out, stream);
    case StepOp::gather_layer_inputs:
      return tables_.gather(policy::Unit::Kind::layer_inputs, chunk.tokens, out, stream);
    case StepOp::gather_positions: {
      std::vector<std::int32_t> places(chunk.position.begin(), chunk.position.end());
      for (std::int32_t& place : places) place += model_.position_offset;
      return tables_.gather(policy::Unit::Kind::positions, places, out, stream);
    }
    case StepOp::gather_last:
      return ops_.run(kernels::Gather{.table = in, .ids = chunk.last, .to = {}, .out = out}, stream);
    case StepOp::norm: return norm(step, unit, in, out, stream);
    case StepOp::norm_heads: return norm(step, unit, in, out, stream, model_.head_dim_of(layer));
    case StepOp::linear:
      return ops_.run(kernels::Linear{.x = in,
                                      .weight = of(unit, step.weight),
                                      .bias = of(unit, step.bias),
                                      .out = out,
                                      .activation = step.activation ? activation_ : kernels::Activation::none,
                                      .accumulate = step.accumulate,
                                      .arithmetic = arithmetic_},
                      stream);
    case StepOp::take_heads:
      return ops_.run(kernels::TakeHeads{in, step.part, 3, model_.head_dim_of(layer), out}, stream);
    case StepOp::rotary: return rotary(layer, chunk.position, out, stream);
    case StepOp::clear: return ops_.run(kernels::Scale{.x = out, .factor = 0}, stream);
    case StepOp::scale: return scale(step.factor, out, stream);
    case StepOp::scale_by: return ops_.run(kernels::Scale{.x = out, .by = of(unit, step.weight)}, stream);
    case StepOp::multiply: return ops_.run(kernels::Multiply{out, in}, stream);
    case StepOp::add: return ops_.run(kernels::Add{out, in}, stream);
    case StepOp::convert: return ops_.run(kernels::Convert{in, out}, stream);
    case StepOp::route: return ops_.run(route(in, of(unit, step.bias), of(unit, step.weight), chunk), stream);
    case StepOp::gather_routed:
      return ops_.run(kernels::Gather{.table = in, .ids = chunk.routed.rows, .to = {}, .out = out}, stream);
    case StepOp::add_routed: return ops_.run(kernels::AddRows{out, in, chunk.routed.rows, chunk.routed.weight}, stream);
    case StepOp::clamped_gate:
      return ops_.run(kernels::ClampedGate{out, in, model_.experts.gate_slope, model_.experts.gate_limit}, stream);
    case StepOp::gate: return ops_.run(kernels::GateRows{out, in}, stream);
    case StepOp::attend: break;  // done by prefill() and decode(), which know the KV cache
  }
}

/// Runs any of the model's norms. A weight that is narrower than the row, as norms of heads have, norms each run of its
/// width; without a weight a run has `head_dim` numbers, if that is given.
void Layers::norm(const Step& step, const UnitViews& unit, View in, View out, kernels::Stream& stream,
                  int head_dim) const {
  const ConstView& weight = of(unit, step.weight);
  if (const std::int64_t width = weight ? weight.cols : head_dim > 0 ? head_dim : in.cols; width != in.cols) {
    in = View(in.data, in.dtype, in.rows * in.cols / width, width);
    out = View(out.data, out.dtype, in.rows, width);
  }
  ops_.run(kernels::LayerNorm{in, weight, of(unit, step.bias), out, model_.norm_epsilon, model_.rms_norm,
                              model_.norm_plus_one},
           stream);
}

static_assert(policy::kMostExperts == kernels::kMostExperts);

kernels::Route Layers::route(const View& logits, const ConstView& bias, const ConstView& by, const Chunk& chunk) const {
  const policy::Experts& how = model_.experts;
  if (logits.cols != how.count)
    throw UsageError("route: scores of " + std::to_string(logits.cols) + " experts, the model has " +
                     std::to_string(how.count));
  return {.logits = logits,
          .bias = bias,
          .by = by,
          .chosen = how.chosen,
          .sigmoid = how.sigmoid,
          .normalise = how.normalise,
          .groups = how.groups,
          .groups_kept = how.groups_kept,
          .scale = how.scale,
          .expert = chunk.expert,
          .weight = chunk.weight};
}

void Layers::rotary(int layer, std::span<const std::int32_t> position, View heads, kernels::Stream& stream) const {
  ops_.run(kernels::Rotary{.x = heads,
                           .position = position,
                           .frequencies = model_.frequencies(layer),
                           .head_dim = model_.head_dim_of(layer),
                           .alternate = model_.alternate_pairs,
                           .magnitude = model_.magnitude(layer)},
           stream);
}

void Layers::scale(policy::Factor factor, View x, kernels::Stream& stream) const {
  using policy::Factor;
  const auto by = [&] {
    switch (factor) {
      case Factor::embedding: return model_.embedding_scale;
      case Factor::layer_inputs: return model_.layer_input_scale;
      case Factor::made_inputs: return 1 / std::sqrt(static_cast<float>(model_.hidden));
      case Factor::joined_inputs: return 1 / std::sqrt(2.0f);
      case Factor::residual: return model_.residual_scale;
      case Factor::router: return model_.experts.router_scale;
      case Factor::logits: return model_.logit_scale;
      case Factor::none: break;
    }
    return 1.0f;
  };
  ops_.run(kernels::Scale{x, by(), factor == Factor::logits ? model_.logit_cap : 0}, stream);
}

void Layers::embed(const UnitViews& unit, const BatchRows& rows, const HiddenRows& hidden, kernels::Stream& stream) {
  begin_chunk();
  run_pieces(Stage::embed, 0, unit, {.tokens = rows.tokens, .position = rows.position, .last = {}},
             with_hidden(hidden.slice(0, rows.rows())), stream);
}

void Layers::attention(int layer, const UnitViews& unit, const BatchRows& rows, const HiddenRows& hidden,
                       const Cache& kv, kernels::Stream& stream) {
  if (rows.begun == 0 && synthetic_) return random_cache_.fill(layer, rows, kv.slots, stream);
  attend(layer, unit, rows, 0, hidden, kv, stream);
}

void Layers::attention_in(int layer, const UnitViews& unit, const BatchRows& rows, const HiddenRows& hidden,
                          const Exchange& out, const HeadRunSlots& kv, kernels::Stream& stream) {
  begin_chunk();
  Values values = with_hidden(hidden.slice(0, rows.begun));  // each has one row
  value_at(values, Value::q) = out.q, value_at(values, Value::k) = out.k, value_at(values, Value::v) = out.v;
  run_pieces(Stage::attention_in, layer, unit,
             {.tokens = {}, .position = part_of(rows.position, 0, rows.begun), .last = {}}, values, stream);
  attend(layer, unit, rows, rows.begun, hidden, {.slots = kv, .home = {}}, stream);
}

void Layers::attention_core(int layer, const BatchRows& rows, const Exchange& host, const HeadRunSlots& kv) {
  const std::int64_t begun = rows.begun;
  if (begun == 0) return;
  Values values;
  value_at(values, Value::q) = host.q.slice(0, begun);
  value_at(values, Value::k) = host.k.slice(0, begun);
  value_at(values, Value::v) = host.v.slice(0, begun);
  value_at(values, Value::attended) = host.attended.slice(0, begun);
  decode(backend_.host_ops(), layer, rows, 0, begun, values, {kv, {}}, backend_.host_stream());
}

void Layers::attention_out(int layer, const UnitViews& unit, const BatchRows& rows, View hidden, View attended,
                           kernels::Stream& stream) {
  begin_chunk();
  Values values = with_hidden(hidden.slice(0, rows.begun));
  value_at(values, Value::attended) = attended;
  run_pieces(Stage::attention_out, layer, unit, {}, values, stream);
}

void Layers::mlp(int layer, const UnitViews& unit, const HiddenRows& hidden, const RoutedBatch& routed,
                 kernels::Stream& stream) {
  begin_chunk();
  Values values = with_hidden(hidden);
  Chunk chunk;
  if (model_.is_sparse(layer)) {
    place_routed(values, routed);
    chunk.expert = routed.expert, chunk.weight = routed.weight;
  }
  run_pieces(Stage::mlp, layer, unit, chunk, values, stream);
}

void Layers::expert(int layer, const UnitViews& unit, View hidden, const RoutedBatch& routed, const ExpertRows& chosen,
                    kernels::Stream& stream) {
  // A GPU multiplies levels as they lie for a few rows at a time.
  const bool packed = is_quantised(of(unit, Role::up_weight).dtype) && backend_.unpacks_weights();
  const std::int64_t rows = std::ssize(chosen.rows),
                     most = packed ? std::min(piece_tokens_, backend_.packed_rows()) : piece_tokens_;
  for (std::int64_t first = 0; first < rows; first += most) {
    const auto at = static_cast<std::size_t>(first), count = static_cast<std::size_t>(std::min(most, rows - first));
    begin_chunk();
    Values values = with_hidden(hidden);
    place_routed(values, routed);
    Chunk chunk;
    chunk.routed = {chosen.rows.subspan(at, count), chosen.weight.subspan(at, count)};
    run(Stage::expert, layer, unit, chunk, values, stream);
  }
}

void Layers::make_expert_rows(int layer, const UnitViews& unit, View input, std::span<const std::int32_t> of, View made,
                              kernels::Stream& stream) {
  const auto rows = std::ssize(of);
  for (std::int64_t first = 0; first < rows; first += piece_tokens_) {
    const std::int64_t count = std::min(piece_tokens_, rows - first);
    begin_chunk();
    Values values;
    value_at(values, Value::mlp_input) = input;
    value_at(values, Value::expert_output) = made.slice(first, count);
    Chunk chunk;
    chunk.routed.rows = of.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
    run(parted(steps(Stage::expert, layer), false), count, layer, unit, chunk, values, stream);
  }
}

void Layers::add_expert_rows(int layer, View hidden, const RoutedBatch& routed, const ExpertRows& chosen, View made,
                             kernels::Stream& stream) {
  Values values = with_hidden(hidden);
  place_routed(values, routed);
  value_at(values, Value::expert_output) = made;
  Chunk chunk;
  chunk.routed = chosen;
  run(parted(steps(Stage::expert, layer), true), made.rows, layer, {}, chunk, values, stream);
}

void Layers::end_experts(int layer, const UnitViews& unit, View hidden, const RoutedBatch& routed,
                         kernels::Stream& stream) {
  if (steps(Stage::experts_end, layer).empty()) return;
  begin_chunk();
  Values values = with_hidden(hidden);
  place_routed(values, routed);
  run_pieces(Stage::experts_end, layer, unit, {}, values, stream);
}

void Layers::output(const UnitViews& unit, const BatchRows& rows, View hidden, View last_hidden, View last_embed,
                    kernels::Stream& stream) {
  const std::int64_t live = rows.live();
  std::vector<std::int32_t> last;  // last row of each sequence
  for (std::int64_t s = 0; s < live; ++s) {
    const std::int64_t own = s < rows.own() ? s : rows.shared[s - rows.own()];
    last.push_back(rows.offsets[own + 1] - 1);
  }
  Values values = with_hidden(hidden);
  value_at(values, Value::last_hidden) = last_hidden.slice(0, live);
  value_at(values, Value::last_embed) = last_embed.slice(0, live);
  run(Stage::output, 0, unit, {.tokens = {}, .position = {}, .last = last}, values, stream);
}

void Layers::head(const UnitViews& piece, View last_embed, View logits_columns, kernels::Stream& stream) {
  Values values;
  value_at(values, Value::last_embed) = last_embed;
  value_at(values, Value::logits) = logits_columns;
  run(Stage::head, 0, piece, {}, values, stream);
}

}  // namespace weft::runtime
