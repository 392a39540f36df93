// runtime/engine/logit_request.h: the results that one sweep computes from the logits of a batch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "runtime/engine/batch_rows.h"
#include "runtime/engine/sequence.h"

namespace weft::runtime {

/// The scores, samples and log-probabilities that one sweep computes from a batch's logits.
struct LogitRequest {
  bool scores = false, samples = false;
  std::vector<kernels::LogitChange> changes;  ///< as Sample wants them
  std::vector<std::int32_t> mask;             ///< as Sample wants it, with masks that follow each other
  int masks = 0;
  std::vector<std::int32_t> logprob_rows;  ///< rows whose log-probabilities are reported
  int alternatives = 0;                    ///< the most that any of these rows asks for

  /// Equal for two sweeps whose ops differ only in the contents of their spans: see Backend::repeat().
  std::uint64_t signature(const BatchRows& rows) const;
};

/// `batch`: the sequences that `rows` refers to; their counts are brought up to date.
LogitRequest logit_request_of(std::span<Sequence> batch, const BatchRows& rows);
/// Writes the mask of a sequence that has one, for Sample. Waits for a form's mask that is being found.
void write_mask(const Sequence& sequence, std::span<std::uint32_t> mask);

}  // namespace weft::runtime
