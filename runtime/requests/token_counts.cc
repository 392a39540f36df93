#include "runtime/requests/token_counts.h"

#include <algorithm>

namespace weft::runtime {

std::span<const TokenCounts::Count> TokenCounts::update(std::span<const std::int32_t> tokens,
                                                        std::int64_t prompt_tokens, bool with_prompt) {
  const auto prompt = static_cast<std::size_t>(prompt_tokens);
  if (seen_ == 0 && with_prompt) {
    for (const std::int32_t token : tokens.first(prompt)) counts_.push_back({token, 0});
    std::sort(counts_.begin(), counts_.end(), [](const Count& a, const Count& b) { return a.token < b.token; });
    const auto same = [](const Count& a, const Count& b) { return a.token == b.token; };
    counts_.erase(std::unique(counts_.begin(), counts_.end(), same), counts_.end());
  }
  for (seen_ = std::max(seen_, prompt); seen_ < tokens.size(); ++seen_) {
    const std::int32_t token = tokens[seen_];
    auto at = std::lower_bound(counts_.begin(), counts_.end(), token,
                               [](const Count& count, std::int32_t id) { return count.token < id; });
    if (at == counts_.end() || at->token != token) at = counts_.insert(at, {token, 0});
    ++at->generated;
  }
  return counts_;
}

}  // namespace weft::runtime
