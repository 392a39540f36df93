// runtime/requests/token_counts.h: the tokens of a sequence, and how often it generated each.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace weft::runtime {

/// Follows a sequence while it grows, so that a token costs no look at all earlier ones.
class TokenCounts {
 public:
  struct Count {
    std::int32_t token = 0, generated = 0;  ///< 0: only in the prompt
  };

  /// Counts the tokens of a sequence that earlier calls have not seen; those of its prompt only `with_prompt`, which is
  /// the same in all calls. Returns all counts, ascending by token.
  std::span<const Count> update(std::span<const std::int32_t> tokens, std::int64_t prompt_tokens, bool with_prompt);

 private:
  std::vector<Count> counts_;
  std::size_t seen_ = 0;
};

}  // namespace weft::runtime
