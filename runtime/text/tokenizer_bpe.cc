// runtime/text/tokenizer_bpe.cc: the merge loop, with candidates in a heap and symbols in a linked list.
#include "runtime/text/tokenizer_bpe.h"

#include <algorithm>
#include <limits>
#include <string>

#include "kernels/error.h"

namespace weft::runtime {

namespace {

/// Orders the heap so that its top is the earliest merge, at the leftmost of its places.
bool later(const BpeMerges::Scratch::Candidate& a, const BpeMerges::Scratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

}  // namespace

bool BpeMerges::add(std::int32_t left, std::int32_t right, std::int32_t result) {
  return merges_.emplace(key(left, right), Merge{static_cast<std::uint32_t>(merges_.size()), result}).second;
}

void BpeMerges::propose(std::size_t position, Scratch& scratch) const {
  const auto& left = scratch.symbols[position];
  if (left.next < 0) return;
  const auto found = merges_.find(key(left.id, scratch.symbols[left.next].id));
  if (found == merges_.end()) return;
  scratch.heap.push_back({found->second.rank, static_cast<std::uint32_t>(position), found->second.result});
}

void BpeMerges::apply(std::vector<std::int32_t>& ids, std::size_t from, Scratch& scratch) const {
  const std::size_t count = ids.size() - from;
  if (count < 2) return;
  if (count > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    throw CapacityError("tokenizer: a word of " + std::to_string(count) + " bytes, at most 2^31 - 1 can be merged");

  auto& [symbols, heap] = scratch;
  symbols.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::int32_t>(i);
    symbols[i] = {ids[from + i], at - 1, i + 1 < count ? at + 1 : -1};
  }
  heap.clear();
  for (std::size_t i = 0; i + 1 < count; ++i) propose(i, scratch);
  std::make_heap(heap.begin(), heap.end(), later);

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Scratch::Candidate best = heap.back();
    heap.pop_back();

    // The pair that was here when this was proposed may be gone. Like Hugging Face's library, this compares the result
    // and not the rank.
    auto& left = symbols[best.position];
    if (left.id < 0 || left.next < 0) continue;
    auto& right = symbols[left.next];
    const auto found = merges_.find(key(left.id, right.id));
    if (found == merges_.end() || found->second.result != best.result) continue;

    left.id = best.result;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[left.next].previous = static_cast<std::int32_t>(best.position);
    for (const std::int32_t position : {left.previous, static_cast<std::int32_t>(best.position)}) {
      if (position < 0) continue;
      const std::size_t before = heap.size();
      propose(static_cast<std::size_t>(position), scratch);
      if (heap.size() > before) std::push_heap(heap.begin(), heap.end(), later);
    }
  }

  std::size_t end = from;
  for (std::int32_t i = 0; i >= 0; i = symbols[i].next) ids[end++] = symbols[i].id;
  ids.resize(end);
}

}  // namespace weft::runtime
