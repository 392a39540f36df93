// runtime/requests/prefix_index.h: finds prompts that begin alike, in one pass over the requests of a job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace weft::runtime {

/// Remembers some prompts whole, the leaders, and compares each further prompt with those that begin as it does. Memory
/// is bounded: what more leaders would have found is not found.
class PrefixIndex {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  static constexpr std::size_t kLeast = 64;  ///< tokens that must be alike

  struct Match {
    std::uint32_t leader = kNone;  ///< equal for prompts that are best computed next to each other
    std::uint32_t tokens = 0;      ///< tokens that it shares with a leader, at least kLeast; or 0
  };
  /// The match of the prompt of a request. It may become a leader itself.
  Match add(std::size_t request, std::span<const std::int32_t> prompt);
  /// Calls f(request, tokens) for each leader, with the most tokens that a later prompt shares with it.
  template <class F> void each_leader(const F& f) const {
    for (const Leader& leader : leaders_) f(leader.request, leader.shared);
  }

 private:
  static constexpr std::size_t kMostLeaders = 2048, kMostAlike = 16, kMostTokens = std::size_t{1} << 20;

  struct Leader {
    std::size_t request;
    std::vector<std::int32_t> tokens;
    std::uint32_t shared = 0;
  };
  std::vector<Leader> leaders_;
  std::unordered_map<std::uint64_t, std::vector<std::uint32_t>> alike_;  // by the hash of the first tokens
  std::size_t tokens_ = 0;                                               // of all leaders
};

}  // namespace weft::runtime
