#include "runtime/text/stop_search.h"

#include <algorithm>
#include <utility>

namespace weft::runtime {

StopSearch::StopSearch(const Tokenizer& tokenizer, std::span<const std::int32_t> prompt, std::vector<std::string> stops)
    : tokenizer_(&tokenizer), decoder_(tokenizer, SpecialTokens::shown), stops_(std::move(stops)) {
  decoder_.follow(prompt);
}

bool StopSearch::push(std::int32_t id, bool look) {
  const std::size_t before = text_.size();
  text_ += decoder_.push(id);
  if (!look) return false;
  const std::string pending = decoder_.pending();
  const std::string& searched = pending.empty() ? text_ : text_ + pending;
  for (const std::string& stop : stops_) {
    const std::size_t from = before >= stop.size() ? before - stop.size() + 1 : 0;  // a new match ends in new text
    at_ = std::min(at_, searched.find(stop, from));
  }
  return found();
}

std::string StopSearch::text_before(std::span<const std::int32_t> prompt, std::span<const std::int32_t> ids) const {
  IncrementalDecoder shown(*tokenizer_, SpecialTokens::shown), skipped(*tokenizer_);
  shown.follow(prompt);
  skipped.follow(prompt);
  std::string text;
  std::size_t offset = 0, after = 0;  // after: bytes behind at_ that are not of special tokens
  const auto advance = [&](std::size_t bytes, bool visible) {
    const std::size_t end = offset + bytes;
    if (visible && end > at_) after += end - std::max(offset, at_);
    offset = end;
  };
  for (const std::int32_t id : ids) {
    text += skipped.push(id);
    const std::size_t bytes = shown.push(id).size();
    const std::size_t special = tokenizer_->piece(id).empty() ? tokenizer_->shown_piece(id).size() : 0;
    advance(bytes - special, true);
    advance(special, false);
  }
  text += skipped.pending();
  advance(shown.pending().size(), true);
  text.resize(text.size() - std::min(after, text.size()));
  return text;
}

}  // namespace weft::runtime
