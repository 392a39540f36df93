#include "runtime/requests/id_index.h"

#include <algorithm>

#include "runtime/base/hash.h"

namespace weft::runtime {

void IdIndex::add(std::string_view id, std::size_t index) {
  by_hash_.emplace_back(mix(hash(id)), static_cast<std::uint32_t>(index));
}

void IdIndex::remove_if(const std::function<bool(std::size_t)>& gone) {
  std::erase_if(by_hash_, [&](const auto& each) { return gone(each.second); });
}

void IdIndex::sort(const IdOf& id_of, const Repeated& repeated) {
  std::sort(by_hash_.begin(), by_hash_.end());
  std::size_t kept = 0;
  for (const auto& [hash_of_id, index] : by_hash_) {
    std::optional<std::size_t> first;
    for (std::size_t j = kept; !first && j-- > 0 && by_hash_[j].first == hash_of_id;)
      if (id_of(by_hash_[j].second) == id_of(index)) first = by_hash_[j].second;
    if (first) repeated(*first, index);
    else by_hash_[kept++] = {hash_of_id, index};
  }
  by_hash_.resize(kept);
  by_hash_.shrink_to_fit();
}

std::optional<std::size_t> IdIndex::find(const std::string& id, const IdOf& id_of) const {
  const std::uint64_t wanted = mix(hash(id));
  for (auto it = std::lower_bound(by_hash_.begin(), by_hash_.end(), std::pair{wanted, std::uint32_t{0}});
       it != by_hash_.end() && it->first == wanted; ++it)
    if (id_of(it->second) == id) return it->second;
  return {};
}

}  // namespace weft::runtime
