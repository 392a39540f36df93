// runtime/engine/random_cache.h: fills a KV cache with random keys and values, for benchmarks of decode at any context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/backend.h"
#include "policy/layout/retention.h"
#include "policy/model/model.h"
#include "runtime/engine/batch_rows.h"

namespace weft::runtime {

/// Takes device memory for one token per slot of the longest sequence filled so far.
class RandomCache {
 public:
  /// `kv`: the type of a model's keys and values. The references must outlive the cache.
  RandomCache(const policy::ModelSpec& model, const policy::Retention& retention, DType kv, kernels::Backend& backend);
  /// Fills the slots of all live sequences as `retention` keeps their prompts. `runs`: the layer's runs of heads.
  void fill(int layer, const BatchRows& rows, std::span<const kernels::KvSlots> runs, kernels::Stream& stream);

 private:
  void make(std::int64_t tokens, kernels::Stream& stream);
  void fill_run(int layer, const BatchRows& rows, std::size_t run, int first_head, const kernels::KvSlots& kv,
                kernels::Stream& stream);

  const policy::ModelSpec& model_;
  const policy::Retention& retention_;
  const DType kv_;
  std::int64_t heads_ = 0, cols_ = 0;  // KV heads and numbers of a token's keys, in the layer that has the most
  kernels::Backend& backend_;
  std::unique_ptr<kernels::Memory> numbers_;  // the numbers as kv_, the same as fp32, KeepPrompt's work space; lazy
  std::int64_t tokens_ = 0;
};

}  // namespace weft::runtime
