// kernels/ops.cc: the shape and type checks that all twins share.
#include "kernels/ops.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/op_checks.h"

namespace weft::kernels {

using namespace checks;

namespace {

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

/// Requires changes of tokens that are there, each at most once.
void check_changes(const Checker& c, const Sample& op) {
  std::int64_t row = 0, free = 0;  // the lowest token that the next change of this row may have
  for (const LogitChange& change : op.changes) {
    if (change.row == -1) {
      row = op.logits.rows;  // no other may follow
      continue;
    }
    if (change.row < 0 || change.row >= op.logits.rows || change.token < 0 || change.token >= op.logits.cols)
      c.refuse("a change of row " + text(change.row) + ", token " + text(change.token) + "; logits is " +
               shape(op.logits));
    if (change.row < row || (change.row == row && change.token < free))
      c.refuse("the change of row " + text(change.row) + ", token " + text(change.token) +
               " comes after one of a higher row or token");
    if (!(change.repetition > 0))
      c.refuse("a change by repetition " + std::to_string(change.repetition) + ", wanted more than 0");
    row = change.row, free = std::int64_t{change.token} + 1;
  }
}

/// Requires masks that are there.
void check_masks(const Checker& c, const Sample& op) {
  if (op.mask.empty()) return;
  c.counted("mask", op.mask.size(), op.logits.rows, "row");
  const std::int64_t words = mask_words(op.logits.cols), masks = std::ssize(op.masks) / words;
  for (const std::int32_t mask : op.mask)
    if (mask < -1 || mask >= masks)
      c.refuse("mask " + text(mask) + " of " + text(masks) + " masks of " + text(words) + " words");
}

/// Requires groups that there are, and a table only of levels of 4 bits.
void check_levels(const Checker& c, const ConstView& weight) {
  if (!is_group_size(weight.group)) c.refuse("weight has groups of " + text(weight.group) + ", wanted " + kGroupSizes);
  if (weight.dtype != DType::i4 && weight.table != LevelTable::even)
    c.refuse("weight is " + std::string(name_of(weight.dtype)) + " with the table " + name_of(weight.table) +
             ", which levels of int4 alone have");
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
  if (!op.by) return;
  c.of_float_type("by", op.by);
  if (op.by.rows != 1 || op.by.cols != 1) c.refuse("by is " + shape(op.by) + ", wanted one number");
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
  c.row_for("by", op.by, experts, "logits", op.logits);
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

void check(const ClampedGate& op) {
  const Checker c{"clamped_gate"};
  c.sound("x", op.x);
  c.like("y", op.y, "x", op.x);
  c.of_float_type("x", op.x);
  c.of_type("y", op.y, op.x.dtype);
  if (!std::isfinite(op.slope) || !std::isfinite(op.limit) || op.limit <= 0)
    c.refuse("slope is " + std::to_string(op.slope) + " and limit " + std::to_string(op.limit) +
             ", wanted finite numbers, the limit positive");
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
  c.row_for("weight", op.weight, op.x.cols, "x", op.x, /*several=*/true);
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
  if (is_quantised(op.weight.dtype)) check_levels(c, op.weight);
  else c.of_float_type("weight", op.weight);
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
    c.refuse("weight is " + std::string(name_of(op.weight.dtype)) + ", wanted int8, int4 or float8");
  check_levels(c, op.weight);
  c.like("out", op.out, "weight", op.weight);
  c.of_type("out", op.out, DType::f16);
  if (op.out.rows > 1 && op.out.stride != op.out.cols)
    c.refuse("out is " + shape(op.out) + ", its rows are " + text(op.out.stride) + " apart, wanted " +
             text(op.out.cols));
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
  check_masks(c, op);
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

}  // namespace weft::kernels
