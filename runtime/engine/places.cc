#include "runtime/engine/places.h"

#include <algorithm>

namespace weft::runtime {

Places::Places(const Shape& shape, std::span<Sequence> block, const Waiting& waiting)
    : shape_(shape), block_(block), waiting_(waiting), waiting_count_(waiting.count), rows_(shape.num_gpu_batches),
      live_(shape.num_gpu_batches), all_live_(static_cast<std::int64_t>(block.size())) {
  for (int b = 0; b < shape.num_gpu_batches; ++b) live_[b] = static_cast<std::int64_t>(batch(b).size());
}

std::span<Sequence> Places::batch(int batch) const {
  const auto size = static_cast<std::size_t>(shape_.gpu_batch_size), first = static_cast<std::size_t>(batch) * size;
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
    if (!before || before->tokens != place.tokens) admitted += place.prompt_tokens;
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
    filled.push_back(i);
  }
  return filled;
}

RowCounts Places::gather(int batch, bool prefill) {
  RowCounts counts;
  BatchRows& rows = rows_[batch];
  rows.clear();
  if (!prefill) admit(batch);
  const std::span<Sequence> all = this->batch(batch);
  std::vector<std::int32_t> sharing;  // places whose sequence shares a prefill
  for (const bool begun : {true, false}) {
    const Sequence* before = nullptr;
    for (std::int32_t place = 0; place < static_cast<std::int32_t>(all.size()); ++place) {
      const Sequence& sequence = all[place];
      if (sequence.finish != Finish::none || (sequence.generated() > 0) != begun) continue;
      if (before && !begun && !shape_.last_token_only && before->tokens == sequence.tokens) {
        sharing.push_back(place);
        rows.shared.push_back(static_cast<std::int32_t>(rows.own()) - 1);
        counts.shared_tokens += sequence.prompt_tokens;
        continue;
      }
      before = &sequence;
      const auto length = static_cast<std::int32_t>(sequence.tokens.size());
      for (std::int32_t p = begun || shape_.last_token_only ? length - 1 : 0; p < length; ++p) {
        rows.tokens.push_back(sequence.tokens[p]);
        rows.position.push_back(
            static_cast<std::int32_t>(shape_.rolling.position(p, sequence.keep.front().front().budget())));
      }
      if (begun && shape_.rolling.moves_before(length - 1, sequence.keep.front().front().budget()))
        rows.moved.push_back(static_cast<std::int32_t>(rows.live()));
      rows.add(place, sequence.keep, length);
      rows.offsets.push_back(static_cast<std::int32_t>(rows.tokens.size()));
      if (!begun) counts.prompt_tokens += sequence.prompt_tokens;
    }
    if (begun) rows.begun = rows.live();
  }
  for (const std::int32_t place : sharing)
    rows.add(place, all[place].keep, static_cast<std::int32_t>(all[place].tokens.size()));
  return counts;
}

}  // namespace weft::runtime
