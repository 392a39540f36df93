#include "policy/model/architecture.h"

#include <algorithm>
#include <array>

#include "policy/model/tensor_tables.h"

namespace weft::policy {
namespace {

constexpr std::array kOptPrefixes{"model.decoder.", "decoder.", "model.", ""};
constexpr std::array kLlamaPrefixes{"model.", ""};
constexpr std::array kNeoxPrefixes{"gpt_neox.", ""};
/// The last but one is the text model's in a file without a head, beside the towers for images.
constexpr std::array kTowerPrefixes{"model.", "language_model.", ""};

const std::array kArchitectures{
    Architecture{"opt", opt_tensors(), decoder_steps(), kOptPrefixes, opt_from_config},
    Architecture{"llama", llama_tensors(), decoder_steps(), kLlamaPrefixes, llama_from_config},
    Architecture{"mistral", llama_tensors(), decoder_steps(), kLlamaPrefixes, mistral_from_config},
    Architecture{"ministral", llama_tensors(), decoder_steps(), kLlamaPrefixes, ministral_from_config},
    Architecture{"ministral3", llama_tensors(), decoder_steps(), kLlamaPrefixes, ministral3_from_config},
    Architecture{"mistral3", llama_tensors(), decoder_steps(), kTowerPrefixes, mistral3_from_config},
    Architecture{"qwen2", llama_tensors(), decoder_steps(), kLlamaPrefixes, qwen2_from_config},
    Architecture{"qwen3", llama_tensors(), decoder_steps(), kLlamaPrefixes, qwen3_from_config},
    Architecture{"smollm3", llama_tensors(), decoder_steps(), kLlamaPrefixes, smollm3_from_config},
    Architecture{"granite", llama_tensors(), decoder_steps(), kLlamaPrefixes, granite_from_config},
    Architecture{"gemma", llama_tensors(), decoder_steps(), kLlamaPrefixes, gemma_from_config},
    Architecture{"gemma2", gemma2_tensors(), decoder_steps(), kLlamaPrefixes, gemma2_from_config},
    Architecture{"gemma3_text", gemma2_tensors(), decoder_steps(), kTowerPrefixes, gemma3_from_config},
    Architecture{"gemma3", gemma2_tensors(), decoder_steps(), kTowerPrefixes, gemma3_from_config},
    Architecture{"gemma4_text", gemma2_tensors(), decoder_steps(), kTowerPrefixes, gemma4_from_config},
    Architecture{"gemma4", gemma2_tensors(), decoder_steps(), kTowerPrefixes, gemma4_from_config},
    Architecture{"gemma4_unified_text", gemma2_tensors(), decoder_steps(), kTowerPrefixes, gemma4_from_config},
    Architecture{"gemma4_unified", gemma2_tensors(), decoder_steps(), kTowerPrefixes, gemma4_from_config},
    Architecture{"olmo2", olmo2_tensors(), decoder_steps(), kLlamaPrefixes, olmo2_from_config},
    Architecture{"olmo3", olmo2_tensors(), decoder_steps(), kLlamaPrefixes, olmo3_from_config},
    Architecture{"phi3", phi3_tensors(), decoder_steps(), kLlamaPrefixes, phi3_from_config},
    Architecture{"glm", glm4_tensors(), decoder_steps(), kLlamaPrefixes, glm4_from_config},
    Architecture{"glm4", glm4_tensors(), decoder_steps(), kLlamaPrefixes, glm4_from_config},
    Architecture{"gpt_neox", neox_tensors(), decoder_steps(), kNeoxPrefixes, neox_from_config},
    Architecture{"seed_oss", llama_tensors(), decoder_steps(), kLlamaPrefixes, seed_oss_from_config},
    Architecture{"ernie4_5", llama_tensors(), decoder_steps(), kLlamaPrefixes, ernie4_5_from_config},
    Architecture{"exaone4", exaone4_tensors(), decoder_steps(), kLlamaPrefixes, exaone4_from_config},
    Architecture{"cohere", cohere_tensors(), decoder_steps(), kLlamaPrefixes, cohere_from_config},
    Architecture{"cohere2", cohere_tensors(), decoder_steps(), kLlamaPrefixes, cohere2_from_config},
    Architecture{"stablelm", stablelm_tensors(), decoder_steps(), kLlamaPrefixes, stablelm_from_config},
    Architecture{"starcoder2", starcoder2_tensors(), decoder_steps(), kLlamaPrefixes, starcoder2_from_config},
    Architecture{"granitemoehybrid", granite4_tensors(), decoder_steps(), kLlamaPrefixes, granite4_from_config},
    Architecture{"hunyuan_v1_dense", hunyuan_tensors(), decoder_steps(), kLlamaPrefixes, hunyuan_from_config},
    Architecture{"arcee", arcee_tensors(), decoder_steps(), kLlamaPrefixes, arcee_from_config},
    Architecture{"nemotron", nemotron_tensors(), decoder_steps(), kLlamaPrefixes, nemotron_from_config},
    Architecture{"qwen2_vl", llama_tensors(), decoder_steps(), kTowerPrefixes, qwen2_vl_from_config},
    Architecture{"qwen2_5_vl", llama_tensors(), decoder_steps(), kTowerPrefixes, qwen2_vl_from_config},
    Architecture{"qwen3_vl", llama_tensors(), decoder_steps(), kTowerPrefixes, qwen3_vl_from_config},
    Architecture{"mixtral", mixtral_tensors(), decoder_steps(), kLlamaPrefixes, mixtral_from_config},
    Architecture{"olmoe", olmoe_tensors(), decoder_steps(), kLlamaPrefixes, olmoe_from_config},
    Architecture{"qwen2_moe", qwen_moe_tensors(), decoder_steps(), kLlamaPrefixes, qwen2_moe_from_config},
    Architecture{"qwen3_moe", qwen_moe_tensors(), decoder_steps(), kLlamaPrefixes, qwen3_moe_from_config},
    Architecture{"gpt_oss", gpt_oss_tensors(), decoder_steps(), kLlamaPrefixes, gpt_oss_from_config},
    Architecture{"granitemoe", granite_moe_tensors(), decoder_steps(), kLlamaPrefixes, granite_moe_from_config},
    Architecture{"glm4_moe", glm4_moe_tensors(), decoder_steps(), kLlamaPrefixes, glm4_moe_from_config},
    Architecture{"dots1", glm4_moe_tensors(), decoder_steps(), kLlamaPrefixes, dots1_from_config},
    Architecture{"ernie4_5_moe", ernie_moe_tensors(), decoder_steps(), kLlamaPrefixes, ernie4_5_moe_from_config},
    Architecture{"minimax_m2", minimax_m2_tensors(), decoder_steps(), kLlamaPrefixes, minimax_m2_from_config},
    Architecture{"hunyuan_v1_moe", hunyuan_moe_tensors(), decoder_steps(), kLlamaPrefixes, hunyuan_moe_from_config},
    Architecture{"qwen3_vl_moe", qwen_moe_tensors(), decoder_steps(), kTowerPrefixes, qwen3_vl_moe_from_config},
};

}  // namespace

std::int64_t size_of(Dim dim, const ModelSpec& model, int layer) {
  const std::int64_t kv_heads = model.kv_heads_of(layer), head_dim = model.head_dim_of(layer);
  switch (dim) {
    case Dim::one: return 1;
    case Dim::hidden: return model.hidden;
    case Dim::ffn: return model.ffn_of(layer);
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
    case Dim::two_ffn: return 2 * std::int64_t{model.ffn_of(layer)};
    case Dim::experts: return model.experts.count;
    case Dim::expert_ffn: return model.experts.ffn;
    case Dim::shared_ffn: return model.experts.shared_ffn;
    case Dim::layer_vocab: return model.layer_vocab;
    case Dim::layer_input: return model.layer_input;
    case Dim::layer_inputs: return std::int64_t{model.layers} * model.layer_input;
  }
  return 0;
}

bool applies(When when, const ModelSpec& model, int layer) {
  const bool shaped = model.branch_norm || model.residual_scale != 1;
  const bool sparse = layer >= 0 && model.is_sparse(layer);  // -1: outside of the layers
  const bool beside = sparse && model.experts.beside_mlp;
  const bool own_kv = !model.shares_kv(layer);
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
    case When::own_keys: return !model.fused_qkv && own_kv;
    case When::own_values: return !model.fused_qkv && own_kv && !(model.values_of_keys && model.is_global(layer));
    case When::values_of_keys: return !model.fused_qkv && own_kv && model.values_of_keys && model.is_global(layer);
    case When::value_norm: return model.value_norm && own_kv;
    case When::key_norm: return model.head_norm && own_kv;
    case When::key_rotary: return model.rotates(layer) && own_kv;
    case When::lends_kv: return model.lends_kv(layer);
    case When::shares_kv: return model.shares_kv(layer);
    case When::layer_input: return model.layer_input > 0;
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

const Architecture* find_architecture(std::string_view model_type) {
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
