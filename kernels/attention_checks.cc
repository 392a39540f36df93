// kernels/attention_checks.cc: the checks of the attention ops.
#include <algorithm>

#include "kernels/op_checks.h"
#include "kernels/random.h"

namespace weft::kernels {

using namespace checks;

void check(const PrefillAttention& op) {
  const Checker c{"prefill_attention"};
  c.heads(op.heads, op.kv_heads, op.head_dim);
  const std::int64_t tokens = op.q_begin + op.q.rows, dim = op.head_dim;
  c.sized("q", op.q, op.q.rows, op.heads * dim, per_head(op.heads, op.head_dim, "heads"));
  c.sized("k", op.k, tokens, op.kv_heads * dim, per_head(op.kv_heads, op.head_dim, "kv_heads"));
  c.sized("v", op.v, tokens, op.kv_heads * dim, per_head(op.kv_heads, op.head_dim, "kv_heads"));
  c.like("out", op.out, "q", op.q);
  c.of_float_type("k", op.k);
  c.of_type("v", op.v, op.k.dtype);
  if (op.q.dtype != op.k.dtype) c.of_type("q", op.q, DType::f32);
  if (op.out.dtype != op.k.dtype) c.of_type("out", op.out, DType::f32);
  c.offsets(op.offsets, tokens, op.prefix);
  c.q_begin(op.q_begin, op.offsets.front());
  c.window(op.window);
  c.cap(op.cap);
  c.sink_logits(op.sink_logits, op.heads);
  if (!op.lse) return;
  c.sized("lse", op.lse, op.heads, op.q.rows, "a number for each head and token");
  c.of_type("lse", op.lse, DType::f32);
}

void check(const ColumnSums& op) {
  const Checker c{"column_sums"};
  c.heads(op.heads, op.kv_heads, op.head_dim);
  const std::int64_t tokens = op.q_begin + op.q.rows, dim = op.head_dim;
  c.sized("q", op.q, op.q.rows, op.heads * dim, per_head(op.heads, op.head_dim, "heads"));
  c.sized("k", op.k, tokens, op.kv_heads * dim, per_head(op.kv_heads, op.head_dim, "kv_heads"));
  c.sized("lse", op.lse, op.heads, op.q.rows, "a number for each head and token");
  c.of_float_type("k", op.k);
  if (op.q.dtype != op.k.dtype) c.of_type("q", op.q, DType::f32);
  c.of_type("lse", op.lse, DType::f32);
  c.of_type("score", op.score, DType::f32);
  c.offsets(op.offsets, tokens, op.prefix);
  c.q_begin(op.q_begin, op.observation > 0 ? op.offsets.front() : whole_steps(op.prefix));
  c.sized("score", op.score, op.kv_heads, whole_begin(op.offsets, op.prefix, op.offsets.size() - 1),
          "a number for each kv_head and token");
  c.window(op.window);
  c.cap(op.cap);
  if (op.observation < 0) c.refuse("observation is " + text(op.observation) + ", wanted 0 (all rows) or more");
  if (op.prefix == 0) return;
  if (op.before) {
    c.sized("before", op.before, op.kv_heads, whole_steps(op.prefix),
            "a number for each kv_head and token of the prefix's whole blocks");
    c.of_type("before", op.before, DType::f32);
  }
  for (std::size_t i = 0; i + 1 < op.offsets.size(); ++i)
    if (const std::int32_t own = op.offsets[i + 1] - op.offsets[i]; own < op.observation)
      c.refuse("observation is " + text(op.observation) + ", sequence " + text(static_cast<std::int64_t>(i)) + " has " +
               text(own) + " rows besides its prefix");
}

void check(const KeepPrompt& op) {
  const Checker c{"keep_prompt"};
  c.block(op.slots, Scoring::none);
  const std::int64_t tokens = op.k.rows, cols = std::int64_t{op.slots.kv_heads} * op.slots.head_dim;
  c.sized("k", op.k, tokens, cols, per_head(op.slots.kv_heads, op.slots.head_dim, "kv_heads"));
  c.sized("v", op.v, tokens, cols, per_head(op.slots.kv_heads, op.slots.head_dim, "kv_heads"));
  const DType given = is_quantised(op.slots.dtype) ? DType::f32 : op.slots.dtype;
  c.of_type("k", op.k, given);
  c.of_type("v", op.v, given);
  c.offsets(op.offsets, tokens, op.prefix);
  const std::int64_t whole = whole_begin(op.offsets, op.prefix, op.offsets.size() - 1);
  const std::int64_t prompts = static_cast<std::int64_t>(op.offsets.size()) - 1;
  c.counted("sequence", op.sequence.size(), prompts, "prompt");
  c.counted("keep", op.keep.size(), prompts, "prompt");
  c.places(op.sequence, op.slots);
  for (std::size_t i = 0; i < op.keep.size(); ++i) {
    c.keep(op.keep[i]);
    const std::int32_t length = op.prefix + op.offsets[i + 1] - op.offsets[i],
                       stored = std::min(length, op.keep[i].of_prompt());
    if (stored >= op.slots.hot())
      c.refuse(text(op.slots.hot()) + " slots, wanted " + text(stored + 1) + ": prompt " +
               text(static_cast<std::int64_t>(i)) + " keeps " + text(stored) + " tokens and needs one slot more");
    if (const std::int32_t cold = std::min(length - stored, op.keep[i].cold); cold > op.slots.cold)
      c.refuse(text(op.slots.cold) + " cold slots, wanted " + text(cold) + " for prompt " +
               text(static_cast<std::int64_t>(i)));
  }
  if (op.pool < 1 || op.pool % 2 == 0) c.refuse("pool is " + text(op.pool) + ", wanted an odd number from 1 on");
  if (op.scoring == Scoring::keys) {
    c.sized("work", op.work, op.slots.kv_heads, whole, "a number for each kv_head and token");
    c.of_type("work", op.work, DType::f32);
  }
  if (op.scoring != Scoring::attention) {
    if (op.score) c.refuse("score is given, but scoring is not by attention");
    return;
  }
  c.sized("score", op.score, op.slots.kv_heads, whole, "a number for each kv_head and token");
  c.of_type("score", op.score, DType::f32);
}

void check(const DecodeAttention& op) {
  const Checker c{"decode_attention"};
  c.block(op.slots, op.scoring);
  if (op.slots.sequences > 0 && op.scoring == Scoring::keys && !op.slots.key_sum)
    c.refuse("slots have no key_sum, which scoring by keys needs");
  c.heads(op.heads, op.slots.kv_heads, op.slots.head_dim);
  const std::int64_t rows = op.q.rows, dim = op.slots.head_dim;
  c.sized("q", op.q, rows, op.heads * dim, per_head(op.heads, op.slots.head_dim, "heads"));
  c.sized("k", op.k, rows, op.slots.kv_heads * dim, per_head(op.slots.kv_heads, op.slots.head_dim, "kv_heads"));
  c.sized("v", op.v, rows, op.slots.kv_heads * dim, per_head(op.slots.kv_heads, op.slots.head_dim, "kv_heads"));
  c.like("out", op.out, "q", op.q);
  c.of_type("q", op.q, DType::f32);
  c.of_type("k", op.k, DType::f32);
  c.of_type("v", op.v, DType::f32);
  c.of_type("out", op.out, DType::f32);
  c.counted("sequence", op.sequence.size(), rows, "row");
  c.counted("position", op.position.size(), rows, "row");
  c.counted("keep", op.keep.size(), rows, "row");
  c.places(op.sequence, op.slots);
  for (const std::int32_t position : op.position)
    if (position < 0) c.refuse("position is " + text(position));
  for (const Keep& keep : op.keep) c.keep(keep);
  if (!op.alike.empty()) c.counted("alike", op.alike.size(), rows, "row");
  for (const AlikeSlots& alike : op.alike)
    if (alike.sequence < 0 || alike.sequence >= op.slots.sequences || alike.count < 0 || alike.count > op.slots.hot())
      c.refuse("alike names " + text(alike.count) + " slots of sequence " + text(alike.sequence) + "; there are " +
               text(op.slots.hot()) + " of " + text(op.slots.sequences) + " sequences");
  c.cap(op.cap);
  c.sink_logits(op.sink_logits, op.heads);
  if (op.slots.mean && (op.cap > 0 || !op.sink_logits.empty()))
    c.refuse("slots have means, and logits a cap or sink logits, which need the keys as they are");
  if (op.probabilities) {
    c.sized("probabilities", op.probabilities, rows * op.heads, op.slots.slots, "a number for each row, head and slot");
    c.of_type("probabilities", op.probabilities, DType::f32);
  }
  if (op.evicted) {
    c.sized("evicted", op.evicted, rows, op.slots.kv_heads, "a number for each row and kv_head");
    c.of_type("evicted", op.evicted, DType::i32);
  }
}

void check(const Reposition& op) {
  const Checker c{"reposition"};
  c.block(op.slots, Scoring::none);
  c.counted("next", op.next.size(), static_cast<std::int64_t>(op.sequence.size()), "sequence");
  c.places(op.sequence, op.slots);
  for (const std::int32_t next : op.next)
    if (next < 0) c.refuse("next is " + text(next));
  if (2 * op.frequencies.size() > static_cast<std::size_t>(op.slots.head_dim))
    c.refuse(text(static_cast<std::int64_t>(op.frequencies.size())) + " frequencies for heads of " +
             text(op.slots.head_dim));
  if (op.slots.mean) c.refuse("slots have means, which belong to the positions of the prompt");
  if (op.slots.split) c.refuse("slots are split, whose keys cannot be turned without choosing their bits again");
  if (op.slots.cold > 0) c.refuse("slots have cold rows, whose keys cannot be turned without rounding them again");
  if (op.slots.rest) c.refuse("slots have a rest, a sum of keys of many positions, which cannot be moved");
}

float random_score(std::uint64_t seed, int kv_head, std::int32_t position) {
  const std::uint64_t head = static_cast<std::uint32_t>(kv_head), token = static_cast<std::uint32_t>(position);
  return unit_float(random_bits(seed, head << 32 | token));
}

}  // namespace weft::kernels
