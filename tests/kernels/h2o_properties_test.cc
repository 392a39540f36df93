// What must hold of H2O whatever the numbers are, on the real kernels of every place.
#include <catch2/catch.hpp>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "tests/support/attention.h"
#include "tests/support/h2o.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::test;
using kernels::Keep;
using kernels::Scoring;

namespace {

/// `count` tokens of one sequence; token i is the same whatever the count.
struct Stream {
  HeadShape shape;
  int q_cols, cols;
  Tokens all;

  Stream(HeadShape s, int count, std::uint64_t seed, float deviation = 2)
      : shape(s), q_cols(s.heads * s.head_dim),
        cols(s.kv_heads * s.head_dim), all{normal(std::int64_t{count} * q_cols, seed, deviation),
                                           normal(std::int64_t{count} * cols, seed + 1),
                                           normal(std::int64_t{count} * cols, seed + 2)} {}

  Tokens rows(int first, int count) const {
    const auto cut = [&](const std::vector<float>& x, int width) {
      return std::vector<float>(x.begin() + first * width, x.begin() + (first + count) * width);
    };
    return {cut(all.q, q_cols), cut(all.k, cols), cut(all.v, cols)};
  }
  float scale() const { return 1 / std::sqrt(static_cast<float>(shape.head_dim)); }
};

/// The outputs of one sequence, prompt and then step by step, alone in its block.
std::vector<std::vector<float>> outputs(const Place& place, const Stream& stream, int prompt, int steps, Keep keep,
                                        int slots, Scoring scoring, DType dtype) {
  SlotsUnderTest run(place, 1, stream.shape, slots, dtype, scoring);
  std::vector<std::vector<float>> out{run.prefill(stream.rows(0, prompt), {prompt}, {keep}, stream.scale()).out};
  for (int t = prompt; t < prompt + steps; ++t)
    out.push_back(run.step(stream.rows(t, 1), {0}, {t}, {keep}, stream.scale()).out);
  return out;
}

std::vector<int> range(int first, int end) {
  std::vector<int> all(static_cast<std::size_t>(end - first));
  std::iota(all.begin(), all.end(), first);
  return all;
}

/// h(sum of the scores that stay) is largest where `evicted` goes, for each increasing h.
void check_best_to_lose(const std::map<int, float>& score, int evicted, int first, int last) {
  double total = 0;
  for (const auto& entry : score) total += static_cast<double>(entry.second);
  double (*const functions[])(double) = {[](double z) { return z; }, [](double z) { return std::sqrt(z + 1); },
                                         [](double z) { return std::log(z + 1); }};
  for (const auto h : functions) {
    int best = -1;
    double most = -1;
    for (const auto& [position, value] : score) {
      const double left = h(total - static_cast<double>(value));
      if (position < first || position > last || left <= most) continue;
      best = position, most = left;
    }
    CHECK(best == evicted);
  }
}

}  // namespace

TEST_CASE("h2o_cases: (a) the order of slots changes neither output nor victim", "[kernels][h2o]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const HeadShape shape{4, 2, 20};
  const Stream stream(shape, 60, 1);
  const Keep keep{10, 20};
  SlotsUnderTest run(place, 1, shape, 31);
  run.prefill(stream.rows(0, 50), {50}, {keep}, stream.scale());
  std::mt19937_64 engine(5);
  for (int t = 50; t < 60; ++t) {
    SlotsUnderTest shuffled(place, 1, shape, 31);
    const auto k = run.slots().k.host(), v = run.slots().v.host(), score = run.slots().score.host();
    const auto position = run.slots().position.ints(), free_slot = run.slots().free_slot.ints();
    auto k2 = k, v2 = v, score2 = score;
    auto position2 = position, free2 = free_slot;
    for (std::size_t head = 0; head < 2; ++head) {
      std::vector<std::size_t> to(31);
      std::iota(to.begin(), to.end(), 0);
      std::shuffle(to.begin(), to.end(), engine);
      for (std::size_t s = 0; s < 31; ++s) {
        const std::size_t a = head * 31 + s, b = head * 31 + to[s];
        std::copy_n(k.begin() + static_cast<std::ptrdiff_t>(a * 20), 20,
                    k2.begin() + static_cast<std::ptrdiff_t>(b * 20));
        std::copy_n(v.begin() + static_cast<std::ptrdiff_t>(a * 20), 20,
                    v2.begin() + static_cast<std::ptrdiff_t>(b * 20));
        score2[b] = score[a], position2[b] = position[a];
        if (static_cast<std::size_t>(free_slot[head]) == s) free2[head] = static_cast<std::int32_t>(to[s]);
      }
    }
    shuffled.slots().k.set(k2), shuffled.slots().v.set(v2), shuffled.slots().score.set(score2);
    shuffled.slots().position.set(position2), shuffled.slots().free_slot.set(free2);
    const auto got = shuffled.step(stream.rows(t, 1), {0}, {t}, {keep}, stream.scale());
    const auto expected = run.step(stream.rows(t, 1), {0}, {t}, {keep}, stream.scale());
    CHECK_THAT(got.out, near(expected.out, tolerance(DType::f32)));
    CHECK(got.evicted == expected.evicted);
  }
}

TEST_CASE("h2o_cases: (b) prompt scores sum to the number of queries", "[kernels][h2o]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const int window = GENERATE(0, 16);
  const HeadShape shape{6, 2, 16};
  const int length = 300;
  SlotsUnderTest run(place, 1, shape, length + 1);
  const auto score = run.prefill(Stream(shape, length, 3).rows(0, length), {length}, {kKeepAll}, 0.25f, window).score;
  for (int g = 0; g < 2; ++g) {
    const double sum = std::accumulate(score.begin() + g * length, score.begin() + (g + 1) * length, 0.0);
    CHECK(std::abs(sum - 3.0 * (window ? window : length)) < 1e-4 * length);
  }
}

TEST_CASE("h2o_cases: (c) a budget that holds everything is bit-identical to full", "[kernels][h2o]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const HeadShape shape{4, 2, 24};
  const int prompt = 40, steps = 30;
  const Stream stream(shape, prompt + steps, 7);
  const auto full = outputs(place, stream, prompt, steps, kKeepAll, prompt + steps + 1, Scoring::none, dtype);
  for (const Keep keep : {Keep{35, 35}, Keep{70, 0}, Keep{0, 70}, Keep{40, 60, 4}, Keep{50, 50, 0, 1}})
    for (const int more : {0, 1, 50})
      CHECK(outputs(place, stream, prompt, steps, keep, prompt + steps + 1 + more, Scoring::attention, dtype) == full);
  CHECK(outputs(place, stream, prompt, steps, kKeepAll, prompt + steps + 1, Scoring::random, dtype) == full);
}

TEST_CASE("h2o_cases: (d) without heavy hitters it is a sliding window", "[kernels][h2o]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const Scoring scoring = GENERATE(Scoring::attention, Scoring::none, Scoring::random);
  const int prompt = GENERATE(5, 12, 30), window = 12, steps = 20;
  const HeadShape shape{2, 2, 16};
  const Stream stream(shape, prompt + steps, 9);
  const Keep keep{0, window};
  SlotsUnderTest run(place, 1, shape, window + 1, DType::f32, scoring);
  run.prefill(stream.rows(0, prompt), {prompt}, {keep}, stream.scale());
  for (int t = prompt; t < prompt + steps; ++t) {
    const auto out = run.step(stream.rows(t, 1), {0}, {t}, {keep}, stream.scale()).out;
    for (int head = 0; head < 2; ++head)
      CHECK(positions(run.kept(0, head)) == range(std::max(0, t + 1 - window), t + 1));

    const int first = std::max(0, t - window), count = t + 1 - first;  // the step itself sees the leaving token too
    PromptShape seen{2, 2, 16, {0, count}};
    const Tokens tokens = stream.rows(first, count);
    const auto expected =
        attend_in_fp64(seen, tokens.q, tokens.k, tokens.v, static_cast<double>(stream.scale()), 0).out;
    CHECK_THAT(out, near(std::vector<double>(expected.end() - 32, expected.end()), tolerance(DType::f32)));
  }
}

TEST_CASE("h2o_cases: (d') sinks and a window without scores", "[kernels][h2o]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const HeadShape shape{1, 1, 8};
  const Stream stream(shape, 40, 9);
  const Keep keep{4, 10, 4};
  SlotsUnderTest run(place, 1, shape, 15, DType::f16, Scoring::none);
  run.prefill(stream.rows(0, 20), {20}, {keep});
  for (int t = 20; t < 40; ++t) {
    std::vector<int> expected = range(0, 4), recent = range(t - 10, t);
    expected.insert(expected.end(), recent.begin(), recent.end());
    CHECK(positions(run.kept(0, 0)) == expected);
    run.step(stream.rows(t, 1), {0}, {t}, {keep});
  }
}

TEST_CASE(
    "h2o_cases: (e) a step evicts at most one, never a recent token or a sink, (h) whatever increasing function is "
    "summed",
    "[kernels][h2o]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const Keep keep = GENERATE(Keep{6, 9}, Keep{6, 9, 2}, Keep{15, 0}, Keep{15, 0, 4}, Keep{3, 12, 0, 1}, Keep{8, 1});
  const float decay = GENERATE(1.0f, 0.9f);
  const HeadShape shape{4, 2, 16};
  const int prompt = 10, steps = 40;  // fills up first
  const Stream stream(shape, prompt + steps, 11);
  SlotsUnderTest run(place, 1, shape, 16);
  run.decay = decay;
  run.prefill(stream.rows(0, prompt), {prompt}, {keep}, stream.scale());
  for (int t = prompt; t < prompt + steps; ++t) {
    std::vector<std::map<int, float>> before{run.kept(0, 0), run.kept(0, 1)};
    const auto step = run.step(stream.rows(t, 1), {0}, {t}, {keep}, stream.scale());
    for (int head = 0; head < 2; ++head) {
      const int evicted = step.evicted[static_cast<std::size_t>(head)];
      auto after = run.kept(0, head);
      std::vector<int> expected = positions(before[static_cast<std::size_t>(head)]);
      expected.push_back(t);
      CAPTURE(place.name, t, head, evicted, keep.heavy, keep.recent);
      CHECK((evicted >= 0) == (static_cast<int>(expected.size()) > keep.budget()));
      if (evicted < 0) continue;
      CHECK(evicted >= keep.sinks);
      CHECK(evicted <= t - keep.recent - keep.grace);
      expected.erase(std::find(expected.begin(), expected.end(), evicted));
      CHECK(positions(after) == expected);

      const auto slot = static_cast<std::size_t>(run.slots().free_slot.ints()[static_cast<std::size_t>(head)]);
      after[evicted] = run.slots().score.host()[static_cast<std::size_t>(head) * 16 + slot];
      check_best_to_lose(after, evicted, keep.sinks, t - keep.recent - keep.grace);
    }
  }
}

TEST_CASE("h2o_cases: (f) a block of n sequences is n blocks of one", "[kernels][h2o]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const HeadShape shape{4, 2, 12};
  const std::vector<int> prompts{7, 33, 1, 20};
  const std::vector<Keep> keep{{4, 6}, {8, 5, 2}, {3, 3}, {0, 12}};
  const int steps = 12;
  std::vector<Stream> streams;
  Tokens all;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    streams.emplace_back(shape, prompts[i] + steps, 100 + 10 * i);
    append(all, streams[i].rows(0, prompts[i]));
  }
  SlotsUnderTest block(place, 4, shape, 20, DType::f16);
  block.prefill(all, prompts, keep, streams[0].scale());
  std::vector<std::vector<std::vector<float>>> alone;
  for (std::size_t i = 0; i < prompts.size(); ++i)
    alone.push_back(outputs(place, streams[i], prompts[i], steps, keep[i], 14, Scoring::attention, DType::f16));
  for (int step = 0; step < steps; ++step) {
    const std::vector<std::int32_t> order =
        step % 2 ? std::vector<std::int32_t>{3, 1, 0} : std::vector<std::int32_t>{0, 1, 2, 3};
    Tokens tokens;
    std::vector<std::int32_t> position, sequence;
    std::vector<Keep> rules;
    for (const std::int32_t i : order) {
      if (i == 2 && step >= 1) continue;  // the third finishes after one step
      const auto s = static_cast<std::size_t>(i);
      sequence.push_back(i);
      position.push_back(prompts[s] + step);
      rules.push_back(keep[s]);
      append(tokens, streams[s].rows(prompts[s] + step, 1));
    }
    const auto out = block.step(tokens, sequence, position, rules, streams[0].scale()).out;
    for (std::size_t row = 0; row < sequence.size(); ++row) {
      const auto& expected = alone[static_cast<std::size_t>(sequence[row])][static_cast<std::size_t>(step + 1)];
      CHECK(std::vector<float>(out.begin() + static_cast<std::ptrdiff_t>(row * 48),
                               out.begin() + static_cast<std::ptrdiff_t>(row * 48 + 48)) == expected);
    }
  }
}

TEST_CASE("h2o_cases: (g) tokens fed one by one without eviction score as in one prefill", "[kernels][h2o]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const HeadShape shape{4, 2, 20};
  const int length = 90, first = GENERATE(1, 37);
  const Stream stream(shape, length, 13);
  SlotsUnderTest whole(place, 1, shape, length + 1), parts(place, 1, shape, length + 1);
  const auto once = whole.prefill(stream.rows(0, length), {length}, {kKeepAll}, stream.scale());
  parts.prefill(stream.rows(0, first), {first}, {kKeepAll}, stream.scale());
  for (int t = first; t < length; ++t) {
    const auto out = parts.step(stream.rows(t, 1), {0}, {t}, {kKeepAll}, stream.scale()).out;
    CHECK_THAT(out, near(std::vector<float>(once.out.begin() + t * 80, once.out.begin() + (t + 1) * 80),
                         tolerance(DType::f32)));
  }
  for (int head = 0; head < 2; ++head) {
    std::vector<float> score;
    for (const auto& entry : parts.kept(0, head)) score.push_back(entry.second);
    CHECK_THAT(score,
               near(std::vector<float>(once.score.begin() + head * length, once.score.begin() + (head + 1) * length),
                    tolerance(DType::f32)));
  }
}

TEST_CASE("h2o_cases: (i) long random runs against fp64, (j) the same victims at every place", "[kernels][h2o]") {
  const std::uint64_t seed = GENERATE(1, 2, 3, 4);
  std::mt19937_64 engine(seed);
  std::vector<H2oCase> cases;
  for (const int prompt : {3, 40, 64}) {
    H2oCase c;
    c.prompt = prompt, c.steps = 30;
    c.keep = {static_cast<std::int32_t>(4 + engine() % 20), static_cast<std::int32_t>(1 + engine() % 20),
              static_cast<std::int32_t>(engine() % 4), static_cast<std::int32_t>(engine() % 2)};
    c.weights.resize(2);
    for (auto& head : c.weights)
      for (int q = 0; q < prompt + c.steps; ++q) {
        head.emplace_back();
        for (int k = 0; k <= q; ++k) head.back().push_back(std::exp(std::normal_distribution<double>(0, 1.5)(engine)));
      }
    cases.push_back(std::move(c));
  }
  for (const Place* place : every_place())
    for (const bool feed : {false, true}) {
      const auto traces = h2o_on(*place, cases, {.feed = feed, .more_slots = static_cast<int>(seed) * 7});
      for (std::size_t i = 0; i < cases.size(); ++i) {
        const H2oTrace expected = h2o_in_fp64(cases[i]);
        CAPTURE(place->name, feed, i);
        REQUIRE(*std::min_element(expected.gap.begin(), expected.gap.end()) > 1e-5);  // else take another seed
        CHECK(traces[i].evicted == expected.evicted);
        for (std::size_t s = 0; s < expected.kept.size(); ++s) {
          REQUIRE(traces[i].kept[s].size() == expected.kept[s].size());
          for (const auto& [position, score] : expected.kept[s])
            CHECK(traces[i].kept[s].at(position) == Approx(score).epsilon(2e-5).margin(1e-6));
        }
      }
    }
}

TEST_CASE("h2o_cases: within a model's sliding window heavy hitters leave with it", "[kernels][h2o]") {
  const std::uint64_t seed = GENERATE(1, 2, 3, 4);
  std::mt19937_64 engine(seed);
  const int window = 24 + static_cast<int>(engine() % 8);
  std::vector<H2oCase> cases;
  for (const int prompt : {3, 20, 40, 64}) {
    H2oCase c;
    c.prompt = prompt, c.steps = 2 * window;
    c.keep = {.heavy = static_cast<std::int32_t>(4 + engine() % 8),
              .recent = static_cast<std::int32_t>(1 + engine() % 8),
              .sinks = static_cast<std::int32_t>(engine() % 4),
              .spare = static_cast<std::int32_t>(seed % 2 * 40),
              .window = window};
    c.weights.resize(2);
    for (auto& head : c.weights)
      for (int q = 0; q < prompt + c.steps; ++q) {
        head.emplace_back();
        for (int k = 0; k <= q; ++k) head.back().push_back(std::exp(std::normal_distribution<double>(0, 1.5)(engine)));
      }
    cases.push_back(std::move(c));
  }
  for (const Place* place : every_place()) {
    const auto traces = h2o_on(*place, cases, {.feed = true, .more_slots = static_cast<int>(seed)});
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const H2oTrace expected = h2o_in_fp64(cases[i]);
      CAPTURE(place->name, i, window);
      CHECK(traces[i].evicted == expected.evicted);
      for (std::size_t s = 0; s < expected.kept.size(); ++s) {
        REQUIRE(traces[i].kept[s].size() == expected.kept[s].size());
        for (const auto& [position, score] : expected.kept[s]) {
          CHECK(position > cases[i].prompt + static_cast<int>(s) - window);  // the next token sees it
          CHECK(traces[i].kept[s].at(position) == Approx(score).epsilon(2e-5).margin(1e-6));
        }
      }
    }
  }
}

TEST_CASE("h2o_cases: exact ties evict the oldest, in the prompt and in a step", "[kernels][h2o]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const HeadShape shape{1, 1, 8};
  const Stream stream(shape, 64, 15);
  const Keep keep{20, 4};
  SlotsUnderTest run(place, 1, shape, 25);
  std::vector<float> score(40, 0.5f);
  score[7] = 0.25f;
  run.prefill(stream.rows(0, 40), {40}, {keep}, 1, 0, score);
  CHECK(positions(run.kept(0, 0)) == range(16, 40));  // of 36 candidates the 20 newest, and the last 4
  std::map<int, float> fed;
  for (int i = 0; i < 64; ++i) fed[i] = 0.0625f;
  for (int t = 40; t < 44; ++t) {
    const auto evicted = run.step(stream.rows(t, 1), {0}, {t}, {keep}, 1, {fed}).evicted[0];
    CHECK(evicted == t - 24);  // 16, 17, ...: the oldest of those at 0.5 and a step more
  }
}

TEST_CASE("h2o_cases: scores keep growing where 16-bit sums would stall", "[kernels][h2o]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const HeadShape shape{1, 1, 4};
  const Stream stream(shape, 2, 17);
  const Keep keep{2, 0};
  SlotsUnderTest run(place, 1, shape, 3);
  run.prefill(stream.rows(0, 2), {2}, {keep}, 1, 0, {16, 16});
  for (int t = 2; t < 1002; ++t)
    run.step(stream.rows(1, 1), {0}, {t}, {keep}, 1, {{{0, 1.0f / 256}, {1, 0.0f}, {t, 0.0f}}});
  CHECK(run.kept(0, 0).at(0) == 19.90625f);
}

TEST_CASE("h2o_cases: random scores choose the same tokens at every place", "[kernels][h2o]") {
  const HeadShape shape{2, 2, 8};
  const Stream stream(shape, 60, 19);
  const Keep keep{8, 4};
  std::vector<std::vector<int>> first;
  for (const Place* place : every_place()) {
    SlotsUnderTest run(*place, 1, shape, 13, DType::f16, Scoring::random);
    run.seed = 77;
    run.prefill(stream.rows(0, 30), {30}, {keep}, stream.scale());
    std::vector<std::vector<int>> kept;
    for (int t = 30; t < 60; ++t) {
      run.step(stream.rows(t, 1), {0}, {t}, {keep}, stream.scale());
      for (int head = 0; head < 2; ++head) {
        kept.push_back(positions(run.kept(0, head)));
        for (const auto& [position, score] : run.kept(0, head))
          CHECK(score == kernels::random_score(77, head, position));
      }
    }
    if (first.empty()) first = kept;
    CHECK(kept == first);
    CHECK(kept[0] != kept[1]);  // each head its own
  }
}

TEST_CASE("h2o_cases: what a step changes reaches the block's home", "[kernels][h2o]") {
  const Place& place = *GENERATE(from_range(every_place()));
  struct Shape {
    int sequences, slots;
  };
  for (const Shape s : {Shape{3, 13}, Shape{1, 700}}) {  // on a GPU the second is split
    const HeadShape shape{4, 2, 8};
    const Stream stream(shape, 60, 23);
    SlotsUnderTest run(place, s.sequences, shape, s.slots, DType::f16);
    const auto count = static_cast<std::size_t>(s.sequences);
    run.prefill(stream.rows(0, 16 * s.sequences), std::vector<int>(count, 16), std::vector<Keep>(count, Keep{8, 4}),
                stream.scale());
    run.make_home();
    REQUIRE(run.home_is_the_same());
    std::vector<std::int32_t> sequence(count), position(count);
    std::iota(sequence.begin(), sequence.end(), 0);
    for (int t = 16; t < 30; ++t) {
      CAPTURE(place.name, s.slots, t);
      std::fill(position.begin(), position.end(), t);
      run.step(stream.rows(t, s.sequences), sequence, position, std::vector<Keep>(count, Keep{8, 4}), stream.scale());
      REQUIRE(run.home_is_the_same());
    }
  }
}
