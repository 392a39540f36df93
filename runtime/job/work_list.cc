#include "runtime/job/work_list.h"

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>
#include <unordered_map>

namespace weft::runtime {
namespace {

using Prompt = std::uint64_t;  // hash and length: equal for equal prompts

Prompt prompt_of(const RequestFile::Entry& entry) {
  return (std::uint64_t{entry.prompt_hash} << 32) | entry.prompt_tokens;
}

struct Placed {
  Prompt prompt;
  std::uint32_t length;          // of its own
  std::uint32_t longest, first;  // of all requests with this prompt
  std::uint32_t family, eldest;  // the longest and the first of all requests that are to be neighbours
  std::uint32_t index;
};

/// Requests whose prompts begin alike.
struct Family {
  std::uint32_t longest = 0, eldest = UINT32_MAX;
  std::uint64_t prefix_tokens = 0, lengths = 0;

  /// Whether they go together although their answers are not equally long: their prefix costs more than empty places.
  bool together() const { return prefix_tokens > lengths; }
};

/// Sets what requests with one prompt have in common. They become neighbours.
void join_equal_prompts(std::vector<Placed>& all) {
  std::sort(all.begin(), all.end(),
            [](const Placed& a, const Placed& b) { return std::tie(a.prompt, a.index) < std::tie(b.prompt, b.index); });
  for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    for (end = begin; end < all.size() && all[end].prompt == all[begin].prompt; ++end)
      all[begin].longest = std::max(all[begin].longest, all[end].length);
    for (std::size_t i = begin; i < end; ++i) all[i].longest = all[begin].longest, all[i].first = all[begin].first;
  }
}

/// The same for requests whose prompts begin alike.
void join_families(std::vector<Placed>& all, const RequestFile& requests) {
  std::unordered_map<std::uint32_t, Family> families;
  for (const Placed& placed : all) {
    const RequestFile::Entry& entry = requests.entry(placed.index);
    if (entry.prefix == PrefixIndex::kNone) continue;
    Family& family = families[entry.prefix];
    family.longest = std::max(family.longest, placed.longest), family.eldest = std::min(family.eldest, placed.first);
    family.prefix_tokens += entry.prefix_tokens, family.lengths += entry.max_tokens;
  }
  for (Placed& placed : all) {
    const auto found = families.find(requests.entry(placed.index).prefix);
    if (found == families.end()) continue;
    placed.eldest = found->second.eldest;
    if (found->second.together()) placed.family = found->second.longest;
  }
}

}  // namespace

void put_in_order(std::vector<std::uint32_t>& indices, const RequestFile& requests, bool sharing) {
  const bool scores = requests.kind() == RequestKind::score;
  std::vector<Placed> all;
  all.reserve(indices.size());
  for (const std::uint32_t index : indices) {
    const RequestFile::Entry& entry = requests.entry(index);
    const std::uint32_t length = scores ? entry.prompt_tokens : entry.max_tokens;
    all.push_back({prompt_of(entry), length, length, index, 0, 0, index});
  }
  join_equal_prompts(all);
  for (Placed& placed : all) placed.family = placed.longest, placed.eldest = placed.first;
  if (sharing) join_families(all, requests);
  std::sort(all.begin(), all.end(), [](const Placed& a, const Placed& b) {
    return std::tie(b.family, a.eldest, b.longest, a.first, b.length, a.index) <
           std::tie(a.family, b.eldest, a.longest, b.first, a.length, b.index);
  });
  std::transform(all.begin(), all.end(), indices.begin(), [](const Placed& placed) { return placed.index; });
}

std::vector<policy::WorkGroup> groups_of(std::span<const std::uint32_t> order, const RequestFile& requests,
                                         bool sharing, std::size_t most) {
  std::size_t runs = 0;
  double choices = 0;
  const auto same_as_before = [&](std::size_t i) {
    const RequestFile::Entry &entry = requests.entry(order[i]), &last = requests.entry(order[i - 1]);
    return entry.max_tokens == last.max_tokens && entry.prompt_tokens == last.prompt_tokens;
  };
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || !same_as_before(i)) ++runs;
    choices += requests.entry(order[i]).n;
  }
  const bool exact = runs <= most;
  std::vector<policy::WorkGroup> groups;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const RequestFile::Entry& entry = requests.entry(order[i]);
    const bool same_prompt = i > 0 && prompt_of(entry) == prompt_of(requests.entry(order[i - 1]));
    if (i == 0 || (exact ? !same_as_before(i) : groups.back().choices >= choices / double(most)))
      groups.push_back({.choices = 0, .prompt = 0, .generation = 0, .prompts = 0, .continues = same_prompt});
    policy::WorkGroup& group = groups.back();
    group.choices += entry.n;
    group.prompt += double(entry.n) * entry.prompt_tokens;
    group.generation += double(entry.n) * entry.max_tokens;
    if (sharing) group.prefix += double(entry.n) * entry.prefix_tokens;
    if (group.prompts == 0 || !same_prompt) ++group.prompts;
    const bool same_prefix =
        sharing && i > 0 && entry.prefix != PrefixIndex::kNone && entry.prefix == requests.entry(order[i - 1]).prefix;
    if (group.prefixes == 0) group.prefix_continues = same_prefix;
    if (group.prefixes == 0 || !same_prefix) ++group.prefixes;
  }
  for (policy::WorkGroup& group : groups)
    group.prompt /= group.choices, group.generation /= group.choices, group.prefix /= group.choices;
  return groups;
}

std::vector<policy::PromptLength> prompt_lengths_of(std::span<const std::uint32_t> order, const RequestFile& requests) {
  std::map<std::int64_t, std::int64_t, std::greater<>> choices;
  for (const std::uint32_t index : order) choices[requests.entry(index).prompt_tokens] += requests.entry(index).n;
  std::vector<policy::PromptLength> lengths;
  for (const auto& [tokens, count] : choices) lengths.push_back({tokens, count});
  return lengths;
}

}  // namespace weft::runtime
