// policy/model/architecture.h: the differences between families of models, as tables.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policy/base/json.h"
#include "policy/model/model.h"
#include "policy/model/steps.h"

namespace weft::policy {

/// A size that comes from a model's config.
enum class Dim : std::uint8_t {
  one,
  hidden,
  ffn,
  vocab,
  embed,
  positions,
  heads,
  kv_heads,
  head_dim,
  q_rows,
  kv_rows,
  qkv_rows,
  qk_rows,
  two_ffn,
  experts,
  expert_ffn,
  shared_ffn,
  layer_vocab,
  layer_input,
  layer_inputs,  ///< those of all layers
};
/// `layer` matters to sizes of heads; -1: outside of the layers.
std::int64_t size_of(Dim dim, const ModelSpec& model, int layer);

/// The models, and those of their layers, to which a row of a table applies.
enum class When : std::uint8_t {
  always,
  qkv_bias,
  output_bias,
  mlp_bias,
  norm_weights,
  final_norm_weights,
  final_norm,
  projections,
  no_projections,
  tied,
  untied,
  position_table,
  rotary,
  fused_qkv,
  separate_qkv,
  own_keys,        ///< separate_qkv, and the layer makes its keys and values; so it does in the next five
  own_values,      ///< its values have a product of their own
  values_of_keys,  ///< they have none
  value_norm,
  key_norm,    ///< head_norm
  key_rotary,  ///< rotary
  lends_kv,
  shares_kv,
  layer_input,
  dense_layer_scale,  ///< a learned factor at the end of a layer, in one without experts
  head_norm,
  late_head_norm,
  sinks,
  pre_norm,
  post_norm,
  own_mlp_norm,  ///< pre_norm, and the mlp is a separate sublayer
  branch_norm,
  scaled_residual,
  dense_scaled_residual,  ///< likewise, in a layer without experts
  dense_branch_norm,      ///< branch_norm, likewise
  plain_branch,           ///< a sublayer's addition to the hidden states is added as it is
  shaped_branch,          ///< it is normed or scaled before
  gated_plain_branch,
  gated_shaped_branch,
  scaled_embedding,
  shaped_logits,
  parallel,
  gated_mlp,  ///< the layer has no experts, or has them beside its mlp
  plain_mlp,
  sparse,  ///< a layer with experts
  experts_beside_mlp,
  experts_alone,      ///< a layer with experts and without an mlp beside them
  experts_end_scale,  ///< experts_beside_mlp, and a learned factor at the end of the layer
  score_bias,
  shared_expert,
  gated_shared_expert,
  plain_shared_expert,
  biased_experts,
  plain_experts,    ///< experts that gate as other mlps do
  clamped_experts,  ///< kernels::ClampedGate
};
bool applies(When when, const ModelSpec& model, int layer);

/// A row of ExpertStack.
struct StackRow {
  const char* name = nullptr;  ///< '#' stands for the layer
  int part = 0, parts = 1;
  bool alternate = false, transposed = false;
};

/// One row of an architecture's table of tensors.
struct TensorRow {
  Unit::Kind unit;
  Role role;
  Form form;
  const char* name;  ///< '#' stands for the layer, '@' for the expert
  Dim rows, cols;
  When when = When::always;
  Dim of_rows = Dim::one, first_row = Dim::one;  ///< as in TensorSpec, if the tensor is a part of one; else one
  StackRow stack = {};
  bool ends_experts = false;  ///< a unit of experts has it once, behind the layer's last
};

/// One row of an architecture's table of steps, which lists what each stage computes, in order.
struct StepRow {
  Stage stage;
  Step step;
  When when = When::always;
};

/// The computation of a decoder, stage by stage. A step whose input no step of its sublayer writes reads the hidden
/// states instead. With a parallel residual the steps of Stage::mlp end Stage::attention_out: see steps_of().
std::span<const StepRow> decoder_steps();

struct Architecture {
  std::string_view model_type;
  std::span<const TensorRow> tensors;
  std::span<const StepRow> steps;
  std::span<const char* const> prefixes;                               ///< see name_prefixes()
  ModelSpec (*from_config)(Fields& fields, const std::string& where);  ///< throws DataError
};

/// Null if there is none of that name.
const Architecture* find_architecture(std::string_view model_type);
std::string known_architectures();  ///< "opt, llama"

ModelSpec opt_from_config(Fields& fields, const std::string& where);
ModelSpec llama_from_config(Fields& fields, const std::string& where);
ModelSpec mistral_from_config(Fields& fields, const std::string& where);
ModelSpec qwen2_from_config(Fields& fields, const std::string& where);
ModelSpec qwen3_from_config(Fields& fields, const std::string& where);
ModelSpec smollm3_from_config(Fields& fields, const std::string& where);
ModelSpec granite_from_config(Fields& fields, const std::string& where);
ModelSpec mixtral_from_config(Fields& fields, const std::string& where);
ModelSpec olmoe_from_config(Fields& fields, const std::string& where);
ModelSpec qwen2_moe_from_config(Fields& fields, const std::string& where);
ModelSpec qwen3_moe_from_config(Fields& fields, const std::string& where);
ModelSpec glm4_moe_from_config(Fields& fields, const std::string& where);
ModelSpec gpt_oss_from_config(Fields& fields, const std::string& where);
ModelSpec granite_moe_from_config(Fields& fields, const std::string& where);
ModelSpec gemma_from_config(Fields& fields, const std::string& where);
ModelSpec gemma2_from_config(Fields& fields, const std::string& where);
ModelSpec gemma3_from_config(Fields& fields, const std::string& where);
ModelSpec gemma4_from_config(Fields& fields, const std::string& where);
ModelSpec ministral_from_config(Fields& fields, const std::string& where);
ModelSpec ministral3_from_config(Fields& fields, const std::string& where);
ModelSpec mistral3_from_config(Fields& fields, const std::string& where);
ModelSpec olmo2_from_config(Fields& fields, const std::string& where);
ModelSpec olmo3_from_config(Fields& fields, const std::string& where);
ModelSpec phi3_from_config(Fields& fields, const std::string& where);
ModelSpec glm4_from_config(Fields& fields, const std::string& where);
ModelSpec neox_from_config(Fields& fields, const std::string& where);
ModelSpec seed_oss_from_config(Fields& fields, const std::string& where);
ModelSpec ernie4_5_from_config(Fields& fields, const std::string& where);
ModelSpec exaone4_from_config(Fields& fields, const std::string& where);
ModelSpec cohere_from_config(Fields& fields, const std::string& where);
ModelSpec cohere2_from_config(Fields& fields, const std::string& where);
ModelSpec stablelm_from_config(Fields& fields, const std::string& where);
ModelSpec starcoder2_from_config(Fields& fields, const std::string& where);
ModelSpec granite4_from_config(Fields& fields, const std::string& where);
ModelSpec hunyuan_from_config(Fields& fields, const std::string& where);
ModelSpec hunyuan_moe_from_config(Fields& fields, const std::string& where);
ModelSpec arcee_from_config(Fields& fields, const std::string& where);
ModelSpec nemotron_from_config(Fields& fields, const std::string& where);
ModelSpec qwen2_vl_from_config(Fields& fields, const std::string& where);
ModelSpec qwen3_vl_from_config(Fields& fields, const std::string& where);
ModelSpec dots1_from_config(Fields& fields, const std::string& where);
ModelSpec ernie4_5_moe_from_config(Fields& fields, const std::string& where);
ModelSpec minimax_m2_from_config(Fields& fields, const std::string& where);
ModelSpec qwen3_vl_moe_from_config(Fields& fields, const std::string& where);

/// The "eos_token_id" of a config.json or a generation_config.json: an id or a list of ids. Null gives an empty list,
/// an absent key nullopt. Throws DataError for an empty list and for anything but an id below `vocab`.
std::optional<std::vector<std::int32_t>> eos_ids(Fields& fields, int vocab, std::vector<std::string>& notes);

}  // namespace weft::policy
