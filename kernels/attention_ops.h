// kernels/attention_ops.h: the attention ops: prefill over whole prompts, and decode steps over KV slots with H2O
// eviction. The rules of kernels/ops.h for shapes and types hold here too.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/coarse_row.h"
#include "kernels/keep.h"
#include "kernels/kv_row.h"
#include "kernels/tensor.h"

namespace weft::kernels {

/// On a GPU the tokens of a prefix that prompts share are a multiple of this: no tile of keys lies across its end.
/// Scores are summed in blocks of as many rows, on the CPU too.
constexpr int kPrefixStep = 64;
/// The tokens of a prefix that fill whole blocks.
constexpr int whole_steps(int prefix) { return prefix / kPrefixStep * kPrefixStep; }

/// The columns of a matrix that has the tokens of whole prompts one after another, each with its prefix: where those of
/// prompt i begin, or end if i is their number. `offsets` and `prefix` as in PrefillAttention.
constexpr std::int64_t whole_begin(std::span<const std::int32_t> offsets, int prefix, std::size_t i) {
  return offsets[i] - offsets.front() + static_cast<std::int64_t>(i) * prefix;
}

/// Causal attention of whole prompts, without the square matrix (FlashAttention's online softmax, arXiv 2205.14135).
///   q, out [tokens, heads * head_dim] f32, on a GPU also of k's type
///   k, v [tokens, kv_heads * head_dim] of the KV type
///   offsets [sequences + 1]: sequence i has rows offsets[i] .. offsets[i + 1]; rows before offsets[0] are not used
///   lse [heads, tokens] f32 or empty: log of the sum of exp(logit) per row, natural logarithm
///   sink_logits [heads] or empty
/// With a `window` a row attends to the last `window` tokens alone, itself included; 0: to all. The logit of a key is
/// scale * q k^T. With a `cap` it becomes cap * tanh(logit / cap) (Gemma 2, arXiv 2408.00118); 0: it stays. Sink logits
/// take part in a row's softmax, lse included, as the logit of one more key whose value is 0 (gpt-oss, arXiv
/// 2508.10925); neither the scale nor the cap applies to them.
///
/// With a `prefix` the first `prefix` rows of k and v are the beginning of every prompt of the call, and offsets[0] is
/// at least `prefix`: a sequence's own rows follow those of its prefix. No other rows before offsets[0] are used, and
/// none of q, out and lse, which therefore need no rows before `q_begin`: row i of the call is their row i - q_begin.
/// The rows of a result are those of the whole prompt, on the CPU to the last bit. So a long prompt may come in several
/// calls, each with what has come before as its prefix.
///
/// In Arithmetic::bfloat16 a CPU that has AMX rounds q, and the weights of the values, to bf16 if k and v are bf16.
struct PrefillAttention {
  ConstView q, k, v;
  std::span<const std::int32_t> offsets;
  int heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1;
  View out, lse;
  int window = 0;
  float cap = 0;
  std::span<const float> sink_logits = {};
  int prefix = 0;
  std::int64_t q_begin = 0;
  Arithmetic arithmetic = Arithmetic::exact;
};

/// The attention that each prompt token received: score[g, j] = the sum (with the other statistic the largest) of
/// exp(logit_ij - lse_i) over the query heads of group g and the rows i >= j. The terms are recomputed in fp32, some
/// keys at a time, from the row sums lse, which have the sink logits in them if there are any. `observation` > 0 counts
/// only the last `observation` rows of each sequence (SnapKV's observation window, arXiv 2404.14469).
///   q, k, lse, offsets, window, cap, prefix, q_begin, arithmetic as in PrefillAttention
///   score [kv_heads, tokens of the whole prompts] f32, see whole_begin()
///   before [kv_heads, whole_steps(prefix)] f32 or empty: the scores that these tokens have from their own rows, to
///   which those of all further rows are added; q and lse have the rows of the prefix behind them, too. They may be the
///   first columns of `score` itself if there is one prompt. With an `observation` only rows of the call may count.
struct ColumnSums {
  ConstView q, k, lse;
  std::span<const std::int32_t> offsets;
  int heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1;
  int observation = 0;
  View score;
  Statistic statistic = Statistic::sum;
  int window = 0;
  float cap = 0;
  int prefix = 0;
  ConstView before = {};
  std::int64_t q_begin = 0;
  Arithmetic arithmetic = Arithmetic::exact;
};

constexpr int rest_numbers(int head_dim) { return 1 + 2 * head_dim; }

/// A KV buffer: the keys and values that one layer keeps for one batch of sequences, in fixed slots. Nothing ever moves
/// between slots.
///   k, v [sequences, kv_heads, slots], rows of head_dim numbers of `dtype`, which may be i8 or i4 (kernels/kv_row.h)
///   score [sequences, kv_heads, slots] f32
///   position [sequences, kv_heads, slots] i32, -1 = empty
///   free_slot [sequences, kv_heads] i32: the slot of the next token
///   rest [sequences, kv_heads, rest_numbers(head_dim)] f32, or null: the number of tokens that a head evicted, the sum
///   of their keys and the sum of their values. Each query attends to them as to one more token, with the mean key and
///   the mean value; ln(number) is added to its logit (MomentKV, arXiv 2606.01563)
///   key_sum [sequences, kv_heads, head_dim] f32: the sum of the unit keys of all tokens that a head has seen; steps
///   with Scoring::keys need it, otherwise it is null
///   mean [sequences, kv_heads, 2 * head_dim] f32, or null: the mean of the prompt's keys, and that of its values. Rows
///   are stored less these, which makes them smaller; what a query times the mean key is, all logits of the step have
///   in common, so that the softmax does without it. Only with i8, without a rest and split slots, a cap and sink
///   logits
/// `score` may be null with Scoring::none. A sequence needs min(budget, its tokens) + 1 slots.
/// The last `cold` of a head's slots have coarse rows instead (kernels/coarse_row.h), only with i8 and without a rest:
///   k, v [sequences, kv_heads, hot()]     cold_k, cold_v [sequences, kv_heads, cold], rows of `coarse` bits
/// Slots that are `split` have each row of i8 in pieces (kernels/coarse_row.h), so that a step may leave the low rows
/// of most slots unread; without a rest and cold slots:
///   k, v: high rows of `coarse` bits     low_k, low_v [sequences, kv_heads, slots]: low rows, also those of the home
///   scale_k, scale_v [sequences, kv_heads, slots]: scales and minima
struct KvSlots {
  void *k = nullptr, *v = nullptr;
  float* score = nullptr;
  std::int32_t *position = nullptr, *free_slot = nullptr;
  DType dtype = DType::f16;
  int sequences = 0, kv_heads = 0, slots = 0, head_dim = 0;
  float *rest = nullptr, *key_sum = nullptr;
  bool int8_keys = false;  ///< keys are rows of i8, in slots of i4
  int cold = 0;
  void *cold_k = nullptr, *cold_v = nullptr;
  CoarseBits coarse = {};
  bool split = false;
  void *low_k = nullptr, *low_v = nullptr, *scale_k = nullptr, *scale_v = nullptr;
  float* mean = nullptr;

  constexpr std::size_t low_key_bytes() const { return low_row_bytes(coarse.keys, head_dim); }
  constexpr std::size_t low_value_bytes() const { return low_row_bytes(coarse.values, head_dim); }
  constexpr int hot() const { return slots - cold; }
  constexpr DType key_type() const { return int8_keys ? DType::i8 : dtype; }
  constexpr std::size_t key_bytes() const {
    return split ? high_row_bytes(coarse.keys, head_dim) : kv_row_bytes(key_type(), head_dim);
  }
  constexpr std::size_t value_bytes() const {
    return split ? high_row_bytes(coarse.values, head_dim) : kv_row_bytes(dtype, head_dim);
  }
};

/// After prefill: picks the tokens that each head keeps of each prompt, and writes them into the slots in order of
/// position. A prompt of at most heavy + recent tokens stays whole. Otherwise the last `recent` tokens stay and, of
/// those before, the `heavy` ones with the highest scores (sinks first; among equal scores the newer stays). Of the
/// rest Keep::cold tokens become cold, chosen in the same way. All other slots of the sequence become empty. Slots with
/// means get those of the whole prompt: each is a sum in fp32, in order of position, divided by the number of tokens.
///   k, v [tokens, kv_heads * head_dim] of the slots' type; f32 if that is i8 or i4, and this op quantises them
///   score [kv_heads, tokens of the whole prompts] f32, see whole_begin(); empty unless Scoring::attention
///   offsets [prompts + 1], prefix: as in PrefillAttention
///   sequence [prompts]: its place in the block     keep [prompts]
///   work, like score: with Scoring::keys, room for the scores. They are computed from the keys as given:
///   after any rotation, and in the slots' type if that is a float type
/// With `pool` > 1, which must be odd, a score is the mean of the scores of that many neighbours, fewer at the prompt's
/// ends (SnapKV). Slots without `score` do not store scores.
struct KeepPrompt {
  ConstView k, v, score;
  std::span<const std::int32_t> offsets, sequence;
  std::span<const Keep> keep;
  Scoring scoring = Scoring::none;
  std::uint64_t seed = 0;
  KvSlots slots;
  int pool = 1;
  View work;
  int prefix = 0;
};

/// One decode step: writes each row's new key and value into its free slot, attends to all visible slots, and updates
/// the scores. It multiplies these by `decay`, then adds the probabilities (summed over the query heads of the group)
/// or takes the largest of all of them. Finally it chooses the victim, whose slot becomes free for the next token. With
/// Keep::cold the victim gets a cold slot, the coldest token's if none is empty. With split slots it attends to the
/// tokens that Keep::read chooses by all their bits, and to the others by their high rows; a score gets these
/// probabilities.
///   q, out [rows, heads * head_dim] f32     k, v [rows, kv_heads * head_dim] f32; rounded into the slots, or quantised
///   if the slots are of i8 or i4
///   sequence, position, keep [rows]: place in the block, absolute position of the new token, budget
///   home: a copy of the KV buffer, or null. The step makes its changes there too (the new key and value, the scores of
///   the row's heads, positions, the free slot); on a GPU it is memory of Backend::allocate_host()
///   probabilities [rows * heads, slots] f32 or empty: used in place of the softmax (tests of ties); the rest gets none
///   evicted [rows, kv_heads] i32 or empty: receives the position that left the cache in this step, or -1
///   cap, sink_logits [heads]: as in PrefillAttention. The cap applies to the mean key of a rest too, before ln(number)
///   is added. What the sink logits take is nobody's score
///   alike [rows] or empty: for each row a sequence whose slots may be read in place of its own, so that rows with the
///   same one find them in the caches. It changes no result, and kernels may ignore it
struct DecodeAttention {
  ConstView q, k, v;
  std::span<const std::int32_t> sequence, position;
  std::span<const Keep> keep;
  int heads = 0;
  float scale = 1, decay = 1;
  Scoring scoring = Scoring::none;
  std::uint64_t seed = 0;
  KvSlots slots, home;
  View out;
  ConstView probabilities;
  View evicted;
  Statistic statistic = Statistic::sum;
  float cap = 0;
  std::span<const float> sink_logits = {};
  std::span<const AlikeSlots> alike = {};
};

/// Moves the tokens that some sequences hold to consecutive positions, so that the sequences can continue without
/// leaving the model's context (StreamingLLM, arXiv 2309.17453). In each KV head the slots in use, ordered by position,
/// get the positions that end before `next`. Keys turn by the difference, in fp32, and are rounded again. Scores,
/// values and the free slot do not change, nor does a key whose position stays.
///   sequence, next [rows]: place in the block; a position, at least the number of slots in use in any head
///   frequencies [n]: those of the Rotary that turned the keys before they were stored; empty if keys do not depend on
///   positions
///   alternate: that Rotary's
///   hadamard: whether keys were multiplied by Hadamard's matrix after that; the op undoes this and does it again
///   home: as in DecodeAttention
struct Reposition {
  std::span<const std::int32_t> sequence, next;
  std::span<const float> frequencies;
  bool hadamard = false;
  KvSlots slots, home;
  bool alternate = false;
};

/// Uniform in [0, 1), the same on every backend.
float random_score(std::uint64_t seed, int kv_head, std::int32_t position);

}  // namespace weft::kernels
