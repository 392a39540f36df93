// runtime/pieces/text_index.h: many texts, of which those are found that another text begins with.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft::runtime {

/// Texts with numbers. A search takes O(log n) a byte, however many texts there are. Const calls may run on many
/// threads at once.
class TextIndex {
 public:
  TextIndex() = default;
  /// A text's number is its place in the list. Empty texts are never found.
  explicit TextIndex(std::vector<std::string> texts);

  bool empty() const { return texts_.empty(); }
  const std::string& text(std::uint32_t number) const { return texts_[number]; }

  /// Calls found(number, bytes) for each text that `text`, which is not empty, begins with: the shortest first.
  template <class Found> void each_prefix(std::string_view text, const Found& found) const {
    auto [first, last] = from_[static_cast<unsigned char>(text[0])];
    for (std::size_t depth = 1; first < last; ++depth) {  // texts [first, last) begin with `depth` bytes of the text
      for (; first < last && texts_[order_[first]].size() == depth; ++first) found(order_[first], depth);
      if (depth == text.size()) break;
      const auto next = static_cast<unsigned char>(text[depth]);
      const auto byte_of = [this, depth](std::uint32_t number) {
        return static_cast<unsigned char>(texts_[number][depth]);
      };
      const auto begin = order_.begin() + first, end = order_.begin() + last;
      const auto low = std::partition_point(begin, end, [&](std::uint32_t number) { return byte_of(number) < next; });
      const auto high = std::partition_point(low, end, [&](std::uint32_t number) { return byte_of(number) == next; });
      first = static_cast<std::uint32_t>(low - order_.begin());
      last = static_cast<std::uint32_t>(high - order_.begin());
    }
  }
  /// The number and the bytes of the longest text that `text` begins with; 0 bytes if there is none.
  std::pair<std::uint32_t, std::size_t> longest_prefix(std::string_view text) const;

 private:
  std::vector<std::string> texts_;
  std::vector<std::uint32_t> order_;                                 // numbers, sorted by text
  std::array<std::pair<std::uint32_t, std::uint32_t>, 256> from_{};  // by first byte: its range [first, last) of order_
};

}  // namespace weft::runtime
