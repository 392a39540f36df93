// runtime/engine/batch_rows.h: the sequences of a gpu batch that take part in one sweep, and their rows.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops.h"
#include "policy/layout/retention.h"

namespace weft::runtime {

/// The part of one sequence that each run of heads in each layer keeps; indexed like policy::Footprint::kv_shapes.
using LayerKeeps = std::vector<std::vector<kernels::Keep>>;

/// Tokens with which the prompts of neighbours begin. They are computed once.
struct SharedPrefix {
  std::int64_t first = 0, last = 0;  ///< sequences [first, last), which have rows for the rest of their prompts
  std::int64_t begin = 0;            ///< its first row, if it has rows
  std::int64_t tokens = 0;           ///< a multiple of Backend::prefix_step()
  std::int32_t held_in = -1;         ///< the place whose slots have its keys and values, so that it has no rows; or -1
};

/// The live sequences of a gpu batch in one sweep, without padding. First come sequences that have begun, with one
/// token each; then those that begin, with what their prompts do not share; last those that begin with the prompt of
/// another sequence and so need no rows of their own. The rows of shared prefixes are behind those of all sequences.
struct BatchRows {
  std::int64_t begun = 0;
  std::vector<std::int32_t> sequence;    ///< [live] place in the batch's KV buffers
  std::vector<std::int32_t> offsets{0};  ///< [own + 1] where each sequence's own rows begin in the hidden states
  std::vector<SharedPrefix> prefixes;    ///< ascending
  std::vector<std::int32_t> shared;      ///< [live - own] index of the sequence whose prompt it shares
  std::vector<std::int32_t> tokens;      ///< [rows] ids
  std::vector<std::int32_t> position;    ///< [rows]
  std::vector<std::vector<std::vector<kernels::Keep>>> keeps;  ///< indexed like LayerKeeps, then [live]
  std::vector<std::int32_t> context;                           ///< [live] tokens of the whole sequence
  /// [begun] or empty: places whose slots hold the same as the first of each sequence's own, in layers that have not
  /// evicted anything.
  std::vector<kernels::AlikeSlots> alike;
  std::vector<std::int32_t> moved;  ///< indices of begun sequences whose stored tokens must move to lower positions

  /// Sequences with rows of their own.
  std::int64_t own() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
  std::int64_t live() const { return static_cast<std::int64_t>(sequence.size()); }
  std::int64_t rows() const { return static_cast<std::int64_t>(tokens.size()); }
  /// [runs of the layer's heads][live]
  const std::vector<std::vector<kernels::Keep>>& keep(int layer) const { return policy::entry_of(keeps, layer); }
  void clear();
  /// `each` must have the same shape for every sequence. `length`: tokens of the whole sequence.
  void add(std::int32_t place, const LayerKeeps& each, std::int32_t length);
};

}  // namespace weft::runtime
