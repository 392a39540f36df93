// kernels/attention/kv_slots_cpu.cc: chooses the tokens that each head keeps of a prompt, and writes them into the
// slots.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "kernels/attention/cpu/kernels.h"
#include "kernels/machine/cpu_ops.h"

namespace weft::kernels {
namespace {

/// The positions of a prompt's tokens that stay, each ascending.
struct Kept {
  std::vector<std::int32_t> fine, cold;
};

/// Those of a prompt of `length` tokens. `score` gives the worth of each.
template <class Score> Kept kept_positions(std::int32_t length, const Keep& keep, const Score& score) {
  std::vector<std::int32_t> kept;
  if (length <= keep.of_prompt()) {
    for (std::int32_t i = 0; i < length; ++i) kept.push_back(i);
    return {kept, {}};
  }
  const std::int32_t recent_begin = length - keep.recent, begin = keep.seen_from(length);
  const std::int32_t sinks = std::max(begin, std::min({keep.sinks, keep.heavy, recent_begin}));
  struct Candidate {
    float score;
    std::int32_t position;
  };
  std::vector<Candidate> candidates;
  for (std::int32_t i = sinks; i < recent_begin; ++i) {
    const float s = score(i);  // NaN has no order, so it goes first
    candidates.push_back({std::isnan(s) ? -std::numeric_limits<float>::infinity() : s, i});
  }
  const auto heavy = static_cast<std::ptrdiff_t>(keep.heavy - (sinks - begin));
  const auto worth_more = [](const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score > b.score : a.position > b.position;
  };
  const std::ptrdiff_t stored = std::min<std::ptrdiff_t>(heavy + keep.cold, std::ssize(candidates));
  const auto choose = [&](std::ptrdiff_t most, std::ptrdiff_t of) {
    if (most < of) std::nth_element(candidates.begin(), candidates.begin() + most, candidates.begin() + of, worth_more);
  };
  choose(stored, std::ssize(candidates));
  choose(heavy, stored);
  for (std::int32_t i = begin; i < sinks; ++i) kept.push_back(i);
  for (std::ptrdiff_t i = 0; i < heavy; ++i) kept.push_back(candidates[static_cast<std::size_t>(i)].position);
  for (std::int32_t i = recent_begin; i < length; ++i) kept.push_back(i);
  std::vector<std::int32_t> cold;
  for (std::ptrdiff_t i = heavy; i < stored; ++i) cold.push_back(candidates[static_cast<std::size_t>(i)].position);
  std::sort(kept.begin(), kept.end());
  std::sort(cold.begin(), cold.end());
  return {kept, cold};
}

/// One head's slots of one sequence.
struct HeadSlots {
  std::byte *k, *v, *cold_k, *cold_v;
  float* score;
  std::int32_t *position, *free_slot;
  float *rest, *key_sum, *mean;

  HeadSlots(const KvSlots& s, std::int64_t sequence, std::int64_t head) {
    const std::int64_t index = sequence * s.kv_heads + head, first = index * s.slots;
    const auto rows = [index](void* all, std::int64_t count, std::size_t bytes) {
      return static_cast<std::byte*>(all) + index * count * static_cast<std::int64_t>(bytes);
    };
    k = rows(s.k, s.hot(), s.key_bytes()), v = rows(s.v, s.hot(), s.value_bytes());
    cold_k = rows(s.cold_k, s.cold, coarse_row_bytes(s.coarse.keys, s.head_dim));
    cold_v = rows(s.cold_v, s.cold, coarse_row_bytes(s.coarse.values, s.head_dim));
    score = s.score ? s.score + first : nullptr;
    position = s.position + first;
    free_slot = s.free_slot + index;
    rest = s.rest ? s.rest + index * rest_numbers(s.head_dim) : nullptr;
    key_sum = s.key_sum ? s.key_sum + index * s.head_dim : nullptr;
    mean = s.mean ? s.mean + index * 2 * s.head_dim : nullptr;
  }
};

/// A prompt of the op: its tokens, and where each has its key and value.
struct Prompt {
  std::int32_t prefix, begin, length;
  std::int64_t whole;  // its first column in a matrix of scores

  Prompt(const KeepPrompt& op, std::size_t index)
      : prefix(op.prefix), begin(op.offsets[index] - op.prefix), length(op.offsets[index + 1] - begin),
        whole(whole_begin(op.offsets, op.prefix, index)) {}
  std::int64_t row(std::int32_t position) const { return position < prefix ? position : begin + position; }
};

/// Sums the tokens that do not stay. `kept` is ascending.
void sum_rest(const KeepPrompt& op, std::size_t prompt, std::int64_t head, const std::vector<std::int32_t>& kept,
              float* rest, const VectorKernels& vectors) {
  const Prompt of(op, prompt);
  const int dim = op.slots.head_dim;
  std::fill_n(rest, rest_numbers(dim), 0.0f);
  const auto add = [&](const ConstView& from, std::int32_t position, float* to) {
    const auto column = static_cast<std::size_t>(head * dim) * size_of(from.dtype);
    vectors.convert(from.slice(of.row(position), 1).as<std::byte>() + column, from.dtype, to, DType::f32, dim, true);
  };
  auto next = kept.begin();
  for (std::int32_t i = 0; i < of.length; ++i) {
    if (next != kept.end() && *next == i) {
      ++next;
      continue;
    }
    rest[0] += 1;
    add(op.k, i, rest + 1);
    add(op.v, i, rest + 1 + dim);
  }
}

/// score [length] = Scoring::keys of a prompt. The sum of its unit keys goes to `key_sum`, unless that is null.
void score_keys(const KeepPrompt& op, std::size_t prompt, std::int64_t head, float* score, float* key_sum,
                const VectorKernels& vectors) {
  const Prompt of(op, prompt);
  const int dim = op.slots.head_dim;
  const auto column = static_cast<std::size_t>(head * dim) * size_of(op.k.dtype);
  const auto key = [&](std::int32_t i) { return op.k.slice(of.row(i), 1).as<std::byte>() + column; };
  std::vector<float> sum(static_cast<std::size_t>(dim));
  for (std::int32_t i = 0; i < of.length; ++i) vectors.add_unit(key(i), op.k.dtype, dim, sum.data());
  for (std::int32_t i = 0; i < of.length; ++i) score[i] = vectors.key_score(key(i), op.k.dtype, dim, sum.data());
  if (key_sum) std::copy(sum.begin(), sum.end(), key_sum);
}

/// The mean key of a prompt, and its mean value.
void find_mean(const KeepPrompt& op, std::size_t prompt, std::int64_t head, float* mean) {
  const Prompt of(op, prompt);
  const int dim = op.slots.head_dim;
  std::fill_n(mean, 2 * dim, 0.0f);
  const auto add = [&](const ConstView& from, float* to) {
    for (std::int32_t i = 0; i < of.length; ++i) {
      const float* const row = from.slice(of.row(i), 1).as<float>() + head * dim;
      for (int d = 0; d < dim; ++d) to[d] += row[d];
    }
    for (int d = 0; d < dim; ++d) to[d] /= static_cast<float>(of.length);
  };
  add(op.k, mean);
  add(op.v, mean + dim);
}

void keep_head(const KeepPrompt& op, std::size_t prompt, std::int64_t head, const VectorKernels& vectors) {
  const Prompt of(op, prompt);
  const std::int32_t length = of.length;
  const HeadSlots slots(op.slots, op.sequence[prompt], head);
  const float* given = op.scoring == Scoring::attention ? op.score.slice(head, 1).as<float>() + of.whole : nullptr;
  if (op.scoring == Scoring::keys) {
    float* const work = op.work.slice(head, 1).as<float>() + of.whole;
    score_keys(op, prompt, head, work, slots.key_sum, vectors);
    given = work;
  }
  const std::int32_t reach = op.pool / 2;
  const auto score = [&](std::int32_t position) {
    if (op.scoring == Scoring::random) return random_score(op.seed, static_cast<int>(head), position);
    if (!given || reach == 0) return given ? given[position] : 0.0f;
    const std::int32_t first = std::max(0, position - reach), last = std::min(length - 1, position + reach);
    float sum = 0;
    for (std::int32_t i = first; i <= last; ++i) sum += given[i];
    return sum / static_cast<float>(last - first + 1);
  };
  const Kept all = kept_positions(length, op.keep[prompt], score);
  const std::vector<std::int32_t>& kept = all.fine;

  if (slots.mean && length > 0) find_mean(op, prompt, head, slots.mean);
  std::vector<float> less(slots.mean ? static_cast<std::size_t>(op.slots.head_dim) : 0);
  const float *const mean_k = slots.mean, *const mean_v = slots.mean ? slots.mean + op.slots.head_dim : nullptr;
  const auto copy = [&](const ConstView& from, std::int32_t position, DType type, const float* mean, std::byte* to) {
    const ConstView row = from.slice(of.row(position), 1);
    const int dim = op.slots.head_dim;
    const std::size_t bytes = kv_row_bytes(type, dim);
    if (!is_quantised(type)) {
      std::memcpy(to, row.as<std::byte>() + static_cast<std::size_t>(head) * bytes, bytes);
      return;
    }
    const float* numbers = row.as<float>() + head * dim;
    if (mean) {
      std::transform(numbers, numbers + dim, mean, less.begin(), std::minus<>());
      numbers = less.data();
    }
    vectors.quantise(numbers, dim, type, to);
  };
  std::fill_n(slots.position, op.slots.slots, -1);
  if (slots.score) std::fill_n(slots.score, op.slots.slots, 0.0f);
  const auto place = [&](std::int32_t position, std::size_t slot) {
    slots.position[slot] = position;
    if (slots.score) slots.score[slot] = score(position);
  };
  std::vector<std::byte> fine(kv_row_bytes(DType::i8, op.slots.head_dim));
  const CoarseBits bits = op.slots.coarse;
  const auto cool = [&](const ConstView& from, std::int32_t position, int few, const float* mean, std::byte* rows,
                        std::size_t slot) {
    copy(from, position, DType::i8, mean, fine.data());
    coarsen(fine.data(), op.slots.head_dim, few, rows + slot * coarse_row_bytes(few, op.slots.head_dim));
  };
  const auto first = static_cast<std::size_t>(op.sequence[prompt] * std::int64_t{op.slots.kv_heads} + head) *
                     static_cast<std::size_t>(op.slots.slots);
  const auto split = [&](const ConstView& from, std::int32_t position, int few, std::byte* high, void* low,
                         void* scales, std::size_t slot) {
    const int dim = op.slots.head_dim;
    copy(from, position, DType::i8, nullptr, fine.data());
    split_row(fine.data(), dim, few, high + slot * high_row_bytes(few, dim),
              static_cast<std::byte*>(low) + (first + slot) * low_row_bytes(few, dim),
              static_cast<std::byte*>(scales) + (first + slot) * scales_bytes(dim));
  };
  for (std::size_t slot = 0; slot < kept.size(); ++slot) {
    if (op.slots.split) {
      split(op.k, kept[slot], bits.keys, slots.k, op.slots.low_k, op.slots.scale_k, slot);
      split(op.v, kept[slot], bits.values, slots.v, op.slots.low_v, op.slots.scale_v, slot);
    } else {
      copy(op.k, kept[slot], op.slots.key_type(), mean_k, slots.k + slot * op.slots.key_bytes());
      copy(op.v, kept[slot], op.slots.dtype, mean_v, slots.v + slot * op.slots.value_bytes());
    }
    place(kept[slot], slot);
  }
  for (std::size_t slot = 0; slot < all.cold.size(); ++slot) {
    cool(op.k, all.cold[slot], bits.keys, mean_k, slots.cold_k, slot);
    cool(op.v, all.cold[slot], bits.values, mean_v, slots.cold_v, slot);
    place(all.cold[slot], static_cast<std::size_t>(op.slots.hot()) + slot);
  }
  *slots.free_slot = static_cast<std::int32_t>(kept.size());
  if (slots.rest) sum_rest(op, prompt, head, kept, slots.rest, vectors);
}

}  // namespace

void CpuOps::run(const KeepPrompt& op, Stream&) const {
  check(op);
  const std::int64_t heads = op.slots.kv_heads;
  pool_.run(static_cast<std::int64_t>(op.keep.size()) * heads, [&](std::int64_t tile, int) {
    keep_head(op, static_cast<std::size_t>(tile / heads), tile % heads, vectors_);
  });
}

}  // namespace weft::kernels
