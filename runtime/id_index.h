// runtime/id_index.h: finds one of millions of requests by its id while the ids stay in the file.
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

/// Holds a hash per request, 16 bytes, and asks for the ids themselves where two hashes are the same.
class IdIndex {
 public:
  using IdOf = std::function<std::string(std::size_t index)>;

  /// Of the next request; their indices count from 0.
  void add(std::string_view id);
  /// Once after the last add(): the indices of two requests with one id, the earlier first, if there are such.
  std::optional<std::pair<std::size_t, std::size_t>> sort(const IdOf& id_of);
  /// After sort().
  std::optional<std::size_t> find(const std::string& id, const IdOf& id_of) const;

 private:
  std::vector<std::pair<std::uint64_t, std::uint32_t>> by_hash_;
};

}  // namespace weft::runtime
