#include "runtime/engine/random_cache.h"

#include <algorithm>
#include <array>
#include <random>
#include <utility>

#include "runtime/model/kernel_terms.h"

namespace weft::runtime {

RandomCache::RandomCache(const policy::ModelSpec& model, const policy::Retention& retention, DType kv,
                         kernels::Backend& backend)
    : model_(model), retention_(retention), kv_(kv), backend_(backend) {
  for (int layer = 0; layer < model.layers; ++layer) {
    const std::int64_t heads = model.kv_heads_of(layer);
    heads_ = std::max(heads_, heads), cols_ = std::max(cols_, heads * model.head_dim_of(layer));
  }
}

void RandomCache::make(std::int64_t tokens, kernels::Stream& stream) {
  if (tokens <= tokens_) return;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const auto count = static_cast<std::size_t>(tokens * cols_), bytes = count * size_of(kv_),
             size = count * sizeof(float);
  const auto values = backend_.allocate_host(size);
  for (std::size_t i = 0; i < count; ++i) reinterpret_cast<float*>(values->data())[i] = normal(random);
  const auto work = static_cast<std::size_t>(tokens * heads_) * sizeof(float);  // KeepPrompt's work space
  auto larger = backend_.allocate_device(bytes + size + work);
  View wide(larger->data() + bytes, DType::f32, tokens, cols_);
  const auto copied = backend_.make_event();
  backend_.copy(wide.data, values->data(), size, stream);
  backend_.record(*copied, stream);
  backend_.synchronize(*copied);  // so that no op of a layer with fewer slots still reads the old numbers
  numbers_ = std::move(larger), tokens_ = tokens;
  backend_.ops().run(kernels::Convert{wide, View(numbers_->data(), kv_, tokens_, cols_)}, stream);
}

void RandomCache::fill(int layer, const BatchRows& rows, std::span<const kernels::KvSlots> runs,
                       kernels::Stream& stream) {
  int head = 0;
  for (std::size_t run = 0; run < runs.size(); ++run) {
    fill_run(layer, rows, run, head, runs[run], stream);
    head += runs[run].kv_heads;
  }
}

void RandomCache::fill_run(int layer, const BatchRows& rows, std::size_t run, int first_head,
                           const kernels::KvSlots& kv, kernels::Stream& stream) {
  make(kv.slots, stream);
  const std::int64_t head_dim = model_.head_dim_of(layer);
  // The scores are taken from the same random numbers, [kv_heads, tokens].
  auto* const scores = numbers_->data() + static_cast<std::size_t>(tokens_ * cols_) * size_of(kv_);
  auto* const work = scores + static_cast<std::size_t>(tokens_ * cols_) * sizeof(float);
  for (std::int64_t s = 0; s < rows.live(); ++s) {
    const auto index = static_cast<std::size_t>(s);
    const kernels::Keep& keep = rows.keep(layer)[run][index];
    const std::int32_t tokens = std::min(
        {keep.of_prompt() + std::min(keep.cold, std::int32_t{kv.cold}), rows.context[index], std::int32_t{kv.slots}});
    const std::array<std::int32_t, 2> offsets{0, tokens};
    // KeepPrompt quantises fp32, which follows the numbers of the KV type.
    const ConstView both = is_quantised(kv.dtype) ? ConstView(scores, DType::f32, tokens, cols_)
                                                  : ConstView(numbers_->data(), kv_, tokens, cols_);
    const ConstView of_heads = both.columns(first_head * head_dim, kv.kv_heads * head_dim);
    backend_.ops().run(
        kernels::KeepPrompt{.k = of_heads,
                            .v = of_heads,
                            .score = scoring_of(retention_, layer, first_head) == kernels::Scoring::attention
                                         ? ConstView(scores, DType::f32, kv.kv_heads, tokens)
                                         : ConstView{},
                            .offsets = offsets,
                            .sequence = std::span(rows.sequence).subspan(index, 1),
                            .keep = std::span(rows.keep(layer)[run]).subspan(index, 1),
                            .scoring = scoring_of(retention_, layer, first_head),
                            .seed = seed_of(retention_, layer, first_head),
                            .slots = kv,
                            .work = View(work, DType::f32, kv.kv_heads, tokens)},
        stream);
  }
}

}  // namespace weft::runtime
