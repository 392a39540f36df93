// runtime/engine/batch_rows.h: who takes part in one sweep of a gpu batch, and where their rows are.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops.h"
#include "policy/retention.h"

namespace weft::runtime {

/// What each run of heads keeps of a sequence: as policy::Footprint::kv_shapes.
using LayerKeeps = std::vector<std::vector<kernels::Keep>>;

/// The live sequences of a gpu batch in one sweep; no padding. First those that have begun, one token each, then those
/// that begin, with their whole prompts, at last those that begin with the prompt of another and so need no rows.
struct BatchRows {
  std::int64_t begun = 0;
  std::vector<std::int32_t> sequence;    ///< [live] place in the batch's KV blocks
  std::vector<std::int32_t> offsets{0};  ///< [own + 1] rows of each in the hidden states
  std::vector<std::int32_t> shared;      ///< [live - own] which of the own ones' prompts the others begin with
  std::vector<std::int32_t> tokens;      ///< [rows] ids
  std::vector<std::int32_t> position;    ///< [rows]
  std::vector<std::vector<std::vector<kernels::Keep>>> keeps;  ///< as LayerKeeps, [live] each
  std::vector<std::int32_t> context;                           ///< [live] tokens of the whole sequence
  std::vector<std::int32_t> moved;  ///< which of those that have begun store what has to move to lower positions

  /// Sequences with rows of their own.
  std::int64_t own() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
  std::int64_t live() const { return static_cast<std::int64_t>(sequence.size()); }
  std::int64_t rows() const { return static_cast<std::int64_t>(tokens.size()); }
  /// [runs of the layer's heads][live]
  const std::vector<std::vector<kernels::Keep>>& keep(int layer) const { return policy::entry_of(keeps, layer); }
  void clear();
  /// `each`: as many as of every other sequence.
  void add(std::int32_t place, const LayerKeeps& each, std::int32_t length);
};

}  // namespace weft::runtime
