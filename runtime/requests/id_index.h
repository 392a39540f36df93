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

/// Holds a hash per request that has an id, 16 bytes, and asks for the ids themselves where two hashes are the same.
class IdIndex {
 public:
  using IdOf = std::function<std::string(std::size_t index)>;
  using Repeated = std::function<void(std::size_t first, std::size_t index)>;

  void add(std::string_view id, std::size_t index);
  void remove_if(const std::function<bool(std::size_t index)>& gone);
  /// Once after the last add(): the first with an id stays, each later one is told of and gone.
  void sort(const IdOf& id_of, const Repeated& repeated);
  /// After sort().
  std::optional<std::size_t> find(const std::string& id, const IdOf& id_of) const;

 private:
  std::vector<std::pair<std::uint64_t, std::uint32_t>> by_hash_;
};

}  // namespace weft::runtime
