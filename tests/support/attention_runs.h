// tests/support/attention_runs.h: prompts and decode steps of random numbers, run through a place's kernels, and what
// they give in fp64.
#pragma once

#include <catch2/catch.hpp>
#include <limits>
#include <numeric>
#include <random>

#include "tests/support/attention.h"
#include "tests/support/numbers.h"
#include "tests/support/slot_arrays.h"

namespace weft::test {

/// Random prompts of one shape, and what the kernels make of them.
struct Prompts {
  PromptShape shape;
  std::vector<float> q, k, v;
  float scale;
  int sliding = 0;  // PrefillAttention::window
  LogitShape logits = {};
  Arithmetic arithmetic = Arithmetic::exact;

  Prompts(PromptShape s, DType dtype, std::uint64_t seed)
      : shape(std::move(s)), q(normal(std::int64_t{shape.tokens()} * shape.heads * shape.head_dim, seed)),
        k(rounded(normal(std::int64_t{shape.tokens()} * shape.kv_heads * shape.head_dim, seed + 1), dtype)),
        v(rounded(normal(std::int64_t{shape.tokens()} * shape.kv_heads * shape.head_dim, seed + 2), dtype)),
        scale(1.5f / std::sqrt(static_cast<float>(shape.head_dim))) {}

  struct Result {
    std::vector<float> out, lse, score;
  };
  Result run(const Place& place, DType dtype, int window, kernels::Statistic statistic = kernels::Statistic::sum,
             DType rows = DType::f32) const {
    const int t = shape.tokens(), q_cols = shape.heads * shape.head_dim, kv_cols = shape.kv_heads * shape.head_dim;
    Array aq(place, q, t, q_cols, rows), ak(place, k, t, kv_cols, dtype), av(place, v, t, kv_cols, dtype);
    Array out(place, t, q_cols, rows), lse(place, shape.heads, t), score(place, shape.kv_heads, t);
    place.run(kernels::PrefillAttention{aq, ak, av, shape.offsets, shape.heads, shape.kv_heads, shape.head_dim, scale,
                                        out, lse, sliding, logits.cap, logits.sink_logits, 0, 0, arithmetic});
    place.run(kernels::ColumnSums{aq,
                                  ak,
                                  lse,
                                  shape.offsets,
                                  shape.heads,
                                  shape.kv_heads,
                                  shape.head_dim,
                                  scale,
                                  window,
                                  score,
                                  statistic,
                                  sliding,
                                  logits.cap,
                                  0,
                                  {},
                                  0,
                                  arithmetic});
    return {out.host(), lse.host(), score.host()};
  }
};

inline const PromptShape kShapes[] = {
    {1, 1, 1, {0, 1}},    {1, 1, 12, {0, 3, 3, 10}}, {2, 2, 16, {0, 64, 65}},     {4, 2, 64, {0, 70, 75, 175}},
    {3, 1, 80, {0, 129}}, {8, 2, 12, {0, 97, 130}},  {2, 1, 128, {0, 1, 2, 200}}, {2, 2, 40, {0, 96, 192, 224}},
};

/// One decode step over a block whose slots hold random tokens, some slots empty.
struct Step {
  int rows, heads, kv_heads, head_dim, slots;
  DType dtype;
  std::vector<float> q, k, v, slot_k, slot_v, score;
  std::vector<std::int32_t> position, free_slot, sequence, token;
  std::vector<kernels::Keep> keep;
  float scale;
  int stride = 0;  // slots of the block; more than `slots` to leave some empty
  LogitShape logits = {};

  Step(int r, int h, int g, int d, int n, DType t, std::uint64_t seed)
      : rows(r), heads(h), kv_heads(g), head_dim(d), slots(n), dtype(t), q(normal(std::int64_t{r} * h * d, seed)),
        k(normal(std::int64_t{r} * g * d, seed + 1)), v(normal(std::int64_t{r} * g * d, seed + 2)),
        slot_k(rounded(normal(std::int64_t{r} * g * n * d, seed + 3), t)),
        slot_v(rounded(normal(std::int64_t{r} * g * n * d, seed + 4), t)),
        score(normal(std::int64_t{r} * g * n, seed + 5)), scale(1 / std::sqrt(static_cast<float>(d))), stride(n) {
    for (float& x : score) x = std::abs(x);
    std::mt19937_64 engine(seed + 6);
    for (int i = 0; i < r * g; ++i) {
      std::vector<std::int32_t> order(static_cast<std::size_t>(n));
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), engine);
      for (int s = 0; s < n; ++s) position.push_back(order[static_cast<std::size_t>(s)] * 2);
      for (int e = 0; e < 1 + n / 5; ++e) {  // holes, whose contents are no numbers
        const auto hole = engine() % static_cast<std::size_t>(n);
        position[position.size() - 1 - hole] = -1;
      }
      const auto* mine = position.data() + position.size() - static_cast<std::size_t>(n);
      free_slot.push_back(static_cast<std::int32_t>(std::find(mine, mine + n, -1) - mine));
    }
    for (int i = 0; i < r; ++i) sequence.push_back(r - 1 - i), token.push_back(2 * n), keep.push_back({n, n, 0, 0});
    for (std::size_t s = 0; s < position.size(); ++s)
      if (position[s] < 0)
        for (int c = 0; c < d; ++c)
          slot_k[s * static_cast<std::size_t>(d) + static_cast<std::size_t>(c)] =
              slot_v[s * static_cast<std::size_t>(d) + static_cast<std::size_t>(c)] =
                  std::numeric_limits<float>::quiet_NaN();
  }

  struct Result {
    std::vector<float> out, score;
    std::vector<std::int32_t> position, free_slot, evicted;
  };

  /// Widens an array [heads, slots, cols] to `stride` slots.
  template <class T> std::vector<T> widened(const std::vector<T>& x, int cols, T filler) const {
    std::vector<T> wide;
    const std::size_t block = static_cast<std::size_t>(slots) * static_cast<std::size_t>(cols);
    for (std::size_t i = 0; i < x.size(); i += block) {
      wide.insert(wide.end(), x.begin() + static_cast<std::ptrdiff_t>(i),
                  x.begin() + static_cast<std::ptrdiff_t>(i + block));
      wide.insert(wide.end(), static_cast<std::size_t>(stride - slots) * static_cast<std::size_t>(cols), filler);
    }
    return wide;
  }

  Result run(const Place& place, kernels::Scoring scoring, float decay = 1) const {
    Array aq(place, q, rows, heads * head_dim), ak(place, k, rows, kv_heads * head_dim),
        av(place, v, rows, kv_heads * head_dim);
    Array out(place, rows, heads * head_dim), evicted(place, rows, kv_heads, DType::i32);
    SlotArrays kv(place, rows, kv_heads, stride, head_dim, dtype);
    kv.k.set(widened(slot_k, head_dim, std::numeric_limits<float>::quiet_NaN()));
    kv.v.set(widened(slot_v, head_dim, std::numeric_limits<float>::quiet_NaN()));
    kv.score.set(widened(score, 1, std::numeric_limits<float>::quiet_NaN()));
    kv.position.set(widened(position, 1, std::int32_t{-1}));
    kv.free_slot.set(free_slot);
    kernels::DecodeAttention op{aq,    ak,      av, sequence, token, keep, heads, scale,
                                decay, scoring, 7,  kv.block, {},    out,  {},    evicted};
    op.cap = logits.cap, op.sink_logits = logits.sink_logits;
    if (scoring == kernels::Scoring::none) op.slots.score = nullptr;
    place.run(op);
    return {out.host(), kv.score.host(), kv.position.ints(), kv.free_slot.ints(), evicted.ints()};
  }

  struct Expected {
    std::vector<double> out, score;  // score of [rows, kv_heads, slots], 0 where empty
  };
  Expected in_fp64(double decay) const {
    Expected e{std::vector<double>(q.size()), std::vector<double>(score.size())};
    const int group = heads / kv_heads;
    for (int row = 0; row < rows; ++row)
      for (int h = 0; h < heads; ++h) {
        const int g = h / group, index = sequence[static_cast<std::size_t>(row)] * kv_heads + g, first = index * slots;
        const int free = first + free_slot[static_cast<std::size_t>(index)];
        std::vector<double> p;
        std::vector<int> visible;
        double max = -INFINITY, sum = 0;
        const auto number = [&](const std::vector<float>& stored, const std::vector<float>& fresh, int slot, int c) {
          if (slot != free) return static_cast<double>(stored[static_cast<std::size_t>(slot * head_dim + c)]);
          return static_cast<double>(
              rounded({fresh[static_cast<std::size_t>((row * kv_heads + g) * head_dim + c)]}, dtype)[0]);
        };
        for (int s = first; s < first + slots; ++s) {
          if (position[static_cast<std::size_t>(s)] < 0 && s != free) continue;
          double dot = 0;
          for (int c = 0; c < head_dim; ++c)
            dot += static_cast<double>(q[static_cast<std::size_t>((row * heads + h) * head_dim + c)]) *
                   number(slot_k, k, s, c);
          visible.push_back(s);
          p.push_back(logits.capped(dot * static_cast<double>(scale)));
          max = std::max(max, p.back());
        }
        for (double& x : p) sum += x = std::exp(x - max);
        sum += logits.of_sink(h, max);
        for (std::size_t i = 0; i < p.size(); ++i) {
          const int s = visible[i];
          if (h % group == 0 && s != free)
            e.score[static_cast<std::size_t>(s)] = decay * static_cast<double>(score[static_cast<std::size_t>(s)]);
          e.score[static_cast<std::size_t>(s)] += p[i] / sum;
          for (int c = 0; c < head_dim; ++c)
            e.out[static_cast<std::size_t>((row * heads + h) * head_dim + c)] += p[i] / sum * number(slot_v, v, s, c);
        }
      }
    return e;
  }
};

/// Checks attention and column sums over the last `window` rows (0: all), by both statistics.
inline void check_against_fp64(const Place& place, DType dtype, const Prompts& prompts, int window) {
  const auto expected = attend_in_fp64(prompts.shape, prompts.q, prompts.k, prompts.v,
                                       static_cast<double>(prompts.scale), window, prompts.sliding, prompts.logits);
  const auto got = prompts.run(place, dtype, window);
  CHECK_THAT(got.out, near(expected.out, tolerance(place.product_type(dtype))));
  CHECK_THAT(got.lse, near(expected.lse, tolerance(place.product_type(dtype))));
  CHECK_THAT(got.score, near(expected.score, tolerance(place.product_type(dtype))));
  CHECK_THAT(prompts.run(place, dtype, window, kernels::Statistic::largest).score,
             near(expected.largest, tolerance(place.product_type(dtype))));
}

}  // namespace weft::test
