// runtime/requests/id_index.h: finds one of millions of requests by its id while the ids stay in the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft::runtime {

/// Holds 16 bytes per request that has an id: a hash and an index. If two hashes are equal, it reads the ids
/// themselves.
class IdIndex {
 public:
  using IdOf = std::function<std::string(std::size_t index)>;
  using Repeated = std::function<void(std::size_t first, std::size_t index)>;

  void add(std::string_view id, std::size_t index);
  void remove_if(const std::function<bool(std::size_t index)>& gone);
  /// Call once, after the last add(). The first entry with an id stays; `repeated` is called for each later one, which
  /// is removed.
  void sort(const IdOf& id_of, const Repeated& repeated);
  /// Call it after sort().
  std::optional<std::size_t> find(const std::string& id, const IdOf& id_of) const;

 private:
  std::vector<std::pair<std::uint64_t, std::uint32_t>> by_hash_;
};

}  // namespace weft::runtime
