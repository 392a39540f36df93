#include "runtime/text/stop_search.h"

#include <algorithm>
#include <utility>

namespace weft::runtime {

StopSearch::StopSearch(const Tokenizer& tokenizer, std::span<const std::int32_t> prompt, std::vector<std::string> stops,
                       SpecialTokens special)
    : tokenizer_(&tokenizer), special_(special), start_(tokenizer, SpecialTokens::shown, special), decoder_(start_),
      stops_(std::move(stops)) {
  start_.follow(prompt);
  restart();
}

void StopSearch::restart() {
  decoder_ = start_;
  text_.clear();
  seen_ = 0;
  at_ = std::string::npos;
}

bool StopSearch::push(std::int32_t id, bool look) {
  text_ += decoder_.push(id);
  const std::string pending = decoder_.pending();
  const std::size_t before = std::exchange(seen_, text_.size() + pending.size());
  if (!look) return false;
  const std::string& searched = pending.empty() ? text_ : text_ + pending;
  for (const std::string& stop : stops_) {
    const std::size_t from = before >= stop.size() ? before - stop.size() + 1 : 0;  // a new match ends in new text
    if (const std::size_t at = searched.find(stop, from); at < at_) at_ = at, end_ = at + stop.size();
  }
  return found();
}

std::string StopSearch::text_before(std::span<const std::int32_t> prompt, std::span<const std::int32_t> ids,
                                    bool with_stop) const {
  IncrementalDecoder shown(*tokenizer_, SpecialTokens::shown, special_), wanted(*tokenizer_, special_);
  shown.follow(prompt);
  wanted.follow(prompt);
  std::string text;
  const std::size_t cut = with_stop ? end_ : at_;
  std::size_t offset = 0, after = 0;  // after: bytes behind the cut that the text has
  const auto advance = [&](std::size_t bytes, bool visible) {
    const std::size_t end = offset + bytes;
    if (visible && end > cut) after += end - std::max(offset, cut);
    offset = end;
  };
  for (const std::int32_t id : ids) {
    text += wanted.push(id);
    const std::size_t bytes = shown.push(id).size();
    const std::size_t of_special =
        tokenizer_->piece(id).empty() ? std::min(tokenizer_->shown_piece(id).size(), bytes) : 0;
    advance(bytes - of_special, true);
    advance(of_special, special_ == SpecialTokens::shown);
  }
  text += wanted.finish();
  advance(shown.finish().size(), true);
  text.resize(text.size() - std::min(after, text.size()));
  return text;
}

}  // namespace weft::runtime
