#include "policy/model/tensor_tables.h"

#include <array>

#include "policy/model/tensor_rows.h"

namespace weft::policy {
namespace {

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
    kUpBias,
    kDown,
    kDownBias,
    kFinalNorm,
    head("lm_head.weight"),
};

constexpr const char* kGemmaGateUp = "layers.#.experts.gate_up_proj";

/// Of Gemma 2 to 4, the mixture of Gemma 4 included.
constexpr std::array kGemma2{
    embedding("embed_tokens.weight"),
    TensorRow{Unit::Kind::layer_inputs, Role::layer_inputs, Form::table, "embed_tokens_per_layer.weight",
              Dim::layer_vocab, Dim::layer_inputs, When::layer_input},
    matrix(Unit::Kind::input, Role::layer_inputs_weight, "per_layer_model_projection.weight", Dim::layer_inputs,
           Dim::hidden, When::layer_input),
    norm(Unit::Kind::input, Role::layer_inputs_norm, "per_layer_projection_norm.weight", Dim::layer_input,
         When::layer_input),
    kInputNorm,
    kQ,
    kQBias,
    matrix(kAttention, Role::k_weight, "layers.#.self_attn.k_proj.weight", Dim::kv_rows, Dim::hidden, When::own_keys),
    kKBias,
    matrix(kAttention, Role::v_weight, "layers.#.self_attn.v_proj.weight", Dim::kv_rows, Dim::hidden, When::own_values),
    kVBias,
    kHeadQNorm,
    norm(kAttention, Role::k_norm, "layers.#.self_attn.k_norm.weight", Dim::head_dim, When::key_norm),
    kO,
    kOBias,
    norm(kAttention, Role::attention_norm, "layers.#.post_attention_layernorm.weight"),
    norm(kMlp, Role::norm2_weight, "layers.#.pre_feedforward_layernorm.weight"),
    kGate,
    kUp,
    kDown,
    norm(kMlp, Role::mlp_norm, "layers.#.post_feedforward_layernorm.weight", Dim::hidden, When::dense_branch_norm),
    matrix(kMlp, Role::layer_gate, "layers.#.per_layer_input_gate.weight", Dim::layer_input, Dim::hidden,
           When::layer_input),
    matrix(kMlp, Role::layer_project, "layers.#.per_layer_projection.weight", Dim::hidden, Dim::layer_input,
           When::layer_input),
    norm(kMlp, Role::layer_norm, "layers.#.post_per_layer_input_norm.weight", Dim::hidden, When::layer_input),
    norm(kMlp, Role::layer_scale, "layers.#.layer_scalar", Dim::one, When::dense_layer_scale),
    norm(kMlp, Role::mlp_norm, "layers.#.post_feedforward_layernorm_1.weight", Dim::hidden, When::experts_beside_mlp),
    norm(kMlp, Role::router_norm, "layers.#.router.scale", Dim::hidden, When::experts_beside_mlp),
    matrix(kMlp, Role::router, "layers.#.router.proj.weight", Dim::experts, Dim::hidden, When::experts_beside_mlp),
    norm(kMlp, Role::expert_scale, "layers.#.router.per_expert_scale", Dim::experts, When::experts_beside_mlp),
    norm(kMlp, Role::expert_input_norm, "layers.#.pre_feedforward_layernorm_2.weight", Dim::hidden,
         When::experts_beside_mlp),
    in_stack(expert(Role::gate_weight, "layers.#.experts.@.gate_proj.weight"), {kGemmaGateUp, 0, 2}),
    in_stack(expert(Role::up_weight, "layers.#.experts.@.up_proj.weight"), {kGemmaGateUp, 1, 2}),
    in_stack(expert(Role::down_weight, "layers.#.experts.@.down_proj.weight"), {"layers.#.experts.down_proj"}),
    ends_experts(norm(kExperts, Role::expert_sum_norm, "layers.#.post_feedforward_layernorm_2.weight", Dim::hidden,
                      When::experts_beside_mlp)),
    ends_experts(norm(kExperts, Role::joined_norm, "layers.#.post_feedforward_layernorm.weight", Dim::hidden,
                      When::experts_beside_mlp)),
    ends_experts(norm(kExperts, Role::layer_scale, "layers.#.layer_scalar", Dim::one, When::experts_end_scale)),
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
    kWholeQNorm,
    kWholeKNorm,
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
    kInputNormBias,
    matrix(kAttention, Role::qkv_weight, "layers.#.attention.query_key_value.weight", Dim::qkv_rows, Dim::hidden),
    bias(kAttention, Role::qkv_bias, "layers.#.attention.query_key_value.bias", Dim::qkv_rows, When::qkv_bias),
    matrix(kAttention, Role::o_weight, "layers.#.attention.dense.weight", Dim::hidden, Dim::q_rows),
    bias(kAttention, Role::o_bias, "layers.#.attention.dense.bias", Dim::hidden, When::output_bias),
    kMlpInputNorm,
    kMlpInputNormBias,
    matrix(kMlp, Role::up_weight, "layers.#.mlp.dense_h_to_4h.weight", Dim::ffn, Dim::hidden),
    bias(kMlp, Role::up_bias, "layers.#.mlp.dense_h_to_4h.bias", Dim::ffn),
    matrix(kMlp, Role::down_weight, "layers.#.mlp.dense_4h_to_h.weight", Dim::hidden, Dim::ffn),
    bias(kMlp, Role::down_bias, "layers.#.mlp.dense_4h_to_h.bias", Dim::hidden),
    norm(kOutput, Role::final_norm_weight, "final_layer_norm.weight"),
    bias(kOutput, Role::final_norm_bias, "final_layer_norm.bias", Dim::hidden),
    head("embed_out.weight"),
};

/// Both sublayers read what one norm wrote, so the mlp has the attention's norm as its own too.
constexpr std::array kCohere{
    embedding("embed_tokens.weight"),
    kInputNorm,
    kQ,
    kQBias,
    kK,
    kKBias,
    kV,
    kVBias,
    kEachHeadQNorm,
    kEachHeadKNorm,
    kO,
    kOBias,
    norm(kMlp, Role::norm2_weight, "layers.#.input_layernorm.weight"),
    kGate,
    kUp,
    kDown,
    kFinalNorm,
    head("lm_head.weight"),
};

constexpr std::array kExaone4{
    embedding("embed_tokens.weight"),
    kQ,
    kK,
    kV,
    kHeadQNorm,
    kHeadKNorm,
    kO,
    norm(kAttention, Role::attention_norm, "layers.#.post_attention_layernorm.weight"),
    kGate,
    kUp,
    kDown,
    norm(kMlp, Role::mlp_norm, "layers.#.post_feedforward_layernorm.weight"),
    kFinalNorm,
    head("lm_head.weight"),
};

constexpr std::array kStableLm{
    embedding("embed_tokens.weight"),
    kInputNorm,
    kInputNormBias,
    kQ,
    kQBias,
    kK,
    kKBias,
    kV,
    kVBias,
    kO,
    kMlpInputNorm,
    kMlpInputNormBias,
    kGate,
    kUp,
    kDown,
    kFinalNorm,
    kFinalNormBias,
    head("lm_head.weight"),
};

constexpr std::array kStarcoder2{
    embedding("embed_tokens.weight"),
    kInputNorm,
    kInputNormBias,
    kQ,
    kQBias,
    kK,
    kKBias,
    kV,
    kVBias,
    kO,
    kOBias,
    kMlpInputNorm,
    kMlpInputNormBias,
    matrix(kMlp, Role::up_weight, "layers.#.mlp.c_fc.weight", Dim::ffn, Dim::hidden),
    bias(kMlp, Role::up_bias, "layers.#.mlp.c_fc.bias", Dim::ffn, When::mlp_bias),
    matrix(kMlp, Role::down_weight, "layers.#.mlp.c_proj.weight", Dim::hidden, Dim::ffn),
    bias(kMlp, Role::down_bias, "layers.#.mlp.c_proj.bias", Dim::hidden, When::mlp_bias),
    kFinalNorm,
    kFinalNormBias,
    head("lm_head.weight"),
};

constexpr std::array kHunyuan{
    embedding("embed_tokens.weight"),
    kInputNorm,
    kQ,
    kQBias,
    kK,
    kKBias,
    kV,
    kVBias,
    kHunyuanQNorm,
    kHunyuanKNorm,
    kO,
    kOBias,
    kMlpInputNorm,
    kGate,
    kUp,
    kDown,
    kFinalNorm,
    head("lm_head.weight"),
};

constexpr std::array kArcee{
    embedding("embed_tokens.weight"),
    kInputNorm,
    kQ,
    kQBias,
    kK,
    kKBias,
    kV,
    kVBias,
    kO,
    kOBias,
    kMlpInputNorm,
    kUp,
    kUpBias,
    kDown,
    kDownBias,
    kFinalNorm,
    head("lm_head.weight"),
};

constexpr std::array kNemotron{
    embedding("embed_tokens.weight"),
    kInputNorm,
    kInputNormBias,
    kQ,
    kQBias,
    kK,
    kKBias,
    kV,
    kVBias,
    kO,
    kOBias,
    kMlpInputNorm,
    kMlpInputNormBias,
    kUp,
    kUpBias,
    kDown,
    kDownBias,
    kFinalNorm,
    kFinalNormBias,
    head("lm_head.weight"),
};

constexpr const char* kGateUpOfGranite4 = "layers.#.shared_mlp.input_linear.weight";

constexpr std::array kGranite4{
    embedding("embed_tokens.weight"),
    kInputNorm,
    kQ,
    kQBias,
    kK,
    kKBias,
    kV,
    kVBias,
    kO,
    kOBias,
    kMlpInputNorm,
    part(kMlp, Role::gate_weight, kGateUpOfGranite4, Dim::ffn, Dim::hidden, Dim::two_ffn, Dim::one),
    part(kMlp, Role::up_weight, kGateUpOfGranite4, Dim::ffn, Dim::hidden, Dim::two_ffn, Dim::ffn),
    matrix(kMlp, Role::down_weight, "layers.#.shared_mlp.output_linear.weight", Dim::hidden, Dim::ffn),
    kFinalNorm,
    head("lm_head.weight"),
};

}  // namespace

std::span<const TensorRow> opt_tensors() { return kOpt; }
std::span<const TensorRow> llama_tensors() { return kLlama; }
std::span<const TensorRow> gemma2_tensors() { return kGemma2; }
std::span<const TensorRow> olmo2_tensors() { return kOlmo2; }
std::span<const TensorRow> phi3_tensors() { return kPhi3; }
std::span<const TensorRow> glm4_tensors() { return kGlm4; }
std::span<const TensorRow> neox_tensors() { return kNeox; }
std::span<const TensorRow> cohere_tensors() { return kCohere; }
std::span<const TensorRow> exaone4_tensors() { return kExaone4; }
std::span<const TensorRow> stablelm_tensors() { return kStableLm; }
std::span<const TensorRow> starcoder2_tensors() { return kStarcoder2; }
std::span<const TensorRow> hunyuan_tensors() { return kHunyuan; }
std::span<const TensorRow> arcee_tensors() { return kArcee; }
std::span<const TensorRow> nemotron_tensors() { return kNemotron; }
std::span<const TensorRow> granite4_tensors() { return kGranite4; }

}  // namespace weft::policy
