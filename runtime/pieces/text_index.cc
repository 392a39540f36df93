#include "runtime/pieces/text_index.h"

#include <numeric>

namespace weft::runtime {

TextIndex::TextIndex(std::vector<std::string> texts) : texts_(std::move(texts)), order_(texts_.size()) {
  std::iota(order_.begin(), order_.end(), 0u);
  std::sort(order_.begin(), order_.end(), [this](std::uint32_t a, std::uint32_t b) { return texts_[a] < texts_[b]; });
  for (std::uint32_t i = 0; i < order_.size(); ++i) {
    const std::string& text = texts_[order_[i]];
    if (text.empty()) continue;
    auto& [first, last] = from_[static_cast<unsigned char>(text[0])];
    if (last == 0) first = i;
    last = i + 1;
  }
}

std::pair<std::uint32_t, std::size_t> TextIndex::longest_prefix(std::string_view text) const {
  std::pair<std::uint32_t, std::size_t> longest{0, 0};
  each_prefix(text, [&longest](std::uint32_t number, std::size_t bytes) { longest = {number, bytes}; });
  return longest;
}

}  // namespace weft::runtime
