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

/// What the configs of Gemma 2 and later have where keys are absent.
ModelSpec gemma2_defaults(const std::string& type, int layers, int vocab, int positions) {
  return {.architecture = type,
          .layers = layers,
          .hidden = 2304,
          .ffn = 9216,
          .heads = 8,
          .kv_heads = 4,
          .head_dim = 256,
          .vocab = vocab,
          .positions = positions,
          .rotary = {},
          .activation = {},
          .norm_epsilon = 1e-6f,
          .eos = {1},
          .bos = 2};
}

/// Reads the text model, which is in text_config where the config has towers for images or sound too.
template <class Read> ModelSpec text_model(Fields& fields, const std::string& where, const Read& read) {
  const std::string type = fields.text("model_type");
  if (!fields.has("text_config")) return read(fields, where, type);
  const nlohmann::json text = text_config(fields);
  Fields inner(text, where + ": text_config", Blame::data);
  return read(inner, where, type);
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

void turn_windows_by(ModelSpec& model, RotaryFrequencies rotary) {
  model.window_rotary = std::move(rotary.frequencies), model.window_magnitude = rotary.magnitude;
}

ModelSpec gemma3_text(Fields& fields, const std::string& where, const std::string& type) {
  require_decoder(fields);
  ModelSpec model = llama_like(fields, where, gemma2_defaults(type, 26, 262208, 131072),
                               {.default_theta = 1e6, .layers = "full_attention"});
  add_gemma2(fields, model);
  model.head_norm = true;
  model.logit_cap = cap_from_config(fields, "final_logit_softcapping");
  require_known_caps(fields, model);
  const std::int64_t pattern = fields.integer("sliding_window_pattern", 1, INT32_MAX, 6);
  const auto slides = [pattern](int layer) { return (layer + 1) % pattern != 0; };
  model.windows = layer_windows(fields, model, window_from_config(fields, 4096), slides);
  model.window_layers = sliding_layers(fields, model, slides);
  turn_windows_by(
      model,
      rotary_from_config(
          fields, where, model,
          {.theta = "rope_local_base_freq", .default_theta = 10000, .layers = "sliding_attention", .scaled = false}));
  return model;
}

constexpr const char* kProportionalOfGemma4 =
    R"({"rope_type": "proportional", "rope_theta": 1000000, "partial_rotary_factor": 0.25})";

/// The heads of one layer by per_layer_config, in which layers are keys.
struct LayerHeads {
  int kv_heads, head_dim;
  bool operator==(const LayerHeads&) const = default;
};
LayerHeads heads_of_entry(const nlohmann::json& of_layers, int layer, const ModelSpec& model,
                          const std::string& where) {
  LayerHeads heads{model.kv_heads, model.head_dim};
  const auto entry = of_layers.find(std::to_string(layer));
  if (entry == of_layers.end()) return heads;
  Fields fields(*entry, where + ": per_layer_config: " + std::to_string(layer), Blame::data);
  heads.head_dim = positive_int(fields, "head_dim", 4096, model.head_dim);
  heads.kv_heads = positive_int(fields, "num_key_value_heads", 4096, model.kv_heads);
  fields.refuse_unknown();
  return heads;
}

/// The heads of the layers without a window: two keys say what they are, or per_layer_config, as transformers 5.24
/// writes.
void add_global_heads(Fields& fields, const std::string& where, ModelSpec& model) {
  LayerHeads heads{model.kv_heads, positive_int(fields, "global_head_dim", 4096, 512)};
  if (fields.has("num_global_key_value_heads") && !fields.is_null("num_global_key_value_heads")) {
    const int given = positive_int(fields, "num_global_key_value_heads", 4096, 1);
    if (model.values_of_keys) heads.kv_heads = given;  // as in transformers
  }
  if (fields.has("per_layer_config") && !fields.is_null("per_layer_config")) {
    const nlohmann::json& of_layers = fields.at("per_layer_config");
    if (!of_layers.is_object()) fields.refuse_field("per_layer_config", "an object with layers as keys");
    bool first = true;
    for (int layer = 0; layer < model.layers; ++layer) {
      const LayerHeads own = heads_of_entry(of_layers, layer, model, where);
      const bool slides = model.window_layers[static_cast<std::size_t>(layer)];
      if (!slides && std::exchange(first, false)) heads = own;
      if (own != (slides ? LayerHeads{model.kv_heads, model.head_dim} : heads))
        fields.refuse_field("per_layer_config", "the same heads in all layers that slide, and in all others");
    }
  }
  if (model.heads % heads.kv_heads != 0)
    throw DataError(where + ": the layers without a window have " + std::to_string(heads.kv_heads) +
                    " KV heads, which do not divide num_attention_heads " + std::to_string(model.heads));
  model.global_kv_heads = heads.kv_heads, model.global_head_dim = heads.head_dim;
}

/// The experts beside each layer's mlp, as the 26B-A4B has them.
void experts_of_gemma4(Fields& fields, ModelSpec& model) {
  const auto size = [&](const char* key, std::int64_t most) {
    if (!fields.has(key) || fields.is_null(key)) fields.refuse_field(key, "a number: enable_moe_block is true");
    return positive_int(fields, key, most, 1);
  };
  Experts& experts = model.experts;
  experts.count = size("num_experts", kMostExperts);
  experts.chosen = size("top_k_experts", experts.count);
  experts.ffn = size("moe_intermediate_size", 1 << 20);
  experts.normalise = experts.beside_mlp = true;
  experts.router_scale = static_cast<float>(1 / std::sqrt(double(model.hidden)));
}

/// A number whose key may be null.
int size_or_null(Fields& fields, const char* key, std::int64_t most, int absent) {
  return fields.has(key) && fields.is_null(key) ? 0 : static_cast<int>(fields.integer(key, 0, most, absent));
}

/// The inputs of layers, and the layers without keys and values, as E2B and E4B have them. It needs the layers' kinds.
void add_gemma4_small(Fields& fields, ModelSpec& model, bool has_inputs) {
  model.layer_input = size_or_null(fields, "hidden_size_per_layer_input", 1 << 16, has_inputs ? 256 : 0);
  if (model.layer_input > 0) {
    if (model.experts.count > 0) fields.refuse_field("hidden_size_per_layer_input", "0: enable_moe_block is true");
    model.layer_vocab = positive_int(fields, "vocab_size_per_layer_input", INT32_MAX, 262144);
    if (model.layer_vocab < model.vocab)
      fields.refuse_field("vocab_size_per_layer_input", "vocab_size (" + std::to_string(model.vocab) + ") or more");
    model.layer_input_scale = static_cast<float>(std::sqrt(double(model.layer_input)));
  }
  model.sharing_layers = size_or_null(fields, "num_kv_shared_layers", INT32_MAX, 0);
  for (int layer = std::max(0, model.layers - model.sharing_layers); layer < model.layers; ++layer)
    if (model.sharing_layers >= model.layers || model.kv_source(layer) < 0)
      fields.refuse_field("num_kv_shared_layers", "a number that leaves a layer of each kind keys and values");
  model.wide_sharing = flag(fields, "use_double_wide_mlp", false) && model.sharing_layers > 0;
}

/// Gemma 4's text model.
ModelSpec gemma4_text(Fields& fields, const std::string& where, const std::string& type) {
  if (fields.has("use_bidirectional_attention") && !fields.is_null("use_bidirectional_attention") &&
      fields.at("use_bidirectional_attention") != "vision")
    fields.refuse_field("use_bidirectional_attention", "null or \"vision\": decoders only");
  ModelSpec model = llama_like(fields, where, gemma2_defaults(type, 30, 262144, 131072),
                               {.layers = "sliding_attention", .scaled = false, .whole = true});
  model.tied_head = flag(fields, "tie_word_embeddings", true);
  if (flag(fields, "attention_bias", false)) fields.refuse_field("attention_bias", "false");
  model.qkv_bias = model.output_bias = model.mlp_bias = false;
  model.head_norm = model.value_norm = model.branch_norm = model.layer_scale = true;
  if (flag(fields, "enable_moe_block", false)) experts_of_gemma4(fields, model);
  model.activation = fields.text("hidden_activation", "gelu_pytorch_tanh");
  model.attention_scale = 1;
  model.logit_cap = cap_from_config(fields, "final_logit_softcapping");
  require_known_caps(fields, model);
  scale_by_root_of_width(model);
  const auto slides = [](int layer) { return (layer + 1) % 6 != 0; };
  model.windows = layer_windows(fields, model, window_from_config(fields, 512), slides);
  model.window_layers = sliding_layers(fields, model, slides);
  if (model.window_layers.back()) {  // as transformers does
    model.notes.emplace_back("the last layer attends to all tokens, whatever layer_types says");
    model.window_layers.back() = false;
    if (!model.windows.empty()) model.windows.back() = 0;
  }
  add_gemma4_small(fields, model, !type.starts_with("gemma4_unified"));
  model.values_of_keys = flag(fields, "attention_k_eq_v", false);
  add_global_heads(fields, where, model);
  turn_windows_by(model, {std::move(model.rotary), model.rotary_magnitude});
  RotaryFrequencies whole = rotary_from_config(fields, where, model,
                                               {.layers = "full_attention",
                                                .scaled = false,
                                                .absent = kProportionalOfGemma4,
                                                .head_dim = model.global_head_dim});
  model.rotary = std::move(whole.frequencies), model.rotary_magnitude = whole.magnitude;
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
  ModelSpec model = llama_like(fields, where, gemma2_defaults("gemma2", 26, 256000, 8192));
  add_gemma2(fields, model);
  model.attention_cap = cap_from_config(fields, "attn_logit_softcapping", 50.0);
  model.logit_cap = cap_from_config(fields, "final_logit_softcapping", 30.0);
  model.windows =
      layer_windows(fields, model, window_from_config(fields, 4096), [](int layer) { return layer % 2 == 0; });
  return model;
}

ModelSpec gemma3_from_config(Fields& fields, const std::string& where) {
  return text_model(fields, where, gemma3_text);
}

ModelSpec gemma4_from_config(Fields& fields, const std::string& where) {
  return text_model(fields, where, gemma4_text);
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
  turn_windows_by(model, rotary_from_config(fields, where, model,
                                            {.default_theta = 500000, .layers = "sliding_attention", .scaled = false}));
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
