// kernels/ops.cc: the shape and type checks that all twins share.
#include "kernels/ops.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/error.h"
#include "kernels/quantised.h"
#include "kernels/random.h"

namespace weft::kernels {
namespace {

std::string text(std::int64_t number) { return std::to_string(number); }

std::string shape(const ConstView& v) {
  return v.rows == 1 ? "[" + text(v.cols) + "]" : "[" + text(v.rows) + ", " + text(v.cols) + "]";
}

/// One op's name, and the checks that refuse its operands.
struct Checker {
  const char* op;

  [[noreturn]] void refuse(const std::string& what) const { throw UsageError(std::string(op) + ": " + what); }

  /// Requires a view whose shape, data and stride agree.
  void sound(const char* name, const ConstView& v) const {
    if (v.rows < 0 || v.cols < 0) refuse(std::string(name) + " is " + shape(v));
    if (!v.data && v.rows != 0 && v.cols != 0) refuse(std::string(name) + " is " + shape(v) + " but has no data");
    if (v.rows > 1 && v.stride < v.cols)
      refuse(std::string(name) + " is " + shape(v) + ", its rows are only " + text(v.stride) + " apart");
  }
  void of_type(const char* name, const ConstView& v, DType wanted) const {
    if (v.dtype != wanted) refuse(std::string(name) + " is " + name_of(v.dtype) + ", wanted " + name_of(wanted));
  }
  void of_float_type(const char* name, const ConstView& v) const {
    if (!is_float(v.dtype)) refuse(std::string(name) + " is " + name_of(v.dtype) + ", wanted a float type");
  }
  void like(const char* name, const ConstView& v, const char* other, const ConstView& model) const {
    sound(name, v);
    if (v.rows != model.rows || v.cols != model.cols)
      refuse(std::string(name) + " is " + shape(v) + ", " + other + " is " + shape(model));
  }
  /// Requires `v` to be empty, or to have one number for each of `cols` columns of `other`.
  void row_for(const char* name, const ConstView& v, std::int64_t cols, const char* other,
               const ConstView& model) const {
    if (!v) return;
    sound(name, v);
    of_float_type(name, v);
    if (v.rows != 1 || v.cols != cols)
      refuse(std::string(name) + " is " + shape(v) + ", " + other + " is " + shape(model));
  }
  void sized(const char* name, const ConstView& v, std::int64_t rows, std::int64_t cols, const std::string& why) const {
    sound(name, v);
    if (v.rows != rows || v.cols != cols)
      refuse(std::string(name) + " is " + shape(v) + ", wanted [" + text(rows) + ", " + text(cols) + "]: " + why);
  }
  void counted(const char* name, std::size_t count, std::int64_t wanted, const char* unit) const {
    if (static_cast<std::int64_t>(count) != wanted)
      refuse(text(static_cast<std::int64_t>(count)) + " numbers in " + name + ", wanted " + text(wanted) +
             ", one for each " + unit);
  }
  void heads(int heads, int kv_heads, int head_dim) const {
    if (heads < 1 || kv_heads < 1 || head_dim < 1 || heads % kv_heads != 0)
      refuse(text(heads) + " heads of " + text(head_dim) + " over " + text(kv_heads) +
             " kv_heads; the heads must be a multiple of the kv_heads");
  }
  void offsets(std::span<const std::int32_t> offsets, std::int64_t tokens, int prefix) const {
    if (offsets.empty()) refuse("offsets is empty, wanted one more than sequences");
    if (prefix < 0) refuse("prefix is " + text(prefix) + ", wanted 0 (none) or more");
    if (offsets.front() < prefix)
      refuse("offsets begin with " + text(offsets.front()) + ", wanted at least " + text(prefix));
    if (offsets.back() != tokens)
      refuse("offsets end with " + text(offsets.back()) + ", wanted " + text(tokens) + ", the tokens");
    for (std::size_t i = 1; i < offsets.size(); ++i)
      if (offsets[i] < offsets[i - 1])
        refuse("offsets[" + text(static_cast<std::int64_t>(i)) + "] is " + text(offsets[i]) +
               ", less than the one before, " + text(offsets[i - 1]));
  }
  void window(int window) const {
    if (window < 0) refuse("window is " + text(window) + ", wanted 0 (none) or more");
  }
  void cap(float cap) const {
    if (!std::isfinite(cap) || cap < 0) refuse("cap is " + std::to_string(cap) + ", wanted 0 (none) or more");
  }
  void sink_logits(std::span<const float> logits, int heads) const {
    if (!logits.empty()) counted("sink_logits", logits.size(), heads, "head");
  }
  void keep(const Keep& k) const {
    const std::int64_t of_prompt = std::int64_t{k.heavy} + k.recent;
    if (k.spare < 0 || of_prompt + k.spare > INT32_MAX)
      refuse("keep has room for " + text(of_prompt) + " tokens and spare " + text(k.spare) +
             "; wanted spare from 0 on");
    if (k.window < 0 || (k.window > 0 && of_prompt >= k.window))
      refuse("keep has room for " + text(of_prompt) + " tokens and a window of " + text(k.window) +
             "; wanted fewer than the window has, or no window");
    if (k.heavy < 0 || k.recent < 0 || of_prompt < 1 || k.sinks < 0 || k.grace < 0 ||
        std::int64_t{k.sinks} + k.grace > k.heavy)
      refuse("keep is heavy " + text(k.heavy) + ", recent " + text(k.recent) + ", sinks " + text(k.sinks) + ", grace " +
             text(k.grace) + "; wanted a budget of at least 1, with sinks and grace inside heavy");
  }
  void block(const KvSlots& s, Scoring scoring) const {
    if (s.sequences < 0 || s.kv_heads < 1 || s.slots < 1 || s.head_dim < 1)
      refuse("slots are [" + text(s.sequences) + ", " + text(s.kv_heads) + ", " + text(s.slots) + ", " +
             text(s.head_dim) + "]");
    if (s.dtype == DType::i32) refuse("slots are int32, wanted a float type, int8 or int4");
    if (s.int8_keys && s.dtype != DType::i4)
      refuse(std::string("slots have int8 keys and ") + name_of(s.dtype) + " values, wanted int4 values");
    if (s.sequences > 0 && (!s.k || !s.v || !s.position || !s.free_slot)) refuse("slots have no data");
    if (s.sequences > 0 && scoring != Scoring::none && !s.score) refuse("slots have no score, which scoring needs");
  }
  /// Requires ids from 0 to below `count`, which is the size of `what`.
  void ids(const char* name, std::span<const std::int32_t> ids, std::int64_t count, const char* what) const {
    for (const std::int32_t id : ids)
      if (id < 0 || id >= count) refuse(std::string(name) + " " + text(id) + " of " + what + text(count));
  }
  /// Requires each to name another place of the block.
  void places(std::span<const std::int32_t> sequence, const KvSlots& slots) const {
    std::vector<bool> seen(static_cast<std::size_t>(slots.sequences));
    for (const std::int32_t s : sequence) {
      if (s < 0 || s >= slots.sequences) refuse("sequence " + text(s) + " of a block of " + text(slots.sequences));
      if (seen[static_cast<std::size_t>(s)]) refuse("sequence " + text(s) + " comes twice");
      seen[static_cast<std::size_t>(s)] = true;
    }
  }
};

/// Whether two matrices share an element. Column slices of one buffer interleave without sharing any.
bool overlap(const ConstView& a, const ConstView& b) {
  if (a.rows * a.cols == 0 || b.rows * b.cols == 0) return false;
  if (a.dtype != b.dtype) {
    const auto begin = [](const ConstView& v) { return reinterpret_cast<std::uintptr_t>(v.data); };
    const auto end_of = [&](const ConstView& v) {
      return begin(v) + static_cast<std::uintptr_t>((v.rows - 1) * v.stride + v.cols) * size_of(v.dtype);
    };
    return begin(a) < end_of(b) && begin(b) < end_of(a);
  }
  const auto first = [](const ConstView& v) {
    return reinterpret_cast<std::intptr_t>(v.data) / std::intptr_t(size_of(v.dtype));
  };
  const auto end = [&](const ConstView& v) { return first(v) + (v.rows - 1) * v.stride + v.cols; };
  if (end(a) <= first(b) || end(b) <= first(a)) return false;
  if (a.stride != b.stride) return true;
  const std::intptr_t column = ((first(b) - first(a)) % a.stride + a.stride) % a.stride;
  return column < a.cols || column + b.cols > a.stride;
}

std::string per_head(int heads, int head_dim, const char* unit) {
  return text(heads) + " " + unit + " of " + text(head_dim);
}

/// Requires changes of tokens that are there, each at most once.
void check_changes(const Checker& c, const Sample& op) {
  std::int64_t row = 0, free = 0;  // the lowest token that the next change of this row may have
  for (const LogitChange& change : op.changes) {
    if (change.row == -1) {
      row = op.logits.rows;  // no other may follow
      continue;
    }
    const auto end = std::int64_t{change.token} + change.tokens;
    if (change.row < 0 || change.row >= op.logits.rows || change.token < 0 || change.tokens < 1 || end > op.logits.cols)
      c.refuse("a change of row " + text(change.row) + ", tokens " + text(change.token) + " to " + text(end - 1) +
               "; logits is " + shape(op.logits));
    if (change.row < row || (change.row == row && change.token < free))
      c.refuse("the change of row " + text(change.row) + ", token " + text(change.token) +
               " comes after one of a higher row or token");
    if (!(change.repetition > 0) || (change.tokens > 1 && !(change.bias < 0 && std::isinf(change.bias))))
      c.refuse("a change of " + text(change.tokens) + " tokens by bias " + std::to_string(change.bias) +
               ", repetition " + std::to_string(change.repetition) +
               "; wanted repetition > 0, and bias -inf for several tokens");
    row = change.row, free = end;
  }
}

}  // namespace

void check(const Convert& op) {
  const Checker c{"convert"};
  c.sound("in", op.in);
  c.like("out", op.out, "in", op.in);
  c.of_float_type("in", op.in);
  c.of_float_type("out", op.out);
}

void check(const Add& op) {
  const Checker c{"add"};
  c.sound("x", op.x);
  c.like("y", op.y, "x", op.x);
  c.of_type("x", op.x, DType::f32);
  c.of_float_type("y", op.y);
}

void check(const Scale& op) {
  const Checker c{"scale"};
  c.sound("x", op.x);
  c.of_type("x", op.x, DType::f32);
  if (!std::isfinite(op.factor) || !std::isfinite(op.cap) || op.cap < 0)
    c.refuse("factor is " + std::to_string(op.factor) + " and cap " + std::to_string(op.cap) +
             ", wanted finite numbers, the cap not negative");
}

void check(const Multiply& op) {
  const Checker c{"multiply"};
  c.sound("x", op.x);
  c.like("y", op.y, "x", op.x);
  c.of_float_type("x", op.x);
  c.of_type("y", op.y, op.x.dtype);
}

void check(const Gather& op) {
  const Checker c{"gather"};
  c.sound("table", op.table);
  c.sound("out", op.out);
  c.of_float_type("table", op.table);
  c.of_float_type("out", op.out);
  if (op.table.cols != op.out.cols) c.refuse("out is " + shape(op.out) + ", table is " + shape(op.table));
  if (!op.to.empty()) c.counted("to", op.to.size(), static_cast<std::int64_t>(op.ids.size()), "id");
  else if (static_cast<std::int64_t>(op.ids.size()) > op.out.rows)
    c.refuse(text(static_cast<std::int64_t>(op.ids.size())) + " ids, out is " + shape(op.out));
  for (const std::int32_t id : op.ids)
    if (id < 0 || id >= op.table.rows) c.refuse("id " + text(id) + " of a table of " + text(op.table.rows));
  for (const std::int32_t row : op.to)
    if (row < 0 || row >= op.out.rows) c.refuse("to row " + text(row) + " of " + text(op.out.rows));
}

void check(const Route& op) {
  const Checker c{"route"};
  c.sound("logits", op.logits);
  c.of_type("logits", op.logits, DType::f32);
  const std::int64_t experts = op.logits.cols;
  c.row_for("bias", op.bias, experts, "logits", op.logits);
  if (experts < 1 || experts > kMostExperts) c.refuse(text(experts) + " experts, wanted 1 to " + text(kMostExperts));
  if (op.groups < 1 || experts % op.groups != 0 || op.groups_kept < 1 || op.groups_kept > op.groups)
    c.refuse(text(op.groups_kept) + " of " + text(op.groups) + " groups of " + text(experts) + " experts");
  if (const std::int64_t most = experts / op.groups * op.groups_kept; op.chosen < 1 || op.chosen > most)
    c.refuse(text(op.chosen) + " experts a row, wanted 1 to " + text(most));
  c.counted("expert", op.expert.size(), op.logits.rows * op.chosen, "choice");
  c.counted("weight", op.weight.size(), op.logits.rows * op.chosen, "choice");
}

void check(const AddRows& op) {
  const Checker c{"add_rows"};
  c.sound("x", op.x);
  c.sized("y", op.y, op.y.rows, op.x.cols, "x is " + shape(op.x));
  c.of_type("x", op.x, DType::f32);
  c.of_type("y", op.y, DType::f32);
  c.counted("to", op.to.size(), op.y.rows, "row");
  c.counted("factor", op.factor.size(), op.y.rows, "row");
  c.ids("to row", op.to, op.x.rows, "");
}

void check(const GateRows& op) {
  const Checker c{"gate_rows"};
  c.sound("x", op.x);
  c.sized("gate", op.gate, op.x.rows, 1, "x is " + shape(op.x));
  c.of_type("x", op.x, DType::f32);
  c.of_type("gate", op.gate, DType::f32);
}

void check(const LayerNorm& op) {
  const Checker c{"layer_norm"};
  c.sound("x", op.x);
  c.of_float_type("x", op.x);
  c.row_for("weight", op.weight, op.x.cols, "x", op.x);
  c.row_for("bias", op.bias, op.x.cols, "x", op.x);
  c.like("out", op.out, "x", op.x);
  if (op.x.dtype != DType::f32) c.of_type("out", op.out, op.x.dtype);
  else c.of_float_type("out", op.out);
}

void check(const TakeHeads& op) {
  const Checker c{"take_heads"};
  c.sound("in", op.in);
  c.of_float_type("in", op.in);
  c.of_type("out", op.out, op.in.dtype);
  if (op.head_dim < 1 || op.first < 0 || op.step < 1 || op.out.cols % op.head_dim != 0)
    c.refuse("out is " + shape(op.out) + " of heads of " + text(op.head_dim) + ", from head " + text(op.first) +
             " on every " + text(op.step));
  c.sized("out", op.out, op.in.rows, op.out.cols, "a row for each of in");
  const std::int64_t heads = op.out.cols / op.head_dim;
  if (heads > 0 && (op.first + (heads - 1) * op.step + 1) * op.head_dim > op.in.cols)
    c.refuse("in is " + shape(op.in) + ", which has no head " + text(op.first + (heads - 1) * op.step) + " of " +
             text(op.head_dim));
}

void check(const Rotary& op) {
  const Checker c{"rotary"};
  c.sound("x", op.x);
  c.of_float_type("x", op.x);
  if (op.head_dim < 1 || op.x.cols % op.head_dim != 0)
    c.refuse("x is " + shape(op.x) + ", which are no heads of " + text(op.head_dim));
  if (2 * op.frequencies.size() > static_cast<std::size_t>(op.head_dim))
    c.refuse(text(static_cast<std::int64_t>(op.frequencies.size())) + " frequencies for heads of " + text(op.head_dim));
  c.counted("position", op.position.size(), op.x.rows, "row");
}

void check(const Hadamard& op) {
  const Checker c{"hadamard"};
  c.sound("x", op.x);
  c.of_type("x", op.x, DType::f32);
  if (op.head_dim < 1 || op.x.cols % op.head_dim != 0)
    c.refuse("x is " + shape(op.x) + ", which are no heads of " + text(op.head_dim));
}

void check(const Linear& op) {
  const Checker c{"linear"};
  c.sound("x", op.x);
  c.sound("weight", op.weight);
  c.of_float_type("x", op.x);
  if (op.accumulate) c.of_type("out", op.out, DType::f32);
  else c.of_float_type("out", op.out);
  if (!is_quantised(op.weight.dtype)) c.of_float_type("weight", op.weight);
  else if (!is_group_size(op.weight.group))
    c.refuse("weight has groups of " + text(op.weight.group) + ", wanted 32, 64 or 128");
  if (op.weight.cols != op.x.cols) c.refuse("weight is " + shape(op.weight) + ", x is " + shape(op.x));
  c.row_for("bias", op.bias, op.weight.rows, "weight", op.weight);
  c.sized("out", op.out, op.x.rows, op.weight.rows, "x is " + shape(op.x) + ", weight is " + shape(op.weight));
  if (overlap(op.x, op.out)) c.refuse("out overlaps x");
}

void check(const LinearGroup& op) {
  for (const LinearGroup::Part& part : op.parts) check(op.linear(part));
}

void check(const UnpackWeights& op) {
  const Checker c{"unpack_weights"};
  c.sound("weight", op.weight);
  if (!is_quantised(op.weight.dtype))
    c.refuse("weight is " + std::string(name_of(op.weight.dtype)) + ", wanted int8 or int4");
  if (!is_group_size(op.weight.group))
    c.refuse("weight has groups of " + text(op.weight.group) + ", wanted 32, 64 or 128");
  c.like("out", op.out, "weight", op.weight);
  c.of_type("out", op.out, DType::f16);
  if (op.out.rows > 1 && op.out.stride != op.out.cols)
    c.refuse("out is " + shape(op.out) + ", its rows are " + text(op.out.stride) + " apart, wanted " +
             text(op.out.cols));
}

void check(const PrefillAttention& op) {
  const Checker c{"prefill_attention"};
  c.heads(op.heads, op.kv_heads, op.head_dim);
  const std::int64_t tokens = op.q.rows, dim = op.head_dim;
  c.sized("q", op.q, tokens, op.heads * dim, per_head(op.heads, op.head_dim, "heads"));
  c.sized("k", op.k, tokens, op.kv_heads * dim, per_head(op.kv_heads, op.head_dim, "kv_heads"));
  c.sized("v", op.v, tokens, op.kv_heads * dim, per_head(op.kv_heads, op.head_dim, "kv_heads"));
  c.like("out", op.out, "q", op.q);
  c.of_float_type("k", op.k);
  c.of_type("v", op.v, op.k.dtype);
  if (op.q.dtype != op.k.dtype) c.of_type("q", op.q, DType::f32);
  if (op.out.dtype != op.k.dtype) c.of_type("out", op.out, DType::f32);
  c.offsets(op.offsets, tokens, op.prefix);
  c.window(op.window);
  c.cap(op.cap);
  c.sink_logits(op.sink_logits, op.heads);
  if (!op.lse) return;
  c.sized("lse", op.lse, op.heads, tokens, "a number for each head and token");
  c.of_type("lse", op.lse, DType::f32);
}

void check(const ColumnSums& op) {
  const Checker c{"column_sums"};
  c.heads(op.heads, op.kv_heads, op.head_dim);
  const std::int64_t tokens = op.q.rows, dim = op.head_dim;
  c.sized("q", op.q, tokens, op.heads * dim, per_head(op.heads, op.head_dim, "heads"));
  c.sized("k", op.k, tokens, op.kv_heads * dim, per_head(op.kv_heads, op.head_dim, "kv_heads"));
  c.sized("lse", op.lse, op.heads, tokens, "a number for each head and token");
  c.of_float_type("k", op.k);
  if (op.q.dtype != op.k.dtype) c.of_type("q", op.q, DType::f32);
  c.of_type("lse", op.lse, DType::f32);
  c.of_type("score", op.score, DType::f32);
  c.offsets(op.offsets, tokens, op.prefix);
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
    if (stored >= op.slots.slots)
      c.refuse(text(op.slots.slots) + " slots, wanted " + text(stored + 1) + ": prompt " +
               text(static_cast<std::int64_t>(i)) + " keeps " + text(stored) + " tokens and needs one slot more");
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
  c.cap(op.cap);
  c.sink_logits(op.sink_logits, op.heads);
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
  if (op.slots.rest) c.refuse("slots have a rest, a sum of keys of many positions, which cannot be moved");
}

void check(const Sample& op) {
  const Checker c{"sample"};
  c.sound("logits", op.logits);
  c.of_type("logits", op.logits, DType::f32);
  c.counted("params", op.params.size(), op.logits.rows, "row");
  c.counted("token", op.token.size(), op.logits.rows, "row");
  if (!op.logit.empty()) c.counted("logit", op.logit.size(), op.logits.rows, "row");
  if (op.logits.rows > 0 && op.logits.cols < 1) c.refuse("logits is " + shape(op.logits) + ": no vocabulary");
  for (const SampleParams& p : op.params)
    if (!(p.temperature >= 0) || !std::isfinite(p.temperature) || !(p.top_p > 0 && p.top_p <= 1) || p.top_k < 0 ||
        !(p.min_p >= 0 && p.min_p <= 1))
      c.refuse("temperature " + std::to_string(p.temperature) + ", top_p " + std::to_string(p.top_p) + ", top_k " +
               text(p.top_k) + ", min_p " + std::to_string(p.min_p) +
               "; wanted temperature >= 0, 0 < top_p <= 1, top_k >= 0, 0 <= min_p <= 1");
  check_changes(c, op);
}

void check(const LogProbs& op) {
  const Checker c{"log_probs"};
  c.sound("logits", op.logits);
  c.of_type("logits", op.logits, DType::f32);
  c.counted("target", op.target.size(), op.logits.rows, "row");
  c.counted("logprob", op.logprob.size(), op.logits.rows, "row");
  c.counted("greedy", op.greedy.size(), op.logits.rows, "row");
  c.ids("target", op.target, op.logits.cols, "a vocabulary of ");
}

void check(const TopLogProbs& op) {
  const Checker c{"top_log_probs"};
  c.sound("logits", op.logits);
  c.of_type("logits", op.logits, DType::f32);
  c.ids("row", op.row, op.logits.rows, "");
  if (op.count < 0) c.refuse("count is " + text(op.count));
  const auto rows = static_cast<std::int64_t>(op.row.size());
  c.counted("token", op.token.size(), rows * op.count, "row and alternative");
  c.counted("logprob", op.logprob.size(), rows * op.count, "row and alternative");
  c.counted("log_sum", op.log_sum.size(), rows, "row");
}

float random_score(std::uint64_t seed, int kv_head, std::int32_t position) {
  const std::uint64_t head = static_cast<std::uint32_t>(kv_head), token = static_cast<std::uint32_t>(position);
  return unit_float(random_bits(seed, head << 32 | token));
}

}  // namespace weft::kernels
