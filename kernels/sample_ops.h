// kernels/sample_ops.h: the ops over logits, a part of ops.h.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/tensor.h"

namespace weft::kernels {

/// temperature 0 is greedy (the lowest id among equals). Otherwise softmax(logits / temperature) is cut to the tokens
/// that are at least min_p times as likely as the likeliest, to the top_k most likely (0: all), then to the smallest
/// set whose probability reaches top_p. One uniform number from (key, counter) chooses from this set, so that a token
/// depends on nothing but its own request.
struct SampleParams {
  float temperature = 0, top_p = 1;
  std::int32_t top_k = 0;
  float min_p = 0;
  std::uint64_t key = 0, counter = 0;
};

/// One token's logit x becomes another before a token is chosen, in the order of vLLM: x + bias; that over `repetition`
/// if it is over 0, else times it; that less `penalty`. A bias of -inf forbids the token. A row of -1 stands for no
/// change.
struct LogitChange {
  std::int32_t row = -1, token = 0;
  float bias = 0, repetition = 1, penalty = 0;
};

/// The words of a mask of tokens: a bit for each, the lowest first, 1 if it may be chosen. Those behind the last count
/// for nothing.
constexpr std::int64_t mask_words(std::int64_t vocab) { return (vocab + 31) / 32; }

/// Makes the changes, gives tokens that are masked out a logit of -inf, and chooses a token for each row. A row without
/// a finite logit gets token -1.
///   logits [rows, vocab] f32: written where they change;  params, token [rows]
///   logit [rows] or empty: that of the token before its change
///   changes: ascending by row and token, no token twice; those of row -1 come last
///   mask [rows]: the row of `masks` that holds for it, -1: none; or empty
///   masks [any, mask_words(vocab)]: host memory of allocate_host(), which a device reads in place
struct Sample {
  View logits;
  std::span<const SampleParams> params;
  std::span<std::int32_t> token;
  std::span<float> logit = {};
  std::span<const LogitChange> changes = {};
  std::span<const std::int32_t> mask = {};
  std::span<const std::uint32_t> masks = {};
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
