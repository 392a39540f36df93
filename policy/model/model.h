// policy/model/model.h: a model's parts as values: the tensors of each unit, the order of the sublayers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "policy/model/model_spec.h"

namespace weft::policy {

/// The job of a tensor in its sublayer.
enum class Role : std::uint8_t {
  none,
  token_embedding,
  position_embedding,
  project_in,
  layer_inputs,  // with layer_input: the table, and what is made of the embedding
  layer_inputs_weight,
  layer_inputs_norm,
  norm1_weight,
  norm1_bias,
  q_weight,
  q_bias,
  k_weight,
  k_bias,
  v_weight,
  v_bias,
  q_norm,  // with head_norm
  k_norm,
  sinks,        // with sinks: one logit per query head
  layer_scale,  // with layer_scale: one number
  layer_gate,   // with layer_input: an input's gate, its product and norm
  layer_project,
  layer_norm,
  attention_norm,  // with branch_norm
  mlp_norm,
  qkv_weight,  // with fused_qkv
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
  router,  // of a sparse layer
  router_bias,
  score_bias,
  shared_gate,
  router_norm,  // with experts beside an mlp, as the next four
  expert_scale,
  expert_input_norm,
  expert_sum_norm,
  joined_norm,
  final_norm_weight,
  final_norm_bias,
  project_out,
  head,
  count
};
inline constexpr std::size_t kRoles = static_cast<std::size_t>(Role::count);

/// The kind of a tensor. It decides how the tensor is stored and moved, and how random weights are drawn.
enum class Form : std::uint8_t {
  table,   ///< its rows are gathered
  matrix,  ///< multiplies
  norm,    ///< [1, cols] or a row for each head, near 1
  vector,  ///< [1, cols], near 0: biases, those of norms included
};

/// A tensor that holds a tensor of every expert of a layer: expert by expert, in each the rows of `parts` matrices, one
/// matrix after the other.
struct ExpertStack {
  std::string name = {};  ///< in the checkpoint, as TensorSpec::name; empty: there is none
  int part = 0, parts = 1;
  bool alternate = false;   ///< the rows of the parts take turns
  bool transposed = false;  ///< plain numbers are [columns, rows] in each expert
};

struct TensorSpec {
  Role role;
  Form form;
  std::string name;  ///< in the checkpoint, without the varying prefix, see name_prefixes()
  std::int64_t rows = 1, cols = 0;
  std::int64_t of_rows = 0;    ///< rows of the checkpoint's tensor, of which the unit holds `rows`
  std::int64_t first_row = 0;  ///< the first of these
  int expert = 0;              ///< index within the unit, which may have several experts, or their number: used after
                               ///< the layer's last expert
  int of_layer = 0;            ///< the expert's index within the layer
  ExpertStack stack = {};      ///< a tensor that checkpoints may have in the place of `name`
  std::int64_t elements() const { return rows * cols; }
};

/// The prefixes that the names of a checkpoint's tensors may have, that of transformers' own files first. The head has
/// none.
std::span<const char* const> name_prefixes(const ModelSpec& model);

/// Tensors that are placed and moved together: one copy brings a sublayer's weights. With a parallel residual the
/// attention's unit has the mlp's too. The mlp of a sparse layer is the router and the shared expert; units with some
/// of the layer's experts follow it.
struct Unit {
  enum class Kind : std::uint8_t {
    embedding,
    positions,
    layer_inputs,
    input,
    attention,
    mlp,
    experts,
    output,
    head
  } kind;
  int layer = -1;
  int first_expert = 0, experts = 1;  ///< the experts of the layer that a unit of Kind::experts has
  std::vector<TensorSpec> tensors;
  bool gathered = false;      ///< its rows are gathered by token or position
  bool streamed = true;       ///< a compute op uses it whole; false: only gathered
  bool keeps_levels = false;  ///< a head that is multiplied by the checkpoint's levels (Quantisation::head)
  std::int64_t elements() const;
};

/// All units in order of use. The token embedding and the head are cut into pieces of whole rows, no larger than a unit
/// of the layers, so that neither sets the size of a window. A tied head shares the pieces of the embedding.
std::vector<Unit> model_units(const ModelSpec& model);

/// A part of the forward pass that one compute op runs over a gpu batch. `unit`: index into model_units(), or -1.
struct Sublayer {
  enum class Kind : std::uint8_t { embed, attention, mlp, experts, output, head } kind;
  int layer = -1;
  int unit = -1;
  int first_expert = 0, experts = 0;  ///< the experts of the layer that a unit of Kind::experts has
};
const char* name_of(Sublayer::Kind kind);

/// Whether a sublayer of experts has its layer's last one.
inline bool has_last_expert(const ModelSpec& model, const Sublayer& sub) {
  return sub.first_expert + sub.experts == model.experts.count;
}

/// The share of a batch's rows that a product in a sublayer has: of one expert on average, elsewhere 1.
double rows_share(const ModelSpec& model, Sublayer::Kind kind);

/// The share of a layer's experts that rows choose, as expected if each row chooses any of them alike.
double touched_share(const ModelSpec& model, double rows);

/// The sublayers in the order of the forward pass.
std::vector<Sublayer> model_sublayers(const ModelSpec& model, const std::vector<Unit>& units);

/// "2048", and what bounds it if config.json says more: for messages.
std::string context_text(const ModelSpec& model);
std::int64_t parameters(const ModelSpec& model);

}  // namespace weft::policy
