// What is kept by a token's key: exact cases and what must hold whatever the numbers are, on the real kernels of every
// place.
#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "kernels/error.h"
#include "tests/support/files.h"
#include "tests/support/h2o.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::test;
using kernels::Keep;
using kernels::Scoring;
using nlohmann::json;

namespace {

Tokens random_tokens(HeadShape s, int count, std::uint64_t seed) {
  return {normal(std::int64_t{count} * s.heads * s.head_dim, seed, 2),
          normal(std::int64_t{count} * s.kv_heads * s.head_dim, seed + 1),
          normal(std::int64_t{count} * s.kv_heads * s.head_dim, seed + 2)};
}

Tokens cut(const Tokens& all, HeadShape s, int first, int count) {
  const auto part = [&](const std::vector<float>& x, int width) {
    return std::vector<float>(x.begin() + first * width, x.begin() + (first + count) * width);
  };
  return {part(all.q, s.heads * s.head_dim), part(all.k, s.kv_heads * s.head_dim),
          part(all.v, s.kv_heads * s.head_dim)};
}

/// One case of keys: each KV head is judged by its own expectations, up to a choice that is too close.
class KeyCase {
 public:
  KeyCase(const Place& place, const json& j)
      : j_(j), heads_(static_cast<int>(j.at("keys").size())), keep_{j.at("heavy"), j.at("recent"), j.at("sinks"), 0,
                                                                    j.at("spare")},
        prompt_(j.at("prompt")), steps_(j.at("steps")), shape_{2 * heads_, heads_, j.at("dim")},
        run_(place, 1, shape_, std::min(keep_.budget(), prompt_ + steps_) + 1, DType::f32, Scoring::keys),
        all_(random_tokens(shape_, prompt_ + steps_, 3)), close_(static_cast<std::size_t>(heads_)) {
    for (int t = 0; t < prompt_ + steps_; ++t)
      for (int h = 0; h < heads_; ++h)
        for (int d = 0; d < shape_.head_dim; ++d)
          all_.k[static_cast<std::size_t>((t * heads_ + h) * shape_.head_dim + d)] =
              j.at("keys")[static_cast<std::size_t>(h)][static_cast<std::size_t>(t)][static_cast<std::size_t>(d)];
  }

  /// Returns how many heads met a choice that is too close.
  int check() {
    const auto score = run_.prefill(cut(all_, shape_, 0, prompt_), {prompt_}, {keep_}).score;
    for (int h = 0; h < heads_; ++h) {
      const std::vector<float> mine(score.begin() + h * prompt_, score.begin() + (h + 1) * prompt_);
      CHECK_THAT(mine, near(expect(h).at("prefill_scores").get<std::vector<double>>(), kScoreTolerance));
      if (clear(h, 0)) CHECK(positions(run_.kept(0, h)) == expect(h).at("kept").get<std::vector<int>>());
    }
    for (int i = 0; i < steps_; ++i) {
      const int t = prompt_ + i;
      const auto evicted = run_.step(cut(all_, shape_, t, 1), {0}, {t}, {keep_}).evicted;
      for (int h = 0; h < heads_; ++h) check_step(h, i, evicted[static_cast<std::size_t>(h)]);
    }
    const auto sum = run_.slots().key_sum.host();
    for (int h = 0; h < heads_; ++h)
      CHECK_THAT(std::vector<float>(sum.begin() + h * shape_.head_dim, sum.begin() + (h + 1) * shape_.head_dim),
                 near(expect(h).at("key_sum").get<std::vector<double>>(), kScoreTolerance));
    return static_cast<int>(std::count(close_.begin(), close_.end(), true));
  }

 private:
  const json& expect(int head) const { return j_.at("expect")[static_cast<std::size_t>(head)]; }
  bool clear(int head, std::size_t choice) {
    const json& gap = expect(head).at("gap")[choice];
    if (!gap.is_null() && gap.get<double>() < kClearScore) close_[static_cast<std::size_t>(head)] = true;
    return !close_[static_cast<std::size_t>(head)];
  }
  void check_step(int head, int step, int evicted) {
    const auto index = static_cast<std::size_t>(step);
    if (!clear(head, index + 1)) return;
    const json& expected = expect(head).at("decode")[index];
    CAPTURE(head, step);
    CHECK(evicted == (expected.at("evicted").is_null() ? -1 : expected.at("evicted").get<int>()));
    const auto kept = run_.kept(0, head);
    REQUIRE(positions(kept) == expected.at("kept").get<std::vector<int>>());
    for (const auto& [position, score] : kept)
      CHECK(std::abs(double(score) - expected.at("scores").at(std::to_string(position)).get<double>()) <
            kScoreTolerance);
  }

  const json& j_;
  int heads_;
  Keep keep_;
  int prompt_, steps_;
  HeadShape shape_;
  SlotsUnderTest run_;
  Tokens all_;
  std::vector<bool> close_;
};

}  // namespace

TEST_CASE("worth: scores of keys in exact arithmetic", "[kernels][h2o]") {
  const json file = json::parse(read_text(data_path("h2o/key_cases.json")));
  REQUIRE(file.size() == 80);
  for (const Place* place : every_place()) {
    int close = 0;
    for (const json& j : file) {
      CAPTURE(place->name, j.at("name").get<std::string>());
      close += KeyCase(*place, j).check();
    }
    CHECK(close == 10);
  }
}

TEST_CASE("worth: the sum of unit keys, and what reaches the block's home, with rows of every type", "[kernels][h2o]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16, DType::i8, DType::i4);
  const int slots = GENERATE(13, 700);  // on a GPU the second is split
  const HeadShape shape{4, 2, 40};
  const int prompt = 20, steps = 12;
  CAPTURE(place.name, name_of(dtype), slots);
  const Tokens all = random_tokens(shape, prompt + steps, 11);
  SlotsUnderTest run(place, 1, shape, slots, dtype, Scoring::keys);
  const Keep keep{8, 4};
  run.prefill(cut(all, shape, 0, prompt), {prompt}, {keep});
  run.make_home();
  for (int t = prompt; t < prompt + steps; ++t) {
    run.step(cut(all, shape, t, 1), {0}, {t}, {keep});
    REQUIRE(run.home_is_the_same());
  }
  std::vector<double> expected;
  for (int head = 0; head < 2; ++head)
    for (int d = 0; d < 40; ++d) {
      expected.push_back(0);
      for (int t = 0; t < prompt + steps; ++t) {
        const float* const key = all.k.data() + (t * 2 + head) * 40;
        expected.back() += double(key[d]) / std::sqrt(std::inner_product(key, key + 40, key, 0.0));
      }
    }
  CHECK_THAT(run.slots().key_sum.host(), near(expected, is_quantised(dtype) ? 1e-5 : test::tolerance(dtype)));
}

TEST_CASE("worth: a key without a direction is worth 0 and leaves the sum as it is", "[kernels][h2o]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const float strange = GENERATE(0.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN());
  const HeadShape shape{1, 1, 8};
  Tokens all = random_tokens(shape, 8, 5);
  for (const int t : {3, 6}) std::fill_n(all.k.begin() + t * 8, 8, strange);
  SlotsUnderTest run(place, 1, shape, 9, DType::f32, Scoring::keys);
  const Keep keep{8, 0};
  CHECK(run.prefill(cut(all, shape, 0, 5), {5}, {keep}).score[3] == 0);
  for (int t = 5; t < 8; ++t) run.step(cut(all, shape, t, 1), {0}, {t}, {keep});
  CHECK(run.kept(0, 0).at(6) == 0);
  std::vector<double> expected(8);
  for (const int t : {0, 1, 2, 4, 5, 7}) {
    const float* const key = all.k.data() + t * 8;
    for (std::size_t d = 0; d < 8; ++d)
      expected[d] += double(key[d]) / std::sqrt(std::inner_product(key, key + 8, key, 0.0));
  }
  CHECK_THAT(run.slots().key_sum.host(), near(expected, 1e-5));
}

TEST_CASE("worth: what is missing for a way to score is refused", "[kernels][h2o]") {
  using Catch::Matchers::Contains;
  const Place& place = *every_place().front();
  SlotArrays slots(place, 1, 1, 5, 4, DType::f32, false, true);
  const Array k(place, 3, 4), score(place, 1, 3), work(place, 1, 3);
  const std::vector<std::int32_t> offsets{0, 3}, sequence{0}, position{3};
  const std::vector<Keep> keep{{2, 2}};
  kernels::KeepPrompt prompt;
  prompt.k = prompt.v = k, prompt.score = score, prompt.offsets = offsets, prompt.sequence = sequence;
  prompt.keep = keep, prompt.scoring = Scoring::keys, prompt.slots = slots.block;
  CHECK_THROWS_WITH(place.run(prompt), Contains("work is [0, 0], wanted [1, 3]"));
  prompt.work = work;
  CHECK_THROWS_WITH(place.run(prompt), Contains("score is given, but scoring is not by attention"));

  const Array row(place, 1, 4);
  Array out(place, 1, 4);
  kernels::DecodeAttention step;
  step.q = step.k = step.v = row, step.sequence = sequence, step.position = position, step.keep = keep;
  step.heads = 1, step.scoring = Scoring::keys, step.slots = slots.block, step.out = out;
  step.slots.key_sum = nullptr;
  CHECK_THROWS_WITH(place.run(step), Contains("no key_sum, which scoring by keys needs"));
}
