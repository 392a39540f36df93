// runtime/engine/layers_attention.cc: attention over prompts and over KV slots, a run of heads at a time.
#include <algorithm>
#include <array>

#include "runtime/engine/layer_values.h"
#include "runtime/engine/layers.h"
#include "runtime/model/kernel_terms.h"

namespace weft::runtime {
namespace {

using policy::Value;

/// The scores of the prompts that `op` attends to.
kernels::ColumnSums sums_of(const kernels::PrefillAttention& op, const policy::Retention& retention, View score) {
  return {.q = op.q,
          .k = op.k,
          .lse = op.lse,
          .offsets = op.offsets,
          .heads = op.heads,
          .kv_heads = op.kv_heads,
          .head_dim = op.head_dim,
          .scale = op.scale,
          .observation = retention.observation,
          .score = score,
          .statistic = retention.statistic,
          .window = op.window,
          .cap = op.cap};
}

}  // namespace

std::span<const float> Layers::sink_logits(int layer, int first, int heads) const {
  if (!model_.sinks) return {};
  return part_of(sink_logits_[static_cast<std::size_t>(layer)], first, first + heads);
}

void Layers::prefill(int layer, const BatchRows& rows, std::int64_t first, std::int64_t last, const Values& values,
                     const Cache& kv, kernels::Stream& stream) {
  const View q = value_at(values, Value::q);
  const auto stored = [&](Value value, Value converted) {
    if (value_at(values, value).dtype == types_.kv) return value_at(values, value);
    ops_.run(kernels::Convert{value_at(values, value), value_at(values, converted)}, stream);
    return value_at(values, converted);
  };
  const View k = stored(Value::k, Value::stored_k), v = stored(Value::v, Value::stored_v);
  std::vector<std::int32_t> offsets(rows.offsets.begin() + first, rows.offsets.begin() + last + 1);
  for (std::int32_t& offset : offsets) offset -= rows.offsets[static_cast<std::size_t>(first)];

  const bool scored = retention_.scored() && !retention_.everything(layer);
  // KeepPrompt uses the memory of the row sums, which are not read once there are scores.
  const auto work_of = [&](std::int64_t begin, std::int64_t count) {
    const View sums = value_at(values, Value::log_sum);
    return View(static_cast<float*>(sums.data) + begin, DType::f32, model_.kv_heads, count, sums.stride);
  };
  const kernels::PrefillAttention attention{.q = q,
                                            .k = k,
                                            .v = v,
                                            .offsets = offsets,
                                            .heads = model_.heads,
                                            .kv_heads = model_.kv_heads,
                                            .head_dim = model_.head_dim,
                                            .scale = scale_,
                                            .out = value_at(values, Value::attended),
                                            .lse = scored ? value_at(values, Value::log_sum) : View{},
                                            .window = model_.window(layer),
                                            .cap = model_.attention_cap,
                                            .sink_logits = sink_logits(layer, 0, model_.heads)};
  ops_.run(attention, stream);
  View score;
  if (scored) {
    score = value_at(values, Value::score);
    const kernels::ColumnSums sums = sums_of(attention, retention_, score);
    ops_.run(sums, stream);
    if (on_prompts_) on_prompts_(layer, sums);
  }
  // Slots of int8 and int4 are filled from the numbers that the layer computed, rotated. The prompt has already
  // attended to them unrotated.
  const bool quantised = is_quantised(kv.slots.front().dtype);
  const View stored_k = quantised ? value_at(values, Value::k) : k,
             stored_v = quantised ? value_at(values, Value::v) : v;
  rotate(ops_, value_at(values, Value::k), stream);
  rotate(ops_, value_at(values, Value::v), stream);
  kernels::KeepPrompt keep{.k = stored_k,
                           .v = stored_v,
                           .score = score,
                           .offsets = offsets,
                           .sequence = part_of(rows.sequence, first, last),
                           .keep = {},
                           .slots = {},
                           .pool = retention_.pool,
                           .work = work_of(0, q.rows)};
  keep_prompts(layer, keep, rows, first, last, kv, stream);
  for (std::int64_t s = rows.own(); s < rows.live(); ++s) {
    const std::int64_t from = rows.shared[static_cast<std::size_t>(s - rows.own())];
    if (from < first || from >= last) continue;
    const std::int64_t begin = offsets[static_cast<std::size_t>(from - first)],
                       count = offsets[static_cast<std::size_t>(from - first + 1)] - begin;
    const std::array<std::int32_t, 2> whole{0, static_cast<std::int32_t>(count)};
    keep.k = stored_k.slice(begin, count), keep.v = stored_v.slice(begin, count), keep.offsets = whole;
    if (scored) keep.score = View(static_cast<float*>(score.data) + begin, DType::f32, score.rows, count, score.stride);
    keep.work = work_of(begin, count), keep.sequence = part_of(rows.sequence, s, s + 1);
    keep_prompts(layer, keep, rows, s, s + 1, kv, stream);
  }
}

void Layers::keep_prompts(int layer, const kernels::KeepPrompt& op, const BatchRows& rows, std::int64_t first,
                          std::int64_t last, const Cache& kv, kernels::Stream& stream) const {
  int head = 0;
  for (std::size_t run = 0; run < kv.slots.size(); ++run) {
    const int heads = kv.slots[run].kv_heads, dim = model_.head_dim;
    kernels::KeepPrompt own = op;
    own.k = op.k.columns(head * dim, heads * dim), own.v = op.v.columns(head * dim, heads * dim);
    own.scoring = scoring_of(retention_, layer, head), own.seed = seed_of(retention_, layer, head);
    own.score = own.scoring == kernels::Scoring::attention ? op.score.slice(head, heads) : ConstView{};
    own.work = op.work.slice(head, heads);
    own.keep = part_of(rows.keep(layer)[run], first, last);
    for (const HeadRunSlots* runs : {&kv.slots, &kv.home}) {
      if (runs->empty()) continue;
      own.slots = (*runs)[run];
      ops_.run(own, stream);
    }
    head += heads;
  }
}

void Layers::decode(const kernels::Ops& ops, int layer, const BatchRows& rows, std::int64_t first, std::int64_t last,
                    const Values& values, const Cache& kv, kernels::Stream& stream) const {
  roll(ops, layer, rows, first, last, kv, stream);
  for (const Value value : {Value::q, Value::k, Value::v}) rotate(ops, value_at(values, value), stream);
  const int group = model_.heads / model_.kv_heads, dim = model_.head_dim;
  int head = 0;
  for (std::size_t run = 0; run < kv.slots.size(); ++run) {
    const int heads = kv.slots[run].kv_heads;
    const auto of_queries = [&](Value value) {
      return value_at(values, value).columns(std::int64_t{head} * group * dim, std::int64_t{heads} * group * dim);
    };
    ops.run(kernels::DecodeAttention{.q = of_queries(Value::q),
                                     .k = value_at(values, Value::k).columns(head * dim, heads * dim),
                                     .v = value_at(values, Value::v).columns(head * dim, heads * dim),
                                     .sequence = part_of(rows.sequence, first, last),
                                     .position = part_of(rows.position, first, last),
                                     .keep = part_of(rows.keep(layer)[run], first, last),
                                     .heads = heads * group,
                                     .scale = scale_,
                                     .decay = static_cast<float>(retention_.decay),
                                     .scoring = retention_.keeps_scores() ? scoring_of(retention_, layer, head)
                                                                          : kernels::Scoring::none,
                                     .seed = seed_of(retention_, layer, head),
                                     .slots = kv.slots[run],
                                     .home = kv.home.empty() ? kernels::KvSlots{} : kv.home[run],
                                     .out = of_queries(Value::attended),
                                     .probabilities = {},
                                     .evicted = {},
                                     .statistic = retention_.statistic,
                                     .cap = model_.attention_cap,
                                     .sink_logits = sink_logits(layer, head * group, heads * group)},
            stream);
    head += heads;
  }
  rotate(ops, value_at(values, Value::attended), stream);  // rotates back
}

void Layers::roll(const kernels::Ops& ops, int layer, const BatchRows& rows, std::int64_t first, std::int64_t last,
                  const Cache& kv, kernels::Stream& stream) const {
  std::vector<std::int32_t> sequence, next;
  for (const std::int32_t row : rows.moved) {
    if (row < first || row >= last) continue;
    sequence.push_back(rows.sequence[static_cast<std::size_t>(row)]);
    next.push_back(rows.position[static_cast<std::size_t>(row)]);
  }
  if (sequence.empty()) return;
  const bool turns = model_.rotates(layer);
  for (std::size_t run = 0; run < kv.slots.size(); ++run)
    ops.run(kernels::Reposition{.sequence = sequence,
                                .next = next,
                                .frequencies = turns ? std::span<const float>(model_.frequencies(layer))
                                                     : std::span<const float>{},
                                .hadamard = rotate_,
                                .slots = kv.slots[run],
                                .home = kv.home.empty() ? kernels::KvSlots{} : kv.home[run],
                                .alternate = model_.alternate_pairs},
            stream);
}

void Layers::rotate(const kernels::Ops& ops, const View& heads, kernels::Stream& stream) const {
  if (rotate_) ops.run(kernels::Hadamard{heads, model_.head_dim}, stream);
}

}  // namespace weft::runtime
