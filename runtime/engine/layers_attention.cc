// runtime/engine/layers_attention.cc: attention of decode steps, a run of heads at a time.
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine/layer_values.h"
#include "runtime/engine/layers.h"
#include "runtime/model/kernel_terms.h"

namespace weft::runtime {

using policy::Value;

namespace {

/// DecodeAttention::alike of some rows in a run of heads that keeps `keep`; empty unless each sequence has all tokens
/// of its prompt and since in its slots, in their order: with a budget that is for its prompt alone, some of that may
/// have gone at once.
std::span<const kernels::AlikeSlots> alike_slots(const BatchRows& rows, const std::vector<kernels::Keep>& keep,
                                                 std::int64_t first, std::int64_t last) {
  if (rows.alike.empty()) return {};
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows.begun); ++row) {
    const std::int32_t tokens = rows.context[row];  // with the step's own
    if (keep[row].of_prompt() < tokens || keep[row].seen_from(tokens - 1) > 0) return {};
  }
  return part_of(rows.alike, first, last);
}

}  // namespace

std::span<const float> Layers::sink_logits(int layer, int first, int heads) const {
  if (!model_.sinks) return {};
  return part_of(sink_logits_[static_cast<std::size_t>(layer)], first, first + heads);
}

void Layers::decode(const kernels::Ops& ops, int layer, const BatchRows& rows, std::int64_t first, std::int64_t last,
                    const Values& values, const Cache& kv, kernels::Stream& stream) const {
  roll(ops, layer, rows, first, last, kv, stream);
  for (const Value value : {Value::q, Value::k, Value::v}) rotate(ops, layer, value_at(values, value), stream);
  const int group = model_.heads / model_.kv_heads_of(layer), dim = model_.head_dim_of(layer);
  int head = 0;
  for (std::size_t run = 0; run < kv.slots.size(); ++run) {
    const int heads = kv.slots[run].kv_heads;
    const auto of_queries = [&](Value value) {
      return value_at(values, value).columns(std::int64_t{head} * group * dim, std::int64_t{heads} * group * dim);
    };
    ops.run(
        kernels::DecodeAttention{
            .q = of_queries(Value::q),
            .k = value_at(values, Value::k).columns(head * dim, heads * dim),
            .v = value_at(values, Value::v).columns(head * dim, heads * dim),
            .sequence = part_of(rows.sequence, first, last),
            .position = part_of(rows.position, first, last),
            .keep = part_of(rows.keep(layer)[run], first, last),
            .heads = heads * group,
            .scale = scale_,
            .decay = static_cast<float>(retention_.decay),
            .scoring = retention_.keeps_scores() ? scoring_of(retention_, layer, head) : kernels::Scoring::none,
            .seed = seed_of(retention_, layer, head),
            .slots = kv.slots[run],
            .home = kv.home.empty() ? kernels::KvSlots{} : kv.home[run],
            .out = of_queries(Value::attended),
            .probabilities = {},
            .evicted = {},
            .statistic = retention_.statistic,
            .cap = model_.attention_cap,
            .sink_logits = sink_logits(layer, head * group, heads * group),
            .alike = types_.quantises_kv ? std::span<const kernels::AlikeSlots>{}
                                         : alike_slots(rows, rows.keep(layer)[run], first, last)},
        stream);
    head += heads;
  }
  rotate(ops, layer, value_at(values, Value::attended), stream);  // rotates back
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

void Layers::rotate(const kernels::Ops& ops, int layer, const View& heads, kernels::Stream& stream) const {
  if (rotate_) ops.run(kernels::Hadamard{heads, model_.head_dim_of(layer)}, stream);
}

}  // namespace weft::runtime
