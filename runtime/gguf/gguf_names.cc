#include "runtime/gguf/gguf_names.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "runtime/base/quote.h"

namespace weft::runtime {
namespace {

using namespace gguf_parts;
constexpr unsigned kLlamaParts = kInputNorms | kQkv | kGateUp;
constexpr unsigned kOlmoParts = kOlmo2Norms | kQkv | kHeadNorms | kGateUp;
constexpr unsigned kGemma4Parts = kGemmaNorms | kQkv | kHeadNorms | kGateUp | kLayerScale;
constexpr unsigned kSparseParts = kInputNorms | kQkv | kRouter | kExperts;

constexpr std::array kArchitectures{
    GgufArchitecture{
        .name = "llama", .model_type = "llama", .class_name = "LlamaForCausalLM", .parts = kLlamaParts, .pairs = true},
    GgufArchitecture{
        .name = "qwen2", .model_type = "qwen2", .class_name = "Qwen2ForCausalLM", .parts = kLlamaParts | kQkvBias},
    GgufArchitecture{
        .name = "qwen3", .model_type = "qwen3", .class_name = "Qwen3ForCausalLM", .parts = kLlamaParts | kHeadNorms},
    GgufArchitecture{.name = "smollm3",
                     .model_type = "smollm3",
                     .class_name = "SmolLM3ForCausalLM",
                     .parts = kLlamaParts,
                     .pairs = true},
    GgufArchitecture{.name = "gemma",
                     .model_type = "gemma",
                     .class_name = "GemmaForCausalLM",
                     .parts = kLlamaParts,
                     .plus_one = true},
    GgufArchitecture{.name = "gemma2",
                     .model_type = "gemma2",
                     .class_name = "Gemma2ForCausalLM",
                     .parts = kGemmaNorms | kQkv | kGateUp,
                     .plus_one = true,
                     .windows = true,
                     .full_every = 2},
    GgufArchitecture{.name = "gemma3",
                     .model_type = "gemma3_text",
                     .class_name = "Gemma3ForCausalLM",
                     .parts = kGemmaNorms | kQkv | kHeadNorms | kGateUp,
                     .plus_one = true,
                     .windows = true,
                     .full_every = 6},
    GgufArchitecture{.name = "gemma4",
                     .model_type = "gemma4_text",
                     .class_name = "Gemma4ForCausalLM",
                     .parts = kGemma4Parts,
                     .windows = true,
                     .full_every = 6},
    GgufArchitecture{.name = "phi3",
                     .model_type = "phi3",
                     .class_name = "Phi3ForCausalLM",
                     .parts = kInputNorms | kFusedQkv | kFusedGateUp,
                     .turns_part = true,
                     .windows = true},
    GgufArchitecture{.name = "olmo2", .model_type = "olmo2", .class_name = "Olmo2ForCausalLM", .parts = kOlmoParts},
    GgufArchitecture{.name = "granite",
                     .model_type = "granite",
                     .class_name = "GraniteForCausalLM",
                     .parts = kLlamaParts,
                     .pairs = true,
                     .scales = true},
    GgufArchitecture{.name = "glm4",
                     .model_type = "glm4",
                     .class_name = "Glm4ForCausalLM",
                     .parts = kGlm4Norms | kQkv | kQkvBias | kFusedGateUp,
                     .turns_part = true},
    GgufArchitecture{.name = "olmoe",
                     .model_type = "olmoe",
                     .class_name = "OlmoeForCausalLM",
                     .parts = kSparseParts | kHeadNorms,
                     .experts = "num_experts"},
    GgufArchitecture{.name = "qwen3moe",
                     .model_type = "qwen3_moe",
                     .class_name = "Qwen3MoeForCausalLM",
                     .parts = kSparseParts | kHeadNorms,
                     .experts = "num_experts"},
    GgufArchitecture{.name = "gpt-oss",
                     .model_type = "gpt_oss",
                     .class_name = "GptOssForCausalLM",
                     .parts = kPostNorms | kQkv | kQkvBias | kOutputBias | kGptOss | kExperts,
                     .windows = true,
                     .full_every = 2,
                     .experts = "num_local_experts"},
    GgufArchitecture{.name = "granitemoe",
                     .model_type = "granitemoe",
                     .class_name = "GraniteMoeForCausalLM",
                     .parts = kInputNorms | kQkv | kGraniteRouter | kExperts,
                     .pairs = true,
                     .scales = true,
                     .experts = "num_local_experts"},
    GgufArchitecture{.name = "qwen2moe",
                     .model_type = "qwen2_moe",
                     .class_name = "Qwen2MoeForCausalLM",
                     .parts = kSparseParts | kQkvBias | kQwenShared,
                     .experts = "num_experts"},
    GgufArchitecture{
        .name = "glm4moe",
        .model_type = "glm4_moe",
        .class_name = "Glm4MoeForCausalLM",
        .parts = kPostNorms | kQkv | kQkvBias | kHeadNorms | kGateUp | kRouter | kGateBias | kExperts | kSharedExpert,
        .turns_part = true,
        .experts = "n_routed_experts",
        .sigmoid = true,
        .deepseek = true},
    GgufArchitecture{.name = "dots1",
                     .model_type = "dots1",
                     .class_name = "Dots1ForCausalLM",
                     .parts = kSparseParts | kHeadNorms | kGateUp | kGateBias | kSharedExpert,
                     .experts = "n_routed_experts",
                     .sigmoid = true,
                     .deepseek = true},
    GgufArchitecture{.name = "ernie4_5-moe",
                     .model_type = "ernie4_5_moe",
                     .class_name = "Ernie4_5_MoeForCausalLM",
                     .parts = kSparseParts | kGateUp | kErnieBias | kSharedExpert,
                     .experts = "moe_num_experts"},
    GgufArchitecture{.name = "minimax-m2",
                     .model_type = "minimax_m2",
                     .class_name = "MiniMaxM2ForCausalLM",
                     .parts = kInputNorms | kQkv | kHeadNorms | kMixtralRouter | kMixtralBias | kMixtralExperts,
                     .turns_part = true,
                     .experts = "num_local_experts",
                     .sigmoid = true},
    GgufArchitecture{.name = "seed_oss",
                     .model_type = "seed_oss",
                     .class_name = "SeedOssForCausalLM",
                     .parts = kPostNorms | kQkv | kQkvBias | kOutputBias | kGateUp},
    GgufArchitecture{
        .name = "ernie4_5", .model_type = "ernie4_5", .class_name = "Ernie4_5ForCausalLM", .parts = kLlamaParts},
    GgufArchitecture{.name = "exaone4",
                     .model_type = "exaone4",
                     .class_name = "Exaone4ForCausalLM",
                     .parts = kOlmoParts,
                     .windows = true,
                     .full_every = 4},
    GgufArchitecture{.name = "command-r",
                     .model_type = "cohere",
                     .class_name = "CohereForCausalLM",
                     .parts = kFirstNorm | kQkv | kHeadNorms | kGateUp,
                     .layer_norm = true},
    GgufArchitecture{.name = "cohere2",
                     .model_type = "cohere2",
                     .class_name = "Cohere2ForCausalLM",
                     .parts = kFirstNorm | kQkv | kGateUp,
                     .windows = true,
                     .full_every = 4,
                     .layer_norm = true},
    GgufArchitecture{.name = "stablelm",
                     .model_type = "stablelm",
                     .class_name = "StableLmForCausalLM",
                     .parts = kLlamaParts | kQkvBias | kNormBias,
                     .turns_part = true,
                     .layer_norm = true},
    GgufArchitecture{.name = "starcoder2",
                     .model_type = "starcoder2",
                     .class_name = "Starcoder2ForCausalLM",
                     .parts = kInputNorms | kNormBias | kQkv | kQkvBias | kOutputBias | kStarcoder,
                     .windows = true,
                     .layer_norm = true},
    GgufArchitecture{.name = "hunyuan-dense",
                     .model_type = "hunyuan_v1_dense",
                     .class_name = "HunYuanDenseV1ForCausalLM",
                     .parts = kLlamaParts | kHunyuanNorms},
    GgufArchitecture{.name = "hunyuan-moe",
                     .model_type = "hunyuan_v1_moe",
                     .class_name = "HunYuanMoEV1ForCausalLM",
                     .parts = kInputNorms | kQkv | kHunyuanNorms | kHunyuanMoe | kExperts,
                     .experts = "num_experts"},
    GgufArchitecture{
        .name = "arcee", .model_type = "arcee", .class_name = "ArceeForCausalLM", .parts = kLlamaParts, .pairs = true},
    GgufArchitecture{.name = "nemotron",
                     .model_type = "nemotron",
                     .class_name = "NemotronForCausalLM",
                     .parts = kLlamaParts | kNormBias,
                     .plus_one = true,
                     .turns_part = true,
                     .layer_norm = true},
    // Of these Weft has the text model alone, which is that of the family without images.
    GgufArchitecture{.name = "qwen2vl",
                     .model_type = "qwen2",
                     .class_name = "Qwen2ForCausalLM",
                     .parts = kLlamaParts | kQkvBias,
                     .images = true},
    GgufArchitecture{.name = "qwen3vl",
                     .model_type = "qwen3",
                     .class_name = "Qwen3ForCausalLM",
                     .parts = kLlamaParts | kHeadNorms,
                     .images = true},
    GgufArchitecture{.name = "qwen3vlmoe",
                     .model_type = "qwen3_moe",
                     .class_name = "Qwen3MoeForCausalLM",
                     .parts = kSparseParts | kHeadNorms,
                     .experts = "num_experts",
                     .images = true},
};
/// With experts the files of Llama are those of Mixtral.
constexpr GgufArchitecture kMixtral{.name = "llama",
                                    .model_type = "mixtral",
                                    .class_name = "MixtralForCausalLM",
                                    .parts = kInputNorms | kQkv | kMixtralRouter | kMixtralExperts,
                                    .pairs = true,
                                    .experts = "num_local_experts"};
/// With experts the files of Gemma 4 have more tensors.
constexpr GgufArchitecture kGemma4Mixture{.name = "gemma4",
                                          .model_type = "gemma4_text",
                                          .class_name = "Gemma4ForCausalLM",
                                          .parts = kGemma4Parts | kGemma4Experts,
                                          .windows = true,
                                          .full_every = 6,
                                          .experts = "num_experts"};
/// So have they with inputs of layers.
constexpr GgufArchitecture kGemma4Small{.name = "gemma4",
                                        .model_type = "gemma4_text",
                                        .class_name = "Gemma4ForCausalLM",
                                        .parts = kGemma4Parts | kLayerInputs,
                                        .windows = true,
                                        .full_every = 6};
/// With sliding windows the files of OLMo 2 are those of OLMo 3.
constexpr GgufArchitecture kOlmo3{.name = "olmo2",
                                  .model_type = "olmo3",
                                  .class_name = "Olmo3ForCausalLM",
                                  .parts = kOlmoParts,
                                  .windows = true,
                                  .full_every = 4};

constexpr std::array<std::pair<const char*, const char*>, 7> kWhole{
    {{"token_embd.weight", "model.embed_tokens.weight"},
     {"per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"},
     {"per_layer_model_proj.weight", "model.per_layer_model_projection.weight"},
     {"per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight"},
     {"output_norm.weight", "model.norm.weight"},
     {"output_norm.bias", "model.norm.bias"},
     {"output.weight", "lm_head.weight"}}};
struct LayerName {
  const char *gguf, *name;
  unsigned parts;        // the groups that it is of
  bool rotated = false;  // its rows are those of q's or k's heads
};
constexpr unsigned kAnyParts = ~0U;
constexpr std::array kLayer{
    LayerName{"attn_norm.weight", "input_layernorm.weight",
              kInputNorms | kGemmaNorms | kGlm4Norms | kPostNorms | kFirstNorm},
    LayerName{"attn_norm.bias", "input_layernorm.bias", kNormBias},
    LayerName{"ffn_norm.weight", "post_attention_layernorm.weight", kInputNorms | kGlm4Norms},
    LayerName{"ffn_norm.bias", "post_attention_layernorm.bias", kNormBias},
    LayerName{"ffn_norm.weight", "pre_feedforward_layernorm.weight", kGemmaNorms},
    LayerName{"post_attention_norm.weight", "post_attention_layernorm.weight", kGemmaNorms | kOlmo2Norms | kPostNorms},
    LayerName{"post_attention_norm.weight", "post_self_attn_layernorm.weight", kGlm4Norms},
    LayerName{"post_ffw_norm.weight", "post_feedforward_layernorm.weight", kGemmaNorms | kOlmo2Norms},
    LayerName{"post_ffw_norm.weight", "post_mlp_layernorm.weight", kGlm4Norms},
    LayerName{"attn_q.weight", "self_attn.q_proj.weight", kQkv, true},
    LayerName{"attn_k.weight", "self_attn.k_proj.weight", kQkv, true},
    LayerName{"attn_v.weight", "self_attn.v_proj.weight", kQkv},
    LayerName{"attn_qkv.weight", "self_attn.qkv_proj.weight", kFusedQkv},
    LayerName{"attn_output.weight", "self_attn.o_proj.weight", kAnyParts},
    LayerName{"ffn_gate.weight", "mlp.gate_proj.weight", kGateUp},
    LayerName{"ffn_up.weight", "mlp.up_proj.weight", kGateUp},
    LayerName{"ffn_up.weight", "mlp.gate_up_proj.weight", kFusedGateUp},
    LayerName{"ffn_up.weight", "mlp.c_fc.weight", kStarcoder},
    LayerName{"ffn_up.bias", "mlp.c_fc.bias", kStarcoder},
    LayerName{"ffn_down.weight", "mlp.c_proj.weight", kStarcoder},
    LayerName{"ffn_down.bias", "mlp.c_proj.bias", kStarcoder},
    LayerName{"ffn_down.weight", "mlp.down_proj.weight", kAnyParts},
    LayerName{"attn_q.bias", "self_attn.q_proj.bias", kQkvBias},
    LayerName{"attn_k.bias", "self_attn.k_proj.bias", kQkvBias},
    LayerName{"attn_v.bias", "self_attn.v_proj.bias", kQkvBias},
    LayerName{"attn_output.bias", "self_attn.o_proj.bias", kOutputBias},
    LayerName{"attn_sinks.weight", "self_attn.sinks", kGptOss},
    LayerName{"ffn_gate_inp.weight", "mlp.gate.weight", kRouter},
    LayerName{"ffn_gate_inp.weight", "mlp.router.weight", kGptOss},
    LayerName{"ffn_gate_inp.weight", "block_sparse_moe.router.layer.weight", kGraniteRouter},
    LayerName{"ffn_gate_inp.weight", "block_sparse_moe.gate.weight", kMixtralRouter},
    LayerName{"ffn_gate_inp.bias", "mlp.router.bias", kGptOss},
    LayerName{"ffn_gate_inp.weight", "mlp.gate.wg.weight", kHunyuanMoe},
    LayerName{"ffn_gate_shexp.weight", "mlp.shared_mlp.gate_proj.weight", kHunyuanMoe},
    LayerName{"ffn_up_shexp.weight", "mlp.shared_mlp.up_proj.weight", kHunyuanMoe},
    LayerName{"ffn_down_shexp.weight", "mlp.shared_mlp.down_proj.weight", kHunyuanMoe},
    LayerName{"attn_q_norm.weight", "self_attn.query_layernorm.weight", kHunyuanNorms},
    LayerName{"attn_k_norm.weight", "self_attn.key_layernorm.weight", kHunyuanNorms},
    LayerName{"exp_probs_b.bias", "mlp.gate.e_score_correction_bias", kGateBias},
    LayerName{"exp_probs_b.bias", "mlp.moe_statics.e_score_correction_bias", kErnieBias},
    LayerName{"exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias", kMixtralBias},
    LayerName{"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", kQwenShared},
    LayerName{"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight", kQwenShared},
    LayerName{"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight", kQwenShared},
    LayerName{"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight", kQwenShared},
    LayerName{"ffn_gate_shexp.weight", "mlp.shared_experts.gate_proj.weight", kSharedExpert},
    LayerName{"ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight", kSharedExpert},
    LayerName{"ffn_down_shexp.weight", "mlp.shared_experts.down_proj.weight", kSharedExpert},
    LayerName{"ffn_gate_exps.weight", "mlp.experts.*.gate_proj.weight", kExperts},
    LayerName{"ffn_up_exps.weight", "mlp.experts.*.up_proj.weight", kExperts},
    LayerName{"ffn_down_exps.weight", "mlp.experts.*.down_proj.weight", kExperts},
    LayerName{"ffn_gate_exps.weight", "block_sparse_moe.experts.*.w1.weight", kMixtralExperts},
    LayerName{"ffn_up_exps.weight", "block_sparse_moe.experts.*.w3.weight", kMixtralExperts},
    LayerName{"ffn_down_exps.weight", "block_sparse_moe.experts.*.w2.weight", kMixtralExperts},
    LayerName{"ffn_gate_exps.bias", "mlp.experts.*.gate_proj.bias", kGptOss},
    LayerName{"ffn_up_exps.bias", "mlp.experts.*.up_proj.bias", kGptOss},
    LayerName{"ffn_down_exps.bias", "mlp.experts.*.down_proj.bias", kGptOss},
    LayerName{"layer_output_scale.weight", "layer_scalar", kLayerScale},
    LayerName{"inp_gate.weight", "per_layer_input_gate.weight", kLayerInputs},
    LayerName{"proj.weight", "per_layer_projection.weight", kLayerInputs},
    LayerName{"post_norm.weight", "post_per_layer_input_norm.weight", kLayerInputs},
    LayerName{"post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight", kGemma4Experts},
    LayerName{"pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight", kGemma4Experts},
    LayerName{"post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight", kGemma4Experts},
    LayerName{"ffn_gate_inp.weight", "router.proj.weight", kGemma4Experts},
    LayerName{"ffn_gate_inp.scale", "router.scale", kGemma4Experts},
    LayerName{"ffn_gate_up_exps.weight", "experts.gate_up_proj", kGemma4Experts},
    LayerName{"ffn_gate_exps.weight", "experts.*.gate_proj.weight", kGemma4Experts},
    LayerName{"ffn_up_exps.weight", "experts.*.up_proj.weight", kGemma4Experts},
    LayerName{"ffn_down_exps.weight", "experts.*.down_proj.weight", kGemma4Experts},
    LayerName{"ffn_down_exps.scale", "router.per_expert_scale", kGemma4Experts},
    LayerName{"attn_q_norm.weight", "self_attn.q_norm.weight", kHeadNorms},
    LayerName{"attn_k_norm.weight", "self_attn.k_norm.weight", kHeadNorms},
};

/// The rows of a head of q or k.
std::int64_t rows_of_head(const Gguf& gguf, const GgufArchitecture& architecture, const GgufTensor& tensor, bool of_q) {
  const std::string prefix = std::string(architecture.name) + ".attention.";
  const std::int64_t most = std::numeric_limits<std::int32_t>::max(),
                     heads = gguf.integer(prefix + "head_count", 1, most),
                     of_kind = of_q ? heads : gguf.integer(prefix + "head_count_kv", 1, most, heads);
  const std::int64_t rows = tensor.shape.front();
  if (tensor.shape.size() != 2 || rows % of_kind != 0 || rows / of_kind % 2 != 0)
    gguf.refuse(GgufFault::bad_tensor, "tensor " + in_quotes(tensor.name) + " has " + std::to_string(rows) +
                                           " rows, which are no even number for each of " + std::to_string(of_kind) +
                                           " heads");
  return rows / of_kind;
}

}  // namespace

const GgufArchitecture& gguf_architecture(const Gguf& gguf) {
  const std::string& name = gguf.text("general.architecture");
  if (name == kOlmo3.name && gguf_window(gguf, kOlmo3) > 0) return kOlmo3;
  for (const auto& [special, key] : {std::pair{&kMixtral, ".expert_count"},
                                     {&kGemma4Mixture, ".expert_count"},
                                     {&kGemma4Small, ".embedding_length_per_layer_input"}})
    if (name == special->name && gguf.integer(name + key, 0, std::numeric_limits<std::int32_t>::max(), 0) > 0)
      return *special;
  std::string known;
  for (const GgufArchitecture& architecture : kArchitectures) {
    if (name == architecture.name) return architecture;
    known += (known.empty() ? "" : ", ") + std::string(architecture.name);
  }
  gguf.refuse(GgufFault::bad_metadata, "is a model of the architecture " + in_quotes(name) +
                                           ", which Weft does not compute; of GGUF files it reads " + known);
}

std::int64_t gguf_layers(const Gguf& gguf, const GgufArchitecture& architecture) {
  const std::string prefix = std::string(architecture.name) + ".";
  const std::int64_t most = std::numeric_limits<std::int32_t>::max(),
                     all = gguf.integer(prefix + "block_count", 1, most);
  return architecture.deepseek ? all - gguf.integer(prefix + "nextn_predict_layers", 0, all - 1, 0) : all;
}

std::int64_t gguf_window(const Gguf& gguf, const GgufArchitecture& architecture) {
  return gguf.integer(std::string(architecture.name) + ".attention.sliding_window", 0,
                      std::numeric_limits<std::int32_t>::max(), 0);
}

GgufName gguf_name(const Gguf& gguf, const GgufArchitecture& architecture, const GgufTensor& tensor) {
  const bool plus_one = architecture.plus_one && tensor.name.ends_with("norm.weight");
  for (const auto& [own, name] : kWhole)
    if (tensor.name == own) return {.name = name, .plus_one = plus_one};
  constexpr std::string_view kBlock = "blk.";
  if (!tensor.name.starts_with(kBlock)) return {tensor.name};
  const std::size_t dot = std::min(tensor.name.find('.', kBlock.size()), tensor.name.size() - 1);
  const std::string layer = tensor.name.substr(kBlock.size(), dot - kBlock.size()), rest = tensor.name.substr(dot + 1);
  std::int64_t number = -1;
  const char* const end = layer.data() + layer.size();
  const bool numbered = std::from_chars(layer.data(), end, number).ptr == end;
  if (architecture.deepseek && numbered && number >= gguf_layers(gguf, architecture))
    return {"model.layers." + layer + "." + rest};
  for (const LayerName& each : kLayer) {
    if (rest != each.gguf || (each.parts & architecture.parts) == 0) continue;
    const bool pairs = each.rotated && architecture.pairs;
    return {.name = "model.layers." + layer + "." + each.name,
            .pair_rows = pairs ? rows_of_head(gguf, architecture, tensor, rest == "attn_q.weight") : 0,
            .plus_one = plus_one};
  }
  gguf.refuse(GgufFault::bad_tensor, "tensor " + in_quotes(tensor.name) + " is in no layer of " +
                                         architecture.model_type +
                                         " as Weft computes it, and answers without it would be wrong");
}

const GgufTensor* gguf_scaled(const GgufModel& model, const GgufTensor& tensor, std::string_view end) {
  if (!tensor.name.ends_with(end)) return nullptr;
  const std::string stem = tensor.name.substr(0, tensor.name.size() - end.size());
  const bool of_router = (gguf_architecture(model.first()).parts & kGemma4Experts) != 0;  // Gemma 4 has such a tensor
  if (of_router && end == ".scale" && stem.ends_with(".ffn_down_exps")) return nullptr;
  const GgufTensor* const matrix = model.tensor(stem + ".weight");
  return matrix && matrix->format == block_format("NVFP4") ? matrix : nullptr;
}

}  // namespace weft::runtime
