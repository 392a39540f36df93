// kernels/op_checks.h: the refusals of operands that the checks of all ops use. Internal to kernels/.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/error.h"
#include "kernels/ops.h"
#include "kernels/quantised.h"

namespace weft::kernels::checks {

inline std::string text(std::int64_t number) { return std::to_string(number); }

inline std::string shape(const ConstView& v) {
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
  void row_for(const char* name, const ConstView& v, std::int64_t cols, const char* other, const ConstView& model,
               bool several = false) const {
    if (!v) return;
    sound(name, v);
    of_float_type(name, v);
    const bool counted = v.rows == 1 || (several && v.rows > 1 && v.stride == cols);  // one after another
    if (!counted || v.cols != cols)
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
  /// Requires q to have every row from `used` on.
  void q_begin(std::int64_t begin, std::int64_t used) const {
    if (begin < 0 || begin > used) refuse("q_begin is " + text(begin) + ", wanted 0 to " + text(used));
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
    if (k.read < 0) refuse("keep reads " + text(k.read) + " tokens with all bits, wanted 0 (all) or more");
    if (k.cold < 0) refuse("keep has " + text(k.cold) + " cold tokens, wanted 0 or more");
    if (k.window < 0 || (k.window > 0 && of_prompt >= k.window))
      refuse("keep has room for " + text(of_prompt) + " tokens and a window of " + text(k.window) +
             "; wanted fewer than the window has, or no window");
    if (k.heavy < 0 || k.recent < 0 || of_prompt < 1 || k.sinks < 0 || k.grace < 0 ||
        std::int64_t{k.sinks} + k.grace > k.heavy)
      refuse("keep is heavy " + text(k.heavy) + ", recent " + text(k.recent) + ", sinks " + text(k.sinks) + ", grace " +
             text(k.grace) + "; wanted a budget of at least 1, with sinks and grace inside heavy");
  }
  void coarse_bits(const KvSlots& s) const {
    for (const int bits : {s.coarse.keys, s.coarse.values})
      if (bits < 1 || bits > kMostCoarseBits)
        refuse("coarse rows have " + text(bits) + " bits, wanted 1 to " + text(kMostCoarseBits));
  }
  void split_slots(const KvSlots& s) const {
    if (s.dtype != DType::i8) refuse(std::string("split slots of ") + name_of(s.dtype) + ", wanted int8");
    coarse_bits(s);
    if (s.cold != 0) refuse("slots are split and have cold rows, wanted one of the two");
    if (s.rest) refuse("slots are split and have a rest, wanted one of the two");
    if (s.sequences > 0 && (!s.low_k || !s.low_v || !s.scale_k || !s.scale_v))
      refuse("split slots have no low rows or no scales");
  }
  void cold_slots(const KvSlots& s) const {
    if (s.cold < 0 || s.cold >= s.slots) refuse(text(s.cold) + " cold slots of " + text(s.slots));
    if (s.dtype != DType::i8) refuse(std::string("cold slots beside slots of ") + name_of(s.dtype) + ", wanted int8");
    coarse_bits(s);
    if (s.rest) refuse("slots have cold rows and a rest, wanted one of the two");
    if (s.sequences > 0 && (!s.cold_k || !s.cold_v)) refuse("cold slots have no data");
  }
  void means(const KvSlots& s) const {
    if (s.dtype != DType::i8) refuse(std::string("slots of ") + name_of(s.dtype) + " have means, wanted int8");
    if (s.rest || s.split) refuse("slots have means and a rest or pieces, wanted one of the two");
  }
  void block(const KvSlots& s, Scoring scoring) const {
    if (s.sequences < 0 || s.kv_heads < 1 || s.slots < 1 || s.head_dim < 1)
      refuse("slots are [" + text(s.sequences) + ", " + text(s.kv_heads) + ", " + text(s.slots) + ", " +
             text(s.head_dim) + "]");
    if (s.dtype == DType::i32) refuse("slots are int32, wanted a float type, int8 or int4");
    if (s.int8_keys && s.dtype != DType::i4)
      refuse(std::string("slots have int8 keys and ") + name_of(s.dtype) + " values, wanted int4 values");
    if (s.cold != 0) cold_slots(s);
    if (s.split) split_slots(s);
    if (s.mean) means(s);
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

inline std::string per_head(int heads, int head_dim, const char* unit) {
  return text(heads) + " " + unit + " of " + text(head_dim);
}

}  // namespace weft::kernels::checks
