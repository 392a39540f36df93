// policy/layout/rolling.h: sequences longer than the model's context. Their positions are rolled inside the cache
// (Retention::Positions::rolled; StreamingLLM, arXiv 2309.17453).
//
// The first tokens have the positions that they have in the sequence. Before the next one would reach the context's
// end, the stored tokens move: each head's tokens, in their order, get positions 0 to budget - 1 (kernels::Reposition).
// The next token is then at position `budget`, and positions count up to the context's end again. So a token's position
// follows from its index, the budget and the context alone, and needs no storage. (The rule `random` scores a token by
// its position, so with rolled positions the same scores recur; among equal ones the oldest token is evicted.)
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "policy/layout/retention.h"
#include "policy/model/model.h"

namespace weft::policy {

struct Rolling {
  std::int64_t context = 0;  ///< 0: positions are absolute

  /// The position of token `index` in a sequence that keeps `budget` tokens, fewer than the context has.
  constexpr std::int64_t position(std::int64_t index, std::int64_t budget) const {
    return context == 0 || index < context ? index : budget + (index - context) % (context - budget);
  }
  /// Whether the stored tokens move before token `index` comes.
  constexpr bool moves_before(std::int64_t index, std::int64_t budget) const {
    return context > 0 && index >= context && (index - context) % (context - budget) == 0;
  }
};
Rolling rolling_of(const ModelSpec& model, const Retention& retention);

/// Throws UsageError if the retention rolls positions but the model's keys do not rotate with them, or if the model has
/// sliding windows and the retention rolls positions or attends to the mean of evicted tokens. `where` begins the
/// message.
void check_positions(const Retention& retention, const ModelSpec& model, const std::string& where);

/// Returns nullopt if a sequence can be that long. Otherwise returns the words, possibly none, that continue the
/// message "the model's context is N".
std::optional<std::string> too_long(const ModelSpec& model, const Retention& retention, std::int64_t prompt,
                                    std::int64_t generation);

}  // namespace weft::policy
