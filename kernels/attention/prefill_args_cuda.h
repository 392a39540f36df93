// kernels/attention/prefill_args_cuda.h: arguments of the kernels for attention of prompts and the scores of their
// tokens.
#pragma once

#include <cstdint>

#include "kernels/machine/cuda.h"

namespace weft::kernels::cuda::prefill {

/// Consecutive rows or keys of one prompt.
struct Block {
  std::int32_t begin, length;  // of the whole prompt: the row in the call where it would begin, had it no prefix
  std::int32_t first;          // within the prompt
  std::int32_t whole;          // the prompt's first column in a matrix of scores
  std::int32_t query;          // `begin` in q, out and lse
};

struct PrefillArgs {
  const void *q, *k, *v;
  bool q_is_float, out_is_float;  // else of the type of k
  std::int64_t q_stride, k_stride, v_stride;
  const Block* blocks;
  int heads, kv_heads, group, head_dim;
  float scale;
  void* out;
  float* lse;  // of ColumnSums: read only
  std::int64_t out_stride, lse_stride;
  float* score;
  std::int64_t score_stride;
  int observation;
  int window;                // more than any prompt has tokens, if there is none
  float cap;                 // on the logits; 0: none
  const float* sink_logits;  // [heads] or null
  int prefix;                // tokens of the prefix, whose keys and values are the first rows
  const float* before;       // [kv_heads, prefix] or null
  std::int64_t before_stride;

  /// The row of k and v that a prompt's token has.
  __device__ std::int64_t row_of(const Block& block, int token) const {
    return token < prefix ? token : std::int64_t{block.begin} + token;
  }
  /// The first row whose weights count for scores.
  __device__ int first_row(const Block& block) const {
    return observation > 0 ? max(0, block.length - observation) : prefix;
  }
};

}  // namespace weft::kernels::cuda::prefill
