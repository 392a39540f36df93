// policy/layout/rolling.h: sequences that go on past the model's context, because their positions are rolled inside the
// cache (Retention::Positions::rolled; StreamingLLM, arXiv 2309.17453).
//
// The first tokens have the positions that they have in the sequence. Where the next one would be at the context's end,
// what is stored moves first: each head's tokens, in their order, get positions 0 to budget - 1 (kernels::Reposition).
// The next token is then at position `budget`, and positions count on to the context's end again. So a token's position
// follows from its index, the budget and the context alone, and nothing has to be remembered for it. (The rule `random`
// scores a token by its position, so with rolled ones the same numbers come again; of equal ones the oldest is
// evicted.)
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "policy/layout/retention.h"
#include "policy/model/model.h"

namespace weft::policy {

struct Rolling {
  std::int64_t context = 0;  ///< 0: positions are absolute

  /// Of token `index` of a sequence that keeps `budget` tokens, fewer than the context has.
  constexpr std::int64_t position(std::int64_t index, std::int64_t budget) const {
    return context == 0 || index < context ? index : budget + (index - context) % (context - budget);
  }
  /// Whether what is stored moves before token `index` comes.
  constexpr bool moves_before(std::int64_t index, std::int64_t budget) const {
    return context > 0 && index >= context && (index - context) % (context - budget) == 0;
  }
};
Rolling rolling_of(const ModelSpec& model, const Retention& retention);

/// Throws UsageError if the retention rolls positions and the model's keys do not turn with theirs. `where` begins the
/// message.
void check_rolled(const Retention& retention, const ModelSpec& model, const std::string& where);

/// Why a sequence cannot be that long, in words, maybe none, that go on from "the model's context is N"; nothing if it
/// can.
std::optional<std::string> too_long(const ModelSpec& model, const Retention& retention, std::int64_t prompt,
                                    std::int64_t generation);

}  // namespace weft::policy
