// kernels/ops.h: the vocabulary. One struct per operation with its shapes; class Ops has one pure run() for each, so
// that a missing twin does not compile. The checks that all twins share are in ops.cc: check(op) throws UsageError.
//
// Matrices are [rows, cols] views. `tokens` counts the rows of a ragged call: the sequences' tokens one after another,
// without padding. Activations are f32 on the CPU; weights f32, f16 or bf16; KV one of the three.
// On the CPU a row of the result depends on that row's inputs alone: never on the other rows, on the number of rows,
// on the number of threads or on the capacity of a KV block (batch invariance).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/tensor.h"

namespace weft::kernels {

class Stream;  // kernels/backend.h

enum class Activation : std::uint8_t { none, relu, gelu, gelu_tanh, quick_gelu, silu, tanh };

/// out = in, converted.   in, out [rows, cols]
struct Convert {
  ConstView in;
  View out;
};

/// x += y.   x [rows, cols] f32;  y [rows, cols] of any float type
struct Add {
  View x;
  ConstView y;
};

/// x *= y.   x, y [rows, cols] f32
struct Multiply {
  View x;
  ConstView y;
};

/// out[to[i]] = table[ids[i]], converted; without `to` out[i].   table [rows of the table, cols]; out [rows, cols]
///   ids, to [ids]   to may be empty
/// The table may be host memory of allocate_host() on every backend.
struct Gather {
  ConstView table;
  std::span<const std::int32_t> ids, to;
  View out;
};

/// Normalises each row to mean 0 and variance 1, then scales and shifts it.
///   x, out [rows, cols]; out may be x       weight, bias [1, cols], each may be empty (scale 1, shift 0)
/// The sums are fp32 in every dtype; eps is added to the variance. With `rms` the mean stays: the row is divided by its
/// root mean square (RMSNorm, arXiv 1910.07467).
struct LayerNorm {
  ConstView x, weight, bias;
  View out;
  float eps = 1e-5f;
  bool rms = false;
};

/// Heads out of rows in which those of several matrices alternate: out's head h = in's head first + h * step.
///   in [tokens, a multiple of head_dim] f32     out [tokens, heads * head_dim] f32
struct TakeHeads {
  ConstView in;
  int first = 0, step = 1, head_dim = 0;
  View out;
};

/// Rotary position embedding (RoFormer, arXiv 2104.09864), in place: of every head numbers i and i + n, n the number of
/// frequencies, turn by position * frequencies[i] radians; numbers from 2 n on stay.
///   x [tokens, heads * head_dim] f32     position [tokens]     frequencies [n], 2 n <= head_dim
struct Rotary {
  View x;
  std::span<const std::int32_t> position;
  std::span<const float> frequencies;
  int head_dim = 0;
};

/// out = activation(x weight^T + bias), or out += that if `accumulate`.
///   x [tokens, in]   weight [out, in] row-major, as checkpoints have it   bias [1, out] or empty   out [tokens, out]
/// x and out are f32 and do not overlap. One order of summation along `in` for every number of tokens.
struct Linear {
  ConstView x, weight, bias;
  View out;
  Activation activation = Activation::none;
  bool accumulate = false;
};

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

/// The attention that each prompt token received: score[g, j] = sum over the query heads of group g and the rows i >= j
/// of exp(scale * q_i k_j - lse_i), in fp32, recomputed per key block from the row sums (H2O, arXiv 2306.14048).
/// `window` > 0 counts only the last `window` rows of each sequence (SnapKV's observation window).
///   q, k, lse, offsets as in PrefillAttention      score [kv_heads, tokens] f32
struct ColumnSums {
  ConstView q, k, lse;
  std::span<const std::int32_t> offsets;
  int heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1;
  int window = 0;
  View score;
};

/// How a score comes about. none: scores are neither kept nor read (full attention, recent window).
enum class Scoring : std::uint8_t { none, attention, random };

/// What one sequence keeps between two steps, per layer and KV head: at most heavy + recent tokens. Once that many are
/// stored, each step at position t evicts the stored or new token with the lowest score among those at positions
/// <= t - recent - grace that are not sinks (< sinks); ties evict the oldest. H2O has grace 0; its FlexGen version 1.
struct Keep {
  std::int32_t heavy = 0, recent = 0, sinks = 0, grace = 0;
  constexpr std::int32_t budget() const { return heavy + recent; }
};

/// A KV block: what one layer keeps for one batch of sequences, in fixed slots; nothing ever moves between slots.
///   k, v [sequences, kv_heads, slots, head_dim] of `dtype`      score [sequences, kv_heads, slots] f32
///   position [sequences, kv_heads, slots] i32, -1 = empty
///   free_slot [sequences, kv_heads] i32: where the next goes
/// `score` may be null with Scoring::none. A sequence needs min(budget, its tokens) + 1 slots.
struct KvSlots {
  void *k = nullptr, *v = nullptr;
  float* score = nullptr;
  std::int32_t *position = nullptr, *free_slot = nullptr;
  DType dtype = DType::f16;
  int sequences = 0, kv_heads = 0, slots = 0, head_dim = 0;
};

/// After prefill: picks what each head keeps of each prompt and writes it into the slots, in order of position:
/// all of it if it fits the budget, else the last `recent` tokens and, of those before, the `heavy` ones with the
/// highest scores (sinks first; of equal scores the newer stays). All other slots of the sequence become empty.
///   k, v [tokens, kv_heads * head_dim] of the slots' type     score [kv_heads, tokens] f32, empty unless
///   Scoring::attention     offsets [prompts + 1]     sequence [prompts]: its place in the block     keep [prompts]
/// With Scoring::random a token's score is random_score(seed, head, position).
struct KeepPrompt {
  ConstView k, v, score;
  std::span<const std::int32_t> offsets, sequence;
  std::span<const Keep> keep;
  Scoring scoring = Scoring::none;
  std::uint64_t seed = 0;
  KvSlots slots;
};

/// One decode step: writes each row's new key and value into its free slot, attends to all visible slots, adds the
/// probabilities (summed over the query heads of the group) to the scores after multiplying these by `decay`, and
/// chooses the victim, whose slot becomes free for the next token.
///   q, out [rows, heads * head_dim] f32     k, v [rows, kv_heads * head_dim] f32, rounded into the slots
///   sequence, position, keep [rows]: place in the block, absolute position of the new token, budget
///   home: a copy of the block, or null: what the step changes (the new key and value, the scores of the row's heads,
///   positions, the free slot) it changes there too; on a GPU memory of Backend::allocate_host()
///   probabilities [rows * heads, slots] f32 or empty: used in place of the softmax (tests of ties)
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
};

/// Uniform in [0, 1), the same on every backend.
float random_score(std::uint64_t seed, int kv_head, std::int32_t position);

/// temperature 0 is greedy (the lowest id among equals). Otherwise softmax(logits / temperature) cut to the top_k most
/// likely (0: all), then to the smallest set whose probability reaches top_p; one uniform number from (key, counter),
/// so that a token depends on nothing but its own request.
struct SampleParams {
  float temperature = 0, top_p = 1;
  std::int32_t top_k = 0;
  std::uint64_t key = 0, counter = 0;
};

/// logits [rows, vocab] f32; params, token [rows]; logit [rows] or empty: of the token. A row that has no finite logit
/// gets token -1.
struct Sample {
  ConstView logits;
  std::span<const SampleParams> params;
  std::span<std::int32_t> token;
  std::span<float> logit = {};
};

/// logits[row[i], token[i]] = -inf, so that the token cannot be chosen.
///   logits [rows, vocab] f32;  row, token [pairs], of which some may be equal
struct Forbid {
  View logits;
  std::span<const std::int32_t> row, token;
};

/// log softmax(logits)[target] per row, and whether target is the most likely token.
///   logits [rows, vocab] f32;  target, logprob, greedy [rows]
struct LogProbs {
  ConstView logits;
  std::span<const std::int32_t> target;
  std::span<float> logprob;
  std::span<std::uint8_t> greedy;
};

/// The likeliest tokens of some rows, the likeliest first, of equals the lower id, with log softmax(logits); -1 where
/// too few logits are finite.
///   logits [rows, vocab] f32;  row [rows asked for];  token, logprob [rows asked for * count], count may be 0
///   log_sum [rows asked for]: of exp(logits), natural logarithm: a token's logit less this is its log-probability
struct TopLogProbs {
  ConstView logits;
  std::span<const std::int32_t> row;
  int count = 0;
  std::span<std::int32_t> token;
  std::span<float> logprob;
  std::span<double> log_sum;
};

// Each throws UsageError, which names the op and both shapes, where an op's shapes or types disagree.
void check(const Convert&);
void check(const Add&);
void check(const Multiply&);
void check(const Gather&);
void check(const LayerNorm&);
void check(const TakeHeads&);
void check(const Rotary&);
void check(const Linear&);
void check(const PrefillAttention&);
void check(const ColumnSums&);
void check(const KeepPrompt&);
void check(const DecodeAttention&);
void check(const Sample&);
void check(const Forbid&);
void check(const LogProbs&);
void check(const TopLogProbs&);

/// A backend's arithmetic. On the CPU an op is done when run() returns; on a GPU it is queued on the stream: spans that
/// are read are copied at once, spans that are written must be memory of Backend::allocate_host().
class Ops {
 public:
  virtual ~Ops() = default;
  virtual void run(const Convert&, Stream&) const = 0;
  virtual void run(const Add&, Stream&) const = 0;
  virtual void run(const Multiply&, Stream&) const = 0;
  virtual void run(const Gather&, Stream&) const = 0;
  virtual void run(const LayerNorm&, Stream&) const = 0;
  virtual void run(const TakeHeads&, Stream&) const = 0;
  virtual void run(const Rotary&, Stream&) const = 0;
  virtual void run(const Linear&, Stream&) const = 0;
  virtual void run(const PrefillAttention&, Stream&) const = 0;
  virtual void run(const ColumnSums&, Stream&) const = 0;
  virtual void run(const KeepPrompt&, Stream&) const = 0;
  virtual void run(const DecodeAttention&, Stream&) const = 0;
  virtual void run(const Sample&, Stream&) const = 0;
  virtual void run(const Forbid&, Stream&) const = 0;
  virtual void run(const LogProbs&, Stream&) const = 0;
  virtual void run(const TopLogProbs&, Stream&) const = 0;
};

}  // namespace weft::kernels
