// runtime/engine/token_choice.h: chooses the next tokens of a batch from its logits, with their log-probabilities.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "kernels/backend.h"
#include "runtime/engine/batch_rows.h"
#include "runtime/engine/logit_request.h"
#include "runtime/engine/sequence.h"

namespace weft::runtime {

/// Serves one batch at a time: call prepare(), queue_sampling() on the stream that computes the logits, then
/// collect_tokens(). For one thread.
class TokenChoice {
 public:
  /// `rows`: the most rows that a batch has.
  TokenChoice(kernels::Backend& backend, int rows);

  /// Finds what the sequences ask for, and returns its LogitRequest::signature(). `batch`: those that `rows` refers to.
  std::uint64_t prepare(std::span<Sequence> batch, const BatchRows& rows, std::int64_t vocab);
  /// Queues the ops for it over `logits` [live, vocab].
  void queue_sampling(std::span<Sequence> batch, const BatchRows& rows, const View& logits, kernels::Stream& stream);
  /// Waits for the stream and appends a token to each sequence that takes part, with its log-probabilities. A
  /// sequence whose row of logits has no finite number gets no token and ends as Finish::failed.
  void collect_tokens(std::span<Sequence> batch, const BatchRows& rows, kernels::Stream& stream);
  /// Begins to find which tokens may come next in answers with a form, on threads of its own, while a device computes.
  /// If the cores compute, they would only be in each other's way, so that queue_sampling() begins.
  void look_ahead(std::span<Sequence> batch, const BatchRows& rows);

 private:
  void begin_masks(std::span<Sequence> batch, const BatchRows& rows);
  void append_logprobs(Sequence& sequence, float chosen, std::size_t logprob_row) const;

  kernels::Backend& backend_;
  const int rows_;
  LogitRequest request_;  // for the batch whose tokens are being chosen
  // The device leaves the next tokens in these spans, [rows] each, top_* [rows * kMostLogprobs]; `done_` follows.
  std::unique_ptr<kernels::Memory> memory_;
  std::unique_ptr<kernels::Event> done_;
  std::span<double> log_sum_;
  std::span<std::int32_t> token_, sampled_, top_token_;
  std::span<float> logprob_, logit_, top_logprob_;
  std::span<std::uint8_t> greedy_;
  std::unique_ptr<kernels::Memory> masks_;   // [rows, mask_words(vocab)]; there from the first mask on
  std::optional<MaskThreads> mask_threads_;  // from the first form on
};

}  // namespace weft::runtime
