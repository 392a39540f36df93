// policy/model/model.h: what a model is made of, as values: shapes, the tensors of each unit, the order of the
// sublayers.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/tensor.h"
#include "policy/model/quantisation.h"

namespace weft::policy {

/// A decoder as its config.json describes it, every absent key filled in as the Hugging Face config class does.
/// With `rotary` keys are rotated before they are cached, by their positions.
struct ModelSpec {
  std::string architecture = "opt";  ///< model_type of config.json
  int layers = 0, hidden = 0, ffn = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int vocab = 0, embed = 0;  ///< embed: width of the token embedding (word_embed_proj_dim)
  int positions = 0;         ///< longest sequence
  int position_offset = 0;   ///< rows of the position table before position 0
  int sliding_window = 0;    ///< of attention, in tokens, where it bounds `positions`; 0: there is none
  bool pre_norm = true, final_norm = true, norm_affine = true, tied_head = true;
  bool qkv_bias = true, output_bias = true, mlp_bias = true;
  bool fused_qkv = false;          ///< q, k and v are one tensor, in which their heads alternate
  bool rms_norm = false;           ///< else LayerNorm
  bool head_norm = false;          ///< each head of q and k is normed before it is rotated
  bool gated_mlp = false;          ///< down(activation(gate(x)) * up(x)), else down(activation(up(x)))
  bool parallel_residual = false;  ///< x + attention(norm1(x)) + mlp(norm2(x)): both sublayers read the same x
  std::vector<float> rotary;       ///< radians per position of each pair of a head's first numbers; empty: a table
  std::vector<bool> rotary_layers = {};  ///< [layers] which rotate; empty: all, if any
  std::string activation;                ///< as config.json names it
  float norm_epsilon = 1e-5f;
  DType dtype = DType::f32;        ///< what the checkpoint says it is stored in
  Quantisation quantisation = {};  ///< of the checkpoint's weights
  std::vector<std::int32_t> eos;   ///< empty: nothing ends a sequence but its length
  std::optional<std::int32_t> bos;

  bool has_projections() const { return embed != hidden; }
  /// Whether queries and keys of this layer are rotated.
  bool rotates(int layer) const { return !rotary.empty() && (rotary_layers.empty() || rotary_layers[layer]); }
};

/// Throws DataError, which names the key, what was wanted and what was found. `where` is the file's name.
ModelSpec model_from_config(const nlohmann::json& config, const std::string& where);

/// What a tensor does in its sublayer.
enum class Role : std::uint8_t {
  none,
  token_embedding,
  position_embedding,
  project_in,
  norm1_weight,
  norm1_bias,
  q_weight,
  q_bias,
  k_weight,
  k_bias,
  v_weight,
  v_bias,
  q_norm,  // of head_norm
  k_norm,
  qkv_weight,  // of fused_qkv
  qkv_bias,
  o_weight,
  o_bias,
  norm2_weight,
  norm2_bias,
  gate_weight,
  gate_bias,
  up_weight,
  up_bias,
  down_weight,
  down_bias,
  final_norm_weight,
  final_norm_bias,
  project_out,
  head,
  count
};
inline constexpr std::size_t kRoles = static_cast<std::size_t>(Role::count);

/// What kind of tensor it is: how it is stored, how it is moved, and what random weights are made of.
enum class Form : std::uint8_t {
  table,   ///< rows are picked out of it
  matrix,  ///< multiplies
  norm,    ///< [1, cols], near 1
  vector,  ///< [1, cols], near 0: biases, and what norms add
};

struct TensorSpec {
  Role role;
  Form form;
  std::string name;  ///< in the checkpoint, without the prefix that varies, see name_prefixes()
  std::int64_t rows = 1, cols = 0;
  std::int64_t first_row = 0;  ///< of the checkpoint's tensor, where a unit holds only some rows of it
  std::int64_t elements() const { return rows * cols; }
};

/// What may stand before the names of a checkpoint's tensors, that of transformers' own files first; the head has none.
std::span<const char* const> name_prefixes(const ModelSpec& model);

/// Tensors that are placed and moved together: one copy brings a sublayer's weights. With a parallel residual the
/// attention's unit has the mlp's too.
struct Unit {
  enum class Kind : std::uint8_t { embedding, positions, input, attention, mlp, output, head } kind;
  int layer = -1;
  std::vector<TensorSpec> tensors;
  bool gathered = false;  ///< rows of it are picked by token or position
  bool streamed = true;   ///< a compute op uses it whole; false: only gathered
  std::int64_t elements() const;
};

/// All units in order of use. The token embedding and the head come in pieces of whole rows no larger than an mlp unit,
/// so that neither sets the size of a window; a tied head shares the pieces of the embedding.
std::vector<Unit> model_units(const ModelSpec& model);

/// A step of the forward pass over one batch. `unit`: index into model_units(), or -1.
struct Sublayer {
  enum class Kind : std::uint8_t { embed, attention, mlp, output, head } kind;
  int layer = -1;
  int unit = -1;
};
const char* name_of(Sublayer::Kind kind);

/// In order.
std::vector<Sublayer> model_sublayers(const ModelSpec& model, const std::vector<Unit>& units);

/// "2048", and what bounds it where that is a window: for messages.
std::string context_text(const ModelSpec& model);
std::int64_t parameters(const ModelSpec& model);

}  // namespace weft::policy
