// tests/runtime/engine/layers_test.cc: the steps of sublayers, interpreted without storage; each of them matters.
#include "runtime/engine/layers.h"
#include "runtime/engine/routing.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/error.h"
#include "policy/layout/footprint.h"
#include "runtime/base/hash.h"
#include "runtime/engine/storage.h"
#include "tests/support/files.h"

using namespace weft;
using policy::ModelSpec;
using policy::Stage;
using policy::Step;
using policy::StepOp;
using policy::Value;

namespace {

constexpr std::int64_t kPrompt = 5;

/// The model's weights in memory, every one at its unit.
class Model : public runtime::TableRows {
 public:
  explicit Model(const std::string& config)
      : spec(policy::model_from_config(nlohmann::json::parse(config), "config.json")), units(policy::model_units(spec)),
        weights(spec, units, 7, DType::f32) {
    for (std::size_t u = 0; u < units.size(); ++u) {
      bytes.emplace_back(weights.unit_bytes()[u] + 64);
      weights.make(u, at(u));
      // So large that they decide which experts are chosen.
      if (const ConstView bias = views(static_cast<int>(u))[static_cast<std::size_t>(policy::Role::score_bias)])
        for (std::int64_t i = 0; i < bias.cols; ++i) const_cast<float*>(bias.as<float>())[i] *= 50;
    }
  }
  std::byte* at(std::size_t unit) {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes[unit].data());
    return bytes[unit].data() + (64 - address % 64) % 64;
  }
  runtime::UnitViews views(int unit, int expert = 0) {
    return unit < 0 ? runtime::UnitViews{} : weights.views(unit, at(unit), expert);
  }

  void gather(policy::Unit::Kind kind, std::span<const std::int32_t> ids, View out, kernels::Stream& stream) override {
    for (std::size_t u = 0; u < units.size(); ++u) {
      if (units[u].kind != kind) continue;
      const policy::TensorSpec& table = units[u].tensors.front();
      for (std::size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] < table.first_row || ids[i] >= table.first_row + table.rows) continue;
        const std::vector<std::int32_t> id{static_cast<std::int32_t>(ids[i] - table.first_row)};
        backend->ops().run(kernels::Gather{.table = ConstView(at(u), DType::f32, table.rows, table.cols),
                                           .ids = id,
                                           .to = {},
                                           .out = out.slice(static_cast<std::int64_t>(i), 1)},
                           stream);
      }
    }
  }

  ModelSpec spec;
  std::vector<policy::Unit> units;
  runtime::Weights weights;
  std::vector<std::vector<std::byte>> bytes;
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend({.threads = 1});
};

/// Numbers that change the result where a step does not write what it should.
void poison(std::byte* memory, std::size_t size) {
  const float number = 1e3f;
  for (std::size_t at = 0; at + sizeof number <= size; at += sizeof number)
    std::memcpy(memory + at, &number, sizeof number);
}

std::vector<std::vector<float>> sink_logits_of(const Model& model) {
  std::vector<std::vector<float>> logits;
  for (std::size_t u = 0; model.spec.sinks && u < model.units.size(); ++u)
    if (model.units[u].kind == policy::Unit::Kind::attention)
      logits.push_back(model.weights.numbers(u, policy::Role::sinks));
  return logits;
}

/// Logits after a prompt and after one more token, by these steps.
std::vector<float> logits(Model& model, const runtime::Layers::StepsOf& steps_of, std::int64_t rows_that_fill = 512) {
  const policy::Retention retention = policy::Retention::from_text("h2o:2:2");
  policy::Policy policy;
  policy.retention = retention;
  policy::SizingInputs sizing;
  sizing.unit_bytes = model.weights.unit_bytes();
  sizing.unit_in_files.assign(model.units.size(), false);
  sizing.kv = DType::f32;
  sizing.rows_that_fill = rows_that_fill;
  const policy::Footprint print =
      policy::footprint(model.spec, model.units, policy, policy::alike(1, kPrompt, 2, retention), sizing);

  std::vector<std::unique_ptr<kernels::Memory>> memory;
  const auto room = [&](std::size_t size) { return memory.emplace_back(model.backend->allocate_host(size))->data(); };
  const auto view = [&](Value value, std::int64_t rows) {
    const policy::ValueShape shape = policy::shape_of(value, model.spec, print.types, rows);
    std::byte* const data = room(shape.bytes());
    poison(data, shape.bytes());
    return View(data, shape.dtype, shape.rows, shape.cols);
  };
  std::byte* const chunk = room(print.workspace.chunk);
  poison(chunk, print.workspace.chunk);
  const std::atomic<bool> stop{false};
  const runtime::GracePeriod grace(stop);
  runtime::Layers layers({.model = model.spec,
                          .retention = retention,
                          .types = print.types,
                          .chunk_tokens = print.workspace.chunk_tokens,
                          .piece_tokens = print.workspace.piece_tokens,
                          .sink_logits = sink_logits_of(model)},
                         steps_of, {chunk, print.workspace.chunk}, model, *model.backend, grace);
  std::vector<runtime::HeadRunSlots> kv;
  for (int layer = 0; layer < model.spec.layers; ++layer) {
    std::byte* const base = room(print.kv_buffer_bytes(layer));
    std::memset(base, 0, print.kv_buffer_bytes(layer));
    kv.push_back({print.kv_runs(layer)[0].view(base)});
  }

  const auto stream = model.backend->make_stream();
  std::vector<float> all;
  runtime::BatchRows rows;
  for (const bool prompt : {true, false}) {
    rows.clear();
    const std::int64_t length = prompt ? kPrompt : kPrompt + 1;
    for (std::int64_t p = prompt ? 0 : kPrompt; p < length; ++p) {
      rows.tokens.push_back(static_cast<std::int32_t>((7 * p + 3) % model.spec.vocab));
      rows.position.push_back(static_cast<std::int32_t>(p));
    }
    rows.add(0, {{{.heavy = 2, .recent = 2}}}, static_cast<std::int32_t>(length));
    rows.offsets.push_back(static_cast<std::int32_t>(rows.tokens.size()));
    if (!prompt) rows.begun = 1;
    const std::size_t hidden_bytes = policy::hidden_layout(model.spec, print.types, rows.rows()).bytes;
    std::byte* const buffer = room(hidden_bytes);
    poison(buffer, hidden_bytes);
    const View last = view(Value::last_hidden, 1), embed = view(Value::last_embed, 1), out = view(Value::logits, 1);
    std::vector<std::int32_t> expert(static_cast<std::size_t>(rows.rows() * model.spec.experts.chosen));
    std::vector<float> weight(expert.size());
    const View sum = view(Value::expert_sum, rows.rows());
    std::fill_n(sum.as<float>(), sum.rows * sum.cols, std::numeric_limits<float>::quiet_NaN());  // it is cleared
    const runtime::RoutedBatch routed{view(Value::mlp_input, rows.rows()), view(Value::mlp_output, rows.rows()), sum,
                                      expert, weight};
    runtime::Routing routing(model.spec.experts, *model.backend);
    for (const policy::Sublayer& sub : print.shape.sublayers) {
      const runtime::UnitViews unit = model.views(sub.unit);
      const runtime::HiddenRows state = runtime::hidden_rows(model.spec, print.types, buffer, rows.rows(), sub.layer);
      const View hidden = state.hidden;
      switch (sub.kind) {
        case policy::Sublayer::Kind::embed: layers.embed(unit, rows, state, *stream); break;
        case policy::Sublayer::Kind::attention:
          layers.attention(sub.layer, unit, rows, state, {kv[sub.layer], {}}, *stream);
          break;
        case policy::Sublayer::Kind::mlp:
          layers.mlp(sub.layer, unit, state, routed, *stream);
          routing.chosen(routed, 1, *stream);
          break;
        case policy::Sublayer::Kind::experts:
          for (int e = 0; e < sub.experts; ++e)
            layers.expert(sub.layer, model.views(sub.unit, e), hidden, routed, routing.rows_of(sub.first_expert + e),
                          *stream);
          if (policy::has_last_expert(model.spec, sub))
            layers.end_experts(sub.layer, model.views(sub.unit, sub.experts), hidden, routed, *stream);
          break;
        case policy::Sublayer::Kind::output: layers.output(unit, rows, hidden, last, embed, *stream); break;
        case policy::Sublayer::Kind::head: {
          const policy::TensorSpec& piece = model.units[sub.unit].tensors.front();
          layers.head(unit, embed, View(out.as<float>() + piece.first_row, DType::f32, 1, piece.rows, out.stride),
                      *stream);
          break;
        }
      }
    }
    all.insert(all.end(), out.as<float>(), out.as<float>() + out.cols);
  }
  return all;
}

/// Whether the result is other than `expected`, or is refused.
bool is_noticed(Model& model, const runtime::Layers::StepsOf& steps_of, const std::vector<float>& expected) {
  try {
    const std::vector<float> got = logits(model, steps_of);
    return std::memcmp(got.data(), expected.data(), expected.size() * sizeof(float)) != 0;
  } catch (const std::exception&) {
    return true;
  }
}

const std::vector<std::string> kFamilies{
    R"({"model_type":"opt","hidden_size":48,"num_attention_heads":4,"ffn_dim":64,"num_hidden_layers":2,"vocab_size":67,
        "max_position_embeddings":32})",
    R"({"model_type":"opt","hidden_size":48,"num_attention_heads":4,"ffn_dim":64,"num_hidden_layers":2,"vocab_size":67,
        "max_position_embeddings":32,"do_layer_norm_before":false,"word_embed_proj_dim":24,"tie_word_embeddings":false})",
    R"({"model_type":"llama","hidden_size":48,"num_attention_heads":4,"num_key_value_heads":2,"intermediate_size":64,
        "num_hidden_layers":2,"vocab_size":67})",
    R"({"model_type":"qwen2","hidden_size":48,"num_attention_heads":4,"num_key_value_heads":2,"intermediate_size":64,
        "num_hidden_layers":2,"vocab_size":67,"tie_word_embeddings":true})",
    R"({"model_type":"qwen3","hidden_size":48,"num_attention_heads":4,"num_key_value_heads":2,"intermediate_size":64,
        "num_hidden_layers":2,"vocab_size":67,"head_dim":16,"attention_bias":true})",
    R"({"model_type":"smollm3","hidden_size":48,"num_attention_heads":4,"num_key_value_heads":2,"intermediate_size":64,
        "num_hidden_layers":2,"vocab_size":67,"no_rope_layers":[0,1],"bos_token_id":null,"eos_token_id":null})",
    R"({"model_type":"gpt_neox","hidden_size":48,"num_attention_heads":2,"intermediate_size":64,"num_hidden_layers":2,
        "vocab_size":67,"bos_token_id":null,"eos_token_id":null})",
    R"({"model_type":"gpt_neox","hidden_size":48,"num_attention_heads":2,"intermediate_size":64,"num_hidden_layers":2,
        "vocab_size":67,"use_parallel_residual":false,"bos_token_id":null,"eos_token_id":null})",
    R"({"model_type":"granite","hidden_size":48,"num_attention_heads":4,"intermediate_size":64,"num_hidden_layers":2,
        "vocab_size":67,"embedding_multiplier":3,"residual_multiplier":0.5,"attention_multiplier":0.2,"logits_scaling":2})",
    R"({"model_type":"gemma2","hidden_size":48,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":16,
        "intermediate_size":64,"num_hidden_layers":2,"vocab_size":67,"sliding_window":3,"attn_logit_softcapping":2})",
    R"({"model_type":"gemma3_text","hidden_size":48,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":16,
        "intermediate_size":64,"num_hidden_layers":2,"vocab_size":67,"sliding_window":3,"sliding_window_pattern":2,
        "final_logit_softcapping":5})",
    R"({"model_type":"gemma4_text","hidden_size":48,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":16,
        "intermediate_size":64,"num_hidden_layers":2,"vocab_size":67,"sliding_window":3,"global_head_dim":32,
        "layer_types":["sliding_attention","full_attention"],"num_global_key_value_heads":1,"attention_k_eq_v":true,
        "hidden_size_per_layer_input":0})",
    R"({"model_type":"gemma4_text","hidden_size":48,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":16,
        "intermediate_size":64,"num_hidden_layers":2,"vocab_size":67,"sliding_window":3,"global_head_dim":32,
        "layer_types":["sliding_attention","full_attention"],"hidden_size_per_layer_input":0,"enable_moe_block":true,
        "num_experts":5,"top_k_experts":2,"moe_intermediate_size":24})",
    R"({"model_type":"gemma4_text","hidden_size":48,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":16,
        "intermediate_size":64,"num_hidden_layers":4,"vocab_size":67,"sliding_window":3,"global_head_dim":32,
        "layer_types":["sliding_attention","full_attention","sliding_attention","full_attention"],
        "hidden_size_per_layer_input":8,"vocab_size_per_layer_input":70,"num_kv_shared_layers":2,
        "use_double_wide_mlp":true})",
    R"({"model_type":"olmo3","hidden_size":48,"num_attention_heads":4,"intermediate_size":64,"num_hidden_layers":2,
        "vocab_size":67,"sliding_window":3})",
    R"({"model_type":"phi3","hidden_size":48,"num_attention_heads":4,"num_key_value_heads":2,"intermediate_size":64,
        "num_hidden_layers":2,"vocab_size":67})",
    R"({"model_type":"glm4","hidden_size":48,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":12,
        "intermediate_size":64,"num_hidden_layers":2,"vocab_size":67})",
    R"({"model_type":"qwen2_moe","hidden_size":48,"num_attention_heads":4,"num_key_value_heads":2,"intermediate_size":64,
        "num_hidden_layers":2,"vocab_size":67,"num_experts":5,"num_experts_per_tok":2,"moe_intermediate_size":24,
        "shared_expert_intermediate_size":32,"mlp_only_layers":[1]})",
    R"({"model_type":"glm4_moe","hidden_size":48,"num_attention_heads":4,"num_key_value_heads":2,"intermediate_size":64,
        "num_hidden_layers":2,"vocab_size":67,"n_routed_experts":6,"num_experts_per_tok":3,"moe_intermediate_size":24,
        "first_k_dense_replace":0,"head_dim":12})",
    R"({"model_type":"gpt_oss","hidden_size":48,"num_attention_heads":4,"num_key_value_heads":2,"intermediate_size":24,
        "num_hidden_layers":2,"vocab_size":67,"num_local_experts":5,"num_experts_per_tok":2,"head_dim":12,
        "sliding_window":3,"swiglu_limit":0.5})",
    R"({"model_type":"granitemoe","hidden_size":48,"num_attention_heads":4,"intermediate_size":24,"num_hidden_layers":2,
        "vocab_size":67,"num_local_experts":5,"num_experts_per_tok":2,"embedding_multiplier":3,
        "residual_multiplier":0.5,"attention_multiplier":0.2,"logits_scaling":2})"};

}  // namespace

TEST_CASE("a step that is left out, or that says anything else, changes what every family computes", "[runtime]") {
  const std::string config = GENERATE(from_range(kFamilies));
  Model model(config);
  const auto described = [&](Stage stage, int layer) { return policy::steps_of(model.spec, stage, layer); };
  const std::vector<float> expected = logits(model, described);
  for (const float number : expected) REQUIRE(std::isfinite(number));
  REQUIRE(logits(model, described) == expected);

  int changed = 0;
  for (std::size_t s = 0; s < policy::kStages; ++s) {
    const auto stage = static_cast<Stage>(s);
    if (stage == Stage::mlp && model.spec.parallel_residual) continue;  // its steps are in attention_out
    for (int layer = 0; layer < (stage == Stage::embed || stage >= Stage::output ? 1 : model.spec.layers); ++layer) {
      const std::vector<Step> steps = described(stage, layer);
      for (std::size_t i = 0; i < steps.size(); ++i) {
        if (steps[i].op == StepOp::attend) continue;  // says what runs; there is nothing in its place
        const auto with = [&](auto change) {
          return [&, change](Stage at, int in) {
            std::vector<Step> other = described(at, in);
            if (at == stage && in == layer) change(other, other.begin() + static_cast<std::ptrdiff_t>(i));
            return other;
          };
        };
        CAPTURE(config, s, layer, i);
        CHECK(is_noticed(model, with([](auto& all, auto step) { all.erase(step); }), expected));
        const auto has = [&](policy::Role role) {
          return std::any_of(model.units.begin(), model.units.end(), [&](const policy::Unit& unit) {
            return std::any_of(unit.tensors.begin(), unit.tensors.end(),
                               [&](const policy::TensorSpec& tensor) { return tensor.role == role; });
          });
        };
        // Not every router has factors of experts.
        if (steps[i].weight != policy::Role::none && (steps[i].op != StepOp::route || has(steps[i].weight)))
          CHECK(is_noticed(model, with([](auto&, auto step) { step->weight = policy::Role::none; }), expected));
        // Without rotary embedding a bias of the keys adds the same to all of a query's products: softmax drops it.
        if (has(steps[i].bias) && (steps[i].bias != policy::Role::k_bias || model.spec.rotates(layer)))
          CHECK(is_noticed(model, with([](auto&, auto step) { step->bias = policy::Role::none; }), expected));
        if (steps[i].op == StepOp::linear) {
          CHECK(is_noticed(model, with([](auto&, auto step) { step->accumulate = !step->accumulate; }), expected));
          CHECK(is_noticed(model, with([](auto&, auto step) { step->activation = !step->activation; }), expected));
        }
        if (steps[i].op == StepOp::take_heads)
          CHECK(is_noticed(model, with([](auto&, auto step) { step->part = (step->part + 1) % 3; }), expected));
        ++changed;
      }
    }
  }
  CHECK(changed > 10);
}

TEST_CASE("what works row by row may go in pieces of any number of rows, and gives the same bits", "[runtime]") {
  const std::string config = GENERATE(from_range(kFamilies));
  CAPTURE(config);
  Model model(config);
  const auto described = [&](Stage stage, int layer) { return policy::steps_of(model.spec, stage, layer); };
  const std::vector<float> whole = logits(model, described);
  for (const std::int64_t rows : {1, 2, 3, 100}) {
    CAPTURE(rows);
    CHECK(logits(model, described, rows) == whole);
  }
}

TEST_CASE("what steps write has room in the work space that the footprint counts, and no more is counted",
          "[runtime]") {
  const std::string config = GENERATE(from_range(kFamilies));
  Model model(config);
  policy::Policy policy;
  policy.gpu_batch_size = 3;
  policy::SizingInputs sizing;
  sizing.unit_bytes = model.weights.unit_bytes();
  sizing.unit_in_files.assign(model.units.size(), false);
  const policy::Workload work = policy::alike(3, 9, 4, policy.retention);
  const policy::Footprint print = policy::footprint(model.spec, model.units, policy, work, sizing);
  // Attention has q, k and v of the whole chunk beside its own values; all else is of a piece.
  const auto of_layer = [&](Stage stage, bool of_chunk, int layer) {
    std::uint64_t bytes = 0;
    for (const Value value : policy::scratch_values(policy::steps_of(model.spec, stage, layer))) {
      const bool spans = stage == Stage::attend || value == Value::q || value == Value::k || value == Value::v;
      if (spans != of_chunk) continue;
      const policy::ValueShape shape =
          of_chunk ? policy::attention_shape(value, model.spec, print.types, print.workspace.attention, layer)
                   : policy::shape_of(value, model.spec, print.types, print.workspace.piece_tokens, layer);
      bytes += (shape.bytes() + 63) / 64 * 64;
    }
    return bytes;
  };
  const auto most_of = [&](const auto& bytes_in) {
    std::uint64_t bytes = 0;
    for (int layer = 0; layer < model.spec.layers; ++layer) bytes = std::max<std::uint64_t>(bytes, bytes_in(layer));
    return bytes;
  };
  const auto bytes_of = [&](Stage stage, bool of_chunk) {
    return most_of([&](int layer) { return of_layer(stage, of_chunk, layer); });
  };
  const std::uint64_t attention =
      most_of([&](int layer) {
        return of_layer(Stage::attention_in, true, layer) + of_layer(Stage::attend, true, layer);
      }) +
      std::max(bytes_of(Stage::attention_in, false), bytes_of(Stage::attention_out, false));
  const std::uint64_t most =
      std::max({bytes_of(Stage::embed, false), attention, bytes_of(Stage::mlp, false), bytes_of(Stage::expert, false)});
  CHECK(print.workspace.chunk >= most);
  CHECK(print.workspace.chunk < most + 4096);
}

TEST_CASE("the flops of a token are twice the matrices that it meets, and its attention", "[runtime]") {
  const std::string config = GENERATE(from_range(kFamilies));
  Model model(config);
  double matrices = 0;
  for (const policy::Unit& unit : model.units)
    for (const policy::TensorSpec& tensor : unit.tensors)
      if (tensor.form == policy::Form::matrix && tensor.role != policy::Role::head)
        matrices += double(tensor.elements()) * (unit.kind == policy::Unit::Kind::experts
                                                     ? double(model.spec.experts.chosen) / model.spec.experts.count
                                                     : 1);
  double attention = 0;  // after 10 tokens, in all layers
  for (int layer = 0; layer < model.spec.layers; ++layer)
    attention += 4.0 * model.spec.heads * model.spec.head_dim_of(layer) *
                 (model.spec.window(layer) > 0 ? std::min(10, model.spec.window(layer)) : 10);
  CHECK(policy::flops_per_token(model.spec, 0, false) == Approx(2 * matrices));
  CHECK(policy::flops_per_token(model.spec, 10, false) == Approx(2 * matrices + attention));
  CHECK(policy::flops_per_token(model.spec, 0, true) ==
        Approx(2 * matrices + 2.0 * model.spec.vocab * model.spec.embed));
}
