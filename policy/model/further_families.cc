// policy/model/further_families.cc: reads the config.json of families that differ from others in few places: where
// norms lie and of which kind they are, which layers turn, how tensors are named, or that towers for images lie beside
// them.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/model/architecture.h"
#include "policy/model/model_config.h"

namespace weft::policy {
namespace {

/// LayerNorm in the place of RMSNorm, with its epsilon under a key of its own.
void use_layer_norm(Fields& fields, ModelSpec& model, const char* epsilon) {
  model.rms_norm = false;
  model.norm_epsilon = static_cast<float>(positive(fields, epsilon, 1, 1e-5));
}

/// Reads a switch of norms that no table has.
void require_off(Fields& fields, const char* key) {
  if (flag(fields, key, false)) fields.refuse_field(key, "false: norms with a weight for each head are not supported");
}

/// Command R: attention and mlp read the same norm.
ModelSpec command_r(Fields& fields, const std::string& where, const char* type, double default_theta) {
  ModelSpec model = llama_like(fields, where,
                               {.architecture = type,
                                .layers = 40,
                                .hidden = 8192,
                                .ffn = 22528,
                                .heads = 64,
                                .vocab = 256000,
                                .positions = 8192,
                                .rotary = {},
                                .activation = {},
                                .eos = {255001},
                                .bos = 5},
                               {.default_theta = default_theta, .whole = true});
  use_layer_norm(fields, model, "layer_norm_eps");
  model.tied_head = flag(fields, "tie_word_embeddings", true);
  model.qkv_bias = model.output_bias = flag(fields, "attention_bias", false);
  model.mlp_bias = false;
  model.parallel_residual = model.alternate_pairs = true;
  model.logit_scale = static_cast<float>(fields.number("logit_scale", -1e9, 1e9, 0.0625));
  return model;
}

/// Gives the window to all layers but every `pattern`th, if layer_types does not say to which. Only these turn, and
/// none if `window` is 0.
void slide_and_turn(Fields& fields, ModelSpec& model, int window, std::int64_t pattern) {
  const auto slides = [pattern](int layer) { return (layer + 1) % pattern != 0; };
  model.windows = layer_windows(fields, model, window, slides);
  if (window > 0) model.rotary_layers = sliding_layers(fields, model, slides);
  else model.rotary_layers.assign(static_cast<std::size_t>(model.layers), false);
}

}  // namespace

ModelSpec seed_oss_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = llama_like(fields, where,
                               {.architecture = "seed_oss",
                                .layers = 64,
                                .hidden = 4096,
                                .ffn = 27648,
                                .heads = 80,
                                .kv_heads = 8,
                                .head_dim = 128,
                                .vocab = 155136,
                                .positions = 524288,
                                .rotary = {},
                                .activation = {},
                                .norm_epsilon = 1e-6f,
                                .eos = {2},
                                .bos = 0},
                               {.whole = true});
  model.qkv_bias = flag(fields, "attention_bias", true);
  model.output_bias = flag(fields, "attention_out_bias", false);
  model.mlp_bias = flag(fields, "mlp_bias", false);
  return model;
}

ModelSpec hunyuan_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = llama_like(fields, where,
                               {.architecture = fields.text("model_type"),
                                .layers = 32,
                                .hidden = 4096,
                                .ffn = 11008,
                                .heads = 32,
                                .vocab = 290943,
                                .positions = 2048,
                                .rotary = {},
                                .activation = {},
                                .norm_epsilon = 1e-5f,
                                .eos = {2},
                                .bos = 1},
                               {.whole = true, .scales_base = true});
  model.qkv_bias = model.output_bias = flag(fields, "attention_bias", false);
  model.mlp_bias = false;
  model.late_head_norm = true;
  return model;
}

/// AFM, which is Llama without a gate.
ModelSpec arcee_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = llama_like(fields, where,
                               {.architecture = "arcee",
                                .layers = 32,
                                .hidden = 2560,
                                .ffn = 18432,
                                .heads = 32,
                                .vocab = 32000,
                                .positions = 4096,
                                .rotary = {},
                                .activation = "relu2",
                                .norm_epsilon = 1e-5f,
                                .eos = {128001},
                                .bos = 128000},
                               {.whole = true});
  model.qkv_bias = model.output_bias = flag(fields, "attention_bias", false);
  model.mlp_bias = flag(fields, "mlp_bias", false);
  model.gated_mlp = false;
  return model;
}

ModelSpec nemotron_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = llama_like(fields, where,
                               {.architecture = "nemotron",
                                .layers = 32,
                                .hidden = 6144,
                                .ffn = 24576,
                                .heads = 48,
                                .vocab = 256000,
                                .positions = 4096,
                                .rotary = {},
                                .activation = "relu2",
                                .eos = {3},
                                .bos = 2},
                               {.default_fraction = 0.5});
  use_layer_norm(fields, model, "norm_eps");
  model.norm_plus_one = true;
  model.qkv_bias = model.output_bias = flag(fields, "attention_bias", false);
  model.mlp_bias = flag(fields, "mlp_bias", false);
  model.gated_mlp = false;
  return model;
}

ModelSpec ernie4_5_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = llama_like(fields, where,
                               {.architecture = "ernie4_5",
                                .layers = 18,
                                .hidden = 1024,
                                .ffn = 3072,
                                .heads = 16,
                                .kv_heads = 2,
                                .head_dim = 128,
                                .vocab = 103424,
                                .positions = 131072,
                                .rotary = {},
                                .activation = {},
                                .norm_epsilon = 1e-5f,
                                .eos = {2},
                                .bos = 1},
                               {.default_theta = 500000, .whole = true});
  model.tied_head = flag(fields, "tie_word_embeddings", true);
  model.qkv_bias = model.output_bias = model.mlp_bias = flag(fields, "use_bias", false);
  model.alternate_pairs = true;
  return model;
}

/// EXAONE 4, whose norms lie behind each sublayer. With windows only the layers that have one turn.
ModelSpec exaone4_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = llama_like(fields, where,
                               {.architecture = "exaone4",
                                .layers = 32,
                                .hidden = 4096,
                                .ffn = 16384,
                                .heads = 32,
                                .kv_heads = 32,
                                .vocab = 102400,
                                .positions = 2048,
                                .rotary = {},
                                .activation = {},
                                .norm_epsilon = 1e-5f,
                                .eos = {2},
                                .bos = 0},
                               {.whole = true});
  model.qkv_bias = model.output_bias = model.mlp_bias = false;
  model.pre_norm = false;
  model.head_norm = model.branch_norm = true;
  const int window = window_from_config(fields, 4096);
  if (window == 0) return model;
  const bool listed = fields.has("layer_types") && !fields.is_null("layer_types");
  slide_and_turn(fields, model, window, listed ? 1 : fields.integer("sliding_window_pattern", 1, INT32_MAX, 4));
  return model;
}

ModelSpec cohere_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = command_r(fields, where, "cohere", 500000);
  model.head_norm = flag(fields, "use_qk_norm", false);  // Command R+
  return model;
}

ModelSpec cohere2_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = command_r(fields, where, "cohere2", 10000);
  slide_and_turn(fields, model, window_from_config(fields, 4096),
                 fields.integer("sliding_window_pattern", 1, INT32_MAX, 4));
  return model;
}

ModelSpec stablelm_from_config(Fields& fields, const std::string& where) {
  require_off(fields, "qk_layernorm");
  if (flag(fields, "use_parallel_residual", false))
    fields.refuse_field("use_parallel_residual", "false: the mlp reads what attention has added to");
  ModelSpec model = llama_like(fields, where,
                               {.architecture = "stablelm",
                                .layers = 32,
                                .hidden = 2560,
                                .ffn = 6912,
                                .heads = 32,
                                .kv_heads = 32,
                                .vocab = 50304,
                                .positions = 4096,
                                .rotary = {},
                                .activation = {},
                                .eos = {0},
                                .bos = 0},
                               {.default_fraction = 0.25});
  use_layer_norm(fields, model, "layer_norm_eps");
  model.qkv_bias = flag(fields, "use_qkv_bias", false);
  model.output_bias = model.mlp_bias = false;
  return model;
}

ModelSpec starcoder2_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = llama_like(fields, where,
                               {.architecture = "starcoder2",
                                .layers = 30,
                                .hidden = 3072,
                                .ffn = 12288,
                                .heads = 24,
                                .kv_heads = 2,
                                .vocab = 49152,
                                .positions = 4096,
                                .rotary = {},
                                .activation = "gelu_pytorch_tanh",
                                .eos = {50256},
                                .bos = 50256},
                               {.whole = true});
  use_layer_norm(fields, model, "norm_epsilon");
  model.tied_head = flag(fields, "tie_word_embeddings", true);
  model.qkv_bias = model.output_bias = model.mlp_bias = flag(fields, "use_bias", true);
  model.gated_mlp = false;
  if (fields.has("sliding_window")) slide_everywhere(fields, model, 0);
  return model;
}

/// Granite 4 without recurrent layers and without experts.
ModelSpec granite4_from_config(Fields& fields, const std::string& where) {
  if (fields.integer("num_local_experts", 0, INT32_MAX, 8) != 0)
    fields.refuse_field("num_local_experts", "0: Granite 4 with experts is not supported");
  ModelSpec model = llama_like(fields, where,
                               {.architecture = "granitemoehybrid",
                                .layers = 32,
                                .hidden = 4096,
                                .ffn = 1024,
                                .heads = 32,
                                .vocab = 32000,
                                .positions = 2048,
                                .rotary = {},
                                .activation = {},
                                .norm_epsilon = 1e-6f,
                                .eos = {2},
                                .bos = 1},
                               {.whole = true});
  model.ffn = positive_int(fields, "shared_intermediate_size", 1 << 20, 1024);
  const char* const key = fields.has("layers_block_type") ? "layers_block_type" : "layer_types";
  const nlohmann::json types = fields.has(key) ? fields.at(key) : nlohmann::json();
  const auto attends = [](const nlohmann::json& type) { return type == "attention" || type == "full_attention"; };
  if (!types.is_array() || types.size() < static_cast<std::size_t>(model.layers) ||
      !std::all_of(types.begin(), types.end(), attends))
    fields.refuse_field(key, "attention for each of the " + std::to_string(model.layers) +
                                 " layers: recurrent layers (Mamba) are not supported");
  model.qkv_bias = model.output_bias = flag(fields, "attention_bias", false);
  model.mlp_bias = false;
  const bool turns = fields.has("position_embedding_type") && !fields.is_null("position_embedding_type") &&
                     fields.text("position_embedding_type") == "rope";
  if (!turns) model.rotary_layers.assign(static_cast<std::size_t>(model.layers), false);
  granite_factors(fields, model);
  return model;
}

namespace {

/// The config of Qwen's text model: in text_config, or at the top in the first releases.
template <class Read> ModelSpec beside_towers(Fields& fields, const std::string& where, const Read& read) {
  ModelSpec model;
  if (fields.has("text_config")) {
    const nlohmann::json text = text_config(fields);
    const std::string place = where + ": text_config";
    Fields inner(text, place, Blame::data);
    model = read(inner, place);
  } else {
    model = read(fields, where);
  }
  model.architecture = fields.text("model_type");
  return model;
}

}  // namespace

/// Its three coordinates of a position are the same for text, so it turns as Qwen2 does.
ModelSpec qwen2_vl_from_config(Fields& fields, const std::string& where) {
  const auto read = [](Fields& text, const std::string& place) {
    ModelSpec model = llama_like(text, place,
                                 {.architecture = "qwen2",
                                  .layers = 80,
                                  .hidden = 8192,
                                  .ffn = 29568,
                                  .heads = 64,
                                  .kv_heads = 8,
                                  .vocab = 152064,
                                  .positions = 32768,
                                  .rotary = {},
                                  .activation = {},
                                  .norm_epsilon = 1e-5f,
                                  .eos = {151645},
                                  .bos = 151643},
                                 {.default_theta = 1000000, .whole = true, .of_images = true});
    model.output_bias = model.mlp_bias = false;
    model.windows = windows_of_qwen(text, model, 80);
    return model;
  };
  ModelSpec model = beside_towers(fields, where, read);
  model.tied_head = model.tied_head || flag(fields, "tie_word_embeddings", false);
  return model;
}

ModelSpec qwen3_vl_from_config(Fields& fields, const std::string& where) {
  const auto read = [](Fields& text, const std::string& place) {
    ModelSpec model = llama_like(text, place,
                                 {.architecture = "qwen3",
                                  .layers = 32,
                                  .hidden = 4096,
                                  .ffn = 22016,
                                  .heads = 32,
                                  .kv_heads = 32,
                                  .head_dim = 128,
                                  .vocab = 151936,
                                  .positions = 128000,
                                  .rotary = {},
                                  .activation = {},
                                  .norm_epsilon = 1e-6f,
                                  .eos = {},
                                  .bos = {}},
                                 {.default_theta = 500000, .whole = true, .of_images = true});
    model.qkv_bias = model.output_bias = flag(text, "attention_bias", false);
    model.mlp_bias = false;
    model.head_norm = true;
    return model;
  };
  ModelSpec model = beside_towers(fields, where, read);
  model.tied_head = flag(fields, "tie_word_embeddings", false);
  return model;
}

}  // namespace weft::policy
