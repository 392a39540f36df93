#include "runtime/gguf/gguf_texts.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>

#include "policy/base/json.h"
#include "runtime/base/quote.h"
#include "runtime/gguf/gguf_names.h"

namespace weft::runtime {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

/// A float as the shortest decimal number that names it: 1e-05 and not 9.99999974737875e-06.
double shortest(double value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), static_cast<float>(value)).ptr;
  double back = value;
  std::from_chars(text.data(), end, back);
  return back;
}

/// Whether the tensor is a matrix of a layer.
bool is_of_layer(const GgufTensor& tensor) { return tensor.shape.size() == 2 && tensor.name.starts_with("blk."); }

/// The float type of the layers' matrices, the most precise one if there are several; f16 if all are quantised.
DType float_type(const GgufModel& model) {
  DType found = DType::f16;
  for (const Gguf& part : model.parts)
    for (const GgufTensor& tensor : part.tensors) {
      if (!is_of_layer(tensor) || !tensor.format->is_float()) continue;
      if (tensor.format->type == DType::f32) return DType::f32;
      if (tensor.format->type == DType::bf16) found = DType::bf16;
    }
  return found;
}

/// The scaling of Llama 3.1 and later. Files have it as divisors of the frequencies, which follow from one factor; its
/// other parameters are the same in all these models. Refuses other divisors.
ordered_json llama3_scaling(const GgufModel& model, double base, std::int64_t dims) {
  constexpr double kLow = 1, kHigh = 4, kTrained = 8192;
  const std::vector<float>& divisors = model.rotary_divisors;
  const double factor = double{*std::max_element(divisors.begin(), divisors.end())};
  bool same = static_cast<std::int64_t>(divisors.size()) == dims / 2;
  for (std::size_t i = 0; same && i < divisors.size(); ++i) {
    const double wave = 2 * std::numbers::pi * std::pow(base, 2 * static_cast<double>(i) / static_cast<double>(dims));
    const double smooth = std::clamp((kTrained / wave - kLow) / (kHigh - kLow), 0.0, 1.0);
    const double wanted = 1 / ((1 - smooth) / factor + smooth);
    same = std::abs(double{divisors[i]} - wanted) <= 1e-4 * wanted;
  }
  if (!same)
    model.first().refuse(GgufFault::bad_tensor,
                         std::string("tensor '") + kGgufDivisors +
                             "' holds other divisors than those of Llama 3.1 to 3.3, which alone "
                             "are read");
  return {{"rope_type", "llama3"},
          {"factor", shortest(factor)},
          {"low_freq_factor", kLow},
          {"high_freq_factor", kHigh},
          {"original_max_position_embeddings", static_cast<std::int64_t>(kTrained)}};
}

/// Adds the scaling that the keys after `prefix` describe, if they describe one.
void add_scaling(const Gguf& gguf, const std::string& prefix, ordered_json& config) {
  const std::string type = gguf.text(prefix + "type", "none");
  if (type == "none") return;
  if (type != "linear" && type != "yarn")
    gguf.refuse(GgufFault::bad_metadata, "the metadata's " + in_quotes(prefix + "type") + " is " + in_quotes(type) +
                                             "; read are linear and yarn");
  for (const auto& [key, value] : gguf.metadata)
    if (key.starts_with(prefix) && key != prefix + "type" && key != prefix + "factor" &&
        key != prefix + "original_context_length" && key != prefix + "finetuned")
      gguf.refuse(GgufFault::bad_metadata, "the metadata has " + in_quotes(key) + ", which is not read");
  ordered_json scaling{{"rope_type", type}, {"factor", shortest(gguf.number(prefix + "factor"))}};
  if (type == "yarn")
    scaling["original_max_position_embeddings"] = gguf.integer(prefix + "original_context_length", 1, kMost);
  config["rope_scaling"] = std::move(scaling);
}

void add_rotary(const GgufModel& model, const std::string& prefix, std::int64_t head_dim, ordered_json& config) {
  const Gguf& gguf = model.first();
  const double base = gguf.has(prefix + "rope.freq_base") ? shortest(gguf.number(prefix + "rope.freq_base")) : 10000;
  config["rope_theta"] = base;
  if (const auto dims = gguf.integer(prefix + "rope.dimension_count", 1, kMost, head_dim); dims != head_dim)
    gguf.refuse(GgufFault::bad_metadata, "rotates " + std::to_string(dims) + " of the " + std::to_string(head_dim) +
                                             " numbers of a head, wanted all");
  if (!model.rotary_divisors.empty()) config["rope_scaling"] = llama3_scaling(model, base, head_dim);
  else add_scaling(gguf, prefix + "rope.scaling.", config);
}

/// Refuses what changes results and config.json would have a key for that Weft does not know.
void refuse_others(const Gguf& gguf, const std::string& prefix) {
  if (gguf.integer(prefix + "expert_count", 0, kMost, 0) > 0)
    gguf.refuse(GgufFault::bad_metadata, "is a mixture of experts, which Weft does not compute");
  for (const char* key : {"attention.sliding_window", "attention.max_alibi_bias", "attention.clamp_kqv", "logit_scale",
                          "residual_scale", "embedding_scale", "attention.scale"})
    if (gguf.has(prefix + key))
      gguf.refuse(GgufFault::bad_metadata, "the metadata has " + in_quotes(prefix + key) + ", which is not read");
}

/// Whether the file has a tokenizer; some say that it has none.
bool has_vocabulary(const Gguf& gguf) {
  const std::string kind = gguf.text("tokenizer.ggml.model", "none");
  return kind != "none" && kind != "no_vocab";
}

void add_token_ids(const Gguf& gguf, ordered_json& config) {
  for (const char* key : {"bos", "eos"}) {
    const std::string name = gguf_token_key(key);
    config[std::string(key) + "_token_id"] =
        gguf.has(name) ? ordered_json(gguf.integer(name, 0, kMost)) : ordered_json();
  }
}

}  // namespace

ordered_json gguf_config(const GgufModel& model) {
  const Gguf& gguf = model.first();
  const GgufArchitecture& architecture = gguf_architecture(gguf);
  const std::string prefix = std::string(architecture.name) + ".";
  const auto integer = [&](const char* key) { return gguf.integer(prefix + key, 1, kMost); };
  refuse_others(gguf, prefix);
  const GgufTensor* const embedding = model.tensor("token_embd.weight");
  if (!embedding || embedding->shape.size() != 2)
    gguf.refuse(GgufFault::bad_tensor, "has no matrix 'token_embd.weight', so it holds no model");
  const std::int64_t heads = integer("attention.head_count"), hidden = integer("embedding_length"),
                     head_dim = gguf.integer(prefix + "attention.key_length", 1, kMost,
                                             std::max<std::int64_t>(1, hidden / heads));
  if (gguf.integer(prefix + "attention.value_length", 1, kMost, head_dim) != head_dim)
    gguf.refuse(GgufFault::bad_metadata, "has values of another length than keys, which is not read");
  const std::string name = architecture.model_type;
  ordered_json config{{"architectures", {architecture.class_name}},
                      {"model_type", name},
                      {"torch_dtype", name_of(float_type(model))},
                      {"hidden_act", "silu"},
                      {"hidden_size", hidden},
                      {"intermediate_size", integer("feed_forward_length")},
                      {"num_hidden_layers", integer("block_count")},
                      {"num_attention_heads", heads},
                      {"num_key_value_heads", gguf.integer(prefix + "attention.head_count_kv", 1, kMost, heads)},
                      {"head_dim", head_dim},
                      {"max_position_embeddings", integer("context_length")},
                      {"vocab_size", embedding->shape[0]},
                      {"rms_norm_eps", shortest(gguf.number(prefix + "attention.layer_norm_rms_epsilon"))},
                      {"tie_word_embeddings", !model.tensor("output.weight")}};
  add_rotary(model, prefix, head_dim, config);
  if (name == "smollm3") config["no_rope_layer_interval"] = 4;
  add_token_ids(gguf, config);
  return config;
}

ordered_json gguf_generation_config(const GgufModel& model) {
  const Gguf& gguf = model.first();
  ordered_json config = ordered_json::object();
  add_token_ids(gguf, config);
  ordered_json ends = ordered_json::array();
  for (const char* key : {"eos", "eot", "eom"}) {
    const std::string name = gguf_token_key(key);
    if (!gguf.has(name)) continue;
    const ordered_json id = gguf.integer(name, 0, kMost);
    if (std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
  }
  if (ends.size() > 1) config["eos_token_id"] = ends;
  return config;
}

policy::Quantisation gguf_quantisation(const GgufModel& model) {
  policy::Quantisation found{.group = 32, .uniform = true};
  for (const Gguf& part : model.parts)
    for (const GgufTensor& tensor : part.tensors) {
      if (!is_of_layer(tensor) || tensor.format->is_float()) continue;
      found.packing = policy::Quantisation::Packing::gguf;
      if (tensor.format->type == DType::i4 || found.dtype != DType::i4) found.dtype = tensor.format->type;
    }
  return found ? found : policy::Quantisation{};
}

ModelTexts gguf_texts(const GgufModel& model) {
  const Gguf& gguf = model.first();
  ModelTexts::Makers makers{
      {"config.json", [&model] { return policy::to_pretty(gguf_config(model)) + "\n"; }},
      {"generation_config.json", [&model] { return policy::to_pretty(gguf_generation_config(model)) + "\n"; }}};
  if (has_vocabulary(gguf)) {
    makers["tokenizer.json"] = [&gguf] { return policy::to_line(gguf_tokenizer(gguf)); };
    makers["tokenizer_config.json"] = [&gguf] { return policy::to_pretty(gguf_tokenizer_config(gguf)) + "\n"; };
  }
  return {gguf.path, std::move(makers)};
}

}  // namespace weft::runtime
