// runtime/engine/logit_request.h: what the rows of a batch ask of their logits in one step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine/batch_rows.h"
#include "runtime/engine/sequence.h"

namespace weft::runtime {

/// Scores, samples and log-probabilities of one step.
struct LogitRequest {
  bool scores = false, samples = false;
  std::vector<std::int32_t> forbidden_row, forbidden_token;  ///< [pairs] of sequences below their min_tokens
  std::vector<std::int32_t> logprob_rows;                    ///< rows whose log-probabilities are reported
  int alternatives = 0;                                      ///< the most that one of these rows wants

  /// The same for two steps whose ops are the same but for the contents of their spans: see Backend::repeat().
  std::uint64_t signature(const BatchRows& rows) const;
};

/// `batch`: the sequences that `rows` speaks of.
LogitRequest logit_request_of(std::span<const Sequence> batch, const BatchRows& rows);

}  // namespace weft::runtime
