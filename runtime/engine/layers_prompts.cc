// runtime/engine/layers_prompts.cc: attention of prompts, whose prefixes may be shared, chunk by chunk, and what stays
// of them.
#include <algorithm>
#include <array>
#include <cassert>

#include "policy/layout/policy.h"
#include "runtime/engine/layer_values.h"
#include "runtime/engine/layers.h"
#include "runtime/model/kernel_terms.h"

namespace weft::runtime {
namespace {

using policy::Stage;
using policy::Value;

static_assert(kernels::kPrefixStep <= policy::kFewestBatchedTokens);

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
          .prefix = op.prefix,
          .q_begin = op.q_begin,
          .arithmetic = op.arithmetic};
}

/// Brings the keys and values of a prefix that slots have to the first rows of `keys` and `values`.
void take_prefix(const SharedPrefix& prefix, const HeadRunSlots& slots, const View& keys, const View& values,
                 const kernels::Ops& ops, kernels::Stream& stream) {
  int column = 0;
  for (const kernels::KvSlots& run : slots)
    for (int head = 0; head < run.kv_heads; ++head, column += run.head_dim) {
      const std::int64_t first = (std::int64_t{prefix.held_in} * run.kv_heads + head) * run.slots;
      const auto take = [&](const void* rows, const View& to) {
        const std::byte* const from = static_cast<const std::byte*>(rows) + first * run.head_dim * size_of(run.dtype);
        ops.run(kernels::Convert{{from, run.dtype, prefix.tokens, run.head_dim, run.head_dim},
                                 to.slice(0, prefix.tokens).columns(column, run.head_dim)},
                stream);
      };
      take(run.k, keys);
      take(run.v, values);
    }
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

std::vector<Layers::PromptChunk> Layers::chunks_of(std::int64_t row, std::int64_t rows, std::int64_t token,
                                                   std::int64_t query) const {
  std::vector<PromptChunk> chunks;
  for (std::int64_t done = 0; done < rows; done += chunks.back().count) {
    const std::int64_t begin = token + done, left = rows - done;
    const std::int64_t count =
        left <= chunk_tokens_ ? left : (begin + chunk_tokens_) / kernels::kPrefixStep * kernels::kPrefixStep - begin;
    chunks.push_back({row + done, count, begin, query});
  }
  return chunks;
}

Layers::Attending Layers::take_attention(int layer, const UnitViews& unit, std::int64_t prefix, std::int64_t rows,
                                         bool prompts) {
  begin_chunk();
  const policy::AttentionRows room{
      .queries = std::min(prefix, chunk_tokens_) + std::min(rows, chunk_tokens_),
      .tokens = prefix + rows,
      .prompts = prompts,
  };
  const auto view = [&](const policy::ValueShape& shape) {
    return View(scratch_.at(policy::take(scratch_, shape)), shape.dtype, shape.rows, shape.cols);
  };
  Attending at{.values = {}, .prefix = prefix, .prefix_rows = 0, .prefix_score = {}};
  const auto take = [&](Value value) {
    value_at(at.values, value) = view(policy::attention_shape(value, model_, types_, room, layer));
  };
  for (const Value value : policy::scratch_values(in_memory_order(steps(Stage::attention_in, layer), unit)))
    if (policy::spans_chunk(value)) take(value);
  for (const Value value : policy::scratch_values(steps(Stage::attend, layer)))
    if (!value_at(at.values, value)) take(value);
  if (prefix > 0 && scored(layer) && retention_.observation == 0)
    at.prefix_score = columns_of(view(policy::prefix_score_shape(model_, prefix, layer)), model_.kv_heads_of(layer),
                                 kernels::whole_steps(static_cast<int>(prefix)));
  return at;
}

/// The place of the chunk's first key among those that products write.
std::int64_t Layers::key_row(const PromptChunk& chunk) const {
  return policy::keeps_keys(types_) ? chunk.token : chunk.query;
}

void Layers::around_attention(int layer, const UnitViews& unit, const BatchRows& rows, const HiddenRows& hidden,
                              const PromptChunk& chunk, const Values& values, const std::function<void()>& attend_to,
                              kernels::Stream& stream) {
  const auto part = [&](Value value, std::int64_t first) { return value_at(values, value).slice(first, chunk.count); };
  const HiddenRows of_chunk = hidden.slice(chunk.row, chunk.count);
  Values before = with_hidden(of_chunk);
  value_at(before, Value::q) = part(Value::q, chunk.query);
  value_at(before, Value::k) = part(Value::k, key_row(chunk));
  value_at(before, Value::v) = part(Value::v, key_row(chunk));
  const Chunk of_rows{.tokens = {},
                      .position = part_of(rows.position, chunk.row, chunk.row + chunk.count),
                      .last = {},
                      .narrow_qkv = value_at(values, Value::k).dtype != types_.activation};
  run_pieces(Stage::attention_in, layer, unit, of_rows, before, stream);
  attend_to();
  Values after = with_hidden(of_chunk);
  value_at(after, Value::attended) = part(Value::attended, chunk.query);
  run_pieces(Stage::attention_out, layer, unit, of_rows, after, stream);
}

void Layers::attend(int layer, const UnitViews& unit, const BatchRows& rows, std::int64_t first,
                    const HiddenRows& hidden, const Cache& kv, kernels::Stream& stream) {
  Attending at;
  const SharedPrefix* held = nullptr;  // whose keys and values are the first in `at`
  const std::vector<Part> all = parts(rows, first);
  for (const Part& part : all) {
    const std::int64_t begin = rows.offsets[part.first], count = rows.offsets[part.last] - begin;
    const bool prompts = part.first >= rows.begun;
    if (!part.prefix || part.prefix != held) {
      std::int64_t most = 0;  // rows of a part that attends to the prefix
      for (const Part& other : all)
        if (&other == &part || (part.prefix && other.prefix == part.prefix))
          most = std::max<std::int64_t>(most, rows.offsets[other.last] - rows.offsets[other.first]);
      at = take_attention(layer, unit, part.prefix ? part.prefix->tokens : 0, most, prompts);
      held = part.prefix;
      if (held && held->held_in >= 0) {
        const bool stored = policy::writes_stored(types_);
        take_prefix(*held, kv.slots, value_at(at.values, stored ? Value::k : Value::stored_k),
                    value_at(at.values, stored ? Value::v : Value::stored_v), ops_, stream);
      } else if (held) {
        prefill_prefix(layer, unit, rows, *held, hidden, at, stream);
      }
    }
    if (prompts) {
      prefill(layer, unit, rows, part, hidden, at, kv, stream);
      continue;
    }
    around_attention(
        layer, unit, rows, hidden, {begin, count, 0, 0}, at.values,
        [&] { decode(ops_, layer, rows, part.first, part.last, at.values, kv, stream); }, stream);
  }
}

kernels::PrefillAttention Layers::attend_prompts(int layer, const Attending& at, const PromptChunk& chunk,
                                                 std::span<const std::int32_t> offsets, kernels::Stream& stream) {
  const std::int64_t end = chunk.token + chunk.count;
  const auto stored = [&](Value value, Value converted) {
    const View given = value_at(at.values, value), out = value_at(at.values, converted);
    if (policy::writes_stored(types_)) return given.slice(0, end);
    ops_.run(kernels::Convert{given.slice(key_row(chunk), chunk.count), out.slice(chunk.token, chunk.count)}, stream);
    return out.slice(0, end);
  };
  // The queries of a shared prefix's last chunk lie right before those of what follows it.
  const std::int64_t before = chunk.token == at.prefix ? chunk.query : 0, first = chunk.query - before;
  const auto queries = [&](Value value) { return value_at(at.values, value).slice(first, before + chunk.count); };
  const kernels::PrefillAttention op{
      .q = queries(Value::q),
      .k = stored(Value::k, Value::stored_k),
      .v = stored(Value::v, Value::stored_v),
      .offsets = offsets,
      .heads = model_.heads,
      .kv_heads = model_.kv_heads_of(layer),
      .head_dim = model_.head_dim_of(layer),
      .scale = scale_,
      .out = queries(Value::attended),
      .lse = scored(layer) ? value_at(at.values, Value::log_sum).columns(first, before + chunk.count) : View{},
      .window = model_.window(layer),
      .cap = model_.attention_cap,
      .sink_logits = sink_logits(layer, 0, model_.heads),
      .prefix = static_cast<int>(chunk.token),
      .q_begin = chunk.token - before,
      .arithmetic = arithmetic_};
  ops_.run(op, stream);
  return op;
}

void Layers::prefill_prefix(int layer, const UnitViews& unit, const BatchRows& rows, const SharedPrefix& prefix,
                            const HiddenRows& hidden, Attending& at, kernels::Stream& stream) {
  const std::int64_t whole = at.prefix_score.cols;
  for (const PromptChunk& chunk : chunks_of(prefix.begin, prefix.tokens, 0, 0)) {
    const auto attend_to = [&] {
      const auto begin = static_cast<std::int32_t>(chunk.token);
      const std::array own{begin, begin + static_cast<std::int32_t>(chunk.count)};
      const kernels::PrefillAttention op = attend_prompts(layer, at, chunk, own, stream);
      const std::int64_t scored_end = std::min(chunk.token + chunk.count, whole), count = scored_end - chunk.token;
      if (count <= 0) return;
      kernels::ColumnSums sums =
          sums_of(op, retention_, columns_of(at.prefix_score, model_.kv_heads_of(layer), scored_end));
      const std::array offsets{begin, static_cast<std::int32_t>(scored_end)};
      sums.q = sums.q.slice(0, count), sums.k = sums.k.slice(0, scored_end), sums.lse = sums.lse.columns(0, count);
      sums.offsets = offsets;
      if (begin > 0) sums.before = columns_of(at.prefix_score, model_.kv_heads_of(layer), begin);
      ops_.run(sums, stream);
    };
    around_attention(layer, unit, rows, hidden, chunk, at.values, attend_to, stream);
    at.prefix_rows = chunk.count;
  }
  for (const Value value : {Value::k, Value::v})
    rotate(ops_, layer, value_at(at.values, value).slice(0, at.prefix), stream);
}

void Layers::prefill(int layer, const UnitViews& unit, const BatchRows& rows, const Part& part,
                     const HiddenRows& hidden, const Attending& at, const Cache& kv, kernels::Stream& stream) {
  const std::int64_t begin = rows.offsets[part.first], end = rows.offsets[part.last];
  std::vector<std::int32_t> offsets(rows.offsets.begin() + part.first, rows.offsets.begin() + part.last + 1);
  for (std::int32_t& offset : offsets) offset += static_cast<std::int32_t>(at.prefix - begin);
  const std::vector<PromptChunk> all = chunks_of(begin, end - begin, at.prefix, at.prefix_rows);
  View scores;
  for (const PromptChunk& chunk : all) {
    const auto attend_to = [&] {
      const auto first = static_cast<std::int32_t>(chunk.token), count = static_cast<std::int32_t>(chunk.count);
      const std::array own{first, first + count};
      const std::span<const std::int32_t> of = all.size() == 1 ? std::span<const std::int32_t>(offsets) : own;
      const kernels::PrefillAttention op = attend_prompts(layer, at, chunk, of, stream);
      if (all.size() > 1 && scored(layer)) scores = add_scores(op, at, end - chunk.row - chunk.count, scores, stream);
      if (&chunk == &all.back()) keep_part(layer, rows, part, at, op, offsets, scores, kv, stream);
    };
    around_attention(layer, unit, rows, hidden, chunk, at.values, attend_to, stream);
  }
}

View Layers::add_scores(const kernels::PrefillAttention& attention, const Attending& at, std::int64_t left, View scores,
                        kernels::Stream& stream) const {
  assert(!on_prompts_);
  const std::int64_t counted = retention_.observation - left;  // of the last rows
  if (retention_.observation > 0 && counted <= 0) return {};
  const std::int64_t end = attention.offsets.back(), count = end - attention.offsets.front();
  kernels::ColumnSums sums =
      sums_of(attention, retention_, columns_of(value_at(at.values, Value::score), attention.kv_heads, end));
  if (retention_.observation > 0) sums.observation = static_cast<int>(std::min(counted, count));
  if (scores) sums.before = scores;
  else if (at.prefix_score) sums.before = at.prefix_score;
  ops_.run(sums, stream);
  return sums.score;
}

void Layers::keep_part(int layer, const BatchRows& rows, const Part& part, const Attending& at,
                       const kernels::PrefillAttention& attention, std::span<const std::int32_t> offsets, View scores,
                       const Cache& kv, kernels::Stream& stream) const {
  // Slots of int8 and int4 are filled from the numbers that the layer computed, rotated. The prompts have already
  // attended to them unrotated.
  const auto kept = [&](Value value, const ConstView& attended, std::int64_t end) {
    return types_.quantises_kv ? ConstView(value_at(at.values, value).slice(0, end)) : attended.slice(0, end);
  };
  const std::int64_t prefix = at.prefix, prompts = part.last - part.first;
  const View room = value_at(at.values, Value::score);
  for (std::int64_t begin = 0, end = 0; begin < prompts; begin = end) {
    // As many prompts as there is room for the scores of all of their tokens.
    const auto whole = [&](std::int64_t last) {
      return offsets[static_cast<std::size_t>(last)] - offsets[static_cast<std::size_t>(begin)] +
             (last - begin) * prefix;
    };
    for (end = begin + 1; end < prompts && whole(end + 1) <= room.cols; ++end) {}
    const std::int64_t tokens = offsets[static_cast<std::size_t>(end)];
    const auto of = offsets.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin + 1));
    View score = scores;
    if (scored(layer) && !score) {
      const std::int64_t count = tokens - attention.q_begin;
      score = columns_of(room, model_.kv_heads_of(layer), whole(end));
      kernels::ColumnSums sums = sums_of(attention, retention_, score);
      sums.q = sums.q.slice(0, count), sums.k = sums.k.slice(0, tokens), sums.lse = sums.lse.columns(0, count);
      sums.offsets = of;
      if (prefix > 0) sums.before = at.prefix_score;
      ops_.run(sums, stream);
      if (on_prompts_) on_prompts_(layer, sums);
    }
    // Once for all. Scores of further prompts are computed only with a prefix, and then from converted rows.
    if (begin == 0)
      for (const Value value : {Value::k, Value::v})
        rotate(ops_, layer, value_at(at.values, value).slice(prefix, offsets.back() - prefix), stream);
    kernels::KeepPrompt keep{.k = kept(Value::k, attention.k, tokens),
                             .v = kept(Value::v, attention.v, tokens),
                             .score = score,
                             .offsets = of,
                             .sequence = part_of(rows.sequence, part.first + begin, part.first + end),
                             .keep = {},
                             .slots = {},
                             .pool = retention_.pool,
                             .work = columns_of(room, model_.kv_heads_of(layer), whole(end)),
                             .prefix = static_cast<int>(prefix)};
    keep_prompts(layer, keep, rows, part.first + begin, part.first + end, kv, stream);
    for (std::int64_t s = rows.own(); s < rows.live(); ++s) {
      const std::int64_t from = rows.shared[static_cast<std::size_t>(s - rows.own())] - part.first;
      if (from < begin || from >= end) continue;
      kernels::KeepPrompt copy = keep;
      copy.offsets = offsets.subspan(static_cast<std::size_t>(from), 2);
      copy.k = keep.k.slice(0, copy.offsets.back()), copy.v = keep.v.slice(0, copy.offsets.back());
      if (scored(layer)) copy.score = score.columns(whole(from), whole(from + 1) - whole(from));
      copy.work = columns_of(room, model_.kv_heads_of(layer), whole(from + 1) - whole(from));
      copy.sequence = part_of(rows.sequence, s, s + 1);
      keep_prompts(layer, copy, rows, s, s + 1, kv, stream);
    }
  }
}

void Layers::keep_prompts(int layer, const kernels::KeepPrompt& op, const BatchRows& rows, std::int64_t first,
                          std::int64_t last, const Cache& kv, kernels::Stream& stream) const {
  int head = 0;
  for (std::size_t run = 0; run < kv.slots.size(); ++run) {
    const int heads = kv.slots[run].kv_heads, dim = model_.head_dim_of(layer);
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
