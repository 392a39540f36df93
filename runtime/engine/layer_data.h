// runtime/engine/layer_data.h: data of layers: the rows that they exchange, experts, and how layers compute and store.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "policy/layout/retention.h"
#include "policy/model/model.h"
#include "policy/model/steps.h"
#include "runtime/model/weights.h"

namespace weft::runtime {

/// Access to the rows of a model's tables. Each table lies in one or several pieces of memory.
class TableRows {
 public:
  virtual ~TableRows() = default;
  /// out [ids, cols] = the rows `ids` of the table whose pieces are units of `kind`, converted. Called on the device
  /// lane's thread.
  virtual void gather(policy::Unit::Kind kind, std::span<const std::int32_t> ids, View out,
                      kernels::Stream& stream) = 0;
};

/// The rows of hidden states of a batch, on the device, and what a layer finds beside them (policy::HiddenLayout): its
/// input, and the keys and values that it lends or borrows. What the model does not have is empty.
struct HiddenRows {
  HiddenRows(View rows) : hidden(rows) {}  // NOLINT(google-explicit-constructor): most models have no more
  HiddenRows slice(std::int64_t first, std::int64_t count) const;
  View hidden;
  View layer_inputs = {};  ///< [rows, layers * layer_input] of the embedding, [rows, layer_input] of a layer
  View lent_k = {}, lent_v = {};
};
/// The same in a buffer of hidden_layout() for so many rows; `layer` is -1 outside of the layers.
HiddenRows hidden_rows(const policy::ModelSpec& model, const policy::Types& types, std::byte* buffer, std::int64_t rows,
                       int layer);

/// The rows of a batch that the host attends, [sequences, heads * head_dim] each. On the device these are q, k and v,
/// which go to the host; on the host also the result, `attended`.
struct Exchange {
  View q, k, v, attended;
};

/// A batch in a sparse layer, until its last expert.
struct RoutedBatch {
  View mlp_input, mlp_output, expert_sum;  ///< [rows, hidden], on the device; policy::HiddenLayout
  std::span<std::int32_t> expert;  ///< [rows * chosen], as kernels::Route has them; host memory, also of `weight`
  std::span<float> weight;
};
/// The rows that chose an expert, ascending, and their weights.
struct ExpertRows {
  std::span<const std::int32_t> rows;
  std::span<const float> weight;
};

/// The slots of a KV buffer, one entry for each run of heads (policy::Footprint::kv_shapes).
using HeadRunSlots = std::vector<kernels::KvSlots>;

/// The model, and how its layers compute and store.
struct LayersPlan {
  const policy::ModelSpec& model;
  const policy::Retention& retention;
  policy::Types types;
  bool rotate = false;  ///< rotate keys and values before they are quantised (policy::KvFormat)
  std::int64_t chunk_tokens = 0, piece_tokens = 0, prefix_tokens = 0;  ///< as in policy::Workspace; chunk_tokens at
                                                                       ///< least kernels::kPrefixStep
  Arithmetic arithmetic = Arithmetic::exact;                           ///< used for products with quantised weights
  std::vector<std::vector<float>> sink_logits = {};                    ///< [layers, heads] if the model has sinks
  bool on_host = false;                                                ///< computed by Backend::host_ops()
};

}  // namespace weft::runtime
