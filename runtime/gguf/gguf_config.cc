// runtime/gguf/gguf_config.cc: a file's metadata as the config.json of its family.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>

#include "runtime/base/quote.h"
#include "runtime/gguf/gguf_gemma4.h"
#include "runtime/gguf/gguf_names.h"
#include "runtime/gguf/gguf_texts.h"

namespace weft::runtime {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();

/// A float as the shortest decimal number that names it: 1e-05 and not 9.99999974737875e-06.
double shortest(double value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), static_cast<float>(value)).ptr;
  double back = value;
  std::from_chars(text.data(), end, back);
  return back;
}

ordered_json shortest(const std::vector<float>& values) {
  ordered_json list = ordered_json::array();
  for (const float value : values) list.push_back(shortest(double{value}));
  return list;
}

/// The float type of the layers' matrices, the most precise one if there are several; f16 if all are quantised.
DType float_type(const GgufModel& model) {
  DType found = DType::f16;
  for (const Gguf& part : model.parts)
    for (const GgufTensor& tensor : part.tensors) {
      if (!is_gguf_layer_matrix(tensor) || !tensor.format->is_float()) continue;
      if (tensor.format->type == DType::f32) return DType::f32;
      if (tensor.format->type == DType::bf16) found = DType::bf16;
    }
  return found;
}

/// Makes the config.json of one model.
class ConfigMaker {
 public:
  explicit ConfigMaker(const GgufModel& model)
      : model_(model), gguf_(model.first()), architecture_(gguf_architecture(gguf_)),
        prefix_(std::string(architecture_.name) + "."), family_(architecture_.model_type) {}

  ordered_json make() {
    if (is_gemma4()) check_gguf_gemma4(gguf_);
    refuse_others();
    const GgufTensor* const embedding = model_.tensor("token_embd.weight");
    if (!embedding || embedding->shape.size() != 2)
      gguf_.refuse(GgufFault::bad_tensor, "has no matrix 'token_embd.weight', so it holds no model");
    heads_ = integer("attention.head_count"), hidden_ = integer("embedding_length"),
    layers_ = gguf_layers(gguf_, architecture_);
    head_dim_ = is_gemma4() ? gguf_gemma4_head(gguf_) : head_dim();
    config_ = {{"architectures", {architecture_.class_name}},
               {"model_type", family_},
               {"torch_dtype", name_of(float_type(model_))},
               {"hidden_act", activation()},
               {"hidden_size", hidden_},
               {"intermediate_size", is_gemma4() ? gguf_gemma4_width(gguf_) : integer("feed_forward_length")},
               {"num_hidden_layers", layers_},
               {"num_attention_heads", heads_},
               {"num_key_value_heads", kv_heads()},
               {"head_dim", head_dim_},
               {"max_position_embeddings", integer("context_length")},
               {"vocab_size", embedding->shape[0]},
               {norm_key(), shortest(number(architecture_.layer_norm ? "attention.layer_norm_epsilon"
                                                                     : "attention.layer_norm_rms_epsilon"))},
               {"tie_word_embeddings", !model_.tensor("output.weight")}};
    if (!is_gemma4()) add_rotary();
    if (architecture_.windows) add_windows();
    if (architecture_.scales) add_scales();
    if (is_gemma4()) add_gguf_gemma4(model_, config_);
    else if (architecture_.experts) add_experts();
    if (family_ == "gemma2" || family_ == "gemma3_text") add_gemma();
    if (family_ == "smollm3") config_["no_rope_layer_interval"] = 4;
    if (is_cohere()) config_["logit_scale"] = shortest(number("logit_scale"));
    add_presence();
    add_gguf_token_ids(gguf_, config_);
    return std::move(config_);
  }

 private:
  std::string key(const char* rest) const { return prefix_ + rest; }
  bool has(const char* rest) const { return gguf_.has(key(rest)); }
  std::int64_t integer(const char* rest) const { return gguf_.integer(key(rest), 1, kLargest); }
  double number(const char* rest) const { return gguf_.number(key(rest)); }
  double number(const char* rest, double fallback) const { return has(rest) ? shortest(number(rest)) : fallback; }

  bool is_gemma4() const { return family_ == "gemma4_text"; }
  std::int64_t kv_heads() const {  // add_gguf_gemma4() sets those of Gemma 4
    return is_gemma4() ? heads_ : gguf_.integer(key("attention.head_count_kv"), 1, kLargest, heads_);
  }
  std::int64_t head_dim() const {
    const std::int64_t own = std::max<std::int64_t>(1, hidden_ / heads_),
                       keys = gguf_.integer(key("attention.key_length"), 1, kLargest, own);
    if (gguf_.integer(key("attention.value_length"), 1, kLargest, keys) != keys)
      gguf_.refuse(GgufFault::bad_metadata, "has values of another length than keys, which is not read");
    return keys;
  }

  const char* activation() const {
    if (family_ == "arcee" || family_ == "nemotron") return "relu2";
    return family_.starts_with("gemma") || family_ == "starcoder2" ? "gelu_pytorch_tanh" : "silu";
  }
  const char* norm_key() const {
    if (!architecture_.layer_norm) return "rms_norm_eps";
    return family_ == "starcoder2" ? "norm_epsilon" : family_ == "nemotron" ? "norm_eps" : "layer_norm_eps";
  }

  [[noreturn]] void refuse_key(const std::string& name) const {
    gguf_.refuse(GgufFault::bad_metadata, "the metadata has " + in_quotes(name) + ", which is not read");
  }

  /// Refuses what changes results and config.json would have a key for that Weft does not know, or that it does not
  /// know in this family.
  void refuse_others() const {
    if (!architecture_.experts && gguf_.integer(key("expert_count"), 0, kLargest, 0) > 0)
      gguf_.refuse(GgufFault::bad_metadata, "is a mixture of experts, which Weft does not compute in this family");
    if (!gguf_.boolean(key("attention.causal"), true))
      gguf_.refuse(GgufFault::bad_metadata, "lets tokens attend to those that follow, which Weft does not compute");
    if (architecture_.scales && !gguf_.boolean(key("rope.scaling.finetuned"), true))
      gguf_.refuse(GgufFault::bad_metadata, "is a Granite without positions, which Weft does not compute");
    const auto refuse = [this](std::initializer_list<const char*> keys) {
      for (const char* rest : keys)
        if (has(rest) && !is_zero(key(rest))) refuse_key(key(rest));
    };
    refuse({"attention.max_alibi_bias", "attention.clamp_kqv", "attention.temperature_scale", "rope.global.freq_base",
            "rope.local.freq_base", "expert_chunk_feed_forward_length", "moe_every_n_layers"});
    const auto refuse_unless = [&](bool read, std::initializer_list<const char*> keys) {
      if (!read) refuse(keys);
    };
    const bool deepseek = architecture_.deepseek, ernie = family_ == "ernie4_5_moe",
               hunyuan = family_ == "hunyuan_v1_moe";
    refuse_unless(is_gemma4(), {"attention.shared_kv_layers", "embedding_length_per_layer_input"});
    refuse_unless(architecture_.images, {"rope.dimension_sections"});
    refuse_unless(deepseek,
                  {"nextn_predict_layers", "expert_group_count", "expert_group_used_count", "expert_weights_scale"});
    refuse_unless(deepseek || ernie, {"leading_dense_block_count"});
    refuse_unless(deepseek || ernie || hunyuan, {"expert_shared_count"});
    refuse_unless(ernie, {"interleave_moe_layer_step"});
    refuse_unless(ernie || hunyuan || family_ == "qwen2_moe", {"expert_shared_feed_forward_length"});
    refuse_unless(architecture_.scales || is_cohere(), {"logit_scale"});
    refuse_unless(architecture_.scales, {"residual_scale", "embedding_scale", "attention.scale"});
    refuse_unless(architecture_.windows, {"attention.sliding_window"});
    refuse_unless(architecture_.full_every > 0, {"attention.sliding_window_pattern", "rope.freq_base_swa"});
    refuse_unless(family_ == "gemma2", {"attn_logit_softcapping"});
    refuse_unless(family_ == "gemma2" || family_ == "gemma3_text" || is_gemma4(), {"final_logit_softcapping"});
    if (architecture_.experts) check_gating();
  }
  bool is_cohere() const { return family_ == "cohere" || family_ == "cohere2"; }

  /// Scores are logistic functions (2) or a softmax, over all experts or over those that are chosen.
  void check_gating() const {
    constexpr std::int64_t kLogistic = 2;
    const std::string name = key("expert_gating_func");
    const std::int64_t gating = gguf_.integer(name, 0, kLargest, 0);
    if (gating != 0 && (gating == kLogistic) != architecture_.sigmoid)
      gguf_.refuse(GgufFault::bad_metadata, "the metadata's " + in_quotes(name) + " is " + std::to_string(gating) +
                                                ", wanted " +
                                                (architecture_.sigmoid ? "2, logistic functions" : "1, a softmax"));
  }

  /// The keys that follow from the tensors that are there.
  void add_presence() {
    const bool query_bias = model_.tensor("blk.0.attn_q.bias") != nullptr;
    if (family_ == "glm4" || family_ == "glm4_moe" || family_ == "seed_oss") config_["attention_bias"] = query_bias;
    if (family_ == "seed_oss") config_["attention_out_bias"] = model_.tensor("blk.0.attn_output.bias") != nullptr;
    if (family_ == "glm4_moe" || family_ == "cohere")
      config_["use_qk_norm"] = model_.tensor("blk.0.attn_q_norm.weight") != nullptr;
    if (family_ == "stablelm") config_["use_qkv_bias"] = query_bias;
    if (family_ == "starcoder2") config_["use_bias"] = query_bias;
  }

  bool is_zero(const std::string& name) const {
    const GgufValue& value = gguf_.metadata.at(name);
    const auto* const whole = std::get_if<std::int64_t>(&value);
    const auto* const real = std::get_if<double>(&value);
    return (whole && *whole == 0) || (real && *real == 0);
  }

  /// The scaling of Llama 3.1 and later. Files have it as divisors of the frequencies, which follow from one factor;
  /// its other parameters are the same in all these models. Refuses other divisors.
  ordered_json llama3_scaling(const std::vector<float>& divisors, double base, std::int64_t dims) const {
    constexpr double kLow = 1, kHigh = 4, kTrained = 8192;
    const double factor = double{*std::max_element(divisors.begin(), divisors.end())};
    bool same = static_cast<std::int64_t>(divisors.size()) == dims / 2;
    for (std::size_t i = 0; same && i < divisors.size(); ++i) {
      const double wave = 2 * std::numbers::pi * std::pow(base, 2 * static_cast<double>(i) / static_cast<double>(dims));
      const double smooth = std::clamp((kTrained / wave - kLow) / (kHigh - kLow), 0.0, 1.0);
      const double wanted = 1 / ((1 - smooth) / factor + smooth);
      same = std::abs(double{divisors[i]} - wanted) <= 1e-4 * wanted;
    }
    if (!same)
      gguf_.refuse(GgufFault::bad_tensor, std::string("tensor '") + kGgufDivisors +
                                              "' holds other divisors than those of Llama 3.1 to 3.3, which alone "
                                              "are read");
    return {{"rope_type", "llama3"},
            {"factor", shortest(factor)},
            {"low_freq_factor", kLow},
            {"high_freq_factor", kHigh},
            {"original_max_position_embeddings", static_cast<std::int64_t>(kTrained)}};
  }

  /// Refuses keys of the scaling, unless they are among those that are `read`.
  void refuse_scalings(std::initializer_list<const char*> read) const {
    const std::string begin = key("rope.scaling.");
    for (const auto& [name, value] : gguf_.metadata)
      if (name.starts_with(begin) && std::none_of(read.begin(), read.end(), [&begin, &found = name](const char* rest) {
            return found == begin + rest;
          }))
        refuse_key(name);
  }

  /// The scaling that the metadata describes; null if it describes none.
  ordered_json plain_scaling() const {
    // As in llama.cpp: a factor without a type scales linearly, and the oldest files have it in a key of its own.
    const char* const factor_key =
        has("rope.scale_linear") && !has("rope.scaling.factor") ? "rope.scale_linear" : "rope.scaling.factor";
    const std::string type_key = key("rope.scaling.type");
    const bool scales = has(factor_key) && !is_zero(key(factor_key)) && number(factor_key) != 1;
    const std::string type = gguf_.text(type_key, scales ? "linear" : "none");
    if (type == "none") {
      if (has("rope.scaling.attn_factor") && number("rope.scaling.attn_factor") != 1)
        refuse_key(key("rope.scaling.attn_factor"));
      // An absent scaling of gpt_oss would mean YaRN.
      return family_ == "gpt_oss" ? ordered_json{{"rope_type", "default"}} : ordered_json();
    }
    if (type != "linear" && type != "yarn")
      gguf_.refuse(GgufFault::bad_metadata,
                   "the metadata's " + in_quotes(type_key) + " is " + in_quotes(type) + "; read are linear and yarn");
    ordered_json scaling{{"rope_type", type}, {"factor", shortest(number(factor_key))}};
    if (family_ == "gpt_oss") scaling["truncate"] = false;
    if (type == "linear") {
      refuse_scalings({"type", "factor", "original_context_length", "finetuned"});
      return scaling;
    }
    refuse_scalings({"type", "factor", "original_context_length", "finetuned", "yarn_attn_factor", "yarn_beta_fast",
                     "yarn_beta_slow"});
    scaling["original_max_position_embeddings"] = integer("rope.scaling.original_context_length");
    for (const auto& [rest, name] : {std::pair{"rope.scaling.yarn_attn_factor", "attention_factor"},
                                     {"rope.scaling.yarn_beta_fast", "beta_fast"},
                                     {"rope.scaling.yarn_beta_slow", "beta_slow"}})
      if (has(rest)) scaling[name] = shortest(number(rest));
    return scaling;
  }

  /// LongRoPE, whose factors are tensors.
  ordered_json longrope() {
    const auto factors = [this](const char* name) -> const std::vector<float>& {
      const auto found = model_.factors.find(name);
      if (found == model_.factors.end())
        gguf_.refuse(GgufFault::bad_tensor, "has no tensor " + in_quotes(name) + " beside that for other contexts");
      return found->second;
    };
    if (family_ != "phi3")
      gguf_.refuse(GgufFault::bad_tensor, "has tensor " + in_quotes(model_.factors.begin()->first) +
                                              ", which is not read in a model of " + family_);
    refuse_scalings({"type", "factor", "attn_factor", "original_context_length", "finetuned"});
    const std::int64_t trained = integer("rope.scaling.original_context_length");
    config_["original_max_position_embeddings"] = trained;
    ordered_json scaling{{"rope_type", "longrope"},
                         {"short_factor", shortest(factors(kGgufShort))},
                         {"long_factor", shortest(factors(kGgufLong))},
                         {"original_max_position_embeddings", trained}};
    if (has("rope.scaling.attn_factor")) scaling["attention_factor"] = shortest(number("rope.scaling.attn_factor"));
    return scaling;
  }

  void add_rotary() {
    const double base = number("rope.freq_base", 10000);
    config_["rope_theta"] = base;
    const std::int64_t dims = gguf_.integer(key("rope.dimension_count"), 1, kLargest, head_dim_);
    if (dims > head_dim_ || (dims != head_dim_ && !architecture_.turns_part))
      gguf_.refuse(GgufFault::bad_metadata, "rotates " + std::to_string(dims) + " of the " + std::to_string(head_dim_) +
                                                " numbers of a head, wanted " +
                                                (architecture_.turns_part ? "at most all" : "all"));
    if (architecture_.turns_part) config_["partial_rotary_factor"] = gguf_rotary_share(dims, head_dim_);
    ordered_json scaling;
    if (const auto divisors = model_.factors.find(kGgufDivisors); divisors != model_.factors.end())
      scaling = llama3_scaling(divisors->second, base, dims);
    else if (!model_.factors.empty()) scaling = longrope();
    else scaling = plain_scaling();
    if (!scaling.is_null()) config_["rope_scaling"] = std::move(scaling);
  }

  /// Whether each layer has the window, if the file lists the layers; else by the number of layers in a turn.
  std::vector<bool> sliding_layers() const {
    const std::string name = key("attention.sliding_window_pattern");
    const auto layers = static_cast<std::size_t>(layers_);
    std::vector<bool> slides;
    const auto found = gguf_.metadata.find(name);
    if (found != gguf_.metadata.end() && std::holds_alternative<std::vector<std::int64_t>>(found->second)) {
      const auto& list = std::get<std::vector<std::int64_t>>(found->second);
      const bool flags =
          std::all_of(list.begin(), list.end(), [](std::int64_t each) { return each == 0 || each == 1; });
      if (list.size() != layers || !flags)
        gguf_.refuse(GgufFault::bad_metadata, "the metadata's " + in_quotes(name) +
                                                  " is no list of a bool for each of " + std::to_string(layers) +
                                                  " layers");
      slides.assign(list.begin(), list.end());
      return slides;
    }
    const auto every = static_cast<std::size_t>(gguf_.integer(name, 1, kLargest, architecture_.full_every));
    for (std::size_t layer = 0; layer < layers; ++layer) slides.push_back((layer + 1) % every != 0);
    return slides;
  }

  void add_windows() {
    const std::int64_t window = gguf_window(gguf_, architecture_);
    config_["sliding_window"] = window > 0 ? ordered_json(window) : ordered_json();
    if (architecture_.full_every == 0) return;
    ordered_json types = ordered_json::array();
    for (const bool slides : sliding_layers())
      types.push_back(slides && window > 0 ? "sliding_attention" : "full_attention");
    config_["layer_types"] = std::move(types);
    if (family_ != "gemma3_text" && !is_gemma4() &&
        number("rope.freq_base_swa", config_["rope_theta"]) != config_["rope_theta"])
      refuse_key(key("rope.freq_base_swa"));
  }

  void add_gemma() {
    // The layers of the 27B models, whose queries alone are scaled by another size than that of a head.
    const int largest = family_ == "gemma2" ? 46 : 62;
    config_["hidden_activation"] = config_["hidden_act"];
    config_["query_pre_attn_scalar"] = layers_ == largest ? hidden_ / heads_ : head_dim_;
    const auto cap = [&](const char* rest, double fallback) {
      const double value = number(rest, fallback);
      config_[rest] = value != 0 ? ordered_json(value) : ordered_json();
    };
    cap("final_logit_softcapping", family_ == "gemma2" ? 30 : 0);
    if (family_ == "gemma2") cap("attn_logit_softcapping", 50);
    else config_["rope_local_base_freq"] = number("rope.freq_base_swa", 10000);
  }

  void add_experts() {
    const bool ernie = family_ == "ernie4_5_moe";
    config_[architecture_.experts] = integer("expert_count");
    config_[ernie ? "moe_k" : "num_experts_per_tok"] = integer("expert_used_count");
    const std::int64_t width =
        gguf_.integer(key("expert_feed_forward_length"), 1, kLargest, config_["intermediate_size"]);
    if (architecture_.deepseek || ernie || family_ == "qwen2_moe" || family_ == "qwen3_moe")
      config_["moe_intermediate_size"] = width;
    else config_["intermediate_size"] = width;
    if (family_ == "qwen3_moe") config_["norm_topk_prob"] = true;
    if (family_ == "qwen2_moe")
      config_["norm_topk_prob"] = false,
      config_["shared_expert_intermediate_size"] = integer("expert_shared_feed_forward_length");
    if (ernie) add_ernie(width);
    if (family_ == "hunyuan_v1_moe") require_shared(1, width);
    if (architecture_.deepseek) add_deepseek();
  }

  void add_ernie(std::int64_t width) {
    const std::int64_t shared = gguf_.integer(key("expert_shared_count"), 0, kLargest, 0);
    config_["moe_num_shared_experts"] = shared;
    config_["moe_layer_interval"] = gguf_.integer(key("interleave_moe_layer_step"), 1, kLargest, 1);
    config_["moe_layer_start_index"] = gguf_.integer(key("leading_dense_block_count"), 0, kLargest, 0);
    if (shared > 0) require_shared(shared, width);
  }

  /// The width of the shared expert is that of so many experts.
  void require_shared(std::int64_t shared, std::int64_t width) const {
    const std::string name = key("expert_shared_feed_forward_length");
    if (gguf_.has(name) && gguf_.integer(name, 1, kLargest) != shared * width)
      gguf_.refuse(GgufFault::bad_metadata, "the metadata's " + in_quotes(name) + " is " +
                                                std::to_string(gguf_.integer(name, 1, kLargest)) + ", wanted " +
                                                std::to_string(shared * width) + ", the width of " +
                                                std::to_string(shared) + " experts");
  }

  void add_deepseek() {
    config_["n_shared_experts"] = integer("expert_shared_count");
    config_["first_k_dense_replace"] = gguf_.integer(key("leading_dense_block_count"), 0, kLargest, 0);
    config_["norm_topk_prob"] = gguf_.boolean(key("expert_weights_norm"), false);
    config_["routed_scaling_factor"] = number("expert_weights_scale", 1);
    config_["n_group"] = gguf_.integer(key("expert_group_count"), 1, kLargest, 1);
    config_["topk_group"] = gguf_.integer(key("expert_group_used_count"), 1, kLargest, 1);
    if (family_ == "glm4_moe")
      config_["num_nextn_predict_layers"] = gguf_.integer(key("nextn_predict_layers"), 0, kLargest, 0);
    if (family_ == "dots1") config_["sliding_window"] = nullptr;
  }

  void add_scales() {
    config_["embedding_multiplier"] = number("embedding_scale", 1);
    config_["residual_multiplier"] = number("residual_scale", 1);
    config_["attention_multiplier"] = number("attention.scale", 1 / std::sqrt(static_cast<double>(head_dim_)));
    config_["logits_scaling"] = shortest(number("logit_scale"));
  }

  const GgufModel& model_;
  const Gguf& gguf_;
  const GgufArchitecture& architecture_;
  std::string prefix_, family_;
  std::int64_t heads_ = 0, hidden_ = 0, layers_ = 0, head_dim_ = 0;
  ordered_json config_;
};

}  // namespace

double gguf_rotary_share(std::int64_t dims, std::int64_t numbers) {
  const double share = static_cast<double>(dims) / static_cast<double>(numbers);
  const bool short_of = static_cast<std::int64_t>(static_cast<double>(numbers) * share) < dims;
  return short_of ? std::nextafter(share, 2.0) : share;
}

ordered_json gguf_config(const GgufModel& model) { return ConfigMaker(model).make(); }

void add_gguf_token_ids(const Gguf& gguf, ordered_json& config) {
  for (const char* key : {"bos", "eos"}) {
    const std::string name = gguf_token_key(key);
    config[std::string(key) + "_token_id"] =
        gguf.has(name) ? ordered_json(gguf.integer(name, 0, kLargest)) : ordered_json();
  }
}

}  // namespace weft::runtime
