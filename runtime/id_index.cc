#include "runtime/id_index.h"

#include <algorithm>

#include "runtime/hash.h"

namespace weft::runtime {

void IdIndex::add(std::string_view id) {
  by_hash_.emplace_back(mix(hash(id)), static_cast<std::uint32_t>(by_hash_.size()));
}

std::optional<std::pair<std::size_t, std::size_t>> IdIndex::sort(const IdOf& id_of) {
  std::sort(by_hash_.begin(), by_hash_.end());
  for (std::size_t i = 1; i < by_hash_.size(); ++i)
    for (std::size_t j = i; j-- > 0 && by_hash_[j].first == by_hash_[i].first;)
      if (id_of(by_hash_[i].second) == id_of(by_hash_[j].second))
        return std::pair{by_hash_[j].second, by_hash_[i].second};
  return {};
}

std::optional<std::size_t> IdIndex::find(const std::string& id, const IdOf& id_of) const {
  const std::uint64_t wanted = mix(hash(id));
  for (auto it = std::lower_bound(by_hash_.begin(), by_hash_.end(), std::pair{wanted, std::uint32_t{0}});
       it != by_hash_.end() && it->first == wanted; ++it)
    if (id_of(it->second) == id) return it->second;
  return {};
}

}  // namespace weft::runtime
