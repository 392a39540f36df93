// runtime/engine/layers_prompts.cc: attention of prompts, whose prefixes may be shared, and what stays of them.
#include <algorithm>
#include <array>

#include "runtime/engine/layer_values.h"
#include "runtime/engine/layers.h"
#include "runtime/model/kernel_terms.h"

namespace weft::runtime {
namespace {

using policy::Stage;
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
          .cap = op.cap,
          .prefix = op.prefix};
}

/// The first columns of a matrix [heads, tokens].
View columns_of(const View& all, std::int64_t heads, std::int64_t count) {
  return {all.data, all.dtype, heads, count, all.stride};
}

}  // namespace

std::vector<Layers::Part> Layers::parts(const BatchRows& rows, std::int64_t first) const {
  std::vector<Part> parts;
  auto prefix = rows.prefixes.begin();
  for (std::int64_t s = first; s < rows.own(); ++s) {
    while (prefix != rows.prefixes.end() && prefix->last <= s) ++prefix;
    const SharedPrefix* const shared = prefix != rows.prefixes.end() && prefix->first <= s ? &*prefix : nullptr;
    const auto tokens = [&] { return rows.offsets[s + 1] - rows.offsets[parts.back().first]; };
    if (parts.empty() || s == rows.begun || shared != parts.back().prefix || tokens() > chunk_tokens_)
      parts.push_back({s, s, shared});
    parts.back().last = s + 1;
  }
  return parts;
}

void Layers::take_attention(int layer, const UnitViews& unit, std::int64_t prefix, std::int64_t rows,
                            const Chunk& chunk, Values& values) {
  values = {};
  for (const Value value : policy::scratch_values(in_memory_order(steps(Stage::attention_in, layer), unit)))
    if (policy::spans_chunk(value)) value_at(values, value) = take(value, prefix + rows, chunk);
  for (const Value value : policy::scratch_values(steps(Stage::attend, layer)))
    if (!value_at(values, value)) value_at(values, value) = take(value, prefix + rows, chunk);
  prefix_score_ = {};
  if (prefix == 0 || !scored(layer) || retention_.observation > 0) return;
  const policy::ValueShape shape = policy::prefix_score_shape(model_, prefix);
  prefix_score_ = {scratch_.at(policy::take(scratch_, shape)), shape.dtype, shape.rows, shape.cols};
}

void Layers::attend(int layer, const UnitViews& unit, const BatchRows& rows, std::int64_t first, View hidden,
                    const Cache& kv, kernels::Stream& stream) {
  const bool quantised = is_quantised(kv.slots.front().dtype);
  Values values;
  const SharedPrefix* held = nullptr;  // whose keys and values are the first rows of `values`
  const std::vector<Part> all = parts(rows, first);
  for (const Part& part : all) {
    // Attention of prompts reads the type of the keys; slots of int8 and int4 are filled from fp32 numbers.
    const bool prompts = part.first >= rows.begun, narrow = prompts && types_.product == types_.kv,
               narrow_kv = narrow && !quantised;
    Chunk chunk{.tokens = {},
                .position = {},
                .last = {},
                .narrow_q = model_.fused_qkv ? narrow_kv : narrow,
                .narrow_kv = narrow_kv};
    const std::int64_t tokens = part.prefix ? part.prefix->tokens : 0;
    // Runs attention for rows of the batch, whose values begin at row `at`.
    const auto run_rows = [&](std::int64_t begin, std::int64_t count, std::int64_t at, const auto& attend_to) {
      Values own = with_hidden(hidden.slice(begin, count));
      for (const Value value : {Value::q, Value::k, Value::v})
        value_at(own, value) = value_at(values, value).slice(at, count);
      chunk.position = part_of(rows.position, begin, begin + count);
      run_pieces(Stage::attention_in, layer, unit, chunk, own, stream);
      attend_to();
      Values after = with_hidden(hidden.slice(begin, count));
      value_at(after, Value::attended) = value_at(values, Value::attended).slice(at, count);
      run_pieces(Stage::attention_out, layer, unit, chunk, after, stream);
    };
    if (!part.prefix || part.prefix != held) {
      std::int64_t most = 0;  // rows of a part that attends to the prefix
      for (const Part& other : all)
        if (&other == &part || (part.prefix && other.prefix == part.prefix))
          most = std::max<std::int64_t>(most, rows.offsets[other.last] - rows.offsets[other.first]);
      begin_chunk();
      take_attention(layer, unit, tokens, most, chunk, values);
      held = part.prefix;
      if (held) run_rows(held->begin, tokens, 0, [&] { prefill_prefix(layer, values, tokens, stream); });
    }
    const std::int64_t begin = rows.offsets[part.first], count = rows.offsets[part.last] - begin;
    run_rows(begin, count, tokens, [&] {
      if (prompts) prefill(layer, rows, part, values, kv, stream);
      else decode(ops_, layer, rows, part.first, part.last, values, kv, stream);
    });
  }
}

kernels::PrefillAttention Layers::attend_prompts(int layer, const Values& values, std::span<const std::int32_t> offsets,
                                                 std::int64_t prefix, kernels::Stream& stream) {
  const std::int64_t end = offsets.back();
  const auto stored = [&](Value value, Value converted) {
    const View given = value_at(values, value);
    if (given.dtype == types_.kv) return given.slice(0, end);
    const View out = value_at(values, converted);
    ops_.run(kernels::Convert{given.slice(prefix, end - prefix), out.slice(prefix, end - prefix)}, stream);
    return out.slice(0, end);
  };
  const kernels::PrefillAttention op{
      .q = value_at(values, Value::q).slice(0, end),
      .k = stored(Value::k, Value::stored_k),
      .v = stored(Value::v, Value::stored_v),
      .offsets = offsets,
      .heads = model_.heads,
      .kv_heads = model_.kv_heads,
      .head_dim = model_.head_dim,
      .scale = scale_,
      .out = value_at(values, Value::attended).slice(0, end),
      .lse = scored(layer) ? columns_of(value_at(values, Value::log_sum), model_.heads, end) : View{},
      .window = model_.window(layer),
      .cap = model_.attention_cap,
      .sink_logits = sink_logits(layer, 0, model_.heads),
      .prefix = static_cast<int>(prefix)};
  ops_.run(op, stream);
  return op;
}

void Layers::prefill_prefix(int layer, const Values& values, std::int64_t tokens, kernels::Stream& stream) {
  const std::array<std::int32_t, 2> offsets{0, static_cast<std::int32_t>(tokens)};
  const kernels::PrefillAttention op = attend_prompts(layer, values, offsets, 0, stream);
  if (const std::array whole{0, kernels::whole_steps(static_cast<int>(tokens))}; prefix_score_) {
    const std::int64_t end = whole.back();
    prefix_score_ = columns_of(prefix_score_, model_.kv_heads, end);
    kernels::ColumnSums sums = sums_of(op, retention_, prefix_score_);
    sums.q = sums.q.slice(0, end), sums.k = sums.k.slice(0, end), sums.lse = sums.lse.columns(0, end);
    sums.offsets = whole;
    ops_.run(sums, stream);
  }
  for (const Value value : {Value::k, Value::v}) rotate(ops_, value_at(values, value).slice(0, tokens), stream);
}

void Layers::prefill(int layer, const BatchRows& rows, const Part& part, const Values& values, const Cache& kv,
                     kernels::Stream& stream) {
  const std::int64_t prefix = part.prefix ? part.prefix->tokens : 0;
  std::vector<std::int32_t> offsets(rows.offsets.begin() + part.first, rows.offsets.begin() + part.last + 1);
  for (std::int32_t& offset : offsets)
    offset += static_cast<std::int32_t>(prefix - rows.offsets[static_cast<std::size_t>(part.first)]);
  const kernels::PrefillAttention attention = attend_prompts(layer, values, offsets, prefix, stream);

  // Slots of int8 and int4 are filled from the numbers that the layer computed, rotated. The prompt has already
  // attended to them unrotated.
  const bool quantised = is_quantised(kv.slots.front().dtype);
  const auto kept = [&](Value value, const ConstView& attended, std::int64_t end) {
    return quantised ? ConstView(value_at(values, value).slice(0, end)) : attended.slice(0, end);
  };
  const View row_sums = value_at(values, Value::log_sum);
  for (std::int64_t begin = 0, end = 0; begin < part.last - part.first; begin = end) {
    // As many prompts as there is room for the scores of all of their tokens.
    const auto whole = [&](std::int64_t last) {
      return offsets[static_cast<std::size_t>(last)] - offsets[static_cast<std::size_t>(begin)] +
             (last - begin) * prefix;
    };
    for (end = begin + 1; end < part.last - part.first && whole(end + 1) <= row_sums.cols; ++end) {}
    const std::int64_t tokens = offsets[static_cast<std::size_t>(end)];
    const std::span<const std::int32_t> of = part_of(offsets, begin, end + 1);
    View score;
    if (scored(layer)) {
      score = columns_of(value_at(values, Value::score), model_.kv_heads, whole(end));
      kernels::ColumnSums sums = sums_of(attention, retention_, score);
      sums.q = sums.q.slice(0, tokens), sums.k = sums.k.slice(0, tokens), sums.lse = sums.lse.columns(0, tokens);
      sums.offsets = of;
      if (prefix > 0) sums.before = prefix_score_;
      ops_.run(sums, stream);
      if (on_prompts_) on_prompts_(layer, sums);
    }
    // Once for all. Scores of further prompts are computed only with a prefix, and then from converted rows.
    if (begin == 0)
      for (const Value value : {Value::k, Value::v})
        rotate(ops_, value_at(values, value).slice(prefix, offsets.back() - prefix), stream);
    kernels::KeepPrompt keep{.k = kept(Value::k, attention.k, tokens),
                             .v = kept(Value::v, attention.v, tokens),
                             .score = score,
                             .offsets = of,
                             .sequence = part_of(rows.sequence, part.first + begin, part.first + end),
                             .keep = {},
                             .slots = {},
                             .pool = retention_.pool,
                             // The row sums are not read once there are scores.
                             .work = columns_of(row_sums, model_.kv_heads, whole(end)),
                             .prefix = static_cast<int>(prefix)};
    keep_prompts(layer, keep, rows, part.first + begin, part.first + end, kv, stream);
    for (std::int64_t s = rows.own(); s < rows.live(); ++s) {
      const std::int64_t from = rows.shared[static_cast<std::size_t>(s - rows.own())] - part.first;
      if (from < begin || from >= end) continue;
      kernels::KeepPrompt copy = keep;
      copy.offsets = part_of(offsets, from, from + 2);
      copy.k = keep.k.slice(0, copy.offsets.back()), copy.v = keep.v.slice(0, copy.offsets.back());
      if (scored(layer)) copy.score = score.columns(whole(from), whole(from + 1) - whole(from));
      copy.work = columns_of(row_sums, model_.kv_heads, whole(from + 1) - whole(from));
      copy.sequence = part_of(rows.sequence, s, s + 1);
      keep_prompts(layer, copy, rows, s, s + 1, kv, stream);
    }
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

}  // namespace weft::runtime
