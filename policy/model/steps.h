// policy/model/steps.h: what a sublayer computes, as rows of data. The engine interprets them, the cost model sums
// their seconds, and the work space and the flops follow from them, so that none of these can contradict another.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "offload/memory.h"
#include "policy/model/model.h"

namespace weft::policy {

/// A part of the forward pass that runs as one piece. An attention sublayer has three of them, since its core may run
/// on the host.
enum class Stage : std::uint8_t { embed, attention_in, attend, attention_out, mlp, output, head };
inline constexpr std::size_t kStages = 7;

enum class StepOp : std::uint8_t {
  gather_tokens,     ///< out = rows of the token embedding
  gather_positions,  ///< out = rows of the position table
  gather_last,       ///< out = the last row of each sequence
  norm,              ///< out = in, normed over runs of as many numbers as the weight has
  linear,            ///< out = in weight^T + bias
  take_heads,        ///< out = every third head of in, from `part` on
  rotary,            ///< out is rotated in place
  attend,            ///< out = attention of q over k and v and what the KV cache holds
  multiply,          ///< out *= in
  add,               ///< out += in
  convert,           ///< out = in
};

/// What steps read and write: matrices with a row per token of a chunk, but log_sum and score, [heads, tokens], and the
/// last three, with a row per sequence.
enum class Value : std::uint8_t {
  none,
  hidden,
  embedded,
  positions,
  normed,
  qkv,
  q,
  k,
  v,
  stored_k,  ///< of prompts, in the type of the KV cache, or where that is quantised the model's
  stored_v,
  log_sum,  ///< of prompts, per row: PrefillAttention::lse
  score,    ///< of prompts, per token: ColumnSums::score
  attended,
  mlp_input,
  gate,
  up,
  last_hidden,
  last_embed,
  logits,
};
inline constexpr std::size_t kValues = 20;

struct Step {
  StepOp op;
  Value in = Value::none, out = Value::none;
  Role weight = Role::none, bias = Role::none;
  bool accumulate = false;  ///< of linear: out += in place of out =
  bool activation = false;  ///< of linear: the model's activation follows
  int part = 0;             ///< of take_heads
  bool operator==(const Step&) const = default;
};

/// The steps of a stage in a layer; for stages outside the layers any layer will do.
std::vector<Step> steps_of(const ModelSpec& model, Stage stage, int layer = 0);

/// The types that a run chooses.
struct Types {
  DType activation = DType::f32, kv = DType::f16;  ///< kv: of prompts' keys and values while they are attended to
};
struct ValueShape {
  DType dtype = DType::f32;
  std::int64_t rows = 0, cols = 0;
  std::size_t bytes() const { return bytes_of(dtype, rows * cols); }
};
/// `rows`: of a chunk, or of a batch for what has a row per sequence.
ValueShape shape_of(Value value, const ModelSpec& model, const Types& types, std::int64_t rows);

/// The values that are in the work space while these steps run, in the order in which they are first written.
std::vector<Value> scratch_values(std::span<const Step> steps);
/// Room for one of them.
std::size_t take(offload::Arena& arena, const ValueShape& shape);

/// What a step of `rows` rows multiplies: elements of its weight times rows; 0 but for linear.
double products(const ModelSpec& model, const Step& step, double rows);
/// What a step that is bound by memory reads and writes; 0 for linear and attend.
double pointwise_bytes(const ModelSpec& model, const Types& types, const Step& step, double rows);

/// Of one token through all layers and the head, its attention over `context` tokens included.
double flops_per_token(const ModelSpec& model, double context, bool head);

}  // namespace weft::policy
