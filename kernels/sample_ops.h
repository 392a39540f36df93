// kernels/sample_ops.h: the ops over logits, a part of ops.h.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/tensor.h"

namespace weft::kernels {

/// temperature 0 is greedy (the lowest id among equals). Otherwise softmax(logits / temperature) is cut to the top_k
/// most likely (0: all), then to the smallest set whose probability reaches top_p. One uniform number from (key,
/// counter) chooses from this set, so that a token depends on nothing but its own request.
struct SampleParams {
  float temperature = 0, top_p = 1;
  std::int32_t top_k = 0;
  std::uint64_t key = 0, counter = 0;
};

/// Chooses a token for each row. A row without a finite logit gets token -1.
///   logits [rows, vocab] f32;  params, token [rows];  logit [rows] or empty: that of the token
struct Sample {
  ConstView logits;
  std::span<const SampleParams> params;
  std::span<std::int32_t> token;
  std::span<float> logit = {};
};

/// logits[row[i], token[i]] = -inf, so that the token cannot be chosen.
///   logits [rows, vocab] f32;  row, token [pairs]; pairs may repeat
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

/// The likeliest tokens of some rows with log softmax(logits), the likeliest first, the lower id first among equals; -1
/// if too few logits are finite.
///   logits [rows, vocab] f32;  row [rows asked for];  token, logprob [rows asked for * count], count may be 0
///   log_sum [rows asked for]: ln of the sum of exp(logits); a token's logit minus this is its log-probability
struct TopLogProbs {
  ConstView logits;
  std::span<const std::int32_t> row;
  int count = 0;
  std::span<std::int32_t> token;
  std::span<float> logprob;
  std::span<double> log_sum;
};

}  // namespace weft::kernels
