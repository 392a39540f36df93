// policy/model/steps.h: the table of steps: a sublayer's computation as rows of data. The engine interprets the rows,
// the cost model sums their seconds, and the work space and the flops follow from them. So they all agree.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "offload/memory.h"
#include "policy/model/model.h"

namespace weft::policy {

/// A part of the forward pass that runs as one piece. An attention sublayer has three, because its core may run on the
/// host.
/// `expert` is one expert of a sparse layer over the rows that chose it, whose router is in the layer's mlp;
/// `experts_end` follows the layer's last expert.
enum class Stage : std::uint8_t { embed, attention_in, attend, attention_out, mlp, expert, experts_end, output, head };
inline constexpr std::size_t kStages = 9;

enum class StepOp : std::uint8_t {
  gather_tokens,        ///< out = rows of the token embedding
  gather_positions,     ///< out = rows of the position table
  gather_layer_inputs,  ///< out = rows of the table of layers' inputs, by token
  gather_last,          ///< out = the last row of each sequence
  norm,                 ///< out = in, normed in runs as long as the weight
  norm_heads,           ///< out = in, each head normed, without a weight
  linear,               ///< out = in weight^T + bias
  take_heads,           ///< out = every third head of in, from `part` on
  rotary,               ///< rotates out in place
  attend,               ///< out = attention of q over k, v and the KV cache
  multiply,             ///< out *= in
  add,                  ///< out += in
  clear,                ///< out = 0
  scale,                ///< out is scaled and capped in place by the model's `factor`
  scale_by,             ///< out is scaled in place by the weight, one number
  convert,              ///< out = in
  route,                ///< chooses each row's experts by in; `weight` has a factor for each expert
  gather_routed,        ///< out = the rows of in that chose the expert
  add_routed,           ///< out += in, each row times its weight, at the rows that chose the expert
  clamped_gate,         ///< out = kernels::ClampedGate of out and in
  gate,                 ///< out *= the logistic function of in, a number per row
};

/// The values that steps read and write. Each is a matrix with a row per token of a chunk, except log_sum and score,
/// which are [heads, tokens], and the last three, which have a row per sequence.
enum class Value : std::uint8_t {
  none,
  hidden,
  layer_inputs,  ///< ModelSpec::layer_input: of all layers while they are made, then of one
  lent_k,        ///< ModelSpec::lends_kv(): what later layers attend to
  lent_v,
  made_inputs,  ///< the layers' inputs as products of the embedding
  layer_gate,
  embedded,
  positions,
  normed,
  qkv,
  q,
  k,
  v,
  stored_k,  ///< prompts only; in the KV cache's type, or in the model's if that is quantised
  stored_v,
  log_sum,  ///< prompts only, per row: PrefillAttention::lse
  score,    ///< prompts only, per token: ColumnSums::score
  attended,
  branch,      ///< a sublayer's addition to the hidden states, if it is normed or scaled before
  mlp_input,   ///< a sparse layer keeps this value and the next two until its last expert
  mlp_output,  ///< the output of an mlp beside experts
  expert_sum,  ///< the sum over these experts
  gate,
  up,
  router_input,  ///< experts beside an mlp: the mlp's input has other norms
  router_logits,
  shared_gate,  ///< the shared expert's
  shared_up,
  shared_score,
  expert_input,  ///< up to expert_output these have a row for each token that chose the expert
  expert_gate,
  expert_up,
  expert_output,
  last_hidden,
  last_embed,
  logits,
};
inline constexpr std::size_t kValues = 37;

/// The model's factor that StepOp::scale applies; logits have a cap too.
enum class Factor : std::uint8_t {
  none,
  embedding,
  layer_inputs,
  made_inputs,
  joined_inputs,
  residual,
  router,
  logits
};

struct Step {
  StepOp op;
  Value in = Value::none, out = Value::none;
  Role weight = Role::none, bias = Role::none;
  bool accumulate = false;       ///< linear: out += in place of out =
  bool activation = false;       ///< linear: the model's activation follows
  int part = 0;                  ///< take_heads: the first head taken
  Factor factor = Factor::none;  ///< scale
  bool operator==(const Step&) const = default;
};

/// The steps of a stage in a layer. Stages outside the layers ignore `layer`.
std::vector<Step> steps_of(const ModelSpec& model, Stage stage, int layer = 0);

/// The kind of a layer: dense or sparse, with window_layers of other heads of these or not, with keys and values of its
/// own or not.
inline constexpr int kLayerKinds = 8;
inline int kind_of_layer(const ModelSpec& model, int layer) {
  return (model.is_sparse(layer) ? 1 : 0) + (model.is_global(layer) ? 2 : 0) + (model.shares_kv(layer) ? 4 : 0);
}
/// The first layer of each kind that the model has.
std::vector<int> layer_of_each_kind(const ModelSpec& model);

/// The types that a run chooses.
struct Types {
  DType activation = DType::f32, kv = DType::f16;  ///< kv: for a prompt's keys and values during its attention
  DType product = DType::f32;                      ///< rows that are made for products to read
  bool quantises_kv = false;                       ///< the slots of the KV cache have int8 or int4
};
struct ValueShape {
  DType dtype = DType::f32;
  std::int64_t rows = 0, cols = 0;
  std::size_t bytes() const { return bytes_of(dtype, rows * cols); }
};
/// `rows`: tokens of a chunk, or sequences of a batch for a value with a row per sequence. `layer` matters to the
/// values of attention.
ValueShape shape_of(Value value, const ModelSpec& model, const Types& types, std::int64_t rows, int layer = 0);
/// The widest of all layers.
ValueShape widest_shape_of(Value value, const ModelSpec& model, const Types& types, std::int64_t rows);

constexpr std::size_t kValueAlignment = 64;  ///< every value in the work space begins at a cache line

/// The values that occupy the work space while these steps run, in the order in which they are first written.
std::vector<Value> scratch_values(std::span<const Step> steps);
/// The values of attention_in that attention over a chunk reads. All others of a stage are of one piece of its rows.
constexpr bool spans_chunk(Value value) { return value == Value::q || value == Value::k || value == Value::v; }

/// The rows that attention has room for at once.
struct AttentionRows {
  std::int64_t queries = 0;  ///< rows of chunks that attend
  std::int64_t tokens = 0;   ///< rows that they attend to, in prompts
  bool prompts = false;      ///< else decode steps, whose keys and values are in slots
};
/// Whether products write a prompt's keys and values as attention reads them.
bool writes_stored(const Types& types);
/// Whether what products write is needed after attention, or by later chunks.
inline bool keeps_keys(const Types& types) { return writes_stored(types) || types.quantises_kv; }
/// The shape of a value of attention_in that spans_chunk(), or of attend; no rows where it is not needed. A prompt's
/// keys and values are those of all tokens in the type that attention reads, and in fp32 too if slots are filled from
/// that; everything else is of a chunk.
ValueShape attention_shape(Value value, const ModelSpec& model, const Types& types, const AttentionRows& rows,
                           int layer);
/// Takes room for one of them; returns its offset.
std::size_t take(offload::Arena& arena, const ValueShape& shape);

/// The scores that a shared prefix of so many tokens has from its own rows (kernels::ColumnSums::before).
ValueShape prefix_score_shape(const ModelSpec& model, std::int64_t prefix, int layer);

/// The rows of hidden states in a batch's buffer, and behind them what a sparse layer keeps until its last expert, the
/// layers' inputs, and what later layers attend to. A value that the model does not have has no rows.
struct HiddenLayout {
  struct Part {
    ValueShape shape;
    std::size_t offset = 0;
    bool used = false;
  };
  Part hidden, mlp_input, mlp_output, expert_sum, layer_inputs;
  std::array<Part, 2> lent_k, lent_v;  ///< one of each kind of layer, by ModelSpec::is_global()
  std::size_t bytes = 0;
  std::size_t bytes_without_gaps = 0;
};
HiddenLayout hidden_layout(const ModelSpec& model, const Types& types, std::int64_t rows);

/// Multiplications of a step over `rows` rows: elements of its weight times rows; 0 except for linear.
double products(const ModelSpec& model, const Step& step, int layer, double rows);
/// Bytes that a step bound by memory reads and writes; 0 for linear and attend. Biases, activations and rounding belong
/// to the products.
double pointwise_bytes(const ModelSpec& model, const Types& types, const Step& step, int layer, double rows);

/// Flops of one token through all layers and, with `head`, the head; attention over `context` tokens included.
double flops_per_token(const ModelSpec& model, double context, bool head);

}  // namespace weft::policy
