// policy/model/sparse_tables.cc: the tensors of models with experts.
#include <array>

#include "policy/model/tensor_rows.h"
#include "policy/model/tensor_tables.h"

namespace weft::policy {
namespace {

constexpr TensorRow expert_bias(Role role, const char* name, Dim width) {
  return bias(kExperts, role, name, width, When::biased_experts);
}
constexpr TensorRow shared(Role role, const char* name) {
  const bool down = role == Role::down_weight;
  return matrix(kMlp, role, name, down ? Dim::hidden : Dim::shared_ffn, down ? Dim::shared_ffn : Dim::hidden,
                When::shared_expert);
}
constexpr TensorRow score_bias(const char* name) {
  return bias(kMlp, Role::score_bias, name, Dim::experts, When::score_bias);
}
constexpr TensorRow dense(TensorRow row) {
  row.when = When::gated_mlp;
  return row;
}

constexpr TensorRow kRouter =
    matrix(kMlp, Role::router, "layers.#.mlp.gate.weight", Dim::experts, Dim::hidden, When::sparse);
constexpr const char *kGateUpStack = "layers.#.mlp.experts.gate_up_proj",
                     *kDownStack = "layers.#.mlp.experts.down_proj";
constexpr TensorRow kExpertGate =
    in_stack(expert(Role::gate_weight, "layers.#.mlp.experts.@.gate_proj.weight"), {kGateUpStack, 0, 2});
constexpr TensorRow kExpertUp =
    in_stack(expert(Role::up_weight, "layers.#.mlp.experts.@.up_proj.weight"), {kGateUpStack, 1, 2});
constexpr TensorRow kExpertDown =
    in_stack(expert(Role::down_weight, "layers.#.mlp.experts.@.down_proj.weight"), {kDownStack});

constexpr TensorRow kMixtralRouter =
    matrix(kMlp, Role::router, "layers.#.block_sparse_moe.gate.weight", Dim::experts, Dim::hidden, When::sparse);
constexpr TensorRow kMixtralGate =
    in_stack(expert(Role::gate_weight, "layers.#.block_sparse_moe.experts.@.w1.weight"), {kGateUpStack, 0, 2});
constexpr TensorRow kMixtralUp =
    in_stack(expert(Role::up_weight, "layers.#.block_sparse_moe.experts.@.w3.weight"), {kGateUpStack, 1, 2});
constexpr TensorRow kMixtralDown =
    in_stack(expert(Role::down_weight, "layers.#.block_sparse_moe.experts.@.w2.weight"), {kDownStack});

constexpr std::array kMixtral{
    embedding("embed_tokens.weight"),
    kInputNorm,
    kQ,
    kK,
    kV,
    kO,
    kMlpInputNorm,
    kMixtralRouter,
    kMixtralGate,
    kMixtralUp,
    kMixtralDown,
    kFinalNorm,
    head("lm_head.weight"),
};

constexpr std::array kOlmoe{
    embedding("embed_tokens.weight"),
    kInputNorm,
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
    kMlpInputNorm,
    kRouter,
    kExpertGate,
    kExpertUp,
    kExpertDown,
    kFinalNorm,
    head("lm_head.weight"),
};

constexpr std::array kQwenMoe{
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
    kMlpInputNorm,
    dense(kGate),
    dense(kUp),
    dense(kDown),
    kRouter,
    shared(Role::gate_weight, "layers.#.mlp.shared_expert.gate_proj.weight"),
    shared(Role::up_weight, "layers.#.mlp.shared_expert.up_proj.weight"),
    shared(Role::down_weight, "layers.#.mlp.shared_expert.down_proj.weight"),
    matrix(kMlp, Role::shared_gate, "layers.#.mlp.shared_expert_gate.weight", Dim::one, Dim::hidden,
           When::gated_shared_expert),
    kExpertGate,
    kExpertUp,
    kExpertDown,
    kFinalNorm,
    head("lm_head.weight"),
};

constexpr std::array kGlm4Moe{
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
    kMlpInputNorm,
    dense(kGate),
    dense(kUp),
    dense(kDown),
    kRouter,
    score_bias("layers.#.mlp.gate.e_score_correction_bias"),
    shared(Role::gate_weight, "layers.#.mlp.shared_experts.gate_proj.weight"),
    shared(Role::up_weight, "layers.#.mlp.shared_experts.up_proj.weight"),
    shared(Role::down_weight, "layers.#.mlp.shared_experts.down_proj.weight"),
    kExpertGate,
    kExpertUp,
    kExpertDown,
    kFinalNorm,
    head("lm_head.weight"),
};

constexpr std::array kGptOss{
    embedding("embed_tokens.weight"),
    kInputNorm,
    kQ,
    kQBias,
    kK,
    kKBias,
    kV,
    kVBias,
    kSinks,
    kO,
    kOBias,
    kMlpInputNorm,
    matrix(kMlp, Role::router, "layers.#.mlp.router.weight", Dim::experts, Dim::hidden, When::sparse),
    bias(kMlp, Role::router_bias, "layers.#.mlp.router.bias", Dim::experts, When::biased_experts),
    in_stack(kExpertGate, {kGateUpStack, 0, 2, true, true}),
    in_stack(expert_bias(Role::gate_bias, "layers.#.mlp.experts.@.gate_proj.bias", Dim::expert_ffn),
             {"layers.#.mlp.experts.gate_up_proj_bias", 0, 2, true}),
    in_stack(kExpertUp, {kGateUpStack, 1, 2, true, true}),
    in_stack(expert_bias(Role::up_bias, "layers.#.mlp.experts.@.up_proj.bias", Dim::expert_ffn),
             {"layers.#.mlp.experts.gate_up_proj_bias", 1, 2, true}),
    in_stack(kExpertDown, {kDownStack, 0, 1, false, true}),
    in_stack(expert_bias(Role::down_bias, "layers.#.mlp.experts.@.down_proj.bias", Dim::hidden),
             {"layers.#.mlp.experts.down_proj_bias"}),
    kFinalNorm,
    head("lm_head.weight"),
};

constexpr std::array kGraniteMoe{
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
    matrix(kMlp, Role::router, "layers.#.block_sparse_moe.router.layer.weight", Dim::experts, Dim::hidden,
           When::sparse),
    in_stack(kExpertGate, {"layers.#.block_sparse_moe.input_linear.weight", 0, 2}),
    in_stack(kExpertUp, {"layers.#.block_sparse_moe.input_linear.weight", 1, 2}),
    in_stack(kExpertDown, {"layers.#.block_sparse_moe.output_linear.weight"}),
    kFinalNorm,
    head("lm_head.weight"),
};

constexpr std::array kErnieMoe{
    embedding("embed_tokens.weight"),
    kInputNorm,
    kQ,
    kK,
    kV,
    kO,
    kMlpInputNorm,
    dense(kGate),
    dense(kUp),
    dense(kDown),
    kRouter,
    score_bias("layers.#.mlp.moe_statics.e_score_correction_bias"),
    shared(Role::gate_weight, "layers.#.mlp.shared_experts.gate_proj.weight"),
    shared(Role::up_weight, "layers.#.mlp.shared_experts.up_proj.weight"),
    shared(Role::down_weight, "layers.#.mlp.shared_experts.down_proj.weight"),
    kExpertGate,
    kExpertUp,
    kExpertDown,
    kFinalNorm,
    head("lm_head.weight"),
};

constexpr std::array kHunyuanMoe{
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
    matrix(kMlp, Role::router, "layers.#.mlp.gate.wg.weight", Dim::experts, Dim::hidden, When::sparse),
    shared(Role::gate_weight, "layers.#.mlp.shared_mlp.gate_proj.weight"),
    shared(Role::up_weight, "layers.#.mlp.shared_mlp.up_proj.weight"),
    shared(Role::down_weight, "layers.#.mlp.shared_mlp.down_proj.weight"),
    kExpertGate,
    kExpertUp,
    kExpertDown,
    kFinalNorm,
    head("lm_head.weight"),
};

constexpr std::array kMinimaxM2{
    embedding("embed_tokens.weight"),
    kInputNorm,
    kQ,
    kK,
    kV,
    kWholeQNorm,
    kWholeKNorm,
    kO,
    kMlpInputNorm,
    kMixtralRouter,
    score_bias("layers.#.block_sparse_moe.e_score_correction_bias"),
    kMixtralGate,
    kMixtralUp,
    kMixtralDown,
    kFinalNorm,
    head("lm_head.weight"),
};

}  // namespace

std::span<const TensorRow> mixtral_tensors() { return kMixtral; }
std::span<const TensorRow> olmoe_tensors() { return kOlmoe; }
std::span<const TensorRow> qwen_moe_tensors() { return kQwenMoe; }
std::span<const TensorRow> glm4_moe_tensors() { return kGlm4Moe; }
std::span<const TensorRow> gpt_oss_tensors() { return kGptOss; }
std::span<const TensorRow> granite_moe_tensors() { return kGraniteMoe; }
std::span<const TensorRow> ernie_moe_tensors() { return kErnieMoe; }
std::span<const TensorRow> hunyuan_moe_tensors() { return kHunyuanMoe; }
std::span<const TensorRow> minimax_m2_tensors() { return kMinimaxM2; }

}  // namespace weft::policy
