// tests/support/slots_under_test.h: runs prefill and decode steps through the kernels of a place.
#pragma once

#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "tests/support/numbers.h"
#include "tests/support/slot_arrays.h"

namespace weft::test {

struct HeadShape {
  int heads = 1, kv_heads = 1, head_dim = 1;
};

/// The rows of q, k and v of some tokens, each matrix row by row.
struct Tokens {
  std::vector<float> q, k, v;
};
/// Normally distributed; queries with a deviation of `of_queries`.
inline Tokens some_tokens(int count, HeadShape shape, std::uint64_t seed, float of_queries = 1) {
  return {normal(std::int64_t{count} * shape.heads * shape.head_dim, seed, of_queries),
          normal(std::int64_t{count} * shape.kv_heads * shape.head_dim, seed + 1),
          normal(std::int64_t{count} * shape.kv_heads * shape.head_dim, seed + 2)};
}
inline void append(Tokens& all, const Tokens& more) {
  all.q.insert(all.q.end(), more.q.begin(), more.q.end());
  all.k.insert(all.k.end(), more.k.begin(), more.k.end());
  all.v.insert(all.v.end(), more.v.begin(), more.v.end());
}

/// The KV buffer of some sequences, and the ops that a layer calls on it.
class SlotsUnderTest {
 public:
  SlotsUnderTest(const Place& place, int sequences, HeadShape shape, int slots, SlotType type = DType::f32,
                 kernels::Scoring scoring = kernels::Scoring::attention, bool rest = false, Cold cold = {})
      : place_(place), shape_(shape), scoring_(scoring),
        slots_(place, sequences, shape.kv_heads, slots, shape.head_dim, type, rest, true, cold) {}

  struct Prefill {
    std::vector<float> out, score;  // [tokens, heads * head_dim], [kv_heads, tokens]
  };
  /// Runs the prompts of sequences 0, 1, ... with these lengths. `score`, if not empty, replaces the kernel's scores.
  Prefill prefill(const Tokens& tokens, const std::vector<int>& lengths, const std::vector<kernels::Keep>& keep,
                  float scale = 1, int window = 0, const std::vector<float>& score = {}) {
    std::vector<std::int32_t> offsets{0}, sequence;
    for (const int length : lengths) {
      sequence.push_back(static_cast<std::int32_t>(sequence.size()));
      offsets.push_back(offsets.back() + length);
    }
    const int sliding = keep.front().window;  // the same for all sequences
    const int n = offsets.back(), q_cols = shape_.heads * shape_.head_dim, cols = shape_.kv_heads * shape_.head_dim;
    const Array q(place_, tokens.q, n, q_cols), k(place_, tokens.k, n, cols), v(place_, tokens.v, n, cols);
    const DType stored = is_quantised(slots_.block.dtype) ? DType::f32 : slots_.block.dtype;
    const Array stored_k(place_, n, cols, stored), stored_v(place_, n, cols, stored);
    Array out(place_, n, q_cols), lse(place_, shape_.heads, n), sums(place_, shape_.kv_heads, n);
    const Array work(place_, shape_.kv_heads, n);
    place_.run(kernels::Convert{k, stored_k});
    place_.run(kernels::Convert{v, stored_v});
    place_.run(kernels::PrefillAttention{q, stored_k, stored_v, offsets, shape_.heads, shape_.kv_heads, shape_.head_dim,
                                         scale, out, lse, sliding, cap, sink_logits});
    place_.run(kernels::ColumnSums{q, stored_k, lse, offsets, shape_.heads, shape_.kv_heads, shape_.head_dim, scale,
                                   window, sums, statistic, sliding, cap});
    if (!score.empty()) sums.set(score);
    const ConstView scores = scoring_ == kernels::Scoring::attention ? ConstView(sums) : ConstView();
    place_.run(
        kernels::KeepPrompt{stored_k, stored_v, scores, offsets, sequence, keep, scoring_, seed, block(), pool, work});
    return {out.host(), scoring_ == kernels::Scoring::keys ? work.host() : sums.host()};
  }

  struct Step {
    std::vector<float> out;             // [rows, heads * head_dim]
    std::vector<std::int32_t> evicted;  // [rows, kv_heads]
  };
  /// Runs a step for the next token of some sequences. `probabilities` [rows * heads], if not empty, give the
  /// probability of each position in place of the softmax.
  Step step(const Tokens& tokens, const std::vector<std::int32_t>& sequence, const std::vector<std::int32_t>& position,
            const std::vector<kernels::Keep>& keep, float scale = 1,
            const std::vector<std::map<int, float>>& probabilities = {}) {
    const auto rows = static_cast<std::int64_t>(sequence.size());
    const int q_cols = shape_.heads * shape_.head_dim, cols = shape_.kv_heads * shape_.head_dim;
    const Array q(place_, tokens.q, rows, q_cols), k(place_, tokens.k, rows, cols), v(place_, tokens.v, rows, cols);
    Array out(place_, rows, q_cols), evicted(place_, rows, shape_.kv_heads, DType::i32);
    Array fed(place_, fed_slots(sequence, position, probabilities), probabilities.empty() ? 0 : rows * shape_.heads,
              slots_.block.slots);
    place_.run(kernels::DecodeAttention{q, k, v, sequence, position, keep, shape_.heads, scale, decay, scoring_, seed,
                                        block(), home(), out, probabilities.empty() ? ConstView() : ConstView(fed),
                                        evicted, statistic, cap, sink_logits});
    return {out.host(), evicted.ints()};
  }

  /// The tokens that a head holds: position -> score.
  std::map<int, float> kept(int sequence, int kv_head) const {
    return kept_in(sequence, kv_head, 0, slots_.block.slots);
  }
  /// Those that are not cold, and those that are.
  std::map<int, float> fine(int sequence, int kv_head) const {
    return kept_in(sequence, kv_head, 0, slots_.block.hot());
  }
  std::map<int, float> cold(int sequence, int kv_head) const {
    return kept_in(sequence, kv_head, slots_.block.hot(), slots_.block.slots);
  }
  SlotArrays& slots() { return slots_; }

  /// Makes a home, that is, a copy of the KV buffer that later steps update too.
  void make_home() {
    const kernels::KvSlots& b = slots_.block;
    home_ = std::make_unique<SlotArrays>(place_, b.sequences, b.kv_heads, b.slots, b.head_dim,
                                         SlotType(b.dtype, b.int8_keys), b.rest != nullptr, true,
                                         Cold{b.cold, b.coarse, b.split, b.mean != nullptr});
    home_->cold_k.set(slots_.cold_k), home_->cold_v.set(slots_.cold_v);
    home_->low_k.set(slots_.low_k), home_->low_v.set(slots_.low_v);
    home_->scale_k.set(slots_.scale_k), home_->scale_v.set(slots_.scale_v);
    home_->k.set(slots_.k), home_->v.set(slots_.v), home_->score.set(slots_.score);
    home_->position.set(slots_.position), home_->free_slot.set(slots_.free_slot);
    if (b.rest) home_->rest.set(slots_.rest);
    home_->key_sum.set(slots_.key_sum), home_->mean.set(slots_.mean);
  }
  kernels::KvSlots home() const { return home_ ? trimmed(home_->block) : kernels::KvSlots{}; }
  bool home_is_the_same() const {
    const auto same = [](const Array& a, const Array& b) { return a.fetch() == b.fetch(); };
    return same(slots_.k, home_->k) && same(slots_.v, home_->v) && same(slots_.score, home_->score) &&
           same(slots_.position, home_->position) && same(slots_.free_slot, home_->free_slot) &&
           (!slots_.block.rest || same(slots_.rest, home_->rest)) && same(slots_.key_sum, home_->key_sum) &&
           same(slots_.mean, home_->mean) && same(slots_.cold_k, home_->cold_k) && same(slots_.cold_v, home_->cold_v) &&
           same(slots_.low_k, home_->low_k) && same(slots_.low_v, home_->low_v) &&
           same(slots_.scale_k, home_->scale_k) && same(slots_.scale_v, home_->scale_v);
  }

  std::uint64_t seed = 0;
  float decay = 1;
  int pool = 1;
  kernels::Statistic statistic = kernels::Statistic::sum;
  float cap = 0;
  std::vector<float> sink_logits;  // [heads] or empty

 private:
  std::map<int, float> kept_in(int sequence, int kv_head, int begin, int end) const {
    std::map<int, float> kept;
    const auto position = slots_.position.ints();
    const auto score = slots_.score.host();
    const int first = (sequence * shape_.kv_heads + kv_head) * slots_.block.slots;
    for (int slot = first + begin; slot < first + end; ++slot)
      if (const auto i = static_cast<std::size_t>(slot); position[i] >= 0) kept[position[i]] = score[i];
    return kept;
  }
  kernels::KvSlots block() const { return trimmed(slots_.block); }
  /// `block` without the arrays that this scoring does not use.
  kernels::KvSlots trimmed(kernels::KvSlots block) const {
    if (scoring_ != kernels::Scoring::keys) block.key_sum = nullptr;
    if (scoring_ == kernels::Scoring::none) block.score = nullptr;
    return block;
  }
  /// The probabilities, given by position, laid out by slot.
  std::vector<float> fed_slots(const std::vector<std::int32_t>& sequence, const std::vector<std::int32_t>& token,
                               const std::vector<std::map<int, float>>& probabilities) const {
    std::vector<float> fed;
    if (probabilities.empty()) return fed;
    auto position = slots_.position.ints();
    const auto free_slot = slots_.free_slot.ints();
    const int n = slots_.block.slots;
    for (std::size_t row = 0; row < sequence.size(); ++row)
      for (int h = 0; h < shape_.heads; ++h) {
        const int head = sequence[row] * shape_.kv_heads + h / (shape_.heads / shape_.kv_heads);
        position[static_cast<std::size_t>(head * n + free_slot[static_cast<std::size_t>(head)])] = token[row];
        const auto& p = probabilities[row * static_cast<std::size_t>(shape_.heads) + static_cast<std::size_t>(h)];
        for (int s = 0; s < n; ++s) {
          const auto found = p.find(position[static_cast<std::size_t>(head * n + s)]);
          fed.push_back(found == p.end() ? std::numeric_limits<float>::quiet_NaN() : found->second);
        }
      }
    return fed;
  }

  const Place& place_;
  HeadShape shape_;
  kernels::Scoring scoring_;
  SlotArrays slots_;
  std::unique_ptr<SlotArrays> home_;
};

}  // namespace weft::test
