// policy/model/sparse_families.cc: reads the config.json of families with experts.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/error.h"
#include "policy/model/architecture.h"
#include "policy/model/model_config.h"

namespace weft::policy {
namespace {

/// Reads the numbers of experts, and those of each token.
void experts_from_config(Fields& fields, ModelSpec& model, const char* count, std::int64_t default_count,
                         std::int64_t default_chosen, const char* chosen = "num_experts_per_tok") {
  model.mlp_bias = false;
  model.experts.count = positive_int(fields, count, kMostExperts, default_count);
  model.experts.chosen = positive_int(fields, chosen, kMostExperts, default_chosen);
  if (model.experts.chosen > model.experts.count)
    fields.refuse_field(chosen, "at most the " + std::to_string(model.experts.count) + " experts");
}

/// Gives experts to the layers that `has_experts(layer)` names.
template <class HasExperts> void place_experts(ModelSpec& model, const HasExperts& has_experts) {
  std::vector<bool> sparse;
  for (int layer = 0; layer < model.layers; ++layer) sparse.push_back(has_experts(layer));
  if (std::find(sparse.begin(), sparse.end(), false) == sparse.end()) return;
  if (std::find(sparse.begin(), sparse.end(), true) == sparse.end()) model.experts = {};
  else model.experts.sparse = std::move(sparse);
}

struct DeepseekDefaults {
  int shared, dense_layers;
  bool normalise;
};
/// The experts of DeepSeek-V3 (arXiv 2412.19437), whose numbers are read already.
void experts_of_deepseek(Fields& fields, ModelSpec& model, const DeepseekDefaults& defaults) {
  Experts& experts = model.experts;
  experts.ffn = positive_int(fields, "moe_intermediate_size", 1 << 20, 1408);
  experts.shared_ffn = experts.ffn * positive_int(fields, "n_shared_experts", 64, defaults.shared);
  experts.sigmoid = experts.score_bias = true;
  experts.normalise = flag(fields, "norm_topk_prob", defaults.normalise);
  experts.scale = static_cast<float>(positive(fields, "routed_scaling_factor", 1e9, 1.0));
  experts.groups = positive_int(fields, "n_group", experts.count, 1);
  experts.groups_kept = positive_int(fields, "topk_group", experts.groups, 1);
  if (experts.count % experts.groups != 0)
    fields.refuse_field("n_group", "a divisor of the " + std::to_string(experts.count) + " experts");
  if (experts.chosen > experts.count / experts.groups * experts.groups_kept)
    fields.refuse_field("num_experts_per_tok", "at most the experts of topk_group groups");
  const std::int64_t first = fields.integer("first_k_dense_replace", 0, INT32_MAX, defaults.dense_layers);
  place_experts(model, [first](int layer) { return layer >= first; });
}

constexpr const char* kYarnOfGptOss =
    R"({"rope_type": "yarn", "factor": 32, "beta_fast": 32, "beta_slow": 1, "truncate": false,
        "original_max_position_embeddings": 4096})";

/// All layers have experts but those of `mlp_only_layers`, and with decoder_sparse_step N only every Nth.
void sparse_layers_of_qwen(Fields& fields, ModelSpec& model) {
  const std::int64_t step = fields.integer("decoder_sparse_step", 1, INT32_MAX, 1);
  const bool listed = fields.has("mlp_only_layers") && !fields.is_null("mlp_only_layers");
  const nlohmann::json dense = listed ? fields.at("mlp_only_layers") : nlohmann::json::array();
  const auto is_layer = [](const nlohmann::json& layer) { return layer.is_number_integer(); };
  if (!dense.is_array() || !std::all_of(dense.begin(), dense.end(), is_layer))
    fields.refuse_field("mlp_only_layers", "a list of layers");
  place_experts(model, [&](int layer) {
    return (layer + 1) % step == 0 && std::find(dense.begin(), dense.end(), layer) == dense.end();
  });
}

}  // namespace

ModelSpec mixtral_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = llama_like(fields, where,
                               {.architecture = "mixtral",
                                .layers = 32,
                                .hidden = 4096,
                                .ffn = 14336,
                                .heads = 32,
                                .kv_heads = 8,
                                .vocab = 32000,
                                .positions = 4096 * 32,
                                .rotary = {},
                                .activation = {},
                                .norm_epsilon = 1e-5f,
                                .eos = {2},
                                .bos = 1},
                               {.default_theta = 1e6, .whole = true});
  model.qkv_bias = model.output_bias = false;
  const int window = fields.has("sliding_window") ? window_from_config(fields, 0) : 0;
  if (window > 0 && window < model.positions) model.windows.assign(static_cast<std::size_t>(model.layers), window);
  experts_from_config(fields, model, "num_local_experts", 8, 2);
  model.experts.ffn = model.ffn;
  model.experts.normalise = true;
  return model;
}

ModelSpec olmoe_from_config(Fields& fields, const std::string& where) {
  if (fields.has("clip_qkv") && !fields.is_null("clip_qkv"))
    fields.refuse_field("clip_qkv", "null: queries, keys and values that are not clipped");
  ModelSpec model = llama_like(fields, where,
                               {.architecture = "olmoe",
                                .layers = 16,
                                .hidden = 2048,
                                .ffn = 2048,
                                .heads = 16,
                                .vocab = 50304,
                                .positions = 4096,
                                .rotary = {},
                                .activation = {},
                                .norm_epsilon = 1e-5f,
                                .eos = {50279},
                                .bos = {}},
                               {.whole = true});
  model.qkv_bias = model.output_bias = flag(fields, "attention_bias", false);
  model.head_norm = true;
  experts_from_config(fields, model, "num_experts", 64, 8);
  model.experts.ffn = model.ffn;
  model.experts.normalise = flag(fields, "norm_topk_prob", false);
  return model;
}

ModelSpec qwen2_moe_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = llama_like(fields, where,
                               {.architecture = "qwen2_moe",
                                .layers = 24,
                                .hidden = 2048,
                                .ffn = 5632,
                                .heads = 16,
                                .kv_heads = 16,
                                .vocab = 151936,
                                .positions = 32768,
                                .rotary = {},
                                .activation = {},
                                .norm_epsilon = 1e-6f,
                                .eos = {},
                                .bos = {}},
                               {.whole = true});
  model.qkv_bias = flag(fields, "qkv_bias", true);
  model.output_bias = false;
  const std::int64_t last = fields.integer("max_window_layers", 0, INT32_MAX, 28);
  if (const int window = flag(fields, "use_sliding_window", false) ? window_from_config(fields, 4096) : 0; window > 0)
    model.windows = layer_windows(fields, model, window, [last](int layer) { return layer % 2 == 0 && layer < last; });
  experts_from_config(fields, model, "num_experts", 60, 4);
  model.experts.ffn = positive_int(fields, "moe_intermediate_size", 1 << 20, 1408);
  model.experts.shared_ffn = positive_int(fields, "shared_expert_intermediate_size", 1 << 20, 5632);
  model.experts.shared_gate = true;
  model.experts.normalise = flag(fields, "norm_topk_prob", false);
  sparse_layers_of_qwen(fields, model);
  return model;
}

ModelSpec qwen3_moe_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = llama_like(fields, where,
                               {.architecture = "qwen3_moe",
                                .layers = 24,
                                .hidden = 2048,
                                .ffn = 6144,
                                .heads = 32,
                                .kv_heads = 4,
                                .vocab = 151936,
                                .positions = 32768,
                                .rotary = {},
                                .activation = {},
                                .norm_epsilon = 1e-6f,
                                .eos = {},
                                .bos = {}},
                               {.whole = true});
  model.qkv_bias = model.output_bias = flag(fields, "attention_bias", false);
  model.head_norm = true;
  if (const int window = flag(fields, "use_sliding_window", false) ? window_from_config(fields, 4096) : 0;
      window > 0 && window < model.positions)
    model.windows.assign(static_cast<std::size_t>(model.layers), window);
  experts_from_config(fields, model, fields.has("num_experts") ? "num_experts" : "num_local_experts", 128, 8);
  model.experts.ffn = positive_int(fields, "moe_intermediate_size", 1 << 20, 768);
  model.experts.normalise = flag(fields, "norm_topk_prob", false);
  sparse_layers_of_qwen(fields, model);
  return model;
}

ModelSpec gpt_oss_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = llama_like(fields, where,
                               {.architecture = "gpt_oss",
                                .layers = 36,
                                .hidden = 2880,
                                .ffn = 2880,
                                .heads = 64,
                                .kv_heads = 8,
                                .head_dim = 64,
                                .vocab = 201088,
                                .positions = 131072,
                                .rotary = {},
                                .activation = {},
                                .norm_epsilon = 1e-5f,
                                .eos = {},
                                .bos = {}},
                               {.default_theta = 150000, .whole = true, .absent = kYarnOfGptOss});
  model.qkv_bias = model.output_bias = flag(fields, "attention_bias", true);
  model.sinks = true;
  model.windows =
      layer_windows(fields, model, window_from_config(fields, 128), [](int layer) { return layer % 2 == 0; });
  experts_from_config(fields, model, fields.has("num_local_experts") ? "num_local_experts" : "num_experts", 128, 4);
  model.experts.ffn = model.ffn;
  model.experts.normalise = model.experts.biases = true;
  model.experts.gate_slope = static_cast<float>(positive(fields, "swiglu_alpha", 1e3, 1.702));
  model.experts.gate_limit = static_cast<float>(positive(fields, "swiglu_limit", 1e6, 7.0));
  return model;
}

ModelSpec granite_moe_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = llama_like(fields, where,
                               {.architecture = "granitemoe",
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
  granite_factors(fields, model);
  experts_from_config(fields, model, "num_local_experts", 8, 2);
  model.experts.ffn = model.ffn;
  model.experts.normalise = true;
  model.experts.scale = model.residual_scale;
  return model;
}

ModelSpec glm4_moe_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = llama_like(fields, where,
                               {.architecture = "glm4_moe",
                                .layers = 46,
                                .hidden = 4096,
                                .ffn = 10944,
                                .heads = 96,
                                .kv_heads = 8,
                                .vocab = 151552,
                                .positions = 131072,
                                .rotary = {},
                                .activation = {},
                                .norm_epsilon = 1e-5f,
                                .eos = {},
                                .bos = {}},
                               {.default_fraction = 0.5});
  model.qkv_bias = flag(fields, "attention_bias", false);
  model.output_bias = false;
  model.head_norm = flag(fields, "use_qk_norm", false);
  experts_from_config(fields, model, "n_routed_experts", 128, 8);
  model.next_layers = static_cast<int>(fields.integer("num_nextn_predict_layers", 0, 64, 1));
  experts_of_deepseek(fields, model, {.shared = 1, .dense_layers = 1, .normalise = true});
  return model;
}

/// dots.llm1: Qwen3's attention, DeepSeek-V3's experts.
ModelSpec dots1_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = llama_like(fields, where,
                               {.architecture = "dots1",
                                .layers = 62,
                                .hidden = 4608,
                                .ffn = 10944,
                                .heads = 32,
                                .kv_heads = 32,
                                .vocab = 152064,
                                .positions = 2048,
                                .rotary = {},
                                .activation = {},
                                .norm_epsilon = 1e-6f,
                                .eos = {},
                                .bos = {}},
                               {.whole = true});
  model.qkv_bias = model.output_bias = flag(fields, "attention_bias", false);
  model.head_norm = true;
  const std::int64_t first = fields.integer("max_window_layers", 0, INT32_MAX, 62);
  if (const int window = window_from_config(fields, 4096); window > 0)
    model.windows = layer_windows(fields, model, window, [first](int layer) { return layer >= first; });
  for (const char* key : {"n_routed_experts", "num_experts_per_tok", "n_shared_experts"})
    fields.integer(key, 1, kMostExperts);  // which have no default
  experts_from_config(fields, model, "n_routed_experts", 1, 1);
  experts_of_deepseek(fields, model, {.shared = 1, .dense_layers = 0, .normalise = false});
  return model;
}

/// ERNIE 4.5 with experts, whose scores are a softmax, but are chosen by score + bias.
ModelSpec ernie4_5_moe_from_config(Fields& fields, const std::string& where) {
  if (flag(fields, "use_bias", false)) fields.refuse_field("use_bias", "false: products without biases");
  ModelSpec model = llama_like(fields, where,
                               {.architecture = "ernie4_5_moe",
                                .layers = 28,
                                .hidden = 2560,
                                .ffn = 12288,
                                .heads = 20,
                                .kv_heads = 4,
                                .vocab = 103424,
                                .positions = 131072,
                                .rotary = {},
                                .activation = {},
                                .norm_epsilon = 1e-5f,
                                .eos = {2},
                                .bos = 1},
                               {.default_theta = 500000, .whole = true});
  model.tied_head = flag(fields, "tie_word_embeddings", true);
  model.qkv_bias = model.output_bias = false;
  model.alternate_pairs = true;
  experts_from_config(fields, model, fields.has("moe_num_experts") ? "moe_num_experts" : "num_experts", 64, 6,
                      fields.has("moe_k") ? "moe_k" : "num_experts_per_tok");
  Experts& experts = model.experts;
  experts.ffn = positive_int(fields, "moe_intermediate_size", 1 << 20, 1536);
  if (!fields.is_null("moe_num_shared_experts"))
    experts.shared_ffn = experts.ffn * static_cast<int>(fields.integer("moe_num_shared_experts", 0, 64, 2));
  experts.score_bias = experts.normalise = true;
  fields.number("moe_norm_min", 0, 1e-9, 1e-12);  // the least sum that scores are divided by: none is smaller
  const std::int64_t interval = fields.integer("moe_layer_interval", 1, INT32_MAX, 1),
                     first = fields.integer("moe_layer_start_index", 0, INT32_MAX, 1),
                     named_last = fields.integer("moe_layer_end_index", -1, INT32_MAX, -1),
                     last = named_last < 0 ? model.layers - 1 : named_last;
  place_experts(model, [=](int layer) { return (layer + 1) % interval == 0 && layer >= first && layer <= last; });
  return model;
}

/// Hunyuan with experts, beside a shared one of the same width in every layer. Sizes may be lists with one for each
/// layer, but are read if all are equal.
ModelSpec hunyuan_moe_from_config(Fields& fields, const std::string& where) {
  ModelSpec model = hunyuan_from_config(fields, where);
  const auto of_all = [&](const char* key, std::int64_t most) {
    const nlohmann::json value = fields.has(key) ? fields.at(key) : nlohmann::json(1);
    const nlohmann::json first = value.is_array() && !value.empty() ? value.front() : value;
    const bool equal = !value.is_array() || std::all_of(value.begin(), value.end(),
                                                        [&](const nlohmann::json& each) { return each == first; });
    if (!first.is_number_integer() || first < 1 || first > most || !equal)
      fields.refuse_field(key, "a number from 1 to " + std::to_string(most) + ", or a list of equal ones");
    return first.get<int>();
  };
  const char* const chosen = fields.has("moe_topk") ? "moe_topk" : "num_experts_per_tok";
  model.experts.count = of_all(fields.has("num_experts") ? "num_experts" : "num_local_experts", kMostExperts);
  model.experts.chosen = of_all(chosen, model.experts.count);
  model.experts.ffn = model.experts.shared_ffn = model.ffn;
  model.experts.normalise = true;
  return model;
}

ModelSpec minimax_m2_from_config(Fields& fields, const std::string& where) {
  constexpr int kHead = 128;
  const int head = fields.is_null("head_dim") ? kHead : positive_int(fields, "head_dim", 4096, kHead);
  const bool partly = fields.has("rotary_dim") && !fields.is_null("rotary_dim");
  const double turning = partly ? double(fields.integer("rotary_dim", 2, head)) / head : 1;
  ModelSpec model = llama_like(fields, where,
                               {.architecture = "minimax_m2",
                                .layers = 62,
                                .hidden = 3072,
                                .ffn = 1536,
                                .heads = 48,
                                .kv_heads = 8,
                                .head_dim = kHead,
                                .vocab = 200064,
                                .positions = 196608,
                                .rotary = {},
                                .activation = {},
                                .norm_epsilon = 1e-6f,
                                .eos = {200020},
                                .bos = 200034},
                               {.default_fraction = turning, .default_theta = 5000000});
  model.qkv_bias = model.output_bias = false;
  model.head_norm = true;
  experts_from_config(fields, model, "num_local_experts", 256, 8);
  model.experts.ffn = model.ffn;
  model.experts.sigmoid = model.experts.score_bias = model.experts.normalise = true;
  return model;
}

/// The text model is in text_config.
ModelSpec qwen3_vl_moe_from_config(Fields& fields, const std::string& where) {
  const nlohmann::json config = text_config(fields);
  Fields text(config, where + ": text_config", Blame::data);
  ModelSpec model = llama_like(text, where + ": text_config",
                               {.architecture = "qwen3_vl_moe",
                                .layers = 24,
                                .hidden = 2048,
                                .ffn = 5632,
                                .heads = 16,
                                .kv_heads = 16,
                                .vocab = 151936,
                                .positions = 128000,
                                .rotary = {},
                                .activation = {},
                                .norm_epsilon = 1e-6f,
                                .eos = {},
                                .bos = {}},
                               {.default_theta = 500000, .whole = true, .of_images = true});
  model.tied_head = flag(fields, "tie_word_embeddings", false);
  model.qkv_bias = model.output_bias = flag(text, "attention_bias", false);
  model.head_norm = true;
  experts_from_config(text, model, text.has("num_experts") ? "num_experts" : "num_local_experts", 60, 4);
  model.experts.ffn = positive_int(text, "moe_intermediate_size", 1 << 20, 1408);
  model.experts.normalise = true;
  sparse_layers_of_qwen(text, model);
  return model;
}

}  // namespace weft::policy
