// policy/model/model_spec.h: a model's shape as its config.json describes it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kernels/tensor.h"
#include "policy/model/quantisation.h"

namespace weft::policy {

inline constexpr int kMostExperts = 512;  ///< experts of a layer, as in kernels::Route

/// The experts of a sparse layer, each an mlp of its own, and how tokens choose them (kernels::Route).
struct Experts {
  int count = 0;             ///< experts of a layer; 0: all layers are dense
  int chosen = 0;            ///< experts that each token chooses
  int ffn = 0;               ///< width of an expert
  int shared_ffn = 0;        ///< width of the expert that every token passes; 0: there is none
  bool shared_gate = false;  ///< the shared expert's output is gated by a product with the mlp's input
  bool sigmoid = false, normalise = false, score_bias = false;  ///< scores; see kernels::Route
  bool biases = false;                                          ///< the products of router and experts have biases
  bool beside_mlp = false;  ///< the layer has an mlp as dense ones do; it and the experts' sum are normed, then added
  float router_scale = 1;   ///< factor on the router's logits
  float gate_slope = 0, gate_limit = 0;  ///< parameters of kernels::ClampedGate; 0: experts gate as other mlps do
  int groups = 1, groups_kept = 1;
  float scale = 1;
  std::vector<bool> sparse = {};  ///< [layers] whether the layer has experts; empty: all have
};

/// A decoder as its config.json describes it, every absent key filled in as the Hugging Face config class does.
/// With `rotary` keys are rotated before they are cached, by their positions.
struct ModelSpec {
  std::string architecture = "opt";  ///< model_type of config.json
  int layers = 0, hidden = 0, ffn = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int vocab = 0, embed = 0;  ///< embed: width of the token embedding (word_embed_proj_dim)
  int positions = 0;         ///< longest sequence
  int longer_positions = 0;  ///< the context by config.json if `positions` is less, as with longrope; else 0
  int position_offset = 0;   ///< rows of the position table before position 0
  bool pre_norm = true, final_norm = true, norm_affine = true, tied_head = true;
  bool head_of_embedding = false;  ///< an untied head that is made of the embedding's tensor: it keeps its levels
  bool qkv_bias = true, output_bias = true, mlp_bias = true;
  bool fused_qkv = false;               ///< q, k and v are one tensor, in which their heads alternate
  bool rms_norm = false;                ///< else LayerNorm
  bool head_norm = false;               ///< each head of q and k is normed before it is rotated
  bool late_head_norm = false;          ///< likewise, after it was rotated
  bool value_norm = false;              ///< each head of v is normed, without a weight
  bool layer_scale = false;             ///< a layer ends with a learned factor on the hidden states
  bool gated_mlp = false;               ///< down(activation(gate(x)) * up(x)), else down(activation(up(x)))
  bool parallel_residual = false;       ///< x + attention(norm1(x)) + mlp(norm2(x)): both sublayers read the same x
  bool branch_norm = false;             ///< the branches of attention and mlp are normed before they are added
  bool norm_plus_one = false;           ///< norms multiply by 1 + their weight
  bool sinks = false;                   ///< a learned logit per query head takes part in attention's softmax
  float embedding_scale = 1;            ///< factor on the rows of the token embedding
  bool rounds_embedding_scale = false;  ///< the factor is rounded to the type of a run's weights, as transformers does
  float residual_scale = 1;             ///< factor on what attention and the mlp add to the hidden states
  float attention_scale = 0;            ///< factor on the products of queries and keys; 0: 1 / sqrt(head_dim)
  float attention_cap = 0;              ///< attention's logits become cap * tanh(logit / cap); 0: they stay
  float logit_scale = 1;                ///< factor on the logits
  float logit_cap = 0;                  ///< logits become cap * tanh(logit / cap); 0: they stay
  std::vector<float> rotary;   ///< radians per position of each pair of a head's first numbers; empty: a position table
  float rotary_magnitude = 1;  ///< factor on the numbers that rotate
  bool alternate_pairs = false;  ///< the numbers 2 i and 2 i + 1 of a head are a pair, else i and i + half of them
  std::vector<bool> rotary_layers = {};  ///< [layers] whether the layer rotates; empty: all do, if any
  /// [layers] The sliding window: how many tokens a token attends to, itself included; 0: to all. Empty: 0 everywhere.
  std::vector<int> windows = {};
  std::vector<float> window_rotary = {};  ///< `rotary` of `window_layers`; empty: no difference
  float window_magnitude = 1;             ///< `rotary_magnitude` of them, unless `window_rotary` is empty
  /// [layers] Whether the layer is of the kind that has a window, even if the context is too short to fill it.
  std::vector<bool> window_layers = {};
  int global_kv_heads = 0, global_head_dim = 0;  ///< those of layers outside `window_layers`; 0: as in all others
  bool values_of_keys = false;  ///< in these layers v is k before its norm, and has no product of its own
  int sharing_layers = 0;       ///< so many last layers make no keys and values: they attend to those of kv_source()
  bool wide_sharing = false;    ///< the mlps of these layers are twice as wide
  int layer_input = 0;          ///< width of the row that each layer reads besides the hidden states; 0: there is none
  int layer_vocab = 0;          ///< rows of the table of these, which have the inputs of all layers
  float layer_input_scale = 1;  ///< factor on the rows of that table, rounded as embedding_scale is
  Experts experts = {};
  int next_layers = 0;     ///< layers behind the last in the checkpoint that predict further tokens; they are not used
  std::string activation;  ///< as config.json names it
  float norm_epsilon = 1e-5f;
  DType dtype = DType::f32;        ///< the type that config.json names
  bool names_dtype = false;        ///< whether it names one
  Quantisation quantisation = {};  ///< the format of the checkpoint's weights
  std::vector<std::int32_t> eos;   ///< empty: a sequence ends by its length alone
  std::optional<std::int32_t> bos;
  std::vector<std::string> notes = {};   ///< facts of config.json that are not followed, for people
  std::string unread_quantisation = {};  ///< why its quantization_config cannot be read, else empty

  bool has_projections() const { return embed != hidden; }
  /// Whether queries and keys of this layer are rotated.
  bool rotates(int layer) const { return !rotary.empty() && (rotary_layers.empty() || rotary_layers[layer]); }
  int window(int layer) const { return windows.empty() ? 0 : windows[static_cast<std::size_t>(layer)]; }
  bool rotates_by_window(int layer) const {
    return !window_rotary.empty() && window_layers[static_cast<std::size_t>(layer)];
  }
  const std::vector<float>& frequencies(int layer) const { return rotates_by_window(layer) ? window_rotary : rotary; }
  /// Whether the layer is of the other kind than `window_layers`, in models where these differ in their heads.
  bool is_global(int layer) const {
    return global_head_dim > 0 && layer >= 0 && !window_layers[static_cast<std::size_t>(layer)];
  }
  bool shares_kv(int layer) const { return layer >= layers - sharing_layers; }
  /// The last layer of its own keys and values that is of this layer's kind; -1: there is none.
  int kv_source(int layer) const;
  bool lends_kv(int layer) const;  ///< whether later layers attend to this layer's keys and values
  int ffn_of(int layer) const { return wide_sharing && shares_kv(layer) ? 2 * ffn : ffn; }
  int kv_heads_of(int layer) const { return is_global(layer) ? global_kv_heads : kv_heads; }
  int head_dim_of(int layer) const { return is_global(layer) ? global_head_dim : head_dim; }
  bool is_sparse(int layer) const {
    return experts.count > 0 && (experts.sparse.empty() || experts.sparse[static_cast<std::size_t>(layer)]);
  }
  float magnitude(int layer) const { return rotates_by_window(layer) ? window_magnitude : rotary_magnitude; }
};

/// [layers] kv_heads_of() each.
std::vector<int> kv_heads_of_layers(const ModelSpec& model);

/// Throws a DataError that names the key, the wanted and the found value. `where` is the file's name. A
/// quantization_config that cannot be read is no error yet: the weights may be plain all the same.
ModelSpec model_from_config(const nlohmann::json& config, const std::string& where);

}  // namespace weft::policy
