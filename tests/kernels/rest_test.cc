// What heads have evicted, as one more token: its sums, and what a step makes of it, on the real kernels of every
// place.
#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "tests/support/attention.h"
#include "tests/support/h2o.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::test;
using kernels::Keep;
using kernels::Scoring;

namespace {

/// One sequence of random tokens, and what became of them.
struct Life {
  HeadShape shape;
  Tokens all;
  std::vector<std::set<int>> stored;  // by KV head
  LogitShape logits = {};

  Life(HeadShape s, int tokens)
      : shape(s), all{normal(std::int64_t{tokens} * s.heads * s.head_dim, 31, 2),
                      normal(std::int64_t{tokens} * s.kv_heads * s.head_dim, 32),
                      normal(std::int64_t{tokens} * s.kv_heads * s.head_dim, 33)},
        stored(static_cast<std::size_t>(s.kv_heads)) {}

  double scale() const { return 1 / std::sqrt(double(shape.head_dim)); }
  Tokens rows(int first, int count) const {
    const auto cut = [&](const std::vector<float>& x, int width) {
      return std::vector<float>(x.begin() + first * width, x.begin() + (first + count) * width);
    };
    return {cut(all.q, shape.heads * shape.head_dim), cut(all.k, shape.kv_heads * shape.head_dim),
            cut(all.v, shape.kv_heads * shape.head_dim)};
  }
  const float* row(const std::vector<float>& x, int token, int heads, int head) const {
    return x.data() + (std::int64_t{token} * heads + head) * shape.head_dim;
  }

  struct Rest {
    double count = 0;
    std::vector<double> k, v;  // sums
  };
  /// Of the tokens before `end` that are not stored.
  Rest rest(int kv_head, int end) const {
    const auto dim = static_cast<std::size_t>(shape.head_dim);
    Rest sum{0, std::vector<double>(dim), std::vector<double>(dim)};
    for (int token = 0; token < end; ++token) {
      if (stored[static_cast<std::size_t>(kv_head)].count(token)) continue;
      sum.count += 1;
      for (std::size_t d = 0; d < dim; ++d) {
        sum.k[d] += double(row(all.k, token, shape.kv_heads, kv_head)[d]);
        sum.v[d] += double(row(all.v, token, shape.kv_heads, kv_head)[d]);
      }
    }
    return sum;
  }

  /// What the step at `token` must give, with what is stored and the rest before it.
  std::vector<double> step(int token) const {
    const auto dim = static_cast<std::size_t>(shape.head_dim);
    std::vector<double> out;
    for (int head = 0; head < shape.heads; ++head) {
      const int kv_head = head / (shape.heads / shape.kv_heads);
      const float* const q = row(all.q, token, shape.heads, head);
      double total = logits.of_sink(head, 0);
      std::vector<double> sum(dim);
      const auto add = [&](auto key, auto value, double count) {
        double dot = 0;
        for (std::size_t d = 0; d < dim; ++d) dot += scale() * double(q[d]) * key(d);
        const double logit = logits.capped(dot) + std::log(count);
        total += std::exp(logit);
        for (std::size_t d = 0; d < dim; ++d) sum[d] += std::exp(logit) * value(d);
      };
      std::set<int> visible = stored[static_cast<std::size_t>(kv_head)];
      visible.insert(token);
      for (const int t : visible)
        add([&](std::size_t d) { return double(row(all.k, t, shape.kv_heads, kv_head)[d]); },
            [&](std::size_t d) { return double(row(all.v, t, shape.kv_heads, kv_head)[d]); }, 1);
      const Rest evicted = rest(kv_head, token);
      if (evicted.count > 0)
        add([&](std::size_t d) { return evicted.k[d] / evicted.count; },
            [&](std::size_t d) { return evicted.v[d] / evicted.count; }, evicted.count);
      for (const double x : sum) out.push_back(x / total);
    }
    return out;
  }
};

void check_rest(SlotsUnderTest& run, const Life& life, int end, double tolerance) {
  const auto numbers = run.slots().rest.host();
  const int dim = life.shape.head_dim;
  for (int head = 0; head < life.shape.kv_heads; ++head) {
    const float* const got = numbers.data() + head * kernels::rest_numbers(dim);
    const Life::Rest expected = life.rest(head, end);
    REQUIRE(double(got[0]) == expected.count);
    const double margin = tolerance * std::max(1.0, expected.count);
    for (int d = 0; d < dim; ++d) {
      CHECK(std::abs(double(got[1 + d]) - expected.k[static_cast<std::size_t>(d)]) <= margin);
      CHECK(std::abs(double(got[1 + dim + d]) - expected.v[static_cast<std::size_t>(d)]) <= margin);
    }
  }
}

/// From the prompt on, each step against fp64 where the slots hold the numbers as they are.
void check_life(const Place& place, HeadShape shape, int prompt, int steps, Keep keep, int slots, SlotType type,
                Scoring scoring, double tolerance, const LogitShape& logits = {}) {
  Life life(shape, prompt + steps);
  life.logits = logits;
  SlotsUnderTest run(place, 1, shape, slots, type, scoring, true);
  run.cap = logits.cap, run.sink_logits = logits.sink_logits;
  const auto scale = static_cast<float>(life.scale());
  run.prefill(life.rows(0, prompt), {prompt}, {keep}, scale);
  run.make_home();
  const auto look = [&] {
    for (int head = 0; head < shape.kv_heads; ++head) {
      auto& stored = life.stored[static_cast<std::size_t>(head)];
      stored.clear();
      for (const auto& entry : run.kept(0, head)) stored.insert(entry.first);
    }
  };
  look();
  check_rest(run, life, prompt, tolerance);
  for (int t = prompt; t < prompt + steps; ++t) {
    CAPTURE(place.name, t, type.name());
    const auto expected = life.step(t);
    const auto out = run.step(life.rows(t, 1), {0}, {t}, {keep}, scale).out;
    if (!is_quantised(type.dtype)) CHECK_THAT(out, near(expected, test::tolerance(type.dtype)));
    look();
    check_rest(run, life, t + 1, tolerance);
    REQUIRE(run.home_is_the_same());
  }
}

}  // namespace

TEST_CASE("rest: steps attend to the mean of what was evicted", "[kernels][rest]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const HeadShape shape = GENERATE(HeadShape{4, 2, 20}, HeadShape{1, 1, 64}, HeadShape{6, 2, 16});
  check_life(place, shape, 50, 12, {10, 6}, 17, DType::f32, Scoring::attention, 1e-5);
  check_life(place, shape, 50, 4, {10, 6, 2, 0, 2}, 25, DType::f32, Scoring::attention, 1e-5);
  check_life(place, shape, 30, 20, {0, 15}, 16, DType::f32, Scoring::none, 1e-5);      // 15 + 1: a whole vector
  check_life(place, shape, 10, 20, {8, 8}, 17, DType::f32, Scoring::attention, 1e-5);  // nothing at first
}

TEST_CASE("rest: capped logits, and sink logits", "[kernels][rest][logits]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const LogitShape both{1.5f, {0.5f, 3.0f, -2.0f, 8.0f}};
  check_life(place, {4, 2, 20}, 50, 12, {10, 6}, 17, DType::f32, Scoring::attention, 1e-5, both);
  check_life(place, {4, 2, 20}, 40, 8, {0, 15}, 16, DType::f32, Scoring::none, 1e-5, {2});
  check_life(place, {4, 1, 64}, 40, 6, {6, 6}, 13, DType::f16, Scoring::attention, 2e-3, both);
}

TEST_CASE("rest: where the slots are split", "[kernels][rest]") {
  const Place& place = *GENERATE(from_range(every_place()));
  check_life(place, {4, 2, 8}, 640, 3, {400, 200}, 700, DType::f32, Scoring::attention, 1e-5);
}

TEST_CASE("rest: rows of every type join it", "[kernels][rest]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const int dim = GENERATE(64, 80, 20);
  check_life(place, {2, 1, dim}, 40, 6, {6, 6}, 13, DType::f16, Scoring::attention, 2e-3);
  check_life(place, {2, 1, dim}, 40, 6, {6, 6}, 13, DType::bf16, Scoring::attention, 2e-2);
  check_life(place, {2, 1, dim}, 40, 6, {6, 6}, 13, DType::i8, Scoring::attention, 2e-2);
  check_life(place, {2, 1, dim}, 40, 6, {6, 6}, 13, DType::i4, Scoring::attention, 0.3);
  check_life(place, {2, 1, dim}, 40, 6, {6, 6}, 13, SlotType(DType::i4, true), Scoring::attention, 0.2);
}
