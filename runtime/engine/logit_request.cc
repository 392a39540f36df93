#include "runtime/engine/logit_request.h"

#include <algorithm>
#include <bit>

#include "runtime/base/hash.h"

namespace weft::runtime {

std::uint64_t LogitRequest::signature(const BatchRows& rows) const {
  std::uint64_t signature = mix(static_cast<std::uint64_t>(rows.live()));
  for (const std::uint64_t part : {std::uint64_t{scores}, std::uint64_t{samples}, std::uint64_t{forbidden_row.size()},
                                   std::uint64_t{logprob_rows.size()}, static_cast<std::uint64_t>(alternatives)})
    signature = mix(signature ^ part);
  return signature;
}

LogitRequest logit_request_of(std::span<const Sequence> batch, const BatchRows& rows) {
  LogitRequest request;
  for (std::int32_t r = 0; r < rows.live(); ++r) {
    const Sequence& sequence = batch[static_cast<std::size_t>(rows.sequence[static_cast<std::size_t>(r)])];
    if (!sequence.forced.empty()) {
      request.scores = true;
      continue;
    }
    request.samples = true;
    if (sequence.alternatives >= 0) {
      request.logprob_rows.push_back(r);
      request.alternatives = std::max(request.alternatives, sequence.alternatives);
    }
    if (sequence.generated() >= sequence.min_tokens) continue;
    for (const std::int32_t token : sequence.suppressed_until_min) {
      request.forbidden_row.push_back(r);
      request.forbidden_token.push_back(token);
    }
  }
  // The last pair is repeated up to a power of two. So there are few different counts, and the ops of a sweep are more
  // often the same as those of an earlier one.
  if (const std::size_t pairs = request.forbidden_row.size(); pairs > 0) {
    request.forbidden_row.resize(std::bit_ceil(pairs), request.forbidden_row.back());
    request.forbidden_token.resize(std::bit_ceil(pairs), request.forbidden_token.back());
  }
  return request;
}

}  // namespace weft::runtime
