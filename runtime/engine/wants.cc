#include "runtime/engine/wants.h"

#include <algorithm>
#include <bit>

#include "runtime/base/hash.h"

namespace weft::runtime {

std::uint64_t Wants::signature(const BatchRows& rows) const {
  std::uint64_t signature = mix(static_cast<std::uint64_t>(rows.live()));
  for (const std::uint64_t part : {std::uint64_t{scores}, std::uint64_t{samples}, std::uint64_t{forbidden_row.size()},
                                   std::uint64_t{told.size()}, static_cast<std::uint64_t>(alternatives)})
    signature = mix(signature ^ part);
  return signature;
}

Wants wants_of(std::span<const Sequence> batch, const BatchRows& rows) {
  Wants wants;
  for (std::int32_t r = 0; r < rows.live(); ++r) {
    const Sequence& sequence = batch[static_cast<std::size_t>(rows.sequence[static_cast<std::size_t>(r)])];
    if (!sequence.forced.empty()) {
      wants.scores = true;
      continue;
    }
    wants.samples = true;
    if (sequence.alternatives >= 0) {
      wants.told.push_back(r);
      wants.alternatives = std::max(wants.alternatives, sequence.alternatives);
    }
    if (sequence.generated() >= sequence.min_tokens) continue;
    for (const std::int32_t token : sequence.enders) {
      wants.forbidden_row.push_back(r);
      wants.forbidden_token.push_back(token);
    }
  }
  // A pair may come again: so there are few counts, and a step's ops are more often those of an earlier one.
  if (const std::size_t pairs = wants.forbidden_row.size(); pairs > 0) {
    wants.forbidden_row.resize(std::bit_ceil(pairs), wants.forbidden_row.back());
    wants.forbidden_token.resize(std::bit_ceil(pairs), wants.forbidden_token.back());
  }
  return wants;
}

}  // namespace weft::runtime
