// kernels/attention/cpu/kernels.h: the inner loops of the CPU twins, compiled once per instruction set and chosen at
// run time. Internal to kernels/ and the tests. Each loop does one tile on one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kv_row.h"
#include "kernels/linear/linear_tiles.h"
#include "kernels/ops.h"

namespace weft::kernels {

constexpr int kLanes = 16;        ///< floats in a vector, in every instruction set, so that sums have one shape
constexpr int kQueryRows = 96;    ///< query rows of a prefill tile
constexpr int kPromptPlaces = 6;  ///< rows of a prompt take a multiple of this in a prefill tile
constexpr int kKeyColumns = 64;   ///< keys that a prefill tile takes at a time
constexpr int kMostHeads = 4;     ///< query heads of one KV head that share a tile of VectorKernels::prefill_tiles

constexpr std::int64_t whole_vectors(std::int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

/// Consecutive rows of a prompt: its tokens from `first_row` on. `own`: the row of K and V of its token `prefix`.
struct PromptRows {
  std::int64_t own;
  int first_row, rows;
};

/// Up to kQueryRows rows of one head, of one prompt or of several that share a prefix. Pointers point at the head's
/// first column; `scratch` is 64-byte aligned. A tile of prefill_tiles has `heads` query heads of one KV head, which
/// follow one another, and query_rows(heads) rows of each.
struct PrefillTile {
  const float* q;                       // of the tile's first row, as out and lse
  const void *k, *v;                    // of the first token of all prompts
  std::span<const PromptRows> prompts;  // whose rows follow one another
  int prefix;
  std::int64_t q_stride, k_stride, v_stride, out_stride;
  DType dtype;
  int rows, head_dim, window;  // window and cap as in PrefillAttention, 0: none
  int heads;
  float scale, cap;
  const float* sink_logit;  // [heads] or null
  float* out;
  float* lse;  // [heads, rows] or null
  std::int64_t lse_stride;
  float* scratch;
};
constexpr std::size_t prefill_scratch(int head_dim) {
  const auto dim = static_cast<std::size_t>(whole_vectors(head_dim));
  return 2 * kQueryRows * dim + 2 * kKeyColumns * dim + 8 * kKeyColumns + 2 * kQueryRows;
}

constexpr std::int64_t whole_tiles(std::int64_t n) { return round_up(n, kAmxStep); }
/// The query heads of `group`, which have one KV head, that share a tile of prefill_tiles.
constexpr int heads_together(int group) {
  int heads = kMostHeads;
  while (group % heads != 0) --heads;
  return heads;
}
/// The rows of such a tile; products take two tiles of them at a time.
constexpr int query_rows(int heads) { return static_cast<int>(round_up(kQueryRows / heads, 2 * kAmxRows)); }
constexpr int kMostTogether = 2 * query_rows(2);  ///< rows times heads of such a tile
/// Floats that VectorKernels::prefill_tiles works in.
constexpr std::size_t prefill_tiles_scratch(int head_dim) {
  const auto dim = static_cast<std::size_t>(whole_tiles(head_dim));
  const std::size_t bf16s = (kMostTogether + 2 * kKeyColumns + kAmxStep) * dim + 2 * kAmxRows * kKeyColumns;
  return bf16s / 2 + (kMostTogether + 2 * kAmxRows) * dim + 2 * kAmxRows * kKeyColumns + 2 * kMostTogether;
}

/// Up to kKeyColumns columns of one sequence and one KV head. The terms are exp(scale q k - lse) of rows first_row ..
/// length and of `group` query heads, whose q columns and lse rows follow one another.
struct ColumnTile {
  const float* q;  // of the token `prefix`, as k and lse
  const void* k;
  const float* lse;
  const float* prefix_q;  // of the token `q_begin`, as prefix_lse
  const void* prefix_k;   // of the first token
  const float* prefix_lse;
  std::int64_t q_begin;
  int prefix;
  std::int64_t q_stride, k_stride, lse_stride;
  DType dtype;
  int first_key, keys, first_row, length, head_dim, group, window;  // window and cap as in ColumnSums, 0: none
  float scale, cap;
  Statistic statistic;  // turns the terms into a score
  const float* before;  // [tokens of the sequence] to which the terms are added, or null
  float* score;         // [tokens of the sequence]
  float* scratch;
};
constexpr std::size_t column_scratch(int head_dim) {
  const auto dim = static_cast<std::size_t>(whole_vectors(head_dim));
  return (kKeyColumns + 8) * dim + 8 * kKeyColumns;
}

/// Floats that VectorKernels::column_tiles works in.
constexpr std::size_t column_tiles_scratch(int head_dim) {
  const auto dim = static_cast<std::size_t>(whole_tiles(head_dim));
  return (kKeyColumns + 2 * kAmxRows) * dim / 2 + 2 * kAmxRows * kKeyColumns + kAmxRows * dim;
}

/// One row and one KV head of DecodeAttention. The caller has checked that the free slot exists and is empty.
struct DecodeTile {
  const float *q, *k, *v;              // [group, head_dim], [head_dim], [head_dim]
  void *slot_k, *slot_v;               // [slots] rows of head_dim (kv_row.h)
  const DecodeTile* next;              // the tile that this thread does next, or null
  float* score;                        // [slots], null with Scoring::none
  std::int32_t *position, *free_slot;  // [slots], [1]
  float* rest;                         // [rest_numbers(head_dim)] or null
  float* key_sum;                      // [head_dim] with Scoring::keys
  const float* mean;                   // [2 * head_dim] or null
  DType dtype, key_type;               // of values and of keys
  int slots, head_dim, group;
  int hot;                     // slots before the cold ones
  int alike;                   // the first slots, whole vectors of them, whose rows are read ...
  std::int64_t alike_at;       // ... so many rows further on
  std::byte *cold_k, *cold_v;  // [slots - hot] coarse rows
  CoarseBits coarse;
  // Of split slots, else null; slot_k and slot_v are then high rows.
  std::byte *low_k, *low_v, *scale_k, *scale_v;  // [slots] low rows; scales and minima
  std::int32_t* cooled;                          // [1] or null: the cold slot that the step writes, from 0 on, or -1
  std::int32_t token;                            // position of the new token
  Keep keep;
  Scoring scoring;
  Statistic statistic;
  float scale, cap, decay, new_score;
  const float* sink_logits;    // [group] or null
  const float* probabilities;  // [group, slots] or null
  std::int64_t probabilities_stride;
  float* out;             // [group, head_dim]
  std::int32_t* evicted;  // [1] or null
  float* scratch;
};
constexpr std::size_t decode_scratch(int head_dim, int slots, int group) {
  const auto entries = static_cast<std::size_t>(whole_vectors(slots)) + kLanes;
  // Only int8 and int4 need what a group of numbers takes: the query in 16 bits, twice, its scale and sum, and two
  // sums.
  const std::size_t levels = kKvGroup + 2 + kKvGroup + kLanes;
  const std::size_t dim = static_cast<std::size_t>(whole_vectors(head_dim));
  const std::size_t groups = static_cast<std::size_t>(kv_groups(head_dim));
  return static_cast<std::size_t>(group) * (dim + entries + groups * levels) + 4 * entries;
}

/// The rows of split slots that are read with all their bits at a time.
constexpr int kRowsAtOnce = 64;
/// The further scratch memory of a tile over split slots.
constexpr std::size_t split_scratch(int head_dim, int slots, int group) {
  const auto entries = static_cast<std::size_t>(whole_vectors(slots)) + kLanes;
  const auto groups = static_cast<std::size_t>(group) * static_cast<std::size_t>(kv_groups(head_dim));
  const std::size_t bytes = kRowsAtOnce * kv_row_bytes(DType::i8, head_dim) + kKvGroup + groups * kKvGroup +
                            static_cast<std::size_t>(group) * entries;
  return (static_cast<std::size_t>(group) + 3) * entries + groups * (kKvGroup + 2) + bytes / sizeof(float);
}

/// The terms of VectorKernels::weigh.
struct Weighing {
  double max, inverse_temperature;
  double least;  ///< a logit below max + least has no weight
};

struct VectorKernels {
  const char* name;  ///< "AVX-512", "AVX2", "plain C++"
  void (*prefill)(const PrefillTile&);
  void (*column_sums)(const ColumnTile&);
  void (*decode)(const DecodeTile&);
  /// out[i] = in[i] for n numbers of any two float types; with `add`, out[i] += in[i].
  void (*convert)(const void* in, DType from, void* out, DType to, std::int64_t n, bool add);
  /// Sum of exp(x[i] - shift); relative error below 1e-6.
  double (*sum_exp)(const float* x, std::int64_t n, float shift);
  /// Quantises one key or value into a slot of int8 or int4 (kv_row.h).
  void (*quantise)(const float* x, int head_dim, DType type, std::byte* row);
  void (*hadamard)(float* x, int head_dim);  ///< Hadamard of one head, in place
  /// add_unit: sum[n] += key / its length. key_score: Scoring::keys of a key that is in the sum. Both take float types.
  void (*add_unit)(const void* key, DType type, int n, float* sum);
  float (*key_score)(const void* key, DType type, int n, const float* sum);
  /// out[i] = exp((x[i] - max) / temperature) for n logits, none above max; 0 where one is not finite or below `least`.
  /// Returns their sum. The same bits from every instruction set.
  double (*weigh)(const float* x, std::int64_t n, const Weighing& by, double* out);
  /// Like prefill, for keys and values of bf16, by tile registers: queries and probabilities are rounded to bf16. Null
  /// if the instruction set has no such registers.
  void (*prefill_tiles)(const PrefillTile&, const TileKernels&) = nullptr;
  void (*column_tiles)(const ColumnTile&, const TileKernels&) = nullptr;  ///< like column_sums, in the same way
};

/// The kernels that this processor can run, the fastest first; never empty.
const std::vector<const VectorKernels*>& vector_kernels();

const VectorKernels* vector_kernels_avx512();  ///< null if the file was compiled without the instructions
const VectorKernels* vector_kernels_avx2();
const VectorKernels* vector_kernels_plain();

}  // namespace weft::kernels
