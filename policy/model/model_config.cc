// policy/model/model_config.cc: reads config.json as transformers 4 and 5 write it, with the config classes' defaults.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "kernels/error.h"
#include "policy/model/architecture.h"
#include "policy/model/model_config.h"

namespace weft::policy {

void dtype_from_config(Fields& fields, ModelSpec& model) {
  for (const char* key : {"dtype", "torch_dtype"}) {  // transformers 5 and 4
    if (!fields.has(key) || fields.is_null(key)) continue;
    const std::string name = fields.text(key);
    model.names_dtype = true;
    if (name == "float32") model.dtype = DType::f32;
    else if (name == "float16") model.dtype = DType::f16;
    else if (name == "bfloat16") model.dtype = DType::bf16;
    else fields.refuse_field(key, "float32, float16 or bfloat16");
    return;
  }
}

std::vector<std::int32_t> eos_from_config(Fields& fields, ModelSpec& model, std::vector<std::int32_t> fallback) {
  if (auto ids = eos_ids(fields, model.vocab, model.notes)) return *std::move(ids);
  std::erase_if(fallback, [&](std::int32_t id) { return id >= model.vocab; });
  return fallback;
}

int positive_int(Fields& fields, const char* key, std::int64_t high, std::int64_t fallback) {
  return static_cast<int>(fields.integer(key, 1, high, fallback));
}

std::optional<std::int32_t> bos_from_config(Fields& fields, ModelSpec& model, std::optional<std::int32_t> fallback) {
  if (!fields.has("bos_token_id")) return fallback && *fallback < model.vocab ? fallback : std::nullopt;
  if (fields.is_null("bos_token_id")) return {};
  const std::int64_t id = fields.integer("bos_token_id", INT64_MIN, INT64_MAX);
  if (id >= 0 && id < model.vocab) return static_cast<std::int32_t>(id);
  model.notes.push_back("bos_token_id " + std::to_string(id) + " is beyond the vocabulary of " +
                        std::to_string(model.vocab) + " and not used");
  return {};
}

bool flag(Fields& fields, const char* key, bool fallback) {
  return !fields.is_null(key) && fields.boolean(key, fallback);
}

double positive(Fields& fields, const char* key, double high, std::optional<double> fallback) {
  return fields.number(key, 1e-12, high, fallback);
}

float cap_from_config(Fields& fields, const char* key, std::optional<double> fallback) {
  if (fields.has(key) ? fields.is_null(key) : !fallback) return 0;
  return static_cast<float>(positive(fields, key, 1e9, fallback));
}

void require_known_caps(Fields& fields, const ModelSpec& model) {
  const auto require = [&](const char* key, float cap) {
    if (cap == 0 && fields.has(key) && !fields.is_null(key))
      fields.refuse_field(key, "null: " + model.architecture + " has no such cap");
  };
  require("attn_logit_softcapping", model.attention_cap);
  require("final_logit_softcapping", model.logit_cap);
}

int even_split(const ModelSpec& model, const std::string& where) {
  if (model.hidden % model.heads != 0)
    throw DataError(where + ": num_attention_heads " + std::to_string(model.heads) + " does not divide hidden_size " +
                    std::to_string(model.hidden));
  return model.hidden / model.heads;
}

ModelSpec common(Fields& fields, const std::string& where, const ModelSpec& defaults) {
  ModelSpec model = defaults;
  model.hidden = positive_int(fields, "hidden_size", 131072, defaults.hidden);
  model.layers = positive_int(fields, "num_hidden_layers", 1024, defaults.layers);
  model.ffn = positive_int(fields, "intermediate_size", 1 << 20, defaults.ffn);
  model.heads = positive_int(fields, "num_attention_heads", 4096, defaults.heads);
  model.vocab = positive_int(fields, "vocab_size", 1 << 22, defaults.vocab);
  model.positions = positive_int(fields, "max_position_embeddings", 1 << 24, defaults.positions);
  model.embed = model.hidden;
  model.tied_head = flag(fields, "tie_word_embeddings", false);
  model.activation = fields.text("hidden_act", defaults.activation);
  dtype_from_config(fields, model);
  model.eos = eos_from_config(fields, model, defaults.eos);
  model.bos = bos_from_config(fields, model, defaults.bos);
  const bool null = fields.has("head_dim") && fields.is_null("head_dim");
  model.head_dim = null || (!fields.has("head_dim") && defaults.head_dim == 0)
                       ? even_split(model, where)
                       : positive_int(fields, "head_dim", 4096, defaults.head_dim);
  return model;
}

ModelSpec llama_like(Fields& fields, const std::string& where, ModelSpec defaults, const RotaryKeys& keys) {
  if (defaults.activation.empty()) defaults.activation = "silu";
  defaults.rms_norm = defaults.gated_mlp = true;
  ModelSpec model = common(fields, where, defaults);
  const bool grouped = fields.has("num_key_value_heads") && !fields.is_null("num_key_value_heads");
  const int own = fields.has("num_key_value_heads") || defaults.kv_heads == 0 ? model.heads : defaults.kv_heads;
  model.kv_heads = grouped ? positive_int(fields, "num_key_value_heads", 4096, 1) : own;
  if (model.heads % model.kv_heads != 0)
    throw DataError(where + ": num_key_value_heads " + std::to_string(model.kv_heads) +
                    " does not divide num_attention_heads " + std::to_string(model.heads));
  model.norm_epsilon = static_cast<float>(positive(fields, "rms_norm_eps", 1, double(defaults.norm_epsilon)));
  auto [frequencies, magnitude] = rotary_from_config(fields, where, model, keys);
  model.rotary = std::move(frequencies), model.rotary_magnitude = magnitude;
  return model;
}

int window_from_config(Fields& fields, std::int64_t fallback) {
  if (fields.has("sliding_window") && fields.is_null("sliding_window")) return 0;
  return static_cast<int>(fields.integer("sliding_window", 2, 1 << 24, fallback));
}

std::vector<bool> sliding_layers(Fields& fields, const ModelSpec& model, const Slides& slides) {
  std::vector<bool> layers(static_cast<std::size_t>(model.layers));
  const bool listed = fields.has("layer_types") && !fields.is_null("layer_types");
  const nlohmann::json types = listed ? fields.at("layer_types") : nlohmann::json::array();
  if (listed && (!types.is_array() || types.size() < layers.size()))
    fields.refuse_field("layer_types",
                        "a list with the type of each of the " + std::to_string(model.layers) + " layers");
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    if (listed && types[layer] != "full_attention" && types[layer] != "sliding_attention")
      fields.refuse_field("layer_types", "full_attention and sliding_attention only");
    layers[layer] = listed ? types[layer] == "sliding_attention" : slides(static_cast<int>(layer));
  }
  return layers;
}

void slide_everywhere(Fields& fields, ModelSpec& model, std::int64_t fallback) {
  if (const int window = window_from_config(fields, fallback); window > 0 && window < model.positions)
    model.windows.assign(static_cast<std::size_t>(model.layers), window);
}

std::vector<int> layer_windows(Fields& fields, const ModelSpec& model, int window, const Slides& slides) {
  std::vector<int> windows;
  for (const bool slides_here : sliding_layers(fields, model, slides))
    windows.push_back(slides_here && window < model.positions ? window : 0);
  if (std::all_of(windows.begin(), windows.end(), [](int w) { return w == 0; })) windows.clear();
  return windows;
}

std::vector<int> windows_of_qwen(Fields& fields, const ModelSpec& model, int by_default) {
  const std::int64_t first = fields.integer("max_window_layers", 0, INT32_MAX, by_default);
  const int window = flag(fields, "use_sliding_window", false) ? window_from_config(fields, 4096) : 0;
  return window == 0 ? std::vector<int>{}
                     : layer_windows(fields, model, window, [first](int layer) { return layer >= first; });
}

namespace {

/// SmolLM3's rotating layers: a list with 1 for each layer that rotates, or all but every Nth layer.
std::vector<bool> rotary_layers_from_config(Fields& fields, int layers) {
  const auto interval = static_cast<int>(fields.integer("no_rope_layer_interval", 1, INT32_MAX, 4));
  std::vector<bool> rotates;
  if (!fields.has("no_rope_layers") || fields.is_null("no_rope_layers")) {
    for (int layer = 0; layer < layers; ++layer) rotates.push_back((layer + 1) % interval != 0);
    return rotates;
  }
  const auto& list = fields.at("no_rope_layers");
  if (!list.is_array() || list.size() < static_cast<std::size_t>(layers))
    fields.refuse_field("no_rope_layers", "a list with 1 or 0 for each of the " + std::to_string(layers) + " layers");
  for (int layer = 0; layer < layers; ++layer) {
    const auto& says = list[static_cast<std::size_t>(layer)];
    if (says != 0 && says != 1) fields.refuse_field("no_rope_layers", "1 or 0 for each layer");
    rotates.push_back(says == 1);
  }
  return rotates;
}

}  // namespace

std::optional<std::vector<std::int32_t>> eos_ids(Fields& fields, int vocab, std::vector<std::string>& notes) {
  if (!fields.has("eos_token_id")) return {};
  const auto& value = fields.at("eos_token_id");
  if (value.is_null()) return std::vector<std::int32_t>{};
  const auto list = value.is_array() ? value : nlohmann::json::array({value});
  const auto is_integer = [](const nlohmann::json& id) { return id.is_number_integer(); };
  if (!std::all_of(list.begin(), list.end(), is_integer))
    fields.refuse_field("eos_token_id", "a token id, a list of them, or null");
  std::vector<std::int32_t> ids;
  for (const nlohmann::json& id : list) {
    if (id >= 0 && id < vocab) ids.push_back(id.get<std::int32_t>());
    else
      notes.push_back("eos_token_id " + to_line(id) + " is beyond the vocabulary of " + std::to_string(vocab) +
                      " and ends no answer");
  }
  return ids;
}

ModelSpec opt_from_config(Fields& fields, const std::string& where) {
  ModelSpec model;
  model.architecture = "opt";
  model.hidden = positive_int(fields, "hidden_size", 131072, 768);
  model.layers = positive_int(fields, "num_hidden_layers", 1024, 12);
  model.ffn = positive_int(fields, "ffn_dim", 1 << 20, 3072);
  model.heads = positive_int(fields, "num_attention_heads", 4096, 12);
  model.vocab = positive_int(fields, "vocab_size", 1 << 22, 50272);
  model.positions = positive_int(fields, "max_position_embeddings", 1 << 24, 2048);
  model.position_offset = 2;
  const bool projected = fields.has("word_embed_proj_dim") && !fields.is_null("word_embed_proj_dim");
  model.embed = projected ? positive_int(fields, "word_embed_proj_dim", 131072, model.hidden) : model.hidden;
  model.pre_norm = flag(fields, "do_layer_norm_before", true);
  model.final_norm = model.pre_norm && !flag(fields, "_remove_final_layer_norm", false);
  model.qkv_bias = model.output_bias = model.mlp_bias = flag(fields, "enable_bias", true);
  model.norm_affine = flag(fields, "layer_norm_elementwise_affine", true);
  model.tied_head = flag(fields, "tie_word_embeddings", true);
  model.activation = fields.text("activation_function", "relu");
  model.kv_heads = model.heads;
  model.head_dim = even_split(model, where);
  dtype_from_config(fields, model);
  model.eos = eos_from_config(fields, model, {2});
  model.bos = bos_from_config(fields, model, std::min(2, model.vocab - 1));
  return model;
}

ModelSpec llama_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = llama_like(fields, where,
                               {.architecture = "llama",
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
                                .bos = 1},
                               {.whole = true});
  model.qkv_bias = model.output_bias = flag(fields, "attention_bias", false);
  model.mlp_bias = flag(fields, "mlp_bias", false);
  return model;
}

ModelSpec mistral_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = llama_like(fields, where,
                               {.architecture = "mistral",
                                .layers = 32,
                                .hidden = 4096,
                                .ffn = 14336,
                                .heads = 32,
                                .kv_heads = 8,
                                .vocab = 32000,
                                .positions = 4096 * 32,
                                .rotary = {},
                                .activation = {},
                                .norm_epsilon = 1e-6f,
                                .eos = {2},
                                .bos = 1},
                               {.whole = true});
  model.qkv_bias = model.output_bias = model.mlp_bias = false;
  slide_everywhere(fields, model, 4096);
  return model;
}

ModelSpec qwen2_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = llama_like(fields, where,
                               {.architecture = "qwen2",
                                .layers = 32,
                                .hidden = 4096,
                                .ffn = 22016,
                                .heads = 32,
                                .kv_heads = 32,
                                .vocab = 151936,
                                .positions = 32768,
                                .rotary = {},
                                .activation = {},
                                .norm_epsilon = 1e-6f,
                                .eos = {},
                                .bos = {}},
                               {.whole = true});
  model.output_bias = model.mlp_bias = false;
  model.windows = windows_of_qwen(fields, model);
  return model;
}

ModelSpec qwen3_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = llama_like(fields, where,
                               {.architecture = "qwen3",
                                .layers = 32,
                                .hidden = 4096,
                                .ffn = 22016,
                                .heads = 32,
                                .kv_heads = 32,
                                .head_dim = 128,
                                .vocab = 151936,
                                .positions = 32768,
                                .rotary = {},
                                .activation = {},
                                .norm_epsilon = 1e-6f,
                                .eos = {},
                                .bos = {}},
                               {.whole = true});
  model.qkv_bias = model.output_bias = flag(fields, "attention_bias", false);
  model.mlp_bias = false;
  model.head_norm = true;
  model.windows = windows_of_qwen(fields, model);
  return model;
}

ModelSpec smollm3_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = llama_like(fields, where,
                               {.architecture = "smollm3",
                                .layers = 36,
                                .hidden = 2048,
                                .ffn = 11008,
                                .heads = 16,
                                .kv_heads = 4,
                                .vocab = 128256,
                                .positions = 32768,
                                .rotary = {},
                                .activation = {},
                                .norm_epsilon = 1e-6f,
                                .eos = {128001},
                                .bos = 128000},
                               {.default_theta = 2000000, .whole = true});
  model.qkv_bias = model.output_bias = flag(fields, "attention_bias", false);
  model.mlp_bias = flag(fields, "mlp_bias", false);
  model.tied_head = flag(fields, "tie_word_embeddings", true);
  model.rotary_layers = rotary_layers_from_config(fields, model.layers);
  // layer_types gives layers their window whatever use_sliding_window says, as transformers' mask does.
  const bool listed = fields.has("layer_types") && !fields.is_null("layer_types");
  if ((listed || flag(fields, "use_sliding_window", false)) && fields.has("sliding_window"))
    model.windows = layer_windows(fields, model, window_from_config(fields, 4096),
                                  [&](int layer) { return !model.rotates(layer); });
  return model;
}

ModelSpec neox_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = common(fields, where,
                           {.architecture = "gpt_neox",
                            .layers = 44,
                            .hidden = 6144,
                            .ffn = 24576,
                            .heads = 64,
                            .vocab = 50432,
                            .positions = 2048,
                            .rotary = {},
                            .activation = "gelu",
                            .eos = {2},
                            .bos = 0});
  model.head_dim = even_split(model, where);  // as in transformers, which ignores head_dim
  model.kv_heads = model.heads;
  model.fused_qkv = true;
  model.qkv_bias = model.output_bias = flag(fields, "attention_bias", true);
  model.parallel_residual = flag(fields, "use_parallel_residual", true);
  model.norm_epsilon = static_cast<float>(positive(fields, "layer_norm_eps", 1, 1e-5));
  auto [frequencies, magnitude] = rotary_from_config(
      fields, where, model, {.theta = "rotary_emb_base", .fraction = "rotary_pct", .default_fraction = 0.25});
  model.rotary = std::move(frequencies), model.rotary_magnitude = magnitude;
  return model;
}

ModelSpec model_from_config(const nlohmann::json& config, const std::string& where) {
  Fields fields(config, where, Blame::data);
  const std::string type = fields.text("model_type");
  const Architecture* const architecture = find_architecture(type);
  if (!architecture)
    throw DataError(where + ": model_type '" + type.substr(0, 40) +
                    "' is not supported; supported: " + known_architectures());
  for (const char* key : {"is_encoder_decoder", "add_cross_attention"})
    if (flag(fields, key, false)) fields.refuse_field(key, "false: decoders only");
  ModelSpec model = architecture->from_config(fields, where);
  require_known_caps(fields, model);
  // The first releases of compressed-tensors named it compression_config.
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (model.quantisation || !fields.has(key) || fields.is_null(key)) continue;
    try {
      model.quantisation = quantisation_from_config(fields.at(key), where + ": " + key);
    } catch (const DataError& unread) {
      model.unread_quantisation = unread.what();
    }
  }
  if (model.quantisation) model.unread_quantisation.clear();
  return model;
}

}  // namespace weft::policy
