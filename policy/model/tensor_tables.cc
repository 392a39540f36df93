#include "policy/model/tensor_tables.h"

#include <array>

namespace weft::policy {
namespace {

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

constexpr Unit::Kind kAttention = Unit::Kind::attention, kMlp = Unit::Kind::mlp, kOutput = Unit::Kind::output;

constexpr std::array kOpt{
    embedding("embed_tokens.weight"),
    TensorRow{Unit::Kind::positions, Role::position_embedding, Form::table, "embed_positions.weight", Dim::positions,
              Dim::hidden},
    matrix(Unit::Kind::input, Role::project_in, "project_in.weight", Dim::hidden, Dim::embed, When::projections),
    matrix(kAttention, Role::k_weight, "layers.#.self_attn.k_proj.weight", Dim::kv_rows, Dim::hidden),
    bias(kAttention, Role::k_bias, "layers.#.self_attn.k_proj.bias", Dim::kv_rows, When::qkv_bias),
    matrix(kAttention, Role::v_weight, "layers.#.self_attn.v_proj.weight", Dim::kv_rows, Dim::hidden),
    bias(kAttention, Role::v_bias, "layers.#.self_attn.v_proj.bias", Dim::kv_rows, When::qkv_bias),
    matrix(kAttention, Role::q_weight, "layers.#.self_attn.q_proj.weight", Dim::q_rows, Dim::hidden),
    bias(kAttention, Role::q_bias, "layers.#.self_attn.q_proj.bias", Dim::q_rows, When::qkv_bias),
    matrix(kAttention, Role::o_weight, "layers.#.self_attn.out_proj.weight", Dim::hidden, Dim::q_rows),
    bias(kAttention, Role::o_bias, "layers.#.self_attn.out_proj.bias", Dim::hidden, When::output_bias),
    norm(kAttention, Role::norm1_weight, "layers.#.self_attn_layer_norm.weight", Dim::hidden, When::norm_weights),
    bias(kAttention, Role::norm1_bias, "layers.#.self_attn_layer_norm.bias", Dim::hidden, When::norm_weights),
    matrix(kMlp, Role::up_weight, "layers.#.fc1.weight", Dim::ffn, Dim::hidden),
    bias(kMlp, Role::up_bias, "layers.#.fc1.bias", Dim::ffn, When::mlp_bias),
    matrix(kMlp, Role::down_weight, "layers.#.fc2.weight", Dim::hidden, Dim::ffn),
    bias(kMlp, Role::down_bias, "layers.#.fc2.bias", Dim::hidden, When::mlp_bias),
    norm(kMlp, Role::norm2_weight, "layers.#.final_layer_norm.weight", Dim::hidden, When::norm_weights),
    bias(kMlp, Role::norm2_bias, "layers.#.final_layer_norm.bias", Dim::hidden, When::norm_weights),
    norm(kOutput, Role::final_norm_weight, "final_layer_norm.weight", Dim::hidden, When::final_norm_weights),
    bias(kOutput, Role::final_norm_bias, "final_layer_norm.bias", Dim::hidden, When::final_norm_weights),
    matrix(kOutput, Role::project_out, "project_out.weight", Dim::embed, Dim::hidden, When::projections),
    head("lm_head.weight"),
};

// The rows of the tables that follow, which several families share.
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
constexpr TensorRow kSinks = bias(kAttention, Role::sinks, "layers.#.self_attn.sinks", Dim::heads, When::sinks);
constexpr TensorRow kInputNorm = norm(kAttention, Role::norm1_weight, "layers.#.input_layernorm.weight");
constexpr TensorRow kMlpInputNorm = norm(kMlp, Role::norm2_weight, "layers.#.post_attention_layernorm.weight");
constexpr TensorRow kGate = matrix(kMlp, Role::gate_weight, "layers.#.mlp.gate_proj.weight", Dim::ffn, Dim::hidden);
constexpr TensorRow kUp = matrix(kMlp, Role::up_weight, "layers.#.mlp.up_proj.weight", Dim::ffn, Dim::hidden);
constexpr TensorRow kDown = matrix(kMlp, Role::down_weight, "layers.#.mlp.down_proj.weight", Dim::hidden, Dim::ffn);
constexpr TensorRow kGatePart =
    part(kMlp, Role::gate_weight, "layers.#.mlp.gate_up_proj.weight", Dim::ffn, Dim::hidden, Dim::two_ffn, Dim::one);
constexpr TensorRow kUpPart =
    part(kMlp, Role::up_weight, "layers.#.mlp.gate_up_proj.weight", Dim::ffn, Dim::hidden, Dim::two_ffn, Dim::ffn);
constexpr TensorRow kFinalNorm = norm(kOutput, Role::final_norm_weight, "norm.weight");

constexpr std::array kLlama{
    embedding("embed_tokens.weight"),
    kInputNorm,
    kQ,
    kQBias,
    kK,
    kKBias,
    kV,
    kVBias,
    kHeadQNorm,
    kHeadKNorm,
    kSinks,
    kO,
    kOBias,
    kMlpInputNorm,
    kGate,
    bias(kMlp, Role::gate_bias, "layers.#.mlp.gate_proj.bias", Dim::ffn, When::mlp_bias),
    kUp,
    bias(kMlp, Role::up_bias, "layers.#.mlp.up_proj.bias", Dim::ffn, When::mlp_bias),
    kDown,
    bias(kMlp, Role::down_bias, "layers.#.mlp.down_proj.bias", Dim::hidden, When::mlp_bias),
    kFinalNorm,
    head("lm_head.weight"),
};

constexpr std::array kGemma2{
    embedding("embed_tokens.weight"),
    kInputNorm,
    kQ,
    kQBias,
    kK,
    kKBias,
    kV,
    kVBias,
    kHeadQNorm,
    kHeadKNorm,
    kO,
    kOBias,
    norm(kAttention, Role::attention_norm, "layers.#.post_attention_layernorm.weight"),
    norm(kMlp, Role::norm2_weight, "layers.#.pre_feedforward_layernorm.weight"),
    kGate,
    kUp,
    kDown,
    norm(kMlp, Role::mlp_norm, "layers.#.post_feedforward_layernorm.weight"),
    kFinalNorm,
    head("lm_head.weight"),
};

constexpr std::array kOlmo2{
    embedding("embed_tokens.weight"),
    kQ,
    kQBias,
    kK,
    kKBias,
    kV,
    kVBias,
    norm(kAttention, Role::q_norm, "layers.#.self_attn.q_norm.weight", Dim::q_rows),
    norm(kAttention, Role::k_norm, "layers.#.self_attn.k_norm.weight", Dim::kv_rows),
    kO,
    kOBias,
    norm(kAttention, Role::attention_norm, "layers.#.post_attention_layernorm.weight"),
    kGate,
    kUp,
    kDown,
    norm(kMlp, Role::mlp_norm, "layers.#.post_feedforward_layernorm.weight"),
    kFinalNorm,
    head("lm_head.weight"),
};

constexpr const char* kQkv = "layers.#.self_attn.qkv_proj.weight";

constexpr std::array kPhi3{
    embedding("embed_tokens.weight"),
    kInputNorm,
    part(kAttention, Role::q_weight, kQkv, Dim::q_rows, Dim::hidden, Dim::qkv_rows, Dim::one),
    part(kAttention, Role::k_weight, kQkv, Dim::kv_rows, Dim::hidden, Dim::qkv_rows, Dim::q_rows),
    part(kAttention, Role::v_weight, kQkv, Dim::kv_rows, Dim::hidden, Dim::qkv_rows, Dim::qk_rows),
    kO,
    kMlpInputNorm,
    kGatePart,
    kUpPart,
    kDown,
    kFinalNorm,
    head("lm_head.weight"),
};

constexpr std::array kGlm4{
    embedding("embed_tokens.weight"),
    kInputNorm,
    kQ,
    kQBias,
    kK,
    kKBias,
    kV,
    kVBias,
    kO,
    norm(kAttention, Role::attention_norm, "layers.#.post_self_attn_layernorm.weight", Dim::hidden, When::branch_norm),
    kMlpInputNorm,
    kGatePart,
    kUpPart,
    kDown,
    norm(kMlp, Role::mlp_norm, "layers.#.post_mlp_layernorm.weight", Dim::hidden, When::branch_norm),
    kFinalNorm,
    head("lm_head.weight"),
};

constexpr std::array kNeox{
    embedding("embed_in.weight"),
    kInputNorm,
    bias(kAttention, Role::norm1_bias, "layers.#.input_layernorm.bias", Dim::hidden),
    matrix(kAttention, Role::qkv_weight, "layers.#.attention.query_key_value.weight", Dim::qkv_rows, Dim::hidden),
    bias(kAttention, Role::qkv_bias, "layers.#.attention.query_key_value.bias", Dim::qkv_rows, When::qkv_bias),
    matrix(kAttention, Role::o_weight, "layers.#.attention.dense.weight", Dim::hidden, Dim::q_rows),
    bias(kAttention, Role::o_bias, "layers.#.attention.dense.bias", Dim::hidden, When::output_bias),
    kMlpInputNorm,
    bias(kMlp, Role::norm2_bias, "layers.#.post_attention_layernorm.bias", Dim::hidden),
    matrix(kMlp, Role::up_weight, "layers.#.mlp.dense_h_to_4h.weight", Dim::ffn, Dim::hidden),
    bias(kMlp, Role::up_bias, "layers.#.mlp.dense_h_to_4h.bias", Dim::ffn),
    matrix(kMlp, Role::down_weight, "layers.#.mlp.dense_4h_to_h.weight", Dim::hidden, Dim::ffn),
    bias(kMlp, Role::down_bias, "layers.#.mlp.dense_4h_to_h.bias", Dim::hidden),
    norm(kOutput, Role::final_norm_weight, "final_layer_norm.weight"),
    bias(kOutput, Role::final_norm_bias, "final_layer_norm.bias", Dim::hidden),
    head("embed_out.weight"),
};

}  // namespace

std::span<const TensorRow> opt_tensors() { return kOpt; }
std::span<const TensorRow> llama_tensors() { return kLlama; }
std::span<const TensorRow> gemma2_tensors() { return kGemma2; }
std::span<const TensorRow> olmo2_tensors() { return kOlmo2; }
std::span<const TensorRow> phi3_tensors() { return kPhi3; }
std::span<const TensorRow> glm4_tensors() { return kGlm4; }
std::span<const TensorRow> neox_tensors() { return kNeox; }

}  // namespace weft::policy
