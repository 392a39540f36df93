// runtime/engine/layers.h: interprets the steps of sublayers (policy/steps.h) as kernel ops over views.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "offload/memory.h"
#include "policy/model.h"
#include "policy/retention.h"
#include "policy/rolling.h"
#include "policy/steps.h"
#include "runtime/base/stop.h"
#include "runtime/engine/batch_rows.h"
#include "runtime/engine/random_cache.h"
#include "runtime/engine/weights.h"

namespace weft::runtime {

/// Rows of a model's tables, each table in one or several pieces of memory.
class TableRows {
 public:
  virtual ~TableRows() = default;
  /// out [ids, cols] = the rows `ids` of the table whose pieces are units of `kind`, converted. Called on the device
  /// lane's thread.
  virtual void gather(policy::Unit::Kind kind, std::span<const std::int32_t> ids, View out,
                      kernels::Stream& stream) = 0;
};

/// The rows of a batch that the host attends: on the device what goes there; on the host that and the result.
/// [sequences, heads * head_dim] each.
struct Exchange {
  View q, k, v, attended;
};

/// The slots of a KV buffer, for each run of heads (policy::Footprint::kv_shapes).
using KvRuns = std::vector<kernels::KvSlots>;

/// What a model's layers are made for.
struct LayersPlan {
  const policy::ModelSpec& model;
  const policy::Retention& retention;
  policy::Types types;
  bool rotate = false;  ///< keys and values before they are quantised (policy::KvFormat)
  std::int64_t chunk_tokens = 0;
  Arithmetic arithmetic = Arithmetic::exact;  ///< of products with quantised weights
};

/// Runs sublayers on the device, chunk by chunk of at most `chunk_tokens` rows (or one prompt), so that the work space
/// is bounded; a row's result does not depend on the chunk. Once `stop` is over the next chunk throws Interrupted. One
/// thread at a time, the device lane's; attention_core the host lane's.
class Layers {
 public:
  /// By stage; for stages outside the layers `layer` is 0.
  using StepsOf = std::function<std::vector<policy::Step>(policy::Stage stage, int layer)>;

  /// `workspace`: device memory of Workspace::chunk bytes. The plan's references, `tables`, `backend` and `stop` must
  /// outlive the layers. `steps_of`: policy::steps_of() of the model; another one in tests.
  Layers(const LayersPlan& plan, const StepsOf& steps_of, std::span<std::byte> workspace, TableRows& tables,
         kernels::Backend& backend, const Grace& stop);
  Layers(const LayersPlan& plan, std::span<std::byte> workspace, TableRows& tables, kernels::Backend& backend,
         const Grace& stop);

  void embed(const UnitViews& unit, const BatchRows& rows, View hidden, kernels::Stream& stream);
  /// A KV buffer on the device, and its home where that is host memory and is not written as a whole: both change.
  struct Cache {
    KvRuns slots, home;
  };
  void attention(int layer, const UnitViews& unit, const BatchRows& rows, View hidden, const Cache& kv,
                 kernels::Stream& stream);
  /// The three parts of attention whose core runs on the host. Prompts do not go there: the first part does all of
  /// theirs and leaves what is kept in `kv`, on the host.
  void attention_in(int layer, const UnitViews& unit, const BatchRows& rows, View hidden, const Exchange& out,
                    const KvRuns& kv, kernels::Stream& stream);
  void attention_core(int layer, const BatchRows& rows, const Exchange& host, const KvRuns& kv);
  void attention_out(int layer, const UnitViews& unit, const BatchRows& rows, View hidden, View attended,
                     kernels::Stream& stream);
  void mlp(int layer, const UnitViews& unit, View hidden, kernels::Stream& stream);
  /// Last rows of each live sequence, normed and projected, to the first rows of `last_embed`.
  void output(const UnitViews& unit, const BatchRows& rows, View hidden, View last_hidden, View last_embed,
              kernels::Stream& stream);
  /// One piece of the head: `columns` of the logits.
  void head(const UnitViews& piece, View last_embed, View logits_columns, kernels::Stream& stream);

  const kernels::Ops& ops() const { return ops_; }
  policy::Rolling rolling() const { return policy::rolling_of(model_, retention_); }  ///< of positions

  /// Called, on the device lane's thread, once the scores of some prompts in one layer are computed, with what they
  /// were computed from. For looking at attention.
  using OnPrompts = std::function<void(int layer, const kernels::ColumnSums& op)>;
  void set_on_prompts(OnPrompts on_prompts) { on_prompts_ = std::move(on_prompts); }

  /// For benchmarks of decode at any context: from now on prefill computes nothing but the last token of each prompt
  /// and fills the KV cache with random keys and values.
  void set_synthetic_prefill(bool on) { synthetic_ = on; }
  bool synthetic_prefill() const { return synthetic_; }

 private:
  /// What steps work on, by policy::Value; empty: not there.
  using Values = std::array<View, policy::kValues>;
  /// The rows that steps work on; a stage needs only what its steps use.
  struct Chunk {
    std::span<const std::int32_t> tokens, position;  // [rows]
    std::span<const std::int32_t> last;              // [sequences] the last row of each
  };

  void begin_chunk();
  const std::vector<policy::Step>& steps(policy::Stage stage, int layer = 0) const;
  /// Makes room in the work space for a value of `rows` rows.
  View take(policy::Value value, std::int64_t rows);
  /// Runs the steps of a stage. What they write and `values` does not have lies in the work space, and in `values`
  /// from then on.
  void run(policy::Stage stage, int layer, const UnitViews& unit, const Chunk& chunk, Values& values,
           kernels::Stream& stream);
  void run(const policy::Step& step, const UnitViews& unit, const Chunk& chunk, const Values& values,
           kernels::Stream& stream) const;
  void norm(const policy::Step& step, const UnitViews& unit, View in, View out, kernels::Stream& stream) const;
  void prefill(int layer, const BatchRows& rows, std::int64_t first, std::int64_t last, const Values& values,
               const Cache& kv, kernels::Stream& stream);
  /// All of attention for the sequences from `first` on.
  void attend(int layer, const UnitViews& unit, const BatchRows& rows, std::int64_t first, View hidden, const Cache& kv,
              kernels::Stream& stream);
  /// `op` is of all heads and has neither slots nor budgets; to the buffer, and to its home where that is written
  /// along, for the sequences [first, last).
  void keep_prompts(int layer, const kernels::KeepPrompt& op, const BatchRows& rows, std::int64_t first,
                    std::int64_t last, const Cache& kv, kernels::Stream& stream) const;
  void decode(const kernels::Ops& ops, int layer, const BatchRows& rows, std::int64_t first, std::int64_t last,
              const Values& values, const Cache& kv, kernels::Stream& stream) const;
  /// Moves what some of these sequences store to lower positions, where the next would leave the context.
  void roll(const kernels::Ops& ops, int layer, const BatchRows& rows, std::int64_t first, std::int64_t last,
            const Cache& kv, kernels::Stream& stream) const;
  /// Of heads, in place; nothing unless the KV format says so.
  void rotate(const kernels::Ops& ops, const View& heads, kernels::Stream& stream) const;
  /// Ends of the chunks of whole sequences from `first` on: indices into rows.offsets.
  std::vector<std::int64_t> chunks(const BatchRows& rows, std::int64_t first) const;

  const policy::ModelSpec& model_;
  const policy::Retention& retention_;
  const policy::Types types_;
  const bool rotate_;
  const kernels::Activation activation_;
  const kernels::Statistic statistic_;
  const std::int32_t stride_;
  const std::int64_t chunk_tokens_;
  const Arithmetic arithmetic_;
  const float scale_;
  std::vector<std::array<std::vector<policy::Step>, policy::kStages>> steps_;  // [layers]
  offload::Arena scratch_;
  TableRows& tables_;
  kernels::Backend& backend_;
  const kernels::Ops& ops_;
  const Grace& stop_;
  RandomCache random_cache_;  // of synthetic prefill
  bool synthetic_ = false;
  OnPrompts on_prompts_;
};

}  // namespace weft::runtime
