#include "policy/model/architecture.h"

#include <algorithm>
#include <array>

#include "policy/model/tensor_tables.h"

namespace weft::policy {
namespace {

/// The computation of a decoder, stage by stage. A step whose input no step of its sublayer writes reads the hidden
/// states instead. With a parallel residual the steps of Stage::mlp end Stage::attention_out: see steps_of().
constexpr std::array kDecoderSteps{
    StepRow{Stage::embed, {.op = StepOp::gather_tokens, .out = Value::embedded}, When::projections},
    StepRow{Stage::embed,
            {.op = StepOp::linear, .in = Value::embedded, .out = Value::hidden, .weight = Role::project_in},
            When::projections},
    StepRow{Stage::embed, {.op = StepOp::gather_tokens, .out = Value::hidden}, When::no_projections},
    StepRow{
        Stage::embed, {.op = StepOp::scale, .out = Value::hidden, .factor = Factor::embedding}, When::scaled_embedding},
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
        When::own_values},
    StepRow{Stage::attention_in, {.op = StepOp::convert, .in = Value::k, .out = Value::v}, When::values_of_keys},
    StepRow{Stage::attention_in, {.op = StepOp::norm_heads, .in = Value::v, .out = Value::v}, When::value_norm},
    StepRow{Stage::attention_in,
            {.op = StepOp::norm, .in = Value::q, .out = Value::q, .weight = Role::q_norm},
            When::head_norm},
    StepRow{Stage::attention_in,
            {.op = StepOp::norm, .in = Value::k, .out = Value::k, .weight = Role::k_norm},
            When::head_norm},
    StepRow{Stage::attention_in, {.op = StepOp::rotary, .in = Value::q, .out = Value::q}, When::rotary},
    StepRow{Stage::attention_in, {.op = StepOp::rotary, .in = Value::k, .out = Value::k}, When::rotary},
    StepRow{Stage::attention_in,
            {.op = StepOp::norm, .in = Value::q, .out = Value::q, .weight = Role::q_norm},
            When::late_head_norm},
    StepRow{Stage::attention_in,
            {.op = StepOp::norm, .in = Value::k, .out = Value::k, .weight = Role::k_norm},
            When::late_head_norm},

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
             .accumulate = true},
            When::plain_branch},
    StepRow{Stage::attention_out,
            {.op = StepOp::linear,
             .in = Value::attended,
             .out = Value::branch,
             .weight = Role::o_weight,
             .bias = Role::o_bias},
            When::shaped_branch},
    StepRow{Stage::attention_out,
            {.op = StepOp::norm, .in = Value::branch, .out = Value::branch, .weight = Role::attention_norm},
            When::branch_norm},
    StepRow{Stage::attention_out,
            {.op = StepOp::scale, .out = Value::branch, .factor = Factor::residual},
            When::scaled_residual},
    StepRow{Stage::attention_out, {.op = StepOp::add, .in = Value::branch, .out = Value::hidden}, When::shaped_branch},
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
            When::gated_plain_branch},
    StepRow{Stage::mlp,
            {.op = StepOp::linear,
             .in = Value::gate,
             .out = Value::branch,
             .weight = Role::down_weight,
             .bias = Role::down_bias},
            When::gated_shaped_branch},
    StepRow{Stage::mlp,
            {.op = StepOp::norm, .in = Value::branch, .out = Value::branch, .weight = Role::mlp_norm},
            When::dense_branch_norm},
    StepRow{Stage::mlp,
            {.op = StepOp::scale, .out = Value::branch, .factor = Factor::residual},
            When::dense_scaled_residual},
    StepRow{Stage::mlp, {.op = StepOp::add, .in = Value::branch, .out = Value::hidden}, When::gated_shaped_branch},
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
    StepRow{Stage::mlp,
            {.op = StepOp::scale_by, .in = Value::hidden, .out = Value::hidden, .weight = Role::layer_scale},
            When::dense_layer_scale},

    StepRow{Stage::mlp,
            {.op = StepOp::linear, .in = Value::gate, .out = Value::mlp_output, .weight = Role::down_weight},
            When::experts_beside_mlp},
    StepRow{Stage::mlp,
            {.op = StepOp::norm, .in = Value::mlp_output, .out = Value::mlp_output, .weight = Role::mlp_norm},
            When::experts_beside_mlp},
    StepRow{Stage::mlp,
            {.op = StepOp::norm, .in = Value::hidden, .out = Value::router_input, .weight = Role::router_norm},
            When::experts_beside_mlp},
    StepRow{Stage::mlp,
            {.op = StepOp::linear, .in = Value::router_input, .out = Value::router_logits, .weight = Role::router},
            When::experts_beside_mlp},
    StepRow{Stage::mlp,
            {.op = StepOp::scale, .out = Value::router_logits, .factor = Factor::router},
            When::experts_beside_mlp},
    StepRow{Stage::mlp,
            {.op = StepOp::norm, .in = Value::hidden, .out = Value::mlp_input, .weight = Role::expert_input_norm},
            When::experts_beside_mlp},
    StepRow{Stage::mlp, {.op = StepOp::clear, .out = Value::expert_sum}, When::experts_beside_mlp},
    StepRow{Stage::mlp,
            {.op = StepOp::linear,
             .in = Value::mlp_input,
             .out = Value::router_logits,
             .weight = Role::router,
             .bias = Role::router_bias},
            When::experts_alone},
    StepRow{Stage::mlp,
            {.op = StepOp::route, .in = Value::router_logits, .weight = Role::expert_scale, .bias = Role::score_bias},
            When::sparse},
    StepRow{Stage::mlp,
            {.op = StepOp::linear,
             .in = Value::mlp_input,
             .out = Value::shared_gate,
             .weight = Role::gate_weight,
             .activation = true},
            When::shared_expert},
    StepRow{Stage::mlp,
            {.op = StepOp::linear, .in = Value::mlp_input, .out = Value::shared_up, .weight = Role::up_weight},
            When::shared_expert},
    StepRow{
        Stage::mlp, {.op = StepOp::multiply, .in = Value::shared_up, .out = Value::shared_gate}, When::shared_expert},
    StepRow{Stage::mlp,
            {.op = StepOp::linear,
             .in = Value::shared_gate,
             .out = Value::hidden,
             .weight = Role::down_weight,
             .accumulate = true},
            When::plain_shared_expert},
    StepRow{Stage::mlp,
            {.op = StepOp::linear, .in = Value::shared_gate, .out = Value::branch, .weight = Role::down_weight},
            When::gated_shared_expert},
    StepRow{Stage::mlp,
            {.op = StepOp::linear, .in = Value::mlp_input, .out = Value::shared_score, .weight = Role::shared_gate},
            When::gated_shared_expert},
    StepRow{
        Stage::mlp, {.op = StepOp::gate, .in = Value::shared_score, .out = Value::branch}, When::gated_shared_expert},
    StepRow{Stage::mlp, {.op = StepOp::add, .in = Value::branch, .out = Value::hidden}, When::gated_shared_expert},

    StepRow{
        Stage::expert, {.op = StepOp::gather_routed, .in = Value::mlp_input, .out = Value::expert_input}, When::sparse},
    StepRow{Stage::expert,
            {.op = StepOp::linear,
             .in = Value::expert_input,
             .out = Value::expert_gate,
             .weight = Role::gate_weight,
             .bias = Role::gate_bias,
             .activation = true},
            When::plain_experts},
    StepRow{Stage::expert,
            {.op = StepOp::linear,
             .in = Value::expert_input,
             .out = Value::expert_gate,
             .weight = Role::gate_weight,
             .bias = Role::gate_bias},
            When::clamped_experts},
    StepRow{Stage::expert,
            {.op = StepOp::linear,
             .in = Value::expert_input,
             .out = Value::expert_up,
             .weight = Role::up_weight,
             .bias = Role::up_bias},
            When::sparse},
    StepRow{Stage::expert,
            {.op = StepOp::multiply, .in = Value::expert_up, .out = Value::expert_gate},
            When::plain_experts},
    StepRow{Stage::expert,
            {.op = StepOp::clamped_gate, .in = Value::expert_up, .out = Value::expert_gate},
            When::clamped_experts},
    StepRow{Stage::expert,
            {.op = StepOp::linear,
             .in = Value::expert_gate,
             .out = Value::expert_output,
             .weight = Role::down_weight,
             .bias = Role::down_bias},
            When::sparse},
    StepRow{Stage::expert,
            {.op = StepOp::add_routed, .in = Value::expert_output, .out = Value::hidden},
            When::experts_alone},
    StepRow{Stage::expert,
            {.op = StepOp::add_routed, .in = Value::expert_output, .out = Value::expert_sum},
            When::experts_beside_mlp},

    StepRow{Stage::experts_end,
            {.op = StepOp::norm, .in = Value::expert_sum, .out = Value::expert_sum, .weight = Role::expert_sum_norm},
            When::experts_beside_mlp},
    StepRow{Stage::experts_end,
            {.op = StepOp::add, .in = Value::expert_sum, .out = Value::mlp_output},
            When::experts_beside_mlp},
    StepRow{Stage::experts_end,
            {.op = StepOp::norm, .in = Value::mlp_output, .out = Value::mlp_output, .weight = Role::joined_norm},
            When::experts_beside_mlp},
    StepRow{Stage::experts_end,
            {.op = StepOp::add, .in = Value::mlp_output, .out = Value::hidden},
            When::experts_beside_mlp},
    StepRow{Stage::experts_end,
            {.op = StepOp::scale_by, .in = Value::hidden, .out = Value::hidden, .weight = Role::layer_scale},
            When::experts_end_scale},

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
    StepRow{Stage::head, {.op = StepOp::scale, .out = Value::logits, .factor = Factor::logits}, When::shaped_logits},
};

constexpr std::array kOptPrefixes{"model.decoder.", "decoder.", "model.", ""};
constexpr std::array kLlamaPrefixes{"model.", ""};
constexpr std::array kNeoxPrefixes{"gpt_neox.", ""};
/// The last but one is the text model's in a file without a head, beside the towers for images.
constexpr std::array kTowerPrefixes{"model.", "language_model.", ""};

const std::array kArchitectures{
    Architecture{"opt", opt_tensors(), kDecoderSteps, kOptPrefixes, opt_from_config},
    Architecture{"llama", llama_tensors(), kDecoderSteps, kLlamaPrefixes, llama_from_config},
    Architecture{"mistral", llama_tensors(), kDecoderSteps, kLlamaPrefixes, mistral_from_config},
    Architecture{"ministral", llama_tensors(), kDecoderSteps, kLlamaPrefixes, ministral_from_config},
    Architecture{"ministral3", llama_tensors(), kDecoderSteps, kLlamaPrefixes, ministral3_from_config},
    Architecture{"mistral3", llama_tensors(), kDecoderSteps, kTowerPrefixes, mistral3_from_config},
    Architecture{"qwen2", llama_tensors(), kDecoderSteps, kLlamaPrefixes, qwen2_from_config},
    Architecture{"qwen3", llama_tensors(), kDecoderSteps, kLlamaPrefixes, qwen3_from_config},
    Architecture{"smollm3", llama_tensors(), kDecoderSteps, kLlamaPrefixes, smollm3_from_config},
    Architecture{"granite", llama_tensors(), kDecoderSteps, kLlamaPrefixes, granite_from_config},
    Architecture{"gemma", llama_tensors(), kDecoderSteps, kLlamaPrefixes, gemma_from_config},
    Architecture{"gemma2", gemma2_tensors(), kDecoderSteps, kLlamaPrefixes, gemma2_from_config},
    Architecture{"gemma3_text", gemma2_tensors(), kDecoderSteps, kTowerPrefixes, gemma3_from_config},
    Architecture{"gemma3", gemma2_tensors(), kDecoderSteps, kTowerPrefixes, gemma3_from_config},
    Architecture{"gemma4_text", gemma2_tensors(), kDecoderSteps, kTowerPrefixes, gemma4_from_config},
    Architecture{"gemma4", gemma2_tensors(), kDecoderSteps, kTowerPrefixes, gemma4_from_config},
    Architecture{"gemma4_unified_text", gemma2_tensors(), kDecoderSteps, kTowerPrefixes, gemma4_from_config},
    Architecture{"gemma4_unified", gemma2_tensors(), kDecoderSteps, kTowerPrefixes, gemma4_from_config},
    Architecture{"olmo2", olmo2_tensors(), kDecoderSteps, kLlamaPrefixes, olmo2_from_config},
    Architecture{"olmo3", olmo2_tensors(), kDecoderSteps, kLlamaPrefixes, olmo3_from_config},
    Architecture{"phi3", phi3_tensors(), kDecoderSteps, kLlamaPrefixes, phi3_from_config},
    Architecture{"glm", glm4_tensors(), kDecoderSteps, kLlamaPrefixes, glm4_from_config},
    Architecture{"glm4", glm4_tensors(), kDecoderSteps, kLlamaPrefixes, glm4_from_config},
    Architecture{"gpt_neox", neox_tensors(), kDecoderSteps, kNeoxPrefixes, neox_from_config},
    Architecture{"seed_oss", llama_tensors(), kDecoderSteps, kLlamaPrefixes, seed_oss_from_config},
    Architecture{"ernie4_5", llama_tensors(), kDecoderSteps, kLlamaPrefixes, ernie4_5_from_config},
    Architecture{"exaone4", exaone4_tensors(), kDecoderSteps, kLlamaPrefixes, exaone4_from_config},
    Architecture{"cohere", cohere_tensors(), kDecoderSteps, kLlamaPrefixes, cohere_from_config},
    Architecture{"cohere2", cohere_tensors(), kDecoderSteps, kLlamaPrefixes, cohere2_from_config},
    Architecture{"stablelm", stablelm_tensors(), kDecoderSteps, kLlamaPrefixes, stablelm_from_config},
    Architecture{"starcoder2", starcoder2_tensors(), kDecoderSteps, kLlamaPrefixes, starcoder2_from_config},
    Architecture{"granitemoehybrid", granite4_tensors(), kDecoderSteps, kLlamaPrefixes, granite4_from_config},
    Architecture{"hunyuan_v1_dense", hunyuan_tensors(), kDecoderSteps, kLlamaPrefixes, hunyuan_from_config},
    Architecture{"arcee", arcee_tensors(), kDecoderSteps, kLlamaPrefixes, arcee_from_config},
    Architecture{"nemotron", nemotron_tensors(), kDecoderSteps, kLlamaPrefixes, nemotron_from_config},
    Architecture{"qwen2_vl", llama_tensors(), kDecoderSteps, kTowerPrefixes, qwen2_vl_from_config},
    Architecture{"qwen2_5_vl", llama_tensors(), kDecoderSteps, kTowerPrefixes, qwen2_vl_from_config},
    Architecture{"qwen3_vl", llama_tensors(), kDecoderSteps, kTowerPrefixes, qwen3_vl_from_config},
    Architecture{"mixtral", mixtral_tensors(), kDecoderSteps, kLlamaPrefixes, mixtral_from_config},
    Architecture{"olmoe", olmoe_tensors(), kDecoderSteps, kLlamaPrefixes, olmoe_from_config},
    Architecture{"qwen2_moe", qwen_moe_tensors(), kDecoderSteps, kLlamaPrefixes, qwen2_moe_from_config},
    Architecture{"qwen3_moe", qwen_moe_tensors(), kDecoderSteps, kLlamaPrefixes, qwen3_moe_from_config},
    Architecture{"gpt_oss", gpt_oss_tensors(), kDecoderSteps, kLlamaPrefixes, gpt_oss_from_config},
    Architecture{"granitemoe", granite_moe_tensors(), kDecoderSteps, kLlamaPrefixes, granite_moe_from_config},
    Architecture{"glm4_moe", glm4_moe_tensors(), kDecoderSteps, kLlamaPrefixes, glm4_moe_from_config},
    Architecture{"dots1", glm4_moe_tensors(), kDecoderSteps, kLlamaPrefixes, dots1_from_config},
    Architecture{"ernie4_5_moe", ernie_moe_tensors(), kDecoderSteps, kLlamaPrefixes, ernie4_5_moe_from_config},
    Architecture{"minimax_m2", minimax_m2_tensors(), kDecoderSteps, kLlamaPrefixes, minimax_m2_from_config},
    Architecture{"hunyuan_v1_moe", hunyuan_moe_tensors(), kDecoderSteps, kLlamaPrefixes, hunyuan_moe_from_config},
    Architecture{"qwen3_vl_moe", qwen_moe_tensors(), kDecoderSteps, kTowerPrefixes, qwen3_vl_moe_from_config},
};

}  // namespace

std::int64_t size_of(Dim dim, const ModelSpec& model, int layer) {
  const std::int64_t kv_heads = model.kv_heads_of(layer), head_dim = model.head_dim_of(layer);
  switch (dim) {
    case Dim::one: return 1;
    case Dim::hidden: return model.hidden;
    case Dim::ffn: return model.ffn;
    case Dim::vocab: return model.vocab;
    case Dim::embed: return model.embed;
    case Dim::positions: return std::int64_t{model.positions} + model.position_offset;
    case Dim::heads: return model.heads;
    case Dim::kv_heads: return kv_heads;
    case Dim::head_dim: return head_dim;
    case Dim::q_rows: return model.heads * head_dim;
    case Dim::kv_rows: return kv_heads * head_dim;
    case Dim::qkv_rows: return (model.heads + 2 * kv_heads) * head_dim;
    case Dim::qk_rows: return (model.heads + kv_heads) * head_dim;
    case Dim::two_ffn: return 2 * std::int64_t{model.ffn};
    case Dim::experts: return model.experts.count;
    case Dim::expert_ffn: return model.experts.ffn;
    case Dim::shared_ffn: return model.experts.shared_ffn;
  }
  return 0;
}

bool applies(When when, const ModelSpec& model, int layer) {
  const bool shaped = model.branch_norm || model.residual_scale != 1;
  const bool sparse = layer >= 0 && model.is_sparse(layer);  // -1: outside of the layers
  const bool beside = sparse && model.experts.beside_mlp;
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
    case When::own_values: return !model.fused_qkv && !(model.values_of_keys && model.is_global(layer));
    case When::values_of_keys: return !model.fused_qkv && model.values_of_keys && model.is_global(layer);
    case When::value_norm: return model.value_norm;
    case When::dense_layer_scale: return model.layer_scale && !sparse;
    case When::head_norm: return model.head_norm;
    case When::late_head_norm: return model.late_head_norm;
    case When::sinks: return model.sinks;
    case When::pre_norm: return model.pre_norm;
    case When::post_norm: return !model.pre_norm && !model.branch_norm;
    case When::branch_norm: return model.branch_norm;
    case When::scaled_residual: return model.residual_scale != 1;
    case When::dense_scaled_residual: return model.residual_scale != 1 && !sparse;
    case When::dense_branch_norm: return model.branch_norm && !sparse;
    case When::plain_branch: return !shaped;
    case When::shaped_branch: return shaped;
    case When::gated_plain_branch: return model.gated_mlp && !shaped && !sparse;
    case When::gated_shaped_branch: return model.gated_mlp && shaped && !sparse;
    case When::scaled_embedding: return model.embedding_scale != 1;
    case When::shaped_logits: return model.logit_scale != 1 || model.logit_cap != 0;
    case When::own_mlp_norm: return model.pre_norm && !model.parallel_residual;
    case When::parallel: return model.parallel_residual;
    case When::gated_mlp: return model.gated_mlp && (!sparse || beside);
    case When::plain_mlp: return !model.gated_mlp && !sparse;
    case When::sparse: return sparse;
    case When::experts_beside_mlp: return beside;
    case When::experts_alone: return sparse && !beside;
    case When::experts_end_scale: return beside && model.layer_scale;
    case When::score_bias: return sparse && model.experts.score_bias;
    case When::shared_expert: return sparse && model.experts.shared_ffn > 0;
    case When::gated_shared_expert: return sparse && model.experts.shared_ffn > 0 && model.experts.shared_gate;
    case When::plain_shared_expert: return sparse && model.experts.shared_ffn > 0 && !model.experts.shared_gate;
    case When::biased_experts: return sparse && model.experts.biases;
    case When::plain_experts: return sparse && model.experts.gate_limit == 0;
    case When::clamped_experts: return sparse && model.experts.gate_limit != 0;
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
