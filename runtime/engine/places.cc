#include "runtime/engine/places.h"

#include <algorithm>
#include <map>

namespace weft::runtime {
namespace {

constexpr std::int64_t kLeastShared = 32;  // tokens of a prefix that are worth an op of their own

}  // namespace

Places::Places(const Shape& shape, std::span<Sequence> block, const Waiting& waiting)
    : shape_(shape), block_(block), waiting_(waiting), waiting_count_(waiting.count), rows_(shape.num_gpu_batches),
      written_(block.size()), waited_(shape.num_gpu_batches), live_(shape.num_gpu_batches),
      all_live_(static_cast<std::int64_t>(block.size())) {
  for (int b = 0; b < shape.num_gpu_batches; ++b) live_[b] = static_cast<std::int64_t>(batch(b).size());
}

std::span<Sequence> Places::batch(int batch) const {
  const std::size_t size = static_cast<std::size_t>(shape_.gpu_batch_size), first = first_place(batch);
  return first >= block_.size() ? std::span<Sequence>{} : block_.subspan(first, std::min(size, block_.size() - first));
}

std::int64_t Places::sweeps_left() const {
  std::int64_t left = 0;
  for (const Sequence& sequence : block_)
    if (sequence.finish == Finish::none) left = std::max(left, sequence.max_tokens - sequence.generated());
  return left;
}

void Places::finished(int batch) { --live_[batch], --all_live_; }

/// Gives the places of finished sequences to waiting ones, as many as one sweep can prefill without stalling decode.
/// Prefill overwrites what is left in these places.
void Places::admit(int batch) {
  std::int64_t admitted = 0;
  const Sequence* before = nullptr;  // sequences with the same prompt cost nothing more
  for (Sequence& place : this->batch(batch)) {
    if (waiting_count_ == 0) return;
    if (place.finish == Finish::none) continue;
    const bool costs = !before || !waiting_.next_shares || !waiting_.next_shares(*before);
    if (costs && admitted >= shape_.admitted_tokens) return;
    fill(place, batch);
    if (!before || before->tokens != place.tokens)
      admitted += place.prompt_tokens - (shares_prefixes() ? place.prefix_tokens : 0);
    before = &place;
  }
}

void Places::fill(Sequence& place, int batch) {
  waiting_.next(place);
  ++live_[batch], ++all_live_;  // before waiting_count_ falls, for alive()
  --waiting_count_;
}

bool Places::can_place_begun() const {
  return waiting_count_ > 0 && waiting_.next_has_begun && waiting_.next_has_begun() &&
         all_live_ < static_cast<std::int64_t>(block_.size());
}

std::vector<std::size_t> Places::place_begun() {
  std::vector<std::size_t> filled;
  for (std::size_t i = 0; i < block_.size() && can_place_begun(); ++i) {
    if (block_[i].finish == Finish::none) continue;
    fill(block_[i], static_cast<int>(i / static_cast<std::size_t>(shape_.gpu_batch_size)));
    written_[i].clear();
    filled.push_back(i);
  }
  return filled;
}

bool Places::hold(int batch, std::int64_t sharers, std::int64_t tokens) {
  std::int64_t& waited = waited_[batch];
  waited += sharers;
  // A place that waits costs a row a sweep, a prefix that is computed again its rows, which are cheaper.
  const bool enough = 2 * sharers >= shape_.gpu_batch_size || 4 * waited >= tokens;
  if (enough || waiting_count_ == 0 || rows_[batch].begun == 0) waited = 0;
  return waited > 0;
}

Places::Held Places::held(int batch, const Sequence& sequence, std::int64_t most, std::span<const std::size_t> turn,
                          std::size_t now) const {
  Held best;
  if (!shape_.holds_prefixes) return best;
  const auto places = static_cast<std::int32_t>(this->batch(batch).size());
  for (std::int32_t place = 0; place < places && best.tokens < most; ++place) {
    if (!turn.empty() && turn[place] < now) continue;
    const std::vector<std::int32_t>& of = written_[first_place(batch) + place];
    const auto end = of.begin() + std::min(most, static_cast<std::int64_t>(of.size()));
    const std::int64_t common = std::mismatch(of.begin(), end, sequence.tokens.begin()).first - of.begin();
    if (common > best.tokens) best = {place, common};
  }
  best.tokens = best.tokens / shape_.prefix_step * shape_.prefix_step;
  return best.tokens >= kLeastShared ? best : Held{};
}

std::vector<std::int32_t> Places::beginning(int batch, bool prefill) {
  const std::span<Sequence> all = this->batch(batch);
  std::vector<std::int32_t> places, sharers;
  std::int64_t tokens = 0;
  for (std::int32_t place = 0; place < static_cast<std::int32_t>(all.size()); ++place) {
    const Sequence& sequence = all[place];
    if (sequence.finish != Finish::none || sequence.generated() > 0) continue;
    places.push_back(place);
    if (prefill || !shares_prefixes() || sequence.prefix_tokens == 0) continue;
    // A prefix that is held already is not worth a wait.
    if (2 * held(batch, sequence, sequence.prefix_tokens).tokens >= sequence.prefix_tokens) continue;
    sharers.push_back(place);
    tokens = std::max(tokens, sequence.prefix_tokens);
  }
  if (!shares_prefixes()) return places;
  if (!sharers.empty() && hold(batch, std::ssize(sharers), tokens))
    std::erase_if(places,
                  [&](std::int32_t place) { return std::binary_search(sharers.begin(), sharers.end(), place); });
  std::stable_sort(places.begin(), places.end(),
                   [&](std::int32_t a, std::int32_t b) { return all[a].tokens < all[b].tokens; });
  return places;
}

Places::Shared Places::shared(const Group& group) {
  const auto members = static_cast<std::int64_t>(group.last - group.first);
  const Held computed{-1, members == 1 ? 0 : group.common};
  const Held held{group.held.place, std::min(group.held.tokens, group.common)};
  const std::int64_t with_computed = group.lengths - (members - 1) * computed.tokens;
  const std::int64_t with_held = group.lengths - members * held.tokens;
  return held.tokens > 0 && with_held < with_computed ? Shared{held, with_held} : Shared{computed, with_computed};
}

std::vector<Places::Group> Places::groups(int batch, const Beginning& beginning, bool prefill) const {
  const std::span<const Sequence> all = this->batch(batch);
  std::vector<std::size_t> turn(all.size(), SIZE_MAX);  // in which the slots of places are written
  for (std::size_t i = 0; i < beginning.own.size(); ++i) {
    turn[beginning.own[i]] = i;
    for (const std::int32_t place : beginning.alike[i]) turn[place] = i;
  }
  std::vector<Group> groups;
  std::int64_t before = 0;  // rows of all groups but the last
  for (std::size_t i = 0; i < beginning.own.size(); ++i) {
    const Sequence& sequence = all[beginning.own[i]];
    const std::vector<std::int32_t>& tokens = sequence.tokens;
    const auto length = static_cast<std::int64_t>(tokens.size());
    const std::int64_t of_last = groups.empty() ? 0 : shared(groups.back()).rows, rows = before + of_last;
    const bool may_begin = prefill ? rows == 0 || shape_.last_token_only || length <= shape_.first_tokens - rows
                                   : rows < shape_.admitted_tokens;
    if (!may_begin) break;
    std::int64_t most = std::min({shape_.prefix_tokens, length - std::max<std::int64_t>(1, shape_.observation),
                                  shape_.rolling.context > 0 ? shape_.rolling.context : length});
    most = std::max<std::int64_t>(0, most) / shape_.prefix_step * shape_.prefix_step;
    Group alone{i, i + 1, length, most, {}};
    if (shares_prefixes()) alone.held = held(batch, sequence, most, turn, i);
    if (!groups.empty() && most > 0) {
      Group joined = groups.back();
      const std::vector<std::int32_t>& first = all[beginning.own[joined.first]].tokens;
      const auto end = tokens.begin() + std::min(most, joined.common);
      const std::int64_t alike = std::mismatch(tokens.begin(), end, first.begin()).first - tokens.begin();
      joined.common = alike / shape_.prefix_step * shape_.prefix_step;
      joined.last = i + 1, joined.lengths += length;
      // It joins if that saves rows, although a shorter prefix leaves more to the others.
      if (joined.common >= kLeastShared && shared(joined).rows < of_last + shared(alone).rows) {
        groups.back() = joined;
        continue;
      }
    }
    groups.push_back(alone);
    before = rows;
  }
  return groups;
}

void Places::find_alike(BatchRows& rows, std::span<const Sequence> all) const {
  const auto before = [&](std::int32_t a, std::int32_t b) {
    const auto &x = all[a].tokens, &y = all[b].tokens;
    return std::lexicographical_compare(x.begin(), x.begin() + kLeastShared, y.begin(), y.begin() + kLeastShared);
  };
  std::map<std::int32_t, std::int32_t, decltype(before)> first(before);  // of the places with each beginning
  bool any = false;
  for (const std::int32_t place : rows.sequence) {
    const Sequence& sequence = all[place];
    kernels::AlikeSlots alike{place, 0};
    if (sequence.prompt_tokens >= kLeastShared) {
      alike.sequence = first.try_emplace(place, place).first->second;
      const Sequence& other = all[alike.sequence];
      const auto end = sequence.tokens.begin() + std::min(sequence.prompt_tokens, other.prompt_tokens);
      const auto differs = std::mismatch(sequence.tokens.begin(), end, other.tokens.begin()).first;
      alike.count = static_cast<std::int32_t>(differs - sequence.tokens.begin());
      any |= alike.sequence != place;
    }
    rows.alike.push_back(alike);
  }
  if (!any) rows.alike.clear();
}

/// Adds a sequence and its rows for the tokens from `from` on.
void Places::add_rows(BatchRows& rows, std::int32_t place, const Sequence& sequence, std::int64_t from) const {
  const auto length = static_cast<std::int32_t>(sequence.tokens.size());
  for (auto p = static_cast<std::int32_t>(from); p < length; ++p) {
    rows.tokens.push_back(sequence.tokens[p]);
    rows.position.push_back(
        static_cast<std::int32_t>(shape_.rolling.position(p, sequence.keep.front().front().budget())));
  }
  rows.add(place, sequence.keep, length);
  rows.offsets.push_back(static_cast<std::int32_t>(rows.tokens.size()));
}

RowCounts Places::gather(int batch, bool prefill) {
  RowCounts counts;
  BatchRows& rows = rows_[batch];
  rows.clear();
  if (!prefill) admit(batch);
  const std::span<Sequence> all = this->batch(batch);
  for (std::int32_t place = 0; place < static_cast<std::int32_t>(all.size()); ++place) {
    const Sequence& sequence = all[place];
    if (sequence.finish != Finish::none || sequence.generated() == 0) continue;
    const auto last = static_cast<std::int64_t>(sequence.tokens.size()) - 1;
    if (shape_.rolling.moves_before(last, sequence.keep.front().front().budget()))
      rows.moved.push_back(static_cast<std::int32_t>(rows.live()));
    add_rows(rows, place, sequence, last);
  }
  rows.begun = rows.live();
  if (shape_.finds_alike && rows.begun > 1) find_alike(rows, all);

  // Places whose sequence shares a whole prompt, by the place before them that has one of its own.
  Beginning begin;
  for (const std::int32_t place : beginning(batch, prefill)) {
    if (!begin.own.empty() && !shape_.last_token_only && all[begin.own.back()].tokens == all[place].tokens) {
      begin.alike.back().push_back(place);
      continue;
    }
    begin.own.push_back(place);
    begin.alike.emplace_back();
  }
  std::vector<std::int32_t> sharing;
  for (const Group& group : groups(batch, begin, prefill)) {
    const Held prefix = shared(group).prefix;
    if (prefix.tokens > 0)
      rows.prefixes.push_back({rows.own(), rows.own() + static_cast<std::int64_t>(group.last - group.first), 0,
                               prefix.tokens, prefix.place});
    for (std::size_t i = group.first; i < group.last; ++i) {
      const Sequence& sequence = all[begin.own[i]];
      for (const std::int32_t place : begin.alike[i]) {
        sharing.push_back(place);
        rows.shared.push_back(static_cast<std::int32_t>(rows.own()));
        counts.shared_tokens += sequence.prompt_tokens;
      }
      const bool computes = i == group.first && prefix.place < 0;  // the prefix, too
      counts.prompt_tokens += sequence.prompt_tokens - (computes ? 0 : prefix.tokens);
      counts.shared_tokens += computes ? 0 : prefix.tokens;
      add_rows(rows, begin.own[i], sequence, shape_.last_token_only ? sequence.prompt_tokens - 1 : prefix.tokens);
    }
  }
  for (SharedPrefix& prefix : rows.prefixes) {
    prefix.begin = rows.rows();
    if (prefix.held_in >= 0) continue;
    const Sequence& first = all[rows.sequence[prefix.first]];
    rows.tokens.insert(rows.tokens.end(), first.tokens.begin(), first.tokens.begin() + prefix.tokens);
    for (std::int64_t p = 0; p < prefix.tokens; ++p) rows.position.push_back(static_cast<std::int32_t>(p));
  }
  for (const std::int32_t place : sharing)
    rows.add(place, all[place].keep, static_cast<std::int32_t>(all[place].tokens.size()));
  for (std::int64_t s = rows.begun; shape_.holds_prefixes && s < rows.live(); ++s) {
    const Sequence& sequence = all[rows.sequence[s]];
    written_[first_place(batch) + rows.sequence[s]].assign(sequence.tokens.begin(),
                                                           sequence.tokens.begin() + sequence.prefix_tokens);
  }
  return counts;
}

}  // namespace weft::runtime
