// policy/planner/cost.h: the time that each op of a schedule takes alone on a machine. It counts the flops and bytes of
// runtime/engine/layers.cc and runtime/engine/storage.cc (the terms of FlexGen's cost model, arXiv 2303.06865,
// section 4.3, per op).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "policy/layout/footprint.h"
#include "policy/planner/machine.h"

namespace weft::policy {

/// One pass over the weights.
struct Sweep {
  bool prefill = false;
  std::int64_t live = 1;  ///< unfinished sequences of the block
  double tokens = 1;      ///< new tokens per sequence: its prompt in prefill, one in decode
  double own = 1;         ///< share of the sequences that have rows; the others share a neighbour's prefill
  double visible = 1;     ///< tokens per sequence that decode attends to, if its layer has that many slots
  double joining = 0;     ///< tokens of prompts that join a decode sweep: counted in the experts that are loaded alone
  /// The live sequences of a gpu batch. The batches fill in order.
  std::int64_t rows(int batch, int gpu_batch_size) const {
    return std::clamp<std::int64_t>(live - std::int64_t{batch} * gpu_batch_size, 0, gpu_batch_size);
  }
  /// The sequences that have rows, of so many in a batch.
  double with_rows(std::int64_t sequences) const { return sequences > 0 ? std::max(1.0, double(sequences) * own) : 0; }
};

/// All references must outlive it.
class Cost {
 public:
  Cost(const ModelSpec& model, const std::vector<Unit>& units, const Policy& policy, const Footprint& footprint,
       const SizingInputs& sizing, const Machine& machine);

  /// `routed`: as in SecondsOf.
  double seconds(const Op& op, const Sweep& sweep, bool routed = false) const;
  /// Bytes that a load or store op moves.
  double bytes(const Op& op, const Sweep& sweep, bool routed = false) const;
  /// Seconds to read over the link what a step takes of low rows, where KV is at home on the host.
  double low_rows(int layer, double sequences, double tokens) const;
  /// The rows of a pass over the weights, which begins with the batch `first`, with prompts that join it.
  double rows_of_pass(int first, const Sweep& sweep) const;
  /// The share of experts that they choose.
  double touched(int first, const Sweep& sweep) const;

 private:
  /// Whether quantised units are multiplied as they lie in this sweep, although the machine unpacks others.
  bool packed(const Sublayer& sub, const Sweep& sweep) const;
  double compute(const Op& op, const Sweep& sweep) const;
  double unpack(const Unit& unit, double bytes) const;
  double disk_rows(double rows) const;
  double attention(const Op& op, std::int64_t sequences, const Sweep& sweep) const;
  /// `keeping`: the sequences that get slots, which may be more than those that have rows.
  double prefill_core(int layer, double sequences, double keeping, double prompt) const;
  double decode_core(const Engine& engine, std::span<const offload::KvShape> runs, double sequences,
                     double tokens) const;
  /// A stage that works row by row, in pieces of Workspace::piece_tokens rows.
  double pieces(Stage stage, int layer, double rows, bool packed) const;
  /// A unit of experts over the rows of a batch.
  double experts(const Sublayer& sub, double rows, bool packed) const;
  /// The same on the host, over the rows of all batches.
  double experts_on_host(const Sublayer& sub, double rows) const;
  /// The device's part of it over the rows of a batch: it reads what was made from host memory and adds it.
  double add_experts(const Sublayer& sub, double rows) const;
  double host_product(double elements, double rows) const;
  double head(const Unit& unit, bool last, double rows, bool packed) const;
  /// All steps of a stage over `rows` rows, except attention itself.
  double steps(Stage stage, int layer, double rows, bool packed) const;
  double product(double elements, double rows, DType weights, bool packed) const;
  double bits() const;
  DType weights_of(Stage stage) const;
  double pointwise(double bytes) const;

  const ModelSpec& model_;
  const std::vector<Unit>& units_;
  const Policy& policy_;
  const Footprint& footprint_;
  const SizingInputs& sizing_;
  const Machine& machine_;
  double exchanged_row_ = 0;  // bytes of a row that the host attends, on its way there
  std::array<std::array<std::vector<Step>, kStages>, kLayerKinds> steps_;  // all layers of a kind are nearly alike
  double embedding_on_disk_ = 0, positions_on_disk_ = 0, layer_inputs_on_disk_ = 0;  // shares of the tables
};

}  // namespace weft::policy
