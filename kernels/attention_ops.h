// kernels/attention_ops.h: of the vocabulary what attends: whole prompts, and steps over KV slots that keep what H2O
// keeps. What kernels/ops.h says of shapes and types holds here.
#pragma once

#include <cstdint>
#include <span>

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

/// How the attention that a token got from rows and from the query heads of its group becomes one score:
///   sum      their sum (H2O, arXiv 2306.14048)
///   largest  the largest of them, what it may cost at worst (DefensiveKV, arXiv 2510.13334)
///   mean     the sum, compared per row that could see the token: score / (newest position - its own + 1)
///   count    of how many rows and heads it got more than an even share, which is at least kMoreThanEven / the tokens
///            that the row sees (Scissorhands, arXiv 2305.17118)
enum class Statistic : std::uint8_t { sum, largest, mean, count };
constexpr float kMoreThanEven = 1 + 1.0f / 1024;  ///< so that what is even stays so whatever exp rounds

/// The attention that each prompt token received: score[g, j] = the sum (by another statistic the largest, or how many
/// are more than an even share) over the query heads of group g and the rows i >= j of exp(scale * q_i k_j - lse_i), in
/// fp32, recomputed per key block from the row sums. `window` > 0 counts only the last `window` rows of each sequence
/// (SnapKV's observation window, arXiv 2404.14469). With `together` each group gets the mean of all groups' scores, so
/// that all of them choose alike (as TOVA does, arXiv 2401.06104).
///   q, k, lse, offsets as in PrefillAttention      score [kv_heads, tokens] f32
struct ColumnSums {
  ConstView q, k, lse;
  std::span<const std::int32_t> offsets;
  int heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1;
  int window = 0;
  View score;
  Statistic statistic = Statistic::sum;
  bool together = false;
};

/// How a score comes about. All but `attention` leave a score as it was when its token came.
///   none       scores are neither kept nor read (full attention, recent window)
///   random     random_score(seed, head, position)
///   keys       -cos(its key, the sum of its head's unit keys): those of the whole prompt, and for a token of a step
///              those up to it (KeyDiff, arXiv 2504.15364); 0 where a key has no direction, which then adds nothing
///   positions  position_score(), of the patterns of the Sparse Transformer (arXiv 1904.10509)
enum class Scoring : std::uint8_t { none, attention, random, keys, positions };

/// What one sequence keeps between two steps, per layer and KV head: of its prompt at most heavy + recent tokens, and
/// `spare` more that come later. Once that many are stored, each step at position t evicts the stored or new token with
/// the lowest score among those at positions
/// <= t - recent - grace that are not sinks (< sinks); ties evict the oldest. H2O has grace 0; its FlexGen version 1.
struct Keep {
  std::int32_t heavy = 0, recent = 0, sinks = 0, grace = 0, spare = 0;
  constexpr std::int32_t of_prompt() const { return heavy + recent; }
  constexpr std::int32_t budget() const { return heavy + recent + spare; }
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
///   value_norm [sequences, kv_heads, slots] f32, or null: the sum of the sizes of a value's numbers; a step multiplies
///   scores by it when it compares them (VATP, arXiv 2406.12335)
/// `score` may be null with Scoring::none. A sequence needs min(budget, its tokens) + 1 slots.
struct KvSlots {
  void *k = nullptr, *v = nullptr;
  float* score = nullptr;
  std::int32_t *position = nullptr, *free_slot = nullptr;
  DType dtype = DType::f16;
  int sequences = 0, kv_heads = 0, slots = 0, head_dim = 0;
  float *rest = nullptr, *key_sum = nullptr, *value_norm = nullptr;
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
/// (SnapKV). Slots without scores forget them. Scores by attention are compared multiplied by KvSlots::value_norm with
/// `by_value`, whether the slots keep that or not.
///   work [kv_heads, tokens] f32: with Scoring::keys or `by_value`, room for what is computed of the keys or values; of
///   these as they are given, so after a rotation, and in the slots' type where that is a float type
struct KeepPrompt {
  ConstView k, v, score;
  std::span<const std::int32_t> offsets, sequence;
  std::span<const Keep> keep;
  Scoring scoring = Scoring::none;
  std::uint64_t seed = 0;
  KvSlots slots;
  int pool = 1;
  Statistic statistic = Statistic::sum;
  bool by_value = false;
  View work;
  std::int32_t stride = 1, summary = 0;
};

/// One decode step: writes each row's new key and value into its free slot, attends to all visible slots, multiplies
/// the scores by `decay`, adds the probabilities (summed over the query heads of the group) or takes the largest of all
/// of them, or adds how many are more than even, and chooses the victim, whose slot becomes free for the next token.
/// The rest of what was evicted is not counted among the tokens that share evenly.
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
  std::int32_t stride = 1, summary = 0;
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
/// Of Scoring::positions: 1 for the first of every `stride` positions, or for their last `summary` where that is not 0;
/// 0 for the others.
constexpr float position_score(std::int32_t position, std::int32_t stride, std::int32_t summary) {
  const std::int32_t place = position % stride;
  return (summary == 0 ? place == 0 : place >= stride - summary) ? 1.0f : 0.0f;
}

}  // namespace weft::kernels
