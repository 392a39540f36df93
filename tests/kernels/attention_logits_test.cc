// Attention whose logits are capped, and softmaxes in which a sink logit takes part, against fp64, on every place.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "kernels/error.h"
#include "tests/support/attention_runs.h"
#include "tests/support/h2o.h"

using namespace weft;
using namespace weft::test;
using kernels::Keep;
using kernels::Scoring;

namespace {

/// Sink logits from far below a prompt's logits to far above.
std::vector<float> sinks_for(int heads) {
  const float some[] = {0.5f, 3.0f, -2.0f, 12.0f, -30.0f};
  std::vector<float> sinks;
  for (int head = 0; head < heads; ++head) sinks.push_back(some[head % 5]);
  return sinks;
}

/// Caps that bend the logits of these tests (their deviation is 1 to 2), and sinks: each alone, and both.
std::vector<LogitShape> shapes_for(int heads) { return {{1.5f}, {0, sinks_for(heads)}, {4, sinks_for(heads)}}; }

std::vector<double> wide(const std::vector<float>& x) { return {x.begin(), x.end()}; }

}  // namespace

TEST_CASE("prompts with capped logits and sink logits match fp64 on every place", "[kernels][logits]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  int sample = static_cast<int>(dtype);
  for (const PromptShape& shape : kShapes)
    for (const LogitShape& logits : shapes_for(shape.heads))
      for (const int sliding : {0, 20}) {
        if (++sample % (place.on_host ? 3 : 5) != 0) continue;  // for time
        const int window = shape.tokens() % 2 == 0 ? 16 : 0;
        CAPTURE(place.name, name_of(dtype), shape.heads, shape.head_dim, shape.tokens(), sliding, logits.cap);
        Prompts prompts(shape, dtype, /*seed=*/11);
        prompts.sliding = sliding, prompts.logits = logits;
        check_against_fp64(place, dtype, prompts, window);
      }
}

TEST_CASE("long prompts with a cap and sinks match fp64, and logits far beyond the cap stay below it",
          "[kernels][logits]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const DType dtype = GENERATE(DType::f32, DType::f16);
  Prompts prompts({2, 1, 64, {0, 300}}, dtype, 5);
  prompts.logits = {2, {0.0f, 1.5f}};
  check_against_fp64(place, dtype, prompts, 0);
  if (dtype != DType::f32) return;
  prompts.scale = 40;  // products of about 300: nearly all logits are 2 or -2
  const auto expected = attend_in_fp64(prompts.shape, prompts.q, prompts.k, prompts.v, 40, 0, 0, prompts.logits);
  const auto got = prompts.run(place, dtype, 0);
  CHECK_THAT(got.out, near(expected.out, 1e-3));
  CHECK_THAT(got.score, near(expected.score, 1e-3));
}

TEST_CASE("small logits pass a wide cap as they are", "[kernels][logits]") {
  const Place& place = *GENERATE(from_range(every_place()));
  Prompts prompts({2, 2, 16, {0, 40}}, DType::f32, 3);
  const auto none = prompts.run(place, DType::f32, 0);
  prompts.logits.cap = 5e4f;
  const auto got = prompts.run(place, DType::f32, 0);
  // On a GPU 1 - 2 / (exp(2 y) + 1) knows a logit to 1e-7 of the cap.
  const double most = place.on_host ? 1e-5 : 2e-2;
  CHECK_THAT(got.out, near(wide(none.out), most));
  CHECK_THAT(got.lse, near(wide(none.lse), most));
}

TEST_CASE("a sink logit that weighs nothing leaves every bit", "[kernels][logits]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const DType dtype = GENERATE(DType::f32, DType::f16);
  const int dim = GENERATE(24, 64);
  Prompts prompts({4, 2, dim, {0, 70, 71, 150}}, dtype, 5);
  const auto none = prompts.run(place, dtype, 0);
  prompts.logits.sink_logits.assign(4, -1e4f);
  const auto got = prompts.run(place, dtype, 0);
  CHECK((got.out == none.out && got.lse == none.lse && got.score == none.score));
  for (const int slots : {37, 600}) {
    Step step(2, 4, 1, dim, slots, dtype, 31);
    step.keep.assign(2, {8, 8, 2, 0});
    const auto before = step.run(place, Scoring::attention);
    step.logits = prompts.logits;
    const auto after = step.run(place, Scoring::attention);
    CHECK((after.out == before.out && after.evicted == before.evicted));
  }
}

TEST_CASE("decode steps with capped logits and sink logits match fp64 on every place", "[kernels][logits]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  struct Shape {
    int rows, heads, kv_heads, head_dim, slots;
  };
  for (const Shape s : {Shape{1, 1, 1, 1, 1}, Shape{2, 2, 1, 12, 5}, Shape{1, 8, 2, 80, 33}, Shape{2, 6, 2, 128, 16},
                        Shape{2, 2, 1, 160, 100}, Shape{2, 8, 2, 64, 70}, Shape{1, 4, 2, 256, 40},
                        Shape{4, 8, 1, 128, 37}, Shape{1, 8, 1, 64, 700}, Shape{1, 3, 1, 128, 530}})
    for (const LogitShape& logits : shapes_for(s.heads)) {
      CAPTURE(place.name, name_of(dtype), s.rows, s.heads, s.kv_heads, s.head_dim, s.slots, logits.cap);
      Step step(s.rows, s.heads, s.kv_heads, s.head_dim, s.slots, dtype, /*seed=*/21);
      step.logits = logits;
      const auto expected = step.in_fp64(0.75);
      auto got = step.run(place, Scoring::attention, 0.75f);
      CHECK_THAT(got.out, near(expected.out, tolerance(DType::f32)));
      for (std::size_t i = 0; i < got.position.size(); ++i)
        if (got.position[i] < 0) got.score[i] = 0;  // an empty slot's score means nothing
      CHECK_THAT(got.score, near(expected.score, tolerance(DType::f32)));
    }
}

TEST_CASE("with sink logits a row does not depend on the capacity, threads or instruction set", "[kernels][logits]") {
  Step step(3, 4, 2, 20, 37, DType::f16, 31);
  step.keep.assign(3, {8, 8, 2, 0});  // everything is over the budget: each head evicts
  step.logits = {2, sinks_for(4)};
  Prompts prompts({4, 2, 24, {0, 70, 71, 230}}, DType::f16, 5);
  prompts.logits = step.logits;
  const auto expected = step.run(*every_place().front(), Scoring::attention);
  const auto of_prompts = prompts.run(*every_place().front(), DType::f16, 0);
  for (const Place* place : every_place()) {
    if (!place->exact() || place->name.find("plain") != std::string::npos) continue;
    CAPTURE(place->name);
    for (const int stride : {37, 64, 200}) {
      step.stride = stride;
      const auto got = step.run(*place, Scoring::attention);
      CHECK((got.out == expected.out && got.evicted == expected.evicted));
    }
    const auto got = prompts.run(*place, DType::f16, 0);
    CHECK((got.out == of_prompts.out && got.lse == of_prompts.lse && got.score == of_prompts.score));
  }
}

TEST_CASE("scores are exact shares of a softmax that a sink takes part in", "[kernels][logits][h2o]") {
  const Place& place = *GENERATE(from_range(every_place()));
  CAPTURE(place.name);
  // Even weights and a sink of weight 1: row i gives 1 / (i + 2) to each token, and 1 / (i + 2) to nobody.
  H2oCase even{{{}}, 4, 2, {0, 6}};
  for (int i = 0; i < 6; ++i) even.weights[0].emplace_back(static_cast<std::size_t>(i + 1), 1.0);
  even.sink = 1;
  const H2oTrace trace = h2o_on(place, {even})[0];
  const std::vector<double> prompt{1.0 / 2 + 1.0 / 3 + 1.0 / 4 + 1.0 / 5, 1.0 / 3 + 1.0 / 4 + 1.0 / 5,
                                   1.0 / 4 + 1.0 / 5, 1.0 / 5};
  for (std::size_t i = 0; i < prompt.size(); ++i) CHECK(trace.prefill_scores[i] == Approx(prompt[i]).epsilon(1e-6));
  const std::map<int, double>& last = trace.kept.back();
  REQUIRE(last.size() == 6);
  for (int i = 0; i < 4; ++i)
    CHECK(last.at(i) == Approx(prompt[static_cast<std::size_t>(i)] + 1.0 / 6 + 1.0 / 7).epsilon(1e-6));
  CHECK(last.at(4) == Approx(1.0 / 6 + 1.0 / 7).epsilon(1e-6));
  CHECK(last.at(5) == Approx(1.0 / 7).epsilon(1e-6));
}

TEST_CASE("a cap and what a sink takes change who stays, as in fp64", "[kernels][logits][h2o]") {
  const Place& place = *GENERATE(from_range(every_place()));
  constexpr double clear = 1e-5;
  int told_apart = 0;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    H2oCase c{std::vector<std::vector<std::vector<double>>>(2), 20, 10, {5, 4}};
    for (std::size_t head = 0; head < 2; ++head)
      for (int i = 0; i < 30; ++i) {
        c.weights[head].emplace_back();
        for (const float x : normal(i + 1, seed * 1000 + head * 100 + static_cast<std::uint64_t>(i), 2))
          c.weights[head].back().push_back(static_cast<double>(static_cast<float>(std::exp(x))));
      }
    const auto plain = h2o_in_fp64(c);
    c.cap = seed % 3 == 0 ? 0 : 1.5, c.sink = seed % 3 == 1 ? 0 : 20;
    CAPTURE(place.name, seed, c.cap, c.sink);
    const auto expected = h2o_in_fp64(c), got = h2o_on(place, {c})[0];
    for (std::size_t i = 0; i < expected.kept.size(); ++i) {
      if (expected.gap[i] < clear) break;
      REQUIRE(got.kept[i].size() == expected.kept[i].size());
      for (const auto& [position, score] : expected.kept[i]) {
        REQUIRE(got.kept[i].count(position) == 1);
        CHECK(std::abs(got.kept[i].at(position) - score) <= clear * std::max(1.0, score));
      }
    }
    for (std::size_t i = 0; i < plain.kept.size(); ++i)
      told_apart += positions(plain.kept[i]) != positions(expected.kept[i]);
  }
  CHECK(told_apart > 0);
}

TEST_CASE("a cap that is no cap, and sink logits that are not one for each head, are refused", "[kernels][logits]") {
  using Catch::Matchers::Contains;
  const Place& place = *every_place().front();
  const auto fails = [&](LogitShape logits, const char* what) {
    Prompts prompts({4, 2, 8, {0, 4}}, DType::f32, 1);
    prompts.logits = logits;
    CHECK_THROWS_WITH(prompts.run(place, DType::f32, 0), Contains("prefill_attention: ") && Contains(what));
    Step step(1, 4, 2, 8, 4, DType::f32, 1);
    step.logits = std::move(logits);
    CHECK_THROWS_WITH(step.run(place, Scoring::none), Contains("decode_attention: ") && Contains(what));
  };
  fails({-1}, "cap is -1.000000, wanted 0 (none) or more");
  fails({std::numeric_limits<float>::infinity()}, "cap is inf");
  fails({0, {1, 2}}, "2 numbers in sink_logits, wanted 4, one for each head");
}
