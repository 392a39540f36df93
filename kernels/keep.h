// kernels/keep.h: the rule that decides which tokens of a sequence stay in the KV cache, and how they are scored.
// Kernels obey it, and policies state it in the same words, so it depends on neither.
#pragma once

#include <cstdint>

namespace weft::kernels {

/// The tokens that one sequence keeps between two decode steps, per layer and KV head: at most heavy + recent tokens of
/// its prompt, and `spare` more that come later. Once that many are stored, each step at position t evicts the stored
/// or new token with the lowest score among those at positions <= t - recent - grace that are not sinks (position <
/// sinks); among equal scores, the oldest. H2O has grace 0; its FlexGen version has 1.
/// With a `window`, a model's sliding window of more than of_prompt() tokens, a token attends to the last `window`
/// tokens alone, itself included. So of a prompt only the last window - 1 may stay, and the step at position t evicts
/// the token at t + 1 - window, if it is stored, before any other and whatever the number of those stored.
/// With `cold`, these are the tokens that stay fine. Of the others as many as `cold` says stay as coarse rows
/// (kernels/coarse_row.h): what a step would evict becomes cold instead, and a token that is cold never becomes fine.
/// If there are more, the coldest goes: of the cold ones and the one that would join them, that with the lowest score,
/// the oldest among equals.
/// With `read`, slots are split (KvSlots::split), and a step reads so many tokens with all their bits, the others by
/// their high rows; it chooses them anew: the newest, read_newest() with the step's own, then the sinks, then those
/// with the largest share, the older among equals. A token's share is the mean over the query heads of the group of its
/// probability in the softmax over all stored tokens by their coarse rows. 0: a step reads all tokens so.
struct Keep {
  std::int32_t heavy = 0, recent = 0, sinks = 0, grace = 0, spare = 0, window = 0, cold = 0, read = 0;
  constexpr std::int32_t of_prompt() const { return heavy + recent; }
  constexpr std::int32_t budget() const { return heavy + recent + spare; }
  /// The newest tokens that a step reads in any case: a quarter of `read`.
  constexpr std::int32_t read_newest() const { return (read + 3) / 4; }
  /// The first position that the token after position t - 1 attends to.
  constexpr std::int32_t seen_from(std::int32_t t) const { return window > 0 && t >= window ? t - window + 1 : 0; }
  bool operator==(const Keep&) const = default;
};

/// The origin of a score. Unless it is `attention`, a score stays as it was when its token came.
///   none       scores are neither kept nor read (full attention, recent window)
///   random     random_score(seed, head, position)
///   keys       -cos(its key, the sum of its head's unit keys). The sum covers the whole prompt for a token of the
///              prompt, and all keys up to its own for a token of a step (KeyDiff, arXiv 2504.15364). A key without
///              direction scores 0 and adds nothing to the sum
enum class Scoring : std::uint8_t { none, attention, random, keys };

/// The way in which the attention that a token got from rows and from the query heads of its group becomes one score:
///   sum      their sum (H2O, arXiv 2306.14048)
///   largest  the largest of them, the worst that losing the token may cost (DefensiveKV, arXiv 2510.13334)
enum class Statistic : std::uint8_t { sum, largest };

}  // namespace weft::kernels
