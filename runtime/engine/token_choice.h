// runtime/engine/token_choice.h: from the logits of a batch to its next tokens and their log-probabilities.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/backend.h"
#include "runtime/engine/batch_rows.h"
#include "runtime/engine/logit_request.h"
#include "runtime/engine/sequence.h"

namespace weft::runtime {

/// For one batch at a time: queue_sampling() on the stream that computes the logits, then collect_tokens(). One thread.
class TokenChoice {
 public:
  /// `rows`: the most that a batch has.
  TokenChoice(kernels::Backend& backend, int rows);

  /// Queues what the sequences ask of `logits`, [live, vocab]. `batch`: the sequences that `rows` speaks of.
  void queue_sampling(std::span<const Sequence> batch, const BatchRows& rows, const View& logits,
                      kernels::Stream& stream);
  /// Waits for the stream and appends a token to each sequence that takes part, with its log-probabilities. One whose
  /// row of logits has no finite number gets none and ends as Finish::failed.
  void collect_tokens(std::span<Sequence> batch, const BatchRows& rows, kernels::Stream& stream);

 private:
  void append_logprobs(Sequence& sequence, std::size_t row, std::size_t logprob_row) const;

  kernels::Backend& backend_;
  LogitRequest request_;  // of the batch whose tokens are being chosen
  // Where the device leaves the next tokens, and the event that says so: [rows] each, top_* times kMostLogprobs.
  std::unique_ptr<kernels::Memory> memory_;
  std::unique_ptr<kernels::Event> done_;
  std::span<double> log_sum_;
  std::span<std::int32_t> token_, sampled_, top_token_;
  std::span<float> logprob_, logit_, top_logprob_;
  std::span<std::uint8_t> greedy_;
};

}  // namespace weft::runtime
