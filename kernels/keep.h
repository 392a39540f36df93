// kernels/keep.h: which tokens of a sequence stay in the KV cache, and how they are scored. The kernels obey it, and
// policies state it in the same words; so it includes nothing.
#pragma once

#include <cstdint>

namespace weft::kernels {

/// What one sequence keeps between two steps, per layer and KV head: of its prompt at most heavy + recent tokens, and
/// `spare` more that come later. Once that many are stored, each step at position t evicts the stored or new token with
/// the lowest score among those at positions <= t - recent - grace that are not sinks (< sinks); ties evict the oldest.
/// H2O has grace 0; its FlexGen version 1.
struct Keep {
  std::int32_t heavy = 0, recent = 0, sinks = 0, grace = 0, spare = 0;
  constexpr std::int32_t of_prompt() const { return heavy + recent; }
  constexpr std::int32_t budget() const { return heavy + recent + spare; }
  bool operator==(const Keep&) const = default;
};

/// How a score comes about. All but `attention` leave a score as it was when its token came.
///   none       scores are neither kept nor read (full attention, recent window)
///   random     random_score(seed, head, position)
///   keys       -cos(its key, the sum of its head's unit keys): those of the whole prompt, and for a token of a step
///              those up to it (KeyDiff, arXiv 2504.15364); 0 where a key has no direction, which then adds nothing
enum class Scoring : std::uint8_t { none, attention, random, keys };

/// How the attention that a token got from rows and from the query heads of its group becomes one score:
///   sum      their sum (H2O, arXiv 2306.14048)
///   largest  the largest of them, what it may cost at worst (DefensiveKV, arXiv 2510.13334)
enum class Statistic : std::uint8_t { sum, largest };

}  // namespace weft::kernels
