// runtime/engine/layers.h: a sublayer of the architecture table as kernel ops over views.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "policy/model.h"
#include "policy/retention.h"
#include "runtime/engine/batch_rows.h"
#include "runtime/engine/storage.h"

namespace weft::runtime {

/// The activation that config.json names. Throws DataError with the known names.
kernels::Activation activation_named(const std::string& name, const std::string& where);

/// Runs sublayers on the device, chunk by chunk of at most `chunk_tokens` rows (or one prompt), so that the work space
/// is bounded; a row's result does not depend on the chunk. After `stop` the next chunk throws Interrupted. One thread
/// at a time, the device lane's; attention_core the host lane's.
class Layers {
 public:
  Layers(const policy::ModelSpec& model, const policy::Retention& retention, DType kv_type, std::int64_t chunk_tokens,
         kernels::Backend& backend, Storage& storage, const std::atomic<bool>& stop);

  void embed(const UnitViews& unit, const BatchRows& rows, View hidden, kernels::Stream& stream);
  /// A KV block on the device, and its home where that is host memory and is not written as a whole: both change.
  struct Cache {
    kernels::KvSlots slots, home;
  };
  void attention(int layer, const UnitViews& unit, const BatchRows& rows, View hidden, const Cache& kv,
                 kernels::Stream& stream);
  /// The three parts of attention whose core runs on the host. Prompts do not go there: the first part does all of
  /// theirs and leaves what is kept in `kv`, on the host.
  void attention_in(int layer, const UnitViews& unit, const BatchRows& rows, View hidden, const Storage::Exchange& out,
                    const kernels::KvSlots& kv, kernels::Stream& stream);
  void attention_core(int layer, const BatchRows& rows, const Storage::Exchange& host, const kernels::KvSlots& kv);
  void attention_out(const UnitViews& unit, const BatchRows& rows, View hidden, ConstView attended,
                     kernels::Stream& stream);
  void mlp(const UnitViews& unit, View hidden, kernels::Stream& stream);
  /// Last rows of each live sequence, normed and projected, to the first rows of `last_embed`.
  void output(const UnitViews& unit, const BatchRows& rows, View hidden, View last_hidden, View last_embed,
              kernels::Stream& stream);
  /// One piece of the head: `columns` of the logits.
  void head(ConstView piece, ConstView last_embed, View logits_columns, kernels::Stream& stream);

  const kernels::Ops& ops() const { return ops_; }

  /// For benchmarks of decode at any context: from now on prefill computes nothing but the last token of each prompt
  /// and fills the KV cache with random keys and values.
  void set_synthetic_prefill(bool on) { synthetic_ = on; }
  bool synthetic_prefill() const { return synthetic_; }

 private:
  struct Projected {
    View q, k, v;
  };
  void begin_chunk();
  /// Any of the model's norms.
  void norm(const UnitViews& unit, policy::Role weight, policy::Role bias, ConstView x, View out,
            kernels::Stream& stream) const;
  View normed(const UnitViews& unit, policy::Role weight, policy::Role bias, View hidden, kernels::Stream& stream);
  void project(const UnitViews& unit, std::span<const std::int32_t> position, View hidden, const Projected& out,
               kernels::Stream& stream);
  void project_back(const UnitViews& unit, ConstView attended, View hidden, kernels::Stream& stream);
  void feed_forward(const UnitViews& unit, ConstView in, View hidden, kernels::Stream& stream);
  void prefill(int layer, const BatchRows& rows, std::int64_t first, std::int64_t last, const Projected& in,
               View attended, const Cache& kv, kernels::Stream& stream);
  /// All of attention for the sequences from `first` on.
  void attend(int layer, const UnitViews& unit, const BatchRows& rows, std::int64_t first, View hidden, const Cache& kv,
              kernels::Stream& stream);
  /// To the block, and to its home where that is written along.
  void keep_prompts(kernels::KeepPrompt& op, const Cache& kv, kernels::Stream& stream) const;
  void decode(const kernels::Ops& ops, int layer, const BatchRows& rows, std::int64_t first, std::int64_t last,
              const Projected& in, View attended, const Cache& kv, kernels::Stream& stream) const;
  void fill_cache(int layer, const BatchRows& rows, const kernels::KvSlots& kv, kernels::Stream& stream);
  /// Ends of the chunks of whole sequences from `first` on: indices into rows.offsets.
  std::vector<std::int64_t> chunks(const BatchRows& rows, std::int64_t first) const;
  std::uint64_t seed(int layer) const;

  const policy::ModelSpec& model_;
  const policy::Retention& retention_;
  const kernels::Activation activation_;
  const kernels::Scoring scoring_;
  const DType kv_type_;
  const std::int64_t chunk_tokens_;
  const float scale_;
  kernels::Backend& backend_;
  const kernels::Ops& ops_;
  Storage& storage_;
  const std::atomic<bool>& stop_;
  bool synthetic_ = false;
  std::unique_ptr<kernels::Memory> random_cache_;  // of fill_cache(), made at its first call
  std::int64_t random_tokens_ = 0;
};

}  // namespace weft::runtime
