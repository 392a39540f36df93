#include "runtime/gguf/gguf_gemma4.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/base/quote.h"
#include "runtime/gguf/gguf_texts.h"

namespace weft::runtime {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kMostOfGemma4 = std::numeric_limits<std::int32_t>::max();

std::string own_key(const char* rest) { return std::string("gemma4.") + rest; }
std::int64_t own_integer(const Gguf& gguf, const char* rest) { return gguf.integer(own_key(rest), 1, kMostOfGemma4); }

/// The numbers of a head, which must be as many in values as in keys and turn as a whole.
std::int64_t head_of(const Gguf& gguf, const char* keys, const char* values, const char* turning) {
  const std::int64_t numbers = own_integer(gguf, keys);
  for (const char* const other : {values, turning})
    if (const std::int64_t found = gguf.integer(own_key(other), 1, kMostOfGemma4, numbers); found != numbers)
      gguf.refuse(GgufFault::bad_metadata, "the metadata's " + in_quotes(own_key(other)) + " is " +
                                               std::to_string(found) + ", wanted " + std::to_string(numbers) + " as " +
                                               in_quotes(own_key(keys)));
  return numbers;
}

/// The numbers that turn in a head of layers without a window. Files have divisors of its frequencies: 1 for the first
/// pairs, and for the others one so large that they stay.
std::int64_t turning(const GgufModel& model, std::int64_t head) {
  constexpr float kStays = 1e30f;
  const Gguf& gguf = model.first();
  const auto found = model.factors.find(kGgufDivisors);
  if (found == model.factors.end())
    gguf.refuse(GgufFault::bad_tensor,
                "has no tensor " + in_quotes(kGgufDivisors) + ", which says how much of a head turns");
  const std::vector<float>& divisors = found->second;
  const auto stays = std::find_if(divisors.begin(), divisors.end(), [](float divisor) { return divisor != 1; });
  const bool known = std::all_of(stays, divisors.end(), [](float divisor) { return divisor == kStays; });
  if (static_cast<std::int64_t>(divisors.size()) != head / 2 || !known || stays == divisors.begin())
    gguf.refuse(GgufFault::bad_tensor, "tensor " + in_quotes(kGgufDivisors) + " does not hold " +
                                           std::to_string(head / 2) +
                                           " numbers of which the first are 1 and the others 1e30");
  return 2 * (stays - divisors.begin());
}

const std::vector<std::int64_t>* list_of(const Gguf& gguf, const std::string& name) {
  const auto found = gguf.metadata.find(name);
  return found == gguf.metadata.end() ? nullptr : std::get_if<std::vector<std::int64_t>>(&found->second);
}

/// The last layers, which have no keys and values.
std::int64_t sharing_layers(const Gguf& gguf) {
  return gguf.integer(own_key("attention.shared_kv_layers"), 0, kMostOfGemma4, 0);
}

/// The KV heads of the layers with a window, and of those without: a list has those of each layer.
void add_kv_heads(const Gguf& gguf, ordered_json& config) {
  const std::string name = own_key("attention.head_count_kv");
  const auto* const found = list_of(gguf, name);
  if (!found) {
    config["num_key_value_heads"] = gguf.integer(name, 1, kMostOfGemma4, config["num_attention_heads"]);
    return;
  }
  const std::vector<std::int64_t>& heads = *found;
  const ordered_json& types = config["layer_types"];
  std::int64_t sliding = 0, global = 0;
  bool alike = heads.size() == types.size();
  for (std::size_t layer = 0; alike && layer < heads.size(); ++layer) {
    std::int64_t& of_kind = types[layer] == "sliding_attention" ? sliding : global;
    if (of_kind == 0) of_kind = heads[layer];
    alike = heads[layer] >= 1 && heads[layer] <= kMostOfGemma4 && heads[layer] == of_kind;
  }
  if (!alike)
    gguf.refuse(GgufFault::bad_metadata,
                "the metadata's " + in_quotes(name) + " is no list of " + std::to_string(types.size()) +
                    " numbers of heads, the same in all layers with a window, and in all others");
  config["num_key_value_heads"] = sliding > 0 ? sliding : global;
  if (global > 0) config["num_global_key_value_heads"] = global;
}

/// Whether the layers without a window take keys for values: they have no matrix of their own for them. The last
/// `shared` layers have neither.
bool has_values_of_keys(const GgufModel& model, const ordered_json& config, std::int64_t shared) {
  const ordered_json& types = config.at("layer_types");
  std::size_t without = 0, all = 0;
  for (std::size_t layer = 0; layer + static_cast<std::size_t>(shared) < types.size(); ++layer) {
    if (types[layer] != "full_attention") continue;
    ++all;
    if (!model.tensor("blk." + std::to_string(layer) + ".attn_v.weight")) ++without;
  }
  if (without != 0 && without != all)
    model.first().refuse(GgufFault::bad_tensor, "has no 'attn_v.weight' in " + std::to_string(without) + " of the " +
                                                    std::to_string(all) +
                                                    " layers without a window, wanted all or none");
  return without != 0;
}

}  // namespace

void check_gguf_gemma4(const Gguf& gguf) {
  own_integer(gguf, "attention.sliding_window");
  const std::string type = own_key("rope.scaling.type");
  for (const auto& [name, value] : gguf.metadata)
    if (name.starts_with(own_key("rope.scaling.")) && !(name == type && gguf.text(type) == "none"))
      gguf.refuse(GgufFault::bad_metadata, "the metadata has " + in_quotes(name) + ", which is not read");
}

std::int64_t gguf_gemma4_head(const Gguf& gguf) {
  return head_of(gguf, "attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa");
}

std::int64_t gguf_gemma4_width(const Gguf& gguf) {
  const std::string name = own_key("feed_forward_length");
  const auto* const widths = list_of(gguf, name);
  if (!widths) return gguf.integer(name, 1, kMostOfGemma4);
  const std::int64_t layers = own_integer(gguf, "block_count"), own = layers - sharing_layers(gguf),
                     first = widths->empty() ? 0 : widths->front();
  bool known = std::ssize(*widths) == layers && first > 0 && first <= kMostOfGemma4;
  for (std::int64_t layer = 0; known && layer < layers; ++layer)
    known = (*widths)[static_cast<std::size_t>(layer)] == (layer < own ? first : widths->back());
  if (!known || (widths->back() != first && widths->back() != 2 * first))
    gguf.refuse(GgufFault::bad_metadata, "the metadata's " + in_quotes(name) + " is no list of " +
                                             std::to_string(layers) +
                                             " widths, the same in all layers but those without keys and values, which "
                                             "may be twice as wide");
  return first;
}

void add_gguf_gemma4(const GgufModel& model, ordered_json& config) {
  const Gguf& gguf = model.first();
  const std::int64_t head = head_of(gguf, "attention.key_length", "attention.value_length", "rope.dimension_count");
  config["hidden_activation"] = config["hidden_act"];
  const std::int64_t inputs = gguf.integer(own_key("embedding_length_per_layer_input"), 0, kMostOfGemma4, 0),
                     shared = sharing_layers(gguf);
  config["hidden_size_per_layer_input"] = inputs;
  config["num_kv_shared_layers"] = shared;
  if (const auto* const widths = list_of(gguf, own_key("feed_forward_length")))
    config["use_double_wide_mlp"] = widths->back() != widths->front();
  if (inputs > 0) {
    const GgufTensor* const table = model.tensor("per_layer_token_embd.weight");
    if (!table || table->shape.size() != 2)
      gguf.refuse(GgufFault::bad_tensor, "has no matrix 'per_layer_token_embd.weight', the inputs of its layers");
    config["vocab_size_per_layer_input"] = table->shape.front();
  }
  config["global_head_dim"] = head;
  add_kv_heads(gguf, config);
  config["attention_k_eq_v"] = has_values_of_keys(model, config, shared);
  const auto number = [&](const char* rest, double fallback) {
    return gguf.has(own_key(rest)) ? gguf.number(own_key(rest)) : fallback;
  };
  config["rope_parameters"] = {
      {"full_attention",
       {{"rope_type", "proportional"},
        {"rope_theta", gguf.number(own_key("rope.freq_base"))},
        {"partial_rotary_factor", gguf_rotary_share(turning(model, head), head)}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", number("rope.freq_base_swa", 10000)}}}};
  const double cap = number("final_logit_softcapping", 0);
  config["final_logit_softcapping"] = cap != 0 ? ordered_json(cap) : ordered_json();
  const std::int64_t experts = gguf.integer(own_key("expert_count"), 0, kMostOfGemma4, 0);
  config["enable_moe_block"] = experts > 0;
  if (experts == 0) return;
  config["num_experts"] = experts;
  config["top_k_experts"] = own_integer(gguf, "expert_used_count");
  config["moe_intermediate_size"] = own_integer(gguf, "expert_feed_forward_length");
}

}  // namespace weft::runtime
