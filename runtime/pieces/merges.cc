#include "runtime/pieces/merges.h"

#include <string_view>
#include <unordered_map>

#include "runtime/pieces/text_index.h"

namespace weft::runtime {

std::vector<PieceMerge> piece_merges(const std::vector<std::string>& pieces) {
  const TextIndex index(pieces);
  std::unordered_map<std::string_view, std::int32_t> ids;
  for (std::size_t id = 0; id < pieces.size(); ++id) ids.emplace(pieces[id], static_cast<std::int32_t>(id));

  std::vector<PieceMerge> merges;
  for (std::size_t whole = 0; whole < pieces.size() && merges.size() <= kMostMerges; ++whole) {
    const std::string_view text = pieces[whole];
    if (text.empty()) continue;
    index.each_prefix(text, [&](std::uint32_t left, std::size_t bytes) {
      if (bytes == text.size()) return;
      if (const auto right = ids.find(text.substr(bytes)); right != ids.end())
        merges.push_back({static_cast<std::int32_t>(whole), static_cast<std::int32_t>(left), right->second});
    });
  }
  return merges;
}

}  // namespace weft::runtime
