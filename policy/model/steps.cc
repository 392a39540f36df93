#include "policy/model/steps.h"

#include <algorithm>
#include <array>
#include <utility>

#include "policy/model/architecture.h"

namespace weft::policy {
namespace {

enum class TypeOf : std::uint8_t { activation, product, kv, f32 };

/// The width of a row for each Value. With `by_head` a row is a head, and there is a column for each token.
struct ValueRow {
  Value value;
  Dim width;
  TypeOf type = TypeOf::activation;
  bool by_head = false;
};
constexpr std::array<ValueRow, kValues> kShapes{{
    {Value::none, Dim::one},
    {Value::hidden, Dim::hidden},
    {Value::layer_inputs, Dim::layer_inputs},
    {Value::lent_k, Dim::kv_rows},
    {Value::lent_v, Dim::kv_rows},
    {Value::made_inputs, Dim::layer_inputs},
    {Value::layer_gate, Dim::layer_input},
    {Value::embedded, Dim::embed},
    {Value::positions, Dim::hidden},
    {Value::normed, Dim::hidden, TypeOf::product},
    {Value::qkv, Dim::qkv_rows},
    {Value::q, Dim::q_rows},
    {Value::k, Dim::kv_rows},
    {Value::v, Dim::kv_rows},
    {Value::stored_k, Dim::kv_rows, TypeOf::kv},
    {Value::stored_v, Dim::kv_rows, TypeOf::kv},
    {Value::log_sum, Dim::heads, TypeOf::f32, true},
    {Value::score, Dim::kv_heads, TypeOf::f32, true},
    {Value::attended, Dim::q_rows},
    {Value::branch, Dim::hidden},
    {Value::mlp_input, Dim::hidden, TypeOf::product},
    {Value::mlp_output, Dim::hidden},
    {Value::expert_sum, Dim::hidden},
    {Value::gate, Dim::ffn, TypeOf::product},
    {Value::up, Dim::ffn, TypeOf::product},
    {Value::router_input, Dim::hidden, TypeOf::product},
    {Value::router_logits, Dim::experts, TypeOf::f32},
    {Value::shared_gate, Dim::shared_ffn, TypeOf::product},
    {Value::shared_up, Dim::shared_ffn, TypeOf::product},
    {Value::shared_score, Dim::one, TypeOf::f32},
    {Value::expert_input, Dim::hidden, TypeOf::product},
    {Value::expert_gate, Dim::expert_ffn, TypeOf::product},
    {Value::expert_up, Dim::expert_ffn, TypeOf::product},
    {Value::expert_output, Dim::hidden, TypeOf::f32},
    {Value::last_hidden, Dim::hidden},
    {Value::last_embed, Dim::embed},
    {Value::logits, Dim::vocab, TypeOf::f32},
}};
static_assert([] {
  for (std::size_t i = 0; i < kValues; ++i)
    if (kShapes[i].value != static_cast<Value>(i)) return false;
  return true;
}());

/// The values that attention over prompts needs in addition to its result.
constexpr std::array kPromptValues{Value::stored_k, Value::stored_v, Value::log_sum, Value::score};

bool in_scratch(Value value) { return value > Value::lent_v && value < Value::last_hidden; }

std::int64_t width_of(Value value, const ModelSpec& model, int layer) {
  return size_of(kShapes[static_cast<std::size_t>(value)].width, model, layer);
}

}  // namespace

std::vector<Step> steps_of(const ModelSpec& model, Stage stage, int layer) {
  std::vector<Step> steps;
  const auto add = [&](Stage of) {
    for (const StepRow& row : find_architecture(model.architecture)->steps)
      if (row.stage == of && applies(row.when, model, layer)) steps.push_back(row.step);
  };
  add(stage);
  if (stage == Stage::attention_out && model.parallel_residual) add(Stage::mlp);
  return steps;
}

std::vector<int> layer_of_each_kind(const ModelSpec& model) {
  std::vector<int> layers;
  std::array<bool, kLayerKinds> seen{};
  for (int layer = 0; layer < model.layers; ++layer)
    if (!std::exchange(seen[static_cast<std::size_t>(kind_of_layer(model, layer))], true)) layers.push_back(layer);
  return layers;
}

ValueShape shape_of(Value value, const ModelSpec& model, const Types& types, std::int64_t rows, int layer) {
  const ValueRow& row = kShapes[static_cast<std::size_t>(value)];
  const DType dtype = row.type == TypeOf::activation ? types.activation
                      : row.type == TypeOf::product  ? types.product
                      : row.type == TypeOf::kv       ? types.kv
                                                     : DType::f32;
  const std::int64_t width = size_of(row.width, model, layer);
  return row.by_head ? ValueShape{dtype, width, rows} : ValueShape{dtype, rows, width};
}

ValueShape widest_shape_of(Value value, const ModelSpec& model, const Types& types, std::int64_t rows) {
  ValueShape widest;
  for (const int layer : layer_of_each_kind(model))
    if (const ValueShape shape = shape_of(value, model, types, rows, layer); shape.cols > widest.cols) widest = shape;
  return widest;
}

std::vector<Value> scratch_values(std::span<const Step> steps) {
  std::vector<Value> values;
  const auto add = [&](Value value) {
    if (in_scratch(value) && std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
  };
  for (const Step& step : steps) {
    if (step.op == StepOp::attend)
      for (const Value value : kPromptValues) add(value);
    add(step.out);
  }
  return values;
}

bool writes_stored(const Types& types) {
  const bool narrow = types.product == types.kv && !types.quantises_kv;
  return narrow || types.activation == types.kv;
}

ValueShape attention_shape(Value value, const ModelSpec& model, const Types& types, const AttentionRows& rows,
                           int layer) {
  const auto shape = [&](std::int64_t count) { return shape_of(value, model, types, count, layer); };
  const auto as_product = [&](ValueShape value_shape, bool narrow) {
    if (narrow) value_shape.dtype = types.product;
    return value_shape;
  };
  // Attention of prompts reads the type of the keys; slots of int8 and int4 are filled from fp32 numbers.
  const bool narrow = rows.prompts && types.product == types.kv, narrow_kv = narrow && !types.quantises_kv;
  switch (value) {
    case Value::q:
    case Value::attended: return as_product(shape(rows.queries), model.fused_qkv ? narrow_kv : narrow);
    case Value::k:
    case Value::v: return as_product(shape(rows.prompts && keeps_keys(types) ? rows.tokens : rows.queries), narrow_kv);
    case Value::stored_k:
    case Value::stored_v: return shape(rows.prompts && !writes_stored(types) ? rows.tokens : 0);
    case Value::log_sum: return shape(rows.prompts ? rows.queries : 0);
    default: return shape(rows.prompts ? rows.tokens : 0);  // the scores
  }
}

std::size_t take(offload::Arena& arena, const ValueShape& shape) { return arena.take(shape.bytes(), kValueAlignment); }

ValueShape prefix_score_shape(const ModelSpec& model, std::int64_t prefix, int layer) {
  return {DType::f32, model.kv_heads_of(layer), prefix};
}

HiddenLayout hidden_layout(const ModelSpec& model, const Types& types, std::int64_t rows) {
  offload::Arena counting;
  std::size_t taken = 0;
  const auto place = [&](Value value, bool used, int layer = 0) {
    const ValueShape shape = shape_of(value, model, types, used ? rows : 0, layer);
    taken += shape.bytes();
    return HiddenLayout::Part{shape, used ? take(counting, shape) : 0, used};
  };
  const bool sparse = model.experts.count > 0, beside = sparse && model.experts.beside_mlp;
  HiddenLayout layout{.hidden = place(Value::hidden, true),
                      .mlp_input = place(Value::mlp_input, sparse),
                      .mlp_output = place(Value::mlp_output, beside),
                      .expert_sum = place(Value::expert_sum, beside),
                      .layer_inputs = place(Value::layer_inputs, model.layer_input > 0),
                      .lent_k = {},
                      .lent_v = {}};
  for (int layer = model.layers - model.sharing_layers; layer < model.layers; ++layer) {
    const std::size_t kind = model.is_global(layer) ? 1 : 0;
    if (layout.lent_k[kind].used) continue;
    layout.lent_k[kind] = place(Value::lent_k, true, layer);
    layout.lent_v[kind] = place(Value::lent_v, true, layer);
  }
  layout.bytes = counting.used(), layout.bytes_without_gaps = taken;
  return layout;
}

double products(const ModelSpec& model, const Step& step, int layer, double rows) {
  if (step.op != StepOp::linear) return 0;
  return rows * double(width_of(step.in, model, layer) * width_of(step.out, model, layer));
}

double pointwise_bytes(const ModelSpec& model, const Types& types, const Step& step, int layer, double rows) {
  if (step.op == StepOp::linear || step.op == StepOp::attend) return 0;
  const ValueShape row = shape_of(step.out, model, types, 1, layer);
  const bool reads_both = step.op == StepOp::add || step.op == StepOp::multiply || step.op == StepOp::clamped_gate;
  const double read = step.op == StepOp::norm && step.in != step.out
                          ? double(row.cols) * double(size_of(types.activation))
                          : (reads_both ? 2 : 1) * double(row.bytes());
  return rows * (read + double(row.bytes()));
}

double flops_per_token(const ModelSpec& model, double context, bool head) {
  double flops = 0;
  const auto add = [&](Stage stage, int layer) {
    for (const Step& step : steps_of(model, stage, layer))
      flops += step.op == StepOp::attend
                   ? 4 * (model.window(layer) > 0 ? std::min<double>(context, model.window(layer)) : context) *
                         double(size_of(Dim::q_rows, model, layer))
                   : 2 * products(model, step, layer, 1);
  };
  add(Stage::embed, 0);
  for (int layer = 0; layer < model.layers; ++layer) {
    for (const Stage stage : {Stage::attention_in, Stage::attend, Stage::attention_out}) add(stage, layer);
    if (!model.parallel_residual) add(Stage::mlp, layer);
    if (!model.is_sparse(layer)) continue;
    for (int expert = 0; expert < model.experts.chosen; ++expert) add(Stage::expert, layer);
  }
  add(Stage::output, 0);
  if (head) add(Stage::head, 0);
  return flops;
}

}  // namespace weft::policy
