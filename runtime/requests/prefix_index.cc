#include "runtime/requests/prefix_index.h"

#include <algorithm>
#include <string_view>

#include "runtime/base/hash.h"

namespace weft::runtime {
namespace {

std::uint64_t hash_of(std::span<const std::int32_t> tokens) {
  return hash({reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes()});
}

}  // namespace

PrefixIndex::Match PrefixIndex::add(std::size_t request, std::span<const std::int32_t> prompt) {
  if (prompt.size() <= kLeast) return {};
  std::vector<std::uint32_t>& alike = alike_[hash_of(prompt.first(kLeast))];
  Match best;
  for (const std::uint32_t leader : alike) {
    const std::vector<std::int32_t>& other = leaders_[leader].tokens;
    const auto common = static_cast<std::size_t>(
        std::mismatch(prompt.begin(), prompt.end(), other.begin(), other.end()).first - prompt.begin());
    // The last token of a prompt is its own: the answer begins with what is computed of it.
    const std::size_t shared = std::min({common, prompt.size() - 1, other.size() - 1});
    if (shared < kLeast || shared <= best.tokens) continue;
    best = {leader, static_cast<std::uint32_t>(shared)};
  }
  if (best.tokens > 0) leaders_[best.leader].shared = std::max(leaders_[best.leader].shared, best.tokens);
  const bool stands_apart = 4 * best.tokens < 3 * prompt.size();
  if (!stands_apart || alike.size() >= kMostAlike || leaders_.size() >= kMostLeaders ||
      tokens_ + prompt.size() > kMostTokens)
    return best;
  alike.push_back(static_cast<std::uint32_t>(leaders_.size()));
  leaders_.push_back({request, {prompt.begin(), prompt.end()}});
  tokens_ += prompt.size();
  return {alike.back(), best.tokens};
}

}  // namespace weft::runtime
