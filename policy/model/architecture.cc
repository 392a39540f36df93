#include "policy/model/architecture.h"

#include <algorithm>
#include <array>

namespace weft::policy {
namespace {

/// The names and shapes of transformers' OPTForCausalLM.
constexpr std::array kOpt{
    TensorRow{Unit::Kind::embedding, Role::token_embedding, Form::table, "embed_tokens.weight", Dim::vocab, Dim::embed},
    TensorRow{Unit::Kind::positions, Role::position_embedding, Form::table, "embed_positions.weight", Dim::positions,
              Dim::hidden},
    TensorRow{Unit::Kind::input, Role::project_in, Form::matrix, "project_in.weight", Dim::hidden, Dim::embed,
              When::projections},
    TensorRow{Unit::Kind::attention, Role::k_weight, Form::matrix, "layers.#.self_attn.k_proj.weight", Dim::kv_rows,
              Dim::hidden},
    TensorRow{Unit::Kind::attention, Role::k_bias, Form::vector, "layers.#.self_attn.k_proj.bias", Dim::one,
              Dim::kv_rows, When::qkv_bias},
    TensorRow{Unit::Kind::attention, Role::v_weight, Form::matrix, "layers.#.self_attn.v_proj.weight", Dim::kv_rows,
              Dim::hidden},
    TensorRow{Unit::Kind::attention, Role::v_bias, Form::vector, "layers.#.self_attn.v_proj.bias", Dim::one,
              Dim::kv_rows, When::qkv_bias},
    TensorRow{Unit::Kind::attention, Role::q_weight, Form::matrix, "layers.#.self_attn.q_proj.weight", Dim::q_rows,
              Dim::hidden},
    TensorRow{Unit::Kind::attention, Role::q_bias, Form::vector, "layers.#.self_attn.q_proj.bias", Dim::one,
              Dim::q_rows, When::qkv_bias},
    TensorRow{Unit::Kind::attention, Role::o_weight, Form::matrix, "layers.#.self_attn.out_proj.weight", Dim::hidden,
              Dim::q_rows},
    TensorRow{Unit::Kind::attention, Role::o_bias, Form::vector, "layers.#.self_attn.out_proj.bias", Dim::one,
              Dim::hidden, When::output_bias},
    TensorRow{Unit::Kind::attention, Role::norm1_weight, Form::norm, "layers.#.self_attn_layer_norm.weight", Dim::one,
              Dim::hidden, When::norm_weights},
    TensorRow{Unit::Kind::attention, Role::norm1_bias, Form::vector, "layers.#.self_attn_layer_norm.bias", Dim::one,
              Dim::hidden, When::norm_weights},
    TensorRow{Unit::Kind::mlp, Role::up_weight, Form::matrix, "layers.#.fc1.weight", Dim::ffn, Dim::hidden},
    TensorRow{Unit::Kind::mlp, Role::up_bias, Form::vector, "layers.#.fc1.bias", Dim::one, Dim::ffn, When::mlp_bias},
    TensorRow{Unit::Kind::mlp, Role::down_weight, Form::matrix, "layers.#.fc2.weight", Dim::hidden, Dim::ffn},
    TensorRow{Unit::Kind::mlp, Role::down_bias, Form::vector, "layers.#.fc2.bias", Dim::one, Dim::hidden,
              When::mlp_bias},
    TensorRow{Unit::Kind::mlp, Role::norm2_weight, Form::norm, "layers.#.final_layer_norm.weight", Dim::one,
              Dim::hidden, When::norm_weights},
    TensorRow{Unit::Kind::mlp, Role::norm2_bias, Form::vector, "layers.#.final_layer_norm.bias", Dim::one, Dim::hidden,
              When::norm_weights},
    TensorRow{Unit::Kind::output, Role::final_norm_weight, Form::norm, "final_layer_norm.weight", Dim::one, Dim::hidden,
              When::final_norm_weights},
    TensorRow{Unit::Kind::output, Role::final_norm_bias, Form::vector, "final_layer_norm.bias", Dim::one, Dim::hidden,
              When::final_norm_weights},
    TensorRow{Unit::Kind::output, Role::project_out, Form::matrix, "project_out.weight", Dim::embed, Dim::hidden,
              When::projections},
    TensorRow{Unit::Kind::head, Role::head, Form::matrix, "lm_head.weight", Dim::vocab, Dim::embed, When::untied},
};

/// LlamaForCausalLM's tensors. Mistral and Qwen2 differ only in their biases; Qwen3 norms heads.
constexpr std::array kLlama{
    TensorRow{Unit::Kind::embedding, Role::token_embedding, Form::table, "embed_tokens.weight", Dim::vocab, Dim::embed},
    TensorRow{Unit::Kind::attention, Role::norm1_weight, Form::norm, "layers.#.input_layernorm.weight", Dim::one,
              Dim::hidden},
    TensorRow{Unit::Kind::attention, Role::q_weight, Form::matrix, "layers.#.self_attn.q_proj.weight", Dim::q_rows,
              Dim::hidden},
    TensorRow{Unit::Kind::attention, Role::q_bias, Form::vector, "layers.#.self_attn.q_proj.bias", Dim::one,
              Dim::q_rows, When::qkv_bias},
    TensorRow{Unit::Kind::attention, Role::k_weight, Form::matrix, "layers.#.self_attn.k_proj.weight", Dim::kv_rows,
              Dim::hidden},
    TensorRow{Unit::Kind::attention, Role::k_bias, Form::vector, "layers.#.self_attn.k_proj.bias", Dim::one,
              Dim::kv_rows, When::qkv_bias},
    TensorRow{Unit::Kind::attention, Role::v_weight, Form::matrix, "layers.#.self_attn.v_proj.weight", Dim::kv_rows,
              Dim::hidden},
    TensorRow{Unit::Kind::attention, Role::v_bias, Form::vector, "layers.#.self_attn.v_proj.bias", Dim::one,
              Dim::kv_rows, When::qkv_bias},
    TensorRow{Unit::Kind::attention, Role::q_norm, Form::norm, "layers.#.self_attn.q_norm.weight", Dim::one,
              Dim::head_dim, When::head_norm},
    TensorRow{Unit::Kind::attention, Role::k_norm, Form::norm, "layers.#.self_attn.k_norm.weight", Dim::one,
              Dim::head_dim, When::head_norm},
    TensorRow{Unit::Kind::attention, Role::o_weight, Form::matrix, "layers.#.self_attn.o_proj.weight", Dim::hidden,
              Dim::q_rows},
    TensorRow{Unit::Kind::attention, Role::o_bias, Form::vector, "layers.#.self_attn.o_proj.bias", Dim::one,
              Dim::hidden, When::output_bias},
    TensorRow{Unit::Kind::mlp, Role::norm2_weight, Form::norm, "layers.#.post_attention_layernorm.weight", Dim::one,
              Dim::hidden},
    TensorRow{Unit::Kind::mlp, Role::gate_weight, Form::matrix, "layers.#.mlp.gate_proj.weight", Dim::ffn, Dim::hidden},
    TensorRow{Unit::Kind::mlp, Role::gate_bias, Form::vector, "layers.#.mlp.gate_proj.bias", Dim::one, Dim::ffn,
              When::mlp_bias},
    TensorRow{Unit::Kind::mlp, Role::up_weight, Form::matrix, "layers.#.mlp.up_proj.weight", Dim::ffn, Dim::hidden},
    TensorRow{Unit::Kind::mlp, Role::up_bias, Form::vector, "layers.#.mlp.up_proj.bias", Dim::one, Dim::ffn,
              When::mlp_bias},
    TensorRow{Unit::Kind::mlp, Role::down_weight, Form::matrix, "layers.#.mlp.down_proj.weight", Dim::hidden, Dim::ffn},
    TensorRow{Unit::Kind::mlp, Role::down_bias, Form::vector, "layers.#.mlp.down_proj.bias", Dim::one, Dim::hidden,
              When::mlp_bias},
    TensorRow{Unit::Kind::output, Role::final_norm_weight, Form::norm, "norm.weight", Dim::one, Dim::hidden},
    TensorRow{Unit::Kind::head, Role::head, Form::matrix, "lm_head.weight", Dim::vocab, Dim::embed, When::untied},
};

/// GPTNeoXForCausalLM's tensors.
constexpr std::array kNeox{
    TensorRow{Unit::Kind::embedding, Role::token_embedding, Form::table, "embed_in.weight", Dim::vocab, Dim::embed},
    TensorRow{Unit::Kind::attention, Role::norm1_weight, Form::norm, "layers.#.input_layernorm.weight", Dim::one,
              Dim::hidden},
    TensorRow{Unit::Kind::attention, Role::norm1_bias, Form::vector, "layers.#.input_layernorm.bias", Dim::one,
              Dim::hidden},
    TensorRow{Unit::Kind::attention, Role::qkv_weight, Form::matrix, "layers.#.attention.query_key_value.weight",
              Dim::qkv_rows, Dim::hidden},
    TensorRow{Unit::Kind::attention, Role::qkv_bias, Form::vector, "layers.#.attention.query_key_value.bias", Dim::one,
              Dim::qkv_rows, When::qkv_bias},
    TensorRow{Unit::Kind::attention, Role::o_weight, Form::matrix, "layers.#.attention.dense.weight", Dim::hidden,
              Dim::q_rows},
    TensorRow{Unit::Kind::attention, Role::o_bias, Form::vector, "layers.#.attention.dense.bias", Dim::one, Dim::hidden,
              When::output_bias},
    TensorRow{Unit::Kind::mlp, Role::norm2_weight, Form::norm, "layers.#.post_attention_layernorm.weight", Dim::one,
              Dim::hidden},
    TensorRow{Unit::Kind::mlp, Role::norm2_bias, Form::vector, "layers.#.post_attention_layernorm.bias", Dim::one,
              Dim::hidden},
    TensorRow{Unit::Kind::mlp, Role::up_weight, Form::matrix, "layers.#.mlp.dense_h_to_4h.weight", Dim::ffn,
              Dim::hidden},
    TensorRow{Unit::Kind::mlp, Role::up_bias, Form::vector, "layers.#.mlp.dense_h_to_4h.bias", Dim::one, Dim::ffn},
    TensorRow{Unit::Kind::mlp, Role::down_weight, Form::matrix, "layers.#.mlp.dense_4h_to_h.weight", Dim::hidden,
              Dim::ffn},
    TensorRow{Unit::Kind::mlp, Role::down_bias, Form::vector, "layers.#.mlp.dense_4h_to_h.bias", Dim::one, Dim::hidden},
    TensorRow{Unit::Kind::output, Role::final_norm_weight, Form::norm, "final_layer_norm.weight", Dim::one,
              Dim::hidden},
    TensorRow{Unit::Kind::output, Role::final_norm_bias, Form::vector, "final_layer_norm.bias", Dim::one, Dim::hidden},
    TensorRow{Unit::Kind::head, Role::head, Form::matrix, "embed_out.weight", Dim::vocab, Dim::embed, When::untied},
};

/// The computation of a decoder, stage by stage. A step whose input no step of its sublayer writes reads the hidden
/// states instead. With a parallel residual the steps of Stage::mlp end Stage::attention_out: see steps_of().
constexpr std::array kDecoderSteps{
    StepRow{Stage::embed, {.op = StepOp::gather_tokens, .out = Value::embedded}, When::projections},
    StepRow{Stage::embed,
            {.op = StepOp::linear, .in = Value::embedded, .out = Value::hidden, .weight = Role::project_in},
            When::projections},
    StepRow{Stage::embed, {.op = StepOp::gather_tokens, .out = Value::hidden}, When::no_projections},
    StepRow{Stage::embed, {.op = StepOp::gather_positions, .out = Value::positions}, When::position_table},
    StepRow{Stage::embed, {.op = StepOp::add, .in = Value::positions, .out = Value::hidden}, When::position_table},

    StepRow{Stage::attention_in,
            {.op = StepOp::norm,
             .in = Value::hidden,
             .out = Value::normed,
             .weight = Role::norm1_weight,
             .bias = Role::norm1_bias},
            When::pre_norm},
    StepRow{Stage::attention_in,
            {.op = StepOp::linear,
             .in = Value::normed,
             .out = Value::qkv,
             .weight = Role::qkv_weight,
             .bias = Role::qkv_bias},
            When::fused_qkv},
    StepRow{
        Stage::attention_in, {.op = StepOp::take_heads, .in = Value::qkv, .out = Value::q, .part = 0}, When::fused_qkv},
    StepRow{
        Stage::attention_in, {.op = StepOp::take_heads, .in = Value::qkv, .out = Value::k, .part = 1}, When::fused_qkv},
    StepRow{
        Stage::attention_in, {.op = StepOp::take_heads, .in = Value::qkv, .out = Value::v, .part = 2}, When::fused_qkv},
    StepRow{
        Stage::attention_in,
        {.op = StepOp::linear, .in = Value::normed, .out = Value::q, .weight = Role::q_weight, .bias = Role::q_bias},
        When::separate_qkv},
    StepRow{
        Stage::attention_in,
        {.op = StepOp::linear, .in = Value::normed, .out = Value::k, .weight = Role::k_weight, .bias = Role::k_bias},
        When::separate_qkv},
    StepRow{
        Stage::attention_in,
        {.op = StepOp::linear, .in = Value::normed, .out = Value::v, .weight = Role::v_weight, .bias = Role::v_bias},
        When::separate_qkv},
    StepRow{Stage::attention_in,
            {.op = StepOp::norm, .in = Value::q, .out = Value::q, .weight = Role::q_norm},
            When::head_norm},
    StepRow{Stage::attention_in,
            {.op = StepOp::norm, .in = Value::k, .out = Value::k, .weight = Role::k_norm},
            When::head_norm},
    StepRow{Stage::attention_in, {.op = StepOp::rotary, .in = Value::q, .out = Value::q}, When::rotary},
    StepRow{Stage::attention_in, {.op = StepOp::rotary, .in = Value::k, .out = Value::k}, When::rotary},

    StepRow{Stage::attend, {.op = StepOp::attend, .in = Value::q, .out = Value::attended}},

    StepRow{Stage::attention_out,
            {.op = StepOp::norm,
             .in = Value::hidden,
             .out = Value::mlp_input,
             .weight = Role::norm2_weight,
             .bias = Role::norm2_bias},
            When::parallel},
    StepRow{Stage::attention_out,
            {.op = StepOp::linear,
             .in = Value::attended,
             .out = Value::hidden,
             .weight = Role::o_weight,
             .bias = Role::o_bias,
             .accumulate = true}},
    StepRow{Stage::attention_out,
            {.op = StepOp::norm,
             .in = Value::hidden,
             .out = Value::hidden,
             .weight = Role::norm1_weight,
             .bias = Role::norm1_bias},
            When::post_norm},

    StepRow{Stage::mlp,
            {.op = StepOp::norm,
             .in = Value::hidden,
             .out = Value::mlp_input,
             .weight = Role::norm2_weight,
             .bias = Role::norm2_bias},
            When::own_mlp_norm},
    StepRow{Stage::mlp,
            {.op = StepOp::linear,
             .in = Value::mlp_input,
             .out = Value::gate,
             .weight = Role::gate_weight,
             .bias = Role::gate_bias,
             .activation = true},
            When::gated_mlp},
    StepRow{Stage::mlp,
            {.op = StepOp::linear,
             .in = Value::mlp_input,
             .out = Value::up,
             .weight = Role::up_weight,
             .bias = Role::up_bias},
            When::gated_mlp},
    StepRow{Stage::mlp, {.op = StepOp::multiply, .in = Value::up, .out = Value::gate}, When::gated_mlp},
    StepRow{Stage::mlp,
            {.op = StepOp::linear,
             .in = Value::gate,
             .out = Value::hidden,
             .weight = Role::down_weight,
             .bias = Role::down_bias,
             .accumulate = true},
            When::gated_mlp},
    StepRow{Stage::mlp,
            {.op = StepOp::linear,
             .in = Value::mlp_input,
             .out = Value::up,
             .weight = Role::up_weight,
             .bias = Role::up_bias,
             .activation = true},
            When::plain_mlp},
    StepRow{Stage::mlp,
            {.op = StepOp::linear,
             .in = Value::up,
             .out = Value::hidden,
             .weight = Role::down_weight,
             .bias = Role::down_bias,
             .accumulate = true},
            When::plain_mlp},
    StepRow{Stage::mlp,
            {.op = StepOp::norm,
             .in = Value::hidden,
             .out = Value::hidden,
             .weight = Role::norm2_weight,
             .bias = Role::norm2_bias},
            When::post_norm},

    StepRow{Stage::output, {.op = StepOp::gather_last, .in = Value::hidden, .out = Value::last_hidden}},
    StepRow{Stage::output,
            {.op = StepOp::norm,
             .in = Value::last_hidden,
             .out = Value::last_hidden,
             .weight = Role::final_norm_weight,
             .bias = Role::final_norm_bias},
            When::final_norm},
    StepRow{Stage::output,
            {.op = StepOp::linear, .in = Value::last_hidden, .out = Value::last_embed, .weight = Role::project_out},
            When::projections},
    StepRow{Stage::output,
            {.op = StepOp::convert, .in = Value::last_hidden, .out = Value::last_embed},
            When::no_projections},

    StepRow{Stage::head,
            {.op = StepOp::linear, .in = Value::last_embed, .out = Value::logits, .weight = Role::token_embedding},
            When::tied},
    StepRow{Stage::head,
            {.op = StepOp::linear, .in = Value::last_embed, .out = Value::logits, .weight = Role::head},
            When::untied},
};

constexpr std::array kOptPrefixes{"model.decoder.", "decoder.", "model.", ""};
constexpr std::array kLlamaPrefixes{"model.", ""};
constexpr std::array kNeoxPrefixes{"gpt_neox.", ""};

constexpr std::array kArchitectures{
    Architecture{"opt", kOpt, kDecoderSteps, kOptPrefixes, opt_from_config},
    Architecture{"llama", kLlama, kDecoderSteps, kLlamaPrefixes, llama_from_config},
    Architecture{"mistral", kLlama, kDecoderSteps, kLlamaPrefixes, mistral_from_config},
    Architecture{"qwen2", kLlama, kDecoderSteps, kLlamaPrefixes, qwen2_from_config},
    Architecture{"qwen3", kLlama, kDecoderSteps, kLlamaPrefixes, qwen3_from_config},
    Architecture{"smollm3", kLlama, kDecoderSteps, kLlamaPrefixes, smollm3_from_config},
    Architecture{"gpt_neox", kNeox, kDecoderSteps, kNeoxPrefixes, neox_from_config},
};

}  // namespace

std::int64_t size_of(Dim dim, const ModelSpec& model) {
  switch (dim) {
    case Dim::one: return 1;
    case Dim::hidden: return model.hidden;
    case Dim::ffn: return model.ffn;
    case Dim::vocab: return model.vocab;
    case Dim::embed: return model.embed;
    case Dim::positions: return std::int64_t{model.positions} + model.position_offset;
    case Dim::heads: return model.heads;
    case Dim::kv_heads: return model.kv_heads;
    case Dim::head_dim: return model.head_dim;
    case Dim::q_rows: return std::int64_t{model.heads} * model.head_dim;
    case Dim::kv_rows: return std::int64_t{model.kv_heads} * model.head_dim;
    case Dim::qkv_rows: return (std::int64_t{model.heads} + 2 * std::int64_t{model.kv_heads}) * model.head_dim;
  }
  return 0;
}

bool applies(When when, const ModelSpec& model, int layer) {
  switch (when) {
    case When::always: return true;
    case When::qkv_bias: return model.qkv_bias;
    case When::output_bias: return model.output_bias;
    case When::mlp_bias: return model.mlp_bias;
    case When::norm_weights: return model.norm_affine;
    case When::final_norm_weights: return model.final_norm && model.norm_affine;
    case When::final_norm: return model.final_norm;
    case When::projections: return model.has_projections();
    case When::no_projections: return !model.has_projections();
    case When::tied: return model.tied_head;
    case When::untied: return !model.tied_head;
    case When::position_table: return model.rotary.empty();
    case When::rotary: return model.rotates(layer);
    case When::fused_qkv: return model.fused_qkv;
    case When::separate_qkv: return !model.fused_qkv;
    case When::head_norm: return model.head_norm;
    case When::pre_norm: return model.pre_norm;
    case When::post_norm: return !model.pre_norm;
    case When::own_mlp_norm: return model.pre_norm && !model.parallel_residual;
    case When::parallel: return model.parallel_residual;
    case When::gated_mlp: return model.gated_mlp;
    case When::plain_mlp: return !model.gated_mlp;
  }
  return false;
}

const Architecture* find_architecture(const std::string& model_type) {
  const auto* const found = std::find_if(kArchitectures.begin(), kArchitectures.end(),
                                         [&](const Architecture& a) { return model_type == a.model_type; });
  return found == kArchitectures.end() ? nullptr : found;
}

std::string known_architectures() {
  std::string names;
  for (const Architecture& architecture : kArchitectures)
    names += (names.empty() ? "" : ", ") + std::string(architecture.model_type);
  return names;
}

}  // namespace weft::policy
