// runtime/engine/layers.h: runs the steps of sublayers (policy/model/steps.h) as kernel ops over views.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "offload/memory.h"
#include "policy/layout/retention.h"
#include "policy/layout/rolling.h"
#include "policy/model/model.h"
#include "policy/model/steps.h"
#include "runtime/base/stop.h"
#include "runtime/engine/batch_rows.h"
#include "runtime/engine/layer_data.h"
#include "runtime/engine/random_cache.h"
#include "runtime/model/weights.h"

namespace weft::runtime {

/// Runs sublayers on the device, so that the work space is bounded: attention in chunks of at most `chunk_tokens` rows
/// besides the keys and values of one prompt or of a shared prefix, and what works row by row in pieces of at most
/// `piece_tokens` rows. A row's result depends on neither. Once `stop` is over, the next chunk or piece throws
/// Interrupted.
/// attention_core() is called by the host lane's thread, everything else by the device lane's, one thread at a time. Of
/// layers on the host make_expert_rows() is called by the host lane's, and nothing else.
class Layers {
 public:
  /// Returns the steps of a stage. `layer` is 0 for stages outside the layers.
  using StepsOf = std::function<std::vector<policy::Step>(policy::Stage stage, int layer)>;

  /// `workspace`: device memory of Workspace::chunk bytes. The plan's references, `tables`, `backend` and `stop` must
  /// outlive the layers. `steps_of` is policy::steps_of() of the model, except in tests.
  Layers(const LayersPlan& plan, const StepsOf& steps_of, std::span<std::byte> workspace, TableRows& tables,
         kernels::Backend& backend, const GracePeriod& stop);
  Layers(const LayersPlan& plan, std::span<std::byte> workspace, TableRows& tables, kernels::Backend& backend,
         const GracePeriod& stop);

  void embed(const UnitViews& unit, const BatchRows& rows, const HiddenRows& hidden, kernels::Stream& stream);
  /// A KV buffer on the device. `home` is its home in host memory, if ops write their changes there as well; it is
  /// empty if the buffer is stored as a whole or its home is elsewhere.
  struct Cache {
    HeadRunSlots slots, home;
  };
  void attention(int layer, const UnitViews& unit, const BatchRows& rows, const HiddenRows& hidden, const Cache& kv,
                 kernels::Stream& stream);
  /// The three parts of attention whose core runs on the host. Prompts stay on the device: attention_in() does all of
  /// their attention and writes what is kept to `kv`, on the host.
  void attention_in(int layer, const UnitViews& unit, const BatchRows& rows, const HiddenRows& hidden,
                    const Exchange& out, const HeadRunSlots& kv, kernels::Stream& stream);
  void attention_core(int layer, const BatchRows& rows, const Exchange& host, const HeadRunSlots& kv);
  void attention_out(int layer, const UnitViews& unit, const BatchRows& rows, View hidden, View attended,
                     kernels::Stream& stream);
  /// `routed` is written if the layer is sparse, and not used if it is dense.
  void mlp(int layer, const UnitViews& unit, const HiddenRows& hidden, const RoutedBatch& routed,
           kernels::Stream& stream);
  /// Adds what one expert, whose tensors are `unit`, computes for its rows.
  void expert(int layer, const UnitViews& unit, View hidden, const RoutedBatch& routed, const ExpertRows& chosen,
              kernels::Stream& stream);
  /// The same in two parts, for an expert that the host computes. make_expert_rows() writes what it makes of the rows
  /// `of` of `input`, a row for each, and add_expert_rows() adds that.
  void make_expert_rows(int layer, const UnitViews& unit, View input, std::span<const std::int32_t> of, View made,
                        kernels::Stream& stream);
  void add_expert_rows(int layer, View hidden, const RoutedBatch& routed, const ExpertRows& chosen, View made,
                       kernels::Stream& stream);
  /// Runs what follows a layer's last expert, whose tensors are `unit`: nothing in most models.
  void end_experts(int layer, const UnitViews& unit, View hidden, const RoutedBatch& routed, kernels::Stream& stream);
  /// Writes the last row of each live sequence, normed and projected, to the first rows of `last_embed`.
  void output(const UnitViews& unit, const BatchRows& rows, View hidden, View last_hidden, View last_embed,
              kernels::Stream& stream);
  /// Computes one piece of the head: `logits_columns` of the logits.
  void head(const UnitViews& piece, View last_embed, View logits_columns, kernels::Stream& stream);

  const policy::ModelSpec& model() const { return model_; }
  const kernels::Ops& ops() const { return ops_; }
  std::int64_t prefix_tokens() const { return prefix_tokens_; }
  const policy::Retention& retention() const { return retention_; }
  policy::Rolling rolling() const { return policy::rolling_of(model_, retention_); }

  /// Called on the device lane's thread once the scores of some prompts in one layer are computed, with the op that
  /// computed them. Serves the analysis of attention, whose prompts must fit into a chunk.
  using OnPrompts = std::function<void(int layer, const kernels::ColumnSums& op)>;
  void set_on_prompts(OnPrompts on_prompts) { on_prompts_ = std::move(on_prompts); }

  /// Serves benchmarks of decode at any context. While it is on, prefill computes only the last token of each prompt
  /// and fills the KV cache with random keys and values.
  void set_synthetic_prefill(bool on) { synthetic_ = on; }
  bool synthetic_prefill() const { return synthetic_; }

 private:
  /// The matrices that steps work on, by policy::Value. An empty view is absent.
  using Values = std::array<View, policy::kValues>;
  /// The rows that steps work on. A stage needs only the fields that its steps use.
  struct Chunk {
    std::span<const std::int32_t> tokens, position;  // [rows]
    std::span<const std::int32_t> last;              // [sequences] the last row of each
    bool narrow_qkv = false;                         // q, k and v of one product in the type of products
    std::span<std::int32_t> expert = {};             // [rows * chosen] written by the router
    std::span<float> weight = {};
    ExpertRows routed = {};
  };

  /// Frees the work space from `used` on.
  void begin_chunk(std::size_t used = 0);
  /// Runs a stage that works row by row, piece by piece, over rows of hidden states. Values that `whole` has are of all
  /// rows; others get room for a piece, after what is in use.
  void run_pieces(policy::Stage stage, int layer, const UnitViews& unit, const Chunk& chunk, const Values& whole,
                  kernels::Stream& stream);
  const std::vector<policy::Step>& steps(policy::Stage stage, int layer = 0) const;
  /// Makes room in the work space for a value of `rows` rows, in the chunk's type.
  View take(policy::Value value, std::int64_t rows, int layer, const Chunk& chunk);
  /// Runs the steps of a stage. Values that they write and `values` lacks get room in the work space and are added to
  /// `values`.
  void run(policy::Stage stage, int layer, const UnitViews& unit, const Chunk& chunk, Values& values,
           kernels::Stream& stream);
  void run(const std::vector<policy::Step>& steps, std::int64_t rows, int layer, const UnitViews& unit,
           const Chunk& chunk, Values& values, kernels::Stream& stream);
  void run(const policy::Step& step, int layer, const UnitViews& unit, const Chunk& chunk, const Values& values,
           kernels::Stream& stream) const;
  /// Runs the products of one input that begin with `steps`; returns their number, or 0 if there are fewer than two.
  std::size_t run_products(std::span<const policy::Step> steps, const UnitViews& unit, const Values& values,
                           kernels::Stream& stream) const;
  void norm(const policy::Step& step, const UnitViews& unit, View in, View out, kernels::Stream& stream,
            int head_dim = 0) const;
  kernels::Route route(const View& logits, const ConstView& bias, const ConstView& by, const Chunk& chunk) const;
  void rotary(int layer, std::span<const std::int32_t> position, View heads, kernels::Stream& stream) const;
  void scale(policy::Factor factor, View x, kernels::Stream& stream) const;
  /// Those of some heads, for both sides that attend; empty if the model has none.
  std::span<const float> sink_logits(int layer, int first, int heads) const;
  /// Sequences whose attention is computed at once, and the prefix that they share, or null.
  struct Part {
    std::int64_t first, last;
    const SharedPrefix* prefix;
  };
  /// The parts of the sequences from `first` on.
  std::vector<Part> parts(const BatchRows& rows, std::int64_t first) const;
  /// The work space of attention over one part, or over all parts with one prefix.
  struct Attending {
    Values values;                 ///< as policy::attention_shape() has them
    std::int64_t prefix = 0;       ///< its tokens, whose keys and values come first
    std::int64_t prefix_rows = 0;  ///< those of its last chunk, which come first among the queries
    View prefix_score;             ///< [kv_heads, kernels::whole_steps(prefix)] by the prefix's own rows; or empty
  };
  /// Consecutive rows that attend at once: whole prompts, or a part of one.
  struct PromptChunk {
    std::int64_t row, count;  ///< the first one in the batch; their number
    std::int64_t token;       ///< the place of the first key and value
    std::int64_t query;       ///< the place of the first query
  };
  /// Makes room for parts of at most `rows` rows each, after `prefix` tokens.
  Attending take_attention(int layer, const UnitViews& unit, std::int64_t prefix, std::int64_t rows, bool prompts);
  /// Whether a layer's tokens stay by the attention that they received.
  bool scored(int layer) const { return retention_.scored() && !retention_.everything(layer); }
  /// `rows` rows from `row` on, whose keys and values have places from `token` on, cut at multiples of
  /// kernels::kPrefixStep tokens.
  std::vector<PromptChunk> chunks_of(std::int64_t row, std::int64_t rows, std::int64_t token, std::int64_t query) const;
  std::int64_t key_row(const PromptChunk& chunk) const;
  /// Runs what comes before and after attention for some rows, and `attend_to` between.
  void around_attention(int layer, const UnitViews& unit, const BatchRows& rows, const HiddenRows& hidden,
                        const PromptChunk& chunk, const Values& values, const std::function<void()>& attend_to,
                        kernels::Stream& stream);
  /// Attention of the chunk's rows to themselves and to the tokens before. `offsets` as in kernels::PrefillAttention.
  /// Returns the op, which has run.
  kernels::PrefillAttention attend_prompts(int layer, const Attending& at, const PromptChunk& chunk,
                                           std::span<const std::int32_t> offsets, kernels::Stream& stream);
  /// All of attention for a prefix's own rows, the scores that they give their tokens, and rotate().
  void prefill_prefix(int layer, const UnitViews& unit, const BatchRows& rows, const SharedPrefix& prefix,
                      const HiddenRows& hidden, Attending& at, kernels::Stream& stream);
  /// All of attention for a part's prompts, and what stays of them.
  void prefill(int layer, const UnitViews& unit, const BatchRows& rows, const Part& part, const HiddenRows& hidden,
               const Attending& at, const Cache& kv, kernels::Stream& stream);
  /// Adds the scores that a chunk of a long prompt gives all tokens so far; `left` of its rows come later. `scores` has
  /// those of the chunks before, or is empty. Returns them.
  View add_scores(const kernels::PrefillAttention& attention, const Attending& at, std::int64_t left, View scores,
                  kernels::Stream& stream) const;
  /// Writes what stays of a part's prompts. `attention` has attended to them all, `scores` are theirs if they are
  /// known.
  void keep_part(int layer, const BatchRows& rows, const Part& part, const Attending& at,
                 const kernels::PrefillAttention& attention, std::span<const std::int32_t> offsets, View scores,
                 const Cache& kv, kernels::Stream& stream) const;
  /// Runs all of attention for the sequences from `first` on.
  void attend(int layer, const UnitViews& unit, const BatchRows& rows, std::int64_t first, const HiddenRows& hidden,
              const Cache& kv, kernels::Stream& stream);
  /// Writes what the sequences [first, last) keep of their prompts to the buffer, and to its home if that is written as
  /// well. `op` covers all heads and has neither slots nor budgets.
  void keep_prompts(int layer, const kernels::KeepPrompt& op, const BatchRows& rows, std::int64_t first,
                    std::int64_t last, const Cache& kv, kernels::Stream& stream) const;
  void decode(const kernels::Ops& ops, int layer, const BatchRows& rows, std::int64_t first, std::int64_t last,
              const Values& values, const Cache& kv, kernels::Stream& stream) const;
  /// Moves the stored tokens of sequences whose next position would leave the context to lower positions.
  void roll(const kernels::Ops& ops, int layer, const BatchRows& rows, std::int64_t first, std::int64_t last,
            const Cache& kv, kernels::Stream& stream) const;
  /// Rotates heads in place if the KV format asks for it; otherwise does nothing.
  void rotate(const kernels::Ops& ops, int layer, const View& heads, kernels::Stream& stream) const;

  const policy::ModelSpec& model_;
  const policy::Retention& retention_;
  const policy::Types types_;
  const bool rotate_;
  const kernels::Activation activation_;
  const std::int64_t chunk_tokens_, piece_tokens_, prefix_tokens_;
  const Arithmetic arithmetic_;
  const float scale_;
  const std::vector<std::vector<float>> sink_logits_;
  std::vector<std::array<std::vector<policy::Step>, policy::kStages>> steps_;  // [layers]
  offload::Arena scratch_;
  TableRows& tables_;
  kernels::Backend& backend_;
  const kernels::Ops& ops_;
  const GracePeriod& stop_;
  RandomCache random_cache_;  // for synthetic prefill
  bool synthetic_ = false;
  OnPrompts on_prompts_;
};

}  // namespace weft::runtime
