#include "runtime/pieces/unigram.h"

#include <algorithm>

#include "runtime/base/utf8.h"

namespace weft::runtime {

namespace {
constexpr double kUnknownPenalty = 10;  // below the lowest score of a piece
}

Unigram::Unigram(std::vector<std::string> pieces, std::vector<double> scores, std::optional<std::int32_t> unknown)
    : pieces_(std::move(pieces)), scores_(std::move(scores)), unknown_(unknown.value_or(-1)) {
  const auto lowest = std::min_element(scores_.begin(), scores_.end());
  unknown_score_ = (lowest == scores_.end() ? 0 : *lowest) - kUnknownPenalty;
}

void Unigram::cut(std::string_view text, std::vector<Part>& parts, Scratch& scratch) const {
  auto& nodes = scratch.nodes;
  nodes.assign(text.size() + 1, {});
  const auto propose = [&nodes](std::size_t from, std::size_t end, double score, std::int32_t id) {
    Scratch::Node& node = nodes[end];
    if (node.from == SIZE_MAX || score > node.score) node = {score, from, id};
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t bytes = utf8_at(text, at).bytes;
    const double here = nodes[at].score;
    bool known = false;  // the character is a piece
    pieces_.each_prefix(text.substr(at), [&](std::uint32_t id, std::size_t length) {
      propose(at, at + length, here + scores_[id], static_cast<std::int32_t>(id));
      known = known || length == bytes;
    });
    if (!known) propose(at, at + bytes, here + unknown_score_, unknown_);
    at += bytes;
  }

  const std::size_t first = parts.size();
  bool joins = false;  // the part after this one is unknown too
  for (std::size_t end = text.size(); end > 0; end = nodes[end].from) {
    const Scratch::Node& node = nodes[end];
    const bool unknown = node.id == unknown_;
    if (unknown && joins) parts.back().text = text.substr(node.from, end - node.from + parts.back().text.size());
    else parts.push_back({text.substr(node.from, end - node.from), node.id});
    joins = unknown;
  }
  std::reverse(parts.begin() + static_cast<std::ptrdiff_t>(first), parts.end());
  for (auto part = parts.begin() + static_cast<std::ptrdiff_t>(first); part != parts.end(); ++part) {
    if (part->id != unknown_) continue;
    const auto [id, bytes] = pieces_.longest_prefix(part->text);
    part->id = bytes == part->text.size() ? static_cast<std::int32_t>(id) : -1;
  }
}

}  // namespace weft::runtime
