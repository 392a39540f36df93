// policy/model/tensor_rows.h: rows of the tables of tensors, and those that several families share.
#pragma once

#include "policy/model/architecture.h"

namespace weft::policy {

constexpr TensorRow embedding(const char* name) {
  return {Unit::Kind::embedding, Role::token_embedding, Form::table, name, Dim::vocab, Dim::embed};
}
constexpr TensorRow head(const char* name) {
  return {Unit::Kind::head, Role::head, Form::matrix, name, Dim::vocab, Dim::embed, When::untied};
}
constexpr TensorRow matrix(Unit::Kind unit, Role role, const char* name, Dim rows, Dim cols, When when = When::always) {
  return {unit, role, Form::matrix, name, rows, cols, when};
}
/// The rows of a matrix from `first` on.
constexpr TensorRow part(Unit::Kind unit, Role role, const char* name, Dim rows, Dim cols, Dim of_rows, Dim first) {
  return {unit, role, Form::matrix, name, rows, cols, When::always, of_rows, first};
}
constexpr TensorRow norm(Unit::Kind unit, Role role, const char* name, Dim width = Dim::hidden,
                         When when = When::always) {
  return {unit, role, Form::norm, name, Dim::one, width, when};
}
constexpr TensorRow bias(Unit::Kind unit, Role role, const char* name, Dim width, When when = When::always) {
  return {unit, role, Form::vector, name, Dim::one, width, when};
}

constexpr Unit::Kind kAttention = Unit::Kind::attention, kMlp = Unit::Kind::mlp, kExperts = Unit::Kind::experts,
                     kOutput = Unit::Kind::output;

/// A matrix of each expert.
constexpr TensorRow expert(Role role, const char* name) {
  const bool down = role == Role::down_weight;
  return matrix(kExperts, role, name, down ? Dim::hidden : Dim::expert_ffn, down ? Dim::expert_ffn : Dim::hidden,
                When::sparse);
}
/// The same in a tensor of all experts.
constexpr TensorRow in_stack(TensorRow row, StackRow stack) {
  row.stack = stack;
  return row;
}
constexpr TensorRow ends_experts(TensorRow row) {
  row.ends_experts = true;
  return row;
}

// Rows that several families share.
constexpr TensorRow kQ =
    matrix(kAttention, Role::q_weight, "layers.#.self_attn.q_proj.weight", Dim::q_rows, Dim::hidden);
constexpr TensorRow kK =
    matrix(kAttention, Role::k_weight, "layers.#.self_attn.k_proj.weight", Dim::kv_rows, Dim::hidden);
constexpr TensorRow kV =
    matrix(kAttention, Role::v_weight, "layers.#.self_attn.v_proj.weight", Dim::kv_rows, Dim::hidden);
constexpr TensorRow kQBias =
    bias(kAttention, Role::q_bias, "layers.#.self_attn.q_proj.bias", Dim::q_rows, When::qkv_bias);
constexpr TensorRow kKBias =
    bias(kAttention, Role::k_bias, "layers.#.self_attn.k_proj.bias", Dim::kv_rows, When::qkv_bias);
constexpr TensorRow kVBias =
    bias(kAttention, Role::v_bias, "layers.#.self_attn.v_proj.bias", Dim::kv_rows, When::qkv_bias);
constexpr TensorRow kO =
    matrix(kAttention, Role::o_weight, "layers.#.self_attn.o_proj.weight", Dim::hidden, Dim::q_rows);
constexpr TensorRow kOBias =
    bias(kAttention, Role::o_bias, "layers.#.self_attn.o_proj.bias", Dim::hidden, When::output_bias);
constexpr TensorRow kHeadQNorm =
    norm(kAttention, Role::q_norm, "layers.#.self_attn.q_norm.weight", Dim::head_dim, When::head_norm);
constexpr TensorRow kHeadKNorm =
    norm(kAttention, Role::k_norm, "layers.#.self_attn.k_norm.weight", Dim::head_dim, When::head_norm);
/// Heads that do not share a weight.
constexpr TensorRow kEachHeadQNorm{kAttention, Role::q_norm,  Form::norm,     "layers.#.self_attn.q_norm.weight",
                                   Dim::heads, Dim::head_dim, When::head_norm};
constexpr TensorRow kEachHeadKNorm{kAttention,    Role::k_norm,  Form::norm,     "layers.#.self_attn.k_norm.weight",
                                   Dim::kv_heads, Dim::head_dim, When::head_norm};
constexpr TensorRow kHunyuanQNorm =
    norm(kAttention, Role::q_norm, "layers.#.self_attn.query_layernorm.weight", Dim::head_dim);
constexpr TensorRow kHunyuanKNorm =
    norm(kAttention, Role::k_norm, "layers.#.self_attn.key_layernorm.weight", Dim::head_dim);
constexpr TensorRow kWholeQNorm = norm(kAttention, Role::q_norm, "layers.#.self_attn.q_norm.weight", Dim::q_rows);
constexpr TensorRow kWholeKNorm = norm(kAttention, Role::k_norm, "layers.#.self_attn.k_norm.weight", Dim::kv_rows);
constexpr TensorRow kSinks = bias(kAttention, Role::sinks, "layers.#.self_attn.sinks", Dim::heads, When::sinks);
constexpr TensorRow kInputNorm = norm(kAttention, Role::norm1_weight, "layers.#.input_layernorm.weight");
constexpr TensorRow kInputNormBias = bias(kAttention, Role::norm1_bias, "layers.#.input_layernorm.bias", Dim::hidden);
constexpr TensorRow kMlpInputNorm = norm(kMlp, Role::norm2_weight, "layers.#.post_attention_layernorm.weight");
constexpr TensorRow kMlpInputNormBias =
    bias(kMlp, Role::norm2_bias, "layers.#.post_attention_layernorm.bias", Dim::hidden);
constexpr TensorRow kGate = matrix(kMlp, Role::gate_weight, "layers.#.mlp.gate_proj.weight", Dim::ffn, Dim::hidden);
constexpr TensorRow kUp = matrix(kMlp, Role::up_weight, "layers.#.mlp.up_proj.weight", Dim::ffn, Dim::hidden);
constexpr TensorRow kDown = matrix(kMlp, Role::down_weight, "layers.#.mlp.down_proj.weight", Dim::hidden, Dim::ffn);
constexpr TensorRow kUpBias = bias(kMlp, Role::up_bias, "layers.#.mlp.up_proj.bias", Dim::ffn, When::mlp_bias);
constexpr TensorRow kDownBias = bias(kMlp, Role::down_bias, "layers.#.mlp.down_proj.bias", Dim::hidden, When::mlp_bias);
constexpr TensorRow kGatePart =
    part(kMlp, Role::gate_weight, "layers.#.mlp.gate_up_proj.weight", Dim::ffn, Dim::hidden, Dim::two_ffn, Dim::one);
constexpr TensorRow kUpPart =
    part(kMlp, Role::up_weight, "layers.#.mlp.gate_up_proj.weight", Dim::ffn, Dim::hidden, Dim::two_ffn, Dim::ffn);
constexpr TensorRow kFinalNorm = norm(kOutput, Role::final_norm_weight, "norm.weight");
constexpr TensorRow kFinalNormBias = bias(kOutput, Role::final_norm_bias, "norm.bias", Dim::hidden);

}  // namespace weft::policy
