// kernels/attention_ops.h: of the vocabulary what attends: whole prompts, and steps over KV slots that keep what H2O
// keeps. What kernels/ops.h says of shapes and types holds here.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/keep.h"
#include "kernels/kv_row.h"
#include "kernels/tensor.h"

namespace weft::kernels {

/// Causal attention of whole prompts, without the square matrix (FlashAttention's online softmax, arXiv 2205.14135).
///   q, out [tokens, heads * head_dim] f32      k, v [tokens, kv_heads * head_dim] of the KV type
///   offsets [sequences + 1]: sequence i has rows offsets[i] .. offsets[i + 1]
///   lse [heads, tokens] f32 or empty: log of the sum of exp(scale * q k^T) per row, natural logarithm
struct PrefillAttention {
  ConstView q, k, v;
  std::span<const std::int32_t> offsets;
  int heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1;
  View out, lse;
};

/// The attention that each prompt token received: score[g, j] = the sum (by another statistic the largest) over the
/// query heads of group g and the rows i >= j of exp(scale * q_i k_j - lse_i), in fp32, recomputed per key block from
/// the row sums. `observation` > 0 counts only the last `observation` rows of each sequence (SnapKV's observation
/// window, arXiv 2404.14469).
///   q, k, lse, offsets as in PrefillAttention      score [kv_heads, tokens] f32
struct ColumnSums {
  ConstView q, k, lse;
  std::span<const std::int32_t> offsets;
  int heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1;
  int observation = 0;
  View score;
  Statistic statistic = Statistic::sum;
};

constexpr int rest_numbers(int head_dim) { return 1 + 2 * head_dim; }

/// A KV block: what one layer keeps for one batch of sequences, in fixed slots; nothing ever moves between slots.
///   k, v [sequences, kv_heads, slots], rows of head_dim numbers of `dtype`, which may be i8 or i4 (kernels/kv_row.h)
///   score [sequences, kv_heads, slots] f32
///   position [sequences, kv_heads, slots] i32, -1 = empty
///   free_slot [sequences, kv_heads] i32: where the next goes
///   rest [sequences, kv_heads, rest_numbers(head_dim)] f32, or null: of all that a head evicted, how many tokens, the
///   sum of their keys and the sum of their values. Each query attends to it as to one more token, with the mean key
///   and the mean value; ln(how many) is added to its logit (MomentKV, arXiv 2606.01563)
///   key_sum [sequences, kv_heads, head_dim] f32: of the unit keys of all tokens that a head has seen; steps with
///   Scoring::keys need it, else it is null
/// `score` may be null with Scoring::none. A sequence needs min(budget, its tokens) + 1 slots.
struct KvSlots {
  void *k = nullptr, *v = nullptr;
  float* score = nullptr;
  std::int32_t *position = nullptr, *free_slot = nullptr;
  DType dtype = DType::f16;
  int sequences = 0, kv_heads = 0, slots = 0, head_dim = 0;
  float *rest = nullptr, *key_sum = nullptr;
  bool int8_keys = false;  ///< of slots of i4: keys are rows of i8

  constexpr DType key_type() const { return int8_keys ? DType::i8 : dtype; }
  constexpr std::size_t key_bytes() const { return kv_row_bytes(key_type(), head_dim); }
  constexpr std::size_t value_bytes() const { return kv_row_bytes(dtype, head_dim); }
};

/// After prefill: picks what each head keeps of each prompt and writes it into the slots, in order of position:
/// all of it if it fits the budget, else the last `recent` tokens and, of those before, the `heavy` ones with the
/// highest scores (sinks first; of equal scores the newer stays). All other slots of the sequence become empty.
///   k, v [tokens, kv_heads * head_dim] of the slots' type, f32 where that is i8 or i4; these are quantised here
///   score [kv_heads, tokens] f32, empty unless
///   Scoring::attention     offsets [prompts + 1]     sequence [prompts]: its place in the block     keep [prompts]
/// With `pool` > 1, which is odd, a score is the mean of the scores of that many neighbours, fewer at the prompt's ends
/// (SnapKV). Slots without scores forget them.
///   work [kv_heads, tokens] f32: with Scoring::keys, room for what is computed of the keys as they are given, so after
///   a rotation, and in the slots' type where that is a float type
struct KeepPrompt {
  ConstView k, v, score;
  std::span<const std::int32_t> offsets, sequence;
  std::span<const Keep> keep;
  Scoring scoring = Scoring::none;
  std::uint64_t seed = 0;
  KvSlots slots;
  int pool = 1;
  View work;
};

/// One decode step: writes each row's new key and value into its free slot, attends to all visible slots, multiplies
/// the scores by `decay`, adds the probabilities (summed over the query heads of the group) or takes the largest of all
/// of them, and chooses the victim, whose slot becomes free for the next token.
///   q, out [rows, heads * head_dim] f32     k, v [rows, kv_heads * head_dim] f32, rounded into the slots; into those
///   of i8 or i4 quantised
///   sequence, position, keep [rows]: place in the block, absolute position of the new token, budget
///   home: a copy of the block, or null: what the step changes (the new key and value, the scores of the row's heads,
///   positions, the free slot) it changes there too; on a GPU memory of Backend::allocate_host()
///   probabilities [rows * heads, slots] f32 or empty: used in place of the softmax (tests of ties); the rest gets none
///   evicted [rows, kv_heads] i32 or empty: receives the position evicted by this step, or -1
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
};

/// Moves what some sequences hold to positions next to each other, so that they can go on without leaving the model's
/// context (StreamingLLM, arXiv 2309.17453). Of each KV head the slots in use, ordered by position, get the positions
/// that end before `next`; keys turn by the difference, in fp32, and are rounded again. Scores, values and the free
/// slot stay, and so does a key whose position does.
///   sequence, next [rows]: place in the block; a position, at least as many as any head has slots in use
///   frequencies [n]: of Rotary, with which the keys were turned before they were stored; empty: keys do not depend on
///   positions
///   hadamard: whether keys were multiplied by Hadamard's matrix after that; they are again
///   home: as in DecodeAttention
struct Reposition {
  std::span<const std::int32_t> sequence, next;
  std::span<const float> frequencies;
  bool hadamard = false;
  KvSlots slots, home;
};

/// Uniform in [0, 1), the same on every backend.
float random_score(std::uint64_t seed, int kv_head, std::int32_t position);

}  // namespace weft::kernels
