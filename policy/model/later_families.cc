// policy/model/later_families.cc: reads the config.json of the families that changed Llama's norms, factors and
// windows.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/error.h"
#include "policy/model/architecture.h"
#include "policy/model/model_config.h"

namespace weft::policy {
namespace {

/// The factor on Gemma's embedding.
void scale_by_root_of_width(ModelSpec& model) {
  model.embedding_scale = static_cast<float>(std::sqrt(double(model.hidden)));
  model.rounds_embedding_scale = true;
}

void require_decoder(Fields& fields) {
  if (flag(fields, "use_bidirectional_attention", false))
    fields.refuse_field("use_bidirectional_attention", "false: decoders only");
}

/// What Gemma 2 changed of the first, and Gemma 3 kept.
void add_gemma2(Fields& fields, ModelSpec& model) {
  model.tied_head = flag(fields, "tie_word_embeddings", true);
  model.qkv_bias = model.output_bias = flag(fields, "attention_bias", false);
  model.mlp_bias = false;
  model.branch_norm = model.norm_plus_one = true;
  model.activation = fields.text("hidden_activation", "gelu_pytorch_tanh");  // hidden_act is not read
  scale_by_root_of_width(model);
  model.attention_scale = static_cast<float>(1 / std::sqrt(positive(fields, "query_pre_attn_scalar", 1e9, 256)));
}

ModelSpec gemma3_text(Fields& fields, const std::string& where, const std::string& type) {
  require_decoder(fields);
  ModelSpec model = llama_like(fields, where,
                               {.architecture = type,
                                .layers = 26,
                                .hidden = 2304,
                                .ffn = 9216,
                                .heads = 8,
                                .kv_heads = 4,
                                .head_dim = 256,
                                .vocab = 262208,
                                .positions = 131072,
                                .rotary = {},
                                .activation = {},
                                .norm_epsilon = 1e-6f,
                                .eos = {1},
                                .bos = 2},
                               {.default_theta = 1e6, .layers = "full_attention"});
  add_gemma2(fields, model);
  model.head_norm = true;
  model.logit_cap = cap_from_config(fields, "final_logit_softcapping");
  require_known_caps(fields, model);
  const std::int64_t pattern = fields.integer("sliding_window_pattern", 1, INT32_MAX, 6);
  const auto slides = [pattern](int layer) { return (layer + 1) % pattern != 0; };
  model.windows = layer_windows(fields, model, window_from_config(fields, 4096), slides);
  model.window_layers = sliding_layers(fields, model, slides);
  model.window_rotary =
      rotary_from_config(
          fields, where, model,
          {.theta = "rope_local_base_freq", .default_theta = 10000, .layers = "sliding_attention", .scaled = false})
          .frequencies;
  return model;
}

ModelSpec olmo(Fields& fields, const std::string& where, const char* type, const RotaryKeys& keys) {
  ModelSpec model = llama_like(fields, where,
                               {.architecture = type,
                                .layers = 32,
                                .hidden = 4096,
                                .ffn = 11008,
                                .heads = 32,
                                .vocab = 50304,
                                .positions = 2048,
                                .rotary = {},
                                .activation = {},
                                .norm_epsilon = 1e-5f,
                                .eos = {50279},
                                .bos = {}},
                               keys);
  model.qkv_bias = model.output_bias = flag(fields, "attention_bias", false);
  model.mlp_bias = false;
  model.pre_norm = false;
  model.head_norm = model.branch_norm = true;
  return model;
}

constexpr const char* kYarnOfMinistral3 =
    R"({"rope_type": "yarn", "rope_theta": 1000000, "factor": 16, "beta_fast": 32, "beta_slow": 1, "mscale": 1,
        "mscale_all_dim": 1, "original_max_position_embeddings": 16384, "llama_4_scaling_beta": 0.1})";

}  // namespace

nlohmann::json text_config(Fields& fields) {
  nlohmann::json text = fields.at("text_config");
  if (!text.is_object()) fields.refuse_field("text_config", "an object");
  for (const char* key : {"dtype", "torch_dtype", "eos_token_id", "bos_token_id", "tie_word_embeddings"})
    if (!text.contains(key) && fields.has(key)) text[key] = fields.at(key);
  return text;
}

ModelSpec gemma_from_config(Fields& fields, const std::string& where) {
  require_decoder(fields);
  ModelSpec model = llama_like(fields, where,
                               {.architecture = "gemma",
                                .layers = 28,
                                .hidden = 3072,
                                .ffn = 24576,
                                .heads = 16,
                                .kv_heads = 16,
                                .head_dim = 256,
                                .vocab = 256000,
                                .positions = 8192,
                                .rotary = {},
                                .activation = "gelu_pytorch_tanh",
                                .norm_epsilon = 1e-6f,
                                .eos = {1},
                                .bos = 2});
  if (model.activation == "gelu") model.activation = "gelu_pytorch_tanh";  // what the first releases mean by it
  model.tied_head = flag(fields, "tie_word_embeddings", true);
  model.qkv_bias = model.output_bias = flag(fields, "attention_bias", false);
  model.mlp_bias = false;
  model.norm_plus_one = true;
  scale_by_root_of_width(model);
  return model;
}

ModelSpec gemma2_from_config(Fields& fields, const std::string& where) {
  require_decoder(fields);
  ModelSpec model = llama_like(fields, where,
                               {.architecture = "gemma2",
                                .layers = 26,
                                .hidden = 2304,
                                .ffn = 9216,
                                .heads = 8,
                                .kv_heads = 4,
                                .head_dim = 256,
                                .vocab = 256000,
                                .positions = 8192,
                                .rotary = {},
                                .activation = {},
                                .norm_epsilon = 1e-6f,
                                .eos = {1},
                                .bos = 2});
  add_gemma2(fields, model);
  model.attention_cap = cap_from_config(fields, "attn_logit_softcapping", 50.0);
  model.logit_cap = cap_from_config(fields, "final_logit_softcapping", 30.0);
  model.windows =
      layer_windows(fields, model, window_from_config(fields, 4096), [](int layer) { return layer % 2 == 0; });
  return model;
}

/// With towers for images the text model is in text_config.
ModelSpec gemma3_from_config(Fields& fields, const std::string& where) {
  if (!fields.has("text_config")) return gemma3_text(fields, where, fields.text("model_type"));
  const nlohmann::json text = text_config(fields);
  Fields inner(text, where + ": text_config", Blame::data);
  return gemma3_text(inner, where, "gemma3");
}

/// Mistral with windows in the layers that layer_types names.
ModelSpec ministral_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = mistral_from_config(fields, where);
  model.architecture = "ministral";
  model.windows = layer_windows(fields, model, window_from_config(fields, 4096), [](int) { return true; });
  return model;
}

/// Ministral 3, whose queries grow with their position, step by step, after the context that it was trained with before
/// YaRN. The context ends there.
ModelSpec ministral3_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = llama_like(fields, where,
                               {.architecture = "ministral3",
                                .layers = 34,
                                .hidden = 4096,
                                .ffn = 14336,
                                .heads = 32,
                                .kv_heads = 8,
                                .head_dim = 128,
                                .vocab = 131072,
                                .positions = 262144,
                                .rotary = {},
                                .activation = {},
                                .norm_epsilon = 1e-5f,
                                .eos = {2},
                                .bos = 1},
                               {.whole = true, .absent = kYarnOfMinistral3});
  model.qkv_bias = model.output_bias = model.mlp_bias = false;
  nlohmann::json rope = nlohmann::json::parse(kYarnOfMinistral3);
  for (const char* key : {"rope_parameters", "rope_scaling"})  // the second is what transformers 4 calls it
    if (fields.has(key) && !fields.is_null(key)) rope = fields.at(key);
  Fields scaling(rope, where + ": rope_parameters", Blame::data);
  const auto trained =
      static_cast<int>(scaling.integer("original_max_position_embeddings", 1, 1 << 24, model.positions));
  if (scaling.number("llama_4_scaling_beta", 0, 1e6, 0.0) > 0 && trained < model.positions)
    model.longer_positions = model.positions, model.positions = trained;
  slide_everywhere(fields, model, 0);
  return model;
}

/// Mistral Small 3.1 and later, and Ministral 3, beside a tower for images.
ModelSpec mistral3_from_config(Fields& fields, const std::string& where) {
  const nlohmann::json text = text_config(fields);
  Fields inner(text, where + ": text_config", Blame::data);
  const std::string type = inner.text("model_type", "mistral");
  if (type != "mistral" && type != "ministral" && type != "ministral3")
    inner.refuse_field("model_type", "mistral, ministral or ministral3");
  ModelSpec model = type == "mistral"     ? mistral_from_config(inner, where)
                    : type == "ministral" ? ministral_from_config(inner, where)
                                          : ministral3_from_config(inner, where);
  model.architecture = "mistral3";
  return model;
}

ModelSpec olmo2_from_config(Fields& fields, const std::string& where) { return olmo(fields, where, "olmo2", {}); }

ModelSpec olmo3_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = olmo(fields, where, "olmo3", {.default_theta = 500000, .layers = "full_attention"});
  const auto slides = [](int layer) { return (layer + 1) % 4 != 0; };
  model.windows = layer_windows(fields, model, window_from_config(fields, 4096), slides);
  model.window_layers = sliding_layers(fields, model, slides);
  model.window_rotary = rotary_from_config(fields, where, model,
                                           {.default_theta = 500000, .layers = "sliding_attention", .scaled = false})
                            .frequencies;
  return model;
}

void granite_factors(Fields& fields, ModelSpec& model) {
  const auto factor = [&](const char* key) { return static_cast<float>(positive(fields, key, 1e9, 1.0)); };
  model.embedding_scale = factor("embedding_multiplier");
  model.residual_scale = factor("residual_multiplier");
  model.attention_scale = factor("attention_multiplier");
  model.logit_scale = 1 / factor("logits_scaling");
}

ModelSpec granite_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = llama_like(fields, where,
                               {.architecture = "granite",
                                .layers = 32,
                                .hidden = 4096,
                                .ffn = 11008,
                                .heads = 32,
                                .vocab = 32000,
                                .positions = 2048,
                                .rotary = {},
                                .activation = {},
                                .norm_epsilon = 1e-6f,
                                .eos = {2},
                                .bos = 1});
  model.qkv_bias = model.output_bias = flag(fields, "attention_bias", false);
  model.mlp_bias = flag(fields, "mlp_bias", false);
  granite_factors(fields, model);
  return model;
}

ModelSpec phi3_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = llama_like(fields, where,
                               {.architecture = "phi3",
                                .layers = 32,
                                .hidden = 3072,
                                .ffn = 8192,
                                .heads = 32,
                                .vocab = 32064,
                                .positions = 4096,
                                .rotary = {},
                                .activation = {},
                                .norm_epsilon = 1e-5f,
                                .eos = {32000},
                                .bos = 1});
  model.qkv_bias = model.output_bias = model.mlp_bias = false;
  const int window = fields.has("sliding_window") ? window_from_config(fields, 0) : 0;
  if (window > 0 && window < model.positions) model.windows.assign(static_cast<std::size_t>(model.layers), window);
  return model;
}

ModelSpec glm4_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = llama_like(fields, where,
                               {.architecture = fields.text("model_type"),
                                .layers = 40,
                                .hidden = 4096,
                                .ffn = 13696,
                                .heads = 32,
                                .kv_heads = 2,
                                .head_dim = 128,
                                .vocab = 151552,
                                .positions = 131072,
                                .rotary = {},
                                .activation = {},
                                .norm_epsilon = 1.5625e-7f,
                                .eos = {151329, 151336, 151338},
                                .bos = {}},
                               {.default_fraction = 0.5});
  model.qkv_bias = flag(fields, "attention_bias", true);
  model.output_bias = model.mlp_bias = false;
  model.alternate_pairs = true;
  model.branch_norm = model.architecture == "glm4";
  return model;
}

}  // namespace weft::policy
