#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <map>

#include "kernels/error.h"
#include "kernels/random.h"
#include "tests/support/array.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::test;
using kernels::Forbid;
using kernels::LogProbs;
using kernels::Sample;
using kernels::SampleParams;
using kernels::TopLogProbs;

namespace {

const float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<std::int32_t> sample(const Place& place, const std::vector<float>& logits, int vocab,
                                 const std::vector<SampleParams>& params) {
  const auto rows = static_cast<std::int64_t>(params.size());
  Array x(place, logits, rows, vocab);
  const HostSpan<std::int32_t> token(place, params.size());
  place.run(Sample{x, params, token.span()});
  return token.copy();
}

/// How often each token comes in `draws` rows that differ in the counter alone.
std::map<std::int32_t, int> histogram(const Place& place, const std::vector<float>& logits, SampleParams params,
                                      int draws) {
  std::vector<float> rows;
  std::vector<SampleParams> all;
  for (int i = 0; i < draws; ++i) {
    rows.insert(rows.end(), logits.begin(), logits.end());
    params.counter = static_cast<std::uint64_t>(i);
    all.push_back(params);
  }
  std::map<std::int32_t, int> counts;
  for (const std::int32_t token : sample(place, rows, static_cast<int>(logits.size()), all)) ++counts[token];
  return counts;
}

}  // namespace

TEST_CASE("greedy takes the lowest id among the largest finite logits", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  CHECK(sample(place, {1, 3, 3, 2, /**/ -5, kNaN, -4, kInfinity, /**/ -kInfinity, -kInfinity, -7, -kInfinity}, 4,
               {{}, {}, {}}) == std::vector<std::int32_t>{1, 2, 2});
}

TEST_CASE("a row without a finite logit has no token; wrong parameters are refused", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  CHECK(sample(place, {1, 2, kNaN, -kInfinity}, 2, {{}, {}}) == std::vector<std::int32_t>{1, -1});
  CHECK_THROWS_WITH(sample(place, {1, 2}, 2, {{.temperature = -1}}), Catch::Contains("wanted temperature >= 0"));
  CHECK_THROWS_WITH(sample(place, {1, 2}, 2, {{.temperature = 1, .top_p = 0}}), Catch::Contains("0 < top_p <= 1"));
}

TEST_CASE("sampled tokens follow the softmax at their temperature", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const float temperature = GENERATE(0.5f, 1.0f, 2.0f);
  const std::vector<float> logits{0, 1, -1, 2, kNaN, 0.5f};
  const int draws = 4000;
  double total = 0;
  for (const float x : logits)
    if (std::isfinite(x)) total += std::exp(static_cast<double>(x / temperature));
  const auto counts = histogram(place, logits, {.temperature = temperature, .key = 99}, draws);
  CHECK(counts.count(4) == 0);
  for (const auto& [token, count] : counts) {
    const double p = std::exp(static_cast<double>(logits[static_cast<std::size_t>(token)] / temperature)) / total;
    CAPTURE(place.name, temperature, token, p);
    CHECK(std::abs(count - draws * p) < 4.5 * std::sqrt(draws * p * (1 - p)));
  }
}

TEST_CASE("top_k and top_p cut to the likeliest, ties by id", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const auto tokens_of = [&](const std::vector<float>& logits, SampleParams params) {
    params.key = 5;
    std::vector<std::int32_t> tokens;
    for (const auto& [token, count] : histogram(place, logits, params, 150)) tokens.push_back(token);
    return tokens;
  };
  const std::vector<float> logits{std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.3f)};
  using Ids = std::vector<std::int32_t>;
  CHECK(tokens_of(logits, {.temperature = 1, .top_k = 2}) == Ids{1, 3});
  CHECK(tokens_of(logits, {.temperature = 1, .top_k = 1}) == Ids{1});
  CHECK(tokens_of(logits, {.temperature = 1, .top_k = 9}) == Ids{0, 1, 2, 3});
  CHECK(tokens_of(logits, {.temperature = 1, .top_p = 0.39f}) == Ids{1});
  CHECK(tokens_of(logits, {.temperature = 1, .top_p = 0.69f}) == Ids{1, 3});
  CHECK(tokens_of(logits, {.temperature = 1, .top_p = 0.71f}) == Ids{1, 2, 3});
  CHECK(tokens_of(logits, {.temperature = 1, .top_p = 0.5f, .top_k = 2}) == Ids{1});  // of 4/7 and 3/7
  CHECK(tokens_of({1, 1, 1, 1}, {.temperature = 1, .top_k = 2}) == Ids{0, 1});
  CHECK(tokens_of({1, 1, 1, 1}, {.temperature = 1, .top_p = 0.3f}) == Ids{0, 1});
}

TEST_CASE("a token depends on its own logits, key and counter alone", "[kernels]") {
  const int vocab = 1000;
  const auto logits = normal(8 * vocab, 3, 2);
  std::vector<SampleParams> params;
  for (std::uint64_t r = 0; r < 8; ++r)
    params.push_back(
        {.temperature = 1, .top_p = r % 2 ? 0.9f : 1, .top_k = r % 3 ? 50 : 0, .key = r / 2, .counter = r});
  const auto expected = sample(*every_place().front(), logits, vocab, params);
  for (const Place* place : every_place()) CHECK(sample(*place, logits, vocab, params) == expected);
  for (std::size_t r = 0; r < 8; ++r) {
    const std::vector<float> row(logits.begin() + static_cast<std::ptrdiff_t>(r) * vocab,
                                 logits.begin() + static_cast<std::ptrdiff_t>(r + 1) * vocab);
    CHECK(sample(*every_place().back(), row, vocab, {params[r]})[0] == expected[r]);
  }
}

TEST_CASE("every place chooses the same tokens of rows of any shape", "[kernels]") {
  const int vocab = GENERATE(1, 2, 31, 33, 256, 300, 2500);
  const int kind = GENERATE(0, 1, 2, 3);
  constexpr std::size_t rows = 6;
  std::vector<float> logits = normal(rows * static_cast<std::size_t>(vocab), 11, kind == 0 ? 20.0f : 1.0f);
  if (kind == 1)  // few different ones
    for (float& x : logits) x = std::round(x);
  if (kind == 2) std::fill(logits.begin(), logits.end(), -3.0f);
  if (kind == 3)  // far apart: most weigh nothing
    for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = i % 7 == 3 ? -kInfinity : logits[i] * 1000;
  std::vector<SampleParams> params;
  for (std::uint64_t r = 0; r < rows; ++r)
    params.push_back({.temperature = std::array{1.0f, 1e-5f, 30.0f}[r % 3],
                      .top_p = r < 2 ? 1.0f : 0.8f,
                      .top_k = r % 2 ? 40 : 0,
                      .key = r,
                      .counter = r});
  const auto expected = sample(*every_place().front(), logits, vocab, params);
  for (const Place* place : every_place()) {
    CAPTURE(place->name, vocab, kind);
    CHECK(sample(*place, logits, vocab, params) == expected);
  }
}

TEST_CASE("a chosen token comes with its logit", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  Array x(place, std::vector<float>{0.25f, 3, 1, kNaN, /**/ -2, 8, 7.5f, -1, /**/ kNaN, kNaN, -kInfinity, kInfinity}, 3,
          4);
  const std::vector<SampleParams> params{{}, {.temperature = 3, .top_k = 2, .key = 4}, {}};
  const HostSpan<std::int32_t> token(place, 3);
  const HostSpan<float> logit(place, 3);
  place.run(Sample{x, params, token.span(), logit.span()});
  CHECK(logit.copy()[0] == 3);
  CHECK((token.copy()[1] == 1 || token.copy()[1] == 2));
  CHECK(logit.copy()[1] == (token.copy()[1] == 1 ? 8 : 7.5f));
  CHECK(std::isnan(logit.copy()[2]));
  CHECK_THROWS_WITH(place.run(Sample{x, params, token.span(), logit.span().first(2)}),
                    Catch::Contains("2 numbers in logit, wanted 3"));
}

TEST_CASE("forbidden tokens are not chosen, and nothing else changes", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const int vocab = 300;
  const auto logits = normal(3 * vocab, 1, 2);
  Array x(place, logits, 3, vocab);
  std::vector<std::int32_t> row, token;  // two of three rows, more pairs than a block of threads has, some twice
  for (int id = 0; id < vocab; id += 2) row.insert(row.end(), {0, 2, 0}), token.insert(token.end(), {id, id + 1, id});
  place.run(Forbid{x, row, token});
  auto expected = logits;
  for (std::size_t i = 0; i < row.size(); ++i)
    expected[static_cast<std::size_t>(row[i] * vocab + token[i])] = -kInfinity;
  CHECK(x.host() == expected);
  const std::vector<SampleParams> hot(3, {.temperature = 50, .key = 3});
  const HostSpan<std::int32_t> chosen(place, 3);
  place.run(Sample{x, hot, chosen.span()});
  CHECK(chosen.copy()[0] % 2 == 1);
  CHECK(chosen.copy()[2] % 2 == 0);

  place.run(Forbid{x, {}, {}});
  CHECK(x.host() == expected);
  const std::vector<std::int32_t> one{1}, row_outside{3}, token_outside{vocab}, two{1, 1};
  CHECK_THROWS_WITH(place.run(Forbid{x, row_outside, one}), "forbid: row 3 of 3");
  CHECK_THROWS_WITH(place.run(Forbid{x, one, token_outside}), "forbid: token 300 of a vocabulary of 300");
  CHECK_THROWS_WITH(place.run(Forbid{x, two, one}), Catch::Contains("1 numbers in token, wanted 2"));
}

TEST_CASE("the likeliest tokens come in order, of equals the lower id, with fp64's log-probabilities", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const int vocab = GENERATE(1, 7, 50272), count = GENERATE(0, 1, 20);
  CAPTURE(place.name, vocab, count);
  auto logits = normal(4 * vocab, 4, 5);
  for (int i = 0; i < vocab; ++i) {
    logits[static_cast<std::size_t>(vocab + i)] += 300;                           // exp would overflow
    logits[static_cast<std::size_t>(2 * vocab + i)] = static_cast<float>(i % 3);  // equals, and many of them
  }
  if (vocab > 1) logits[3] = -kInfinity;
  const std::vector<std::int32_t> rows{2, 0, 1};  // any order, not all
  const auto results = rows.size() * static_cast<std::size_t>(count);
  const HostSpan<std::int32_t> token_memory(place, results + 1);
  const HostSpan<float> logprob_memory(place, results + 1);
  const auto token = token_memory.span().first(results);
  const auto logprob = logprob_memory.span().first(results);
  const HostSpan<double> log_sum(place, rows.size());
  Array x(place, logits, 4, vocab);
  place.run(TopLogProbs{x, rows, count, token, logprob, log_sum.span()});
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const float* row = logits.data() + rows[r] * vocab;
    std::vector<std::int32_t> ids;
    double sum = 0, max = static_cast<double>(*std::max_element(row, row + vocab));
    for (std::int32_t id = 0; id < vocab; ++id) {
      if (std::isfinite(row[id])) ids.push_back(id);
      sum += std::exp(static_cast<double>(row[id]) - max);
    }
    std::stable_sort(ids.begin(), ids.end(), [&](auto a, auto b) { return row[a] > row[b]; });
    ids.resize(static_cast<std::size_t>(count), -1);
    const double expected = max + std::log(sum);
    CHECK(log_sum.copy()[r] == Approx(expected).epsilon(2e-7));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::size_t at = r * ids.size() + i;
      REQUIRE(token[at] == ids[i]);
      if (ids[i] < 0) REQUIRE(std::isnan(logprob[at]));
      else REQUIRE(logprob[at] == Approx(static_cast<double>(row[ids[i]]) - expected).epsilon(2e-7).margin(2e-6));
    }
  }
  const std::vector<std::int32_t> outside{0, 4, 1};
  CHECK_THROWS_WITH(place.run(TopLogProbs{x, outside, count, token, logprob, log_sum.span()}),
                    "top_log_probs: row 4 of 4");
}

TEST_CASE("log_probs matches fp64", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const int vocab = GENERATE(1, 5, 50272);
  CAPTURE(place.name, vocab);
  auto logits = normal(3 * vocab, 4, 5);
  for (int i = 0; i < vocab; ++i) logits[static_cast<std::size_t>(vocab + i)] += 300;  // exp would overflow
  if (vocab > 4) logits[3] = -kInfinity;
  std::vector<std::int32_t> target{vocab - 1, 0, vocab / 2};
  target[1] = static_cast<std::int32_t>(std::max_element(logits.begin() + vocab, logits.begin() + 2 * vocab) -
                                        logits.begin() - vocab);
  const HostSpan<float> logprob(place, 3);
  const HostSpan<std::uint8_t> greedy(place, 3);
  Array x(place, logits, 3, vocab);
  place.run(LogProbs{x, target, logprob.span(), greedy.span()});
  std::vector<double> expected;
  for (std::size_t r = 0; r < 3; ++r) {
    double sum = 0;
    const double shift = static_cast<double>(logits[r * static_cast<std::size_t>(vocab)]);
    for (int i = 0; i < vocab; ++i)
      sum += std::exp(static_cast<double>(logits[r * static_cast<std::size_t>(vocab) + static_cast<std::size_t>(i)]) -
                      shift);
    expected.push_back(
        static_cast<double>(logits[r * static_cast<std::size_t>(vocab) + static_cast<std::size_t>(target[r])]) - shift -
        std::log(sum));
  }
  CHECK_THAT(logprob.copy(), near(expected, 2e-7));
  CHECK(greedy.copy()[1] == 1);
  CHECK(greedy.copy()[0] == (vocab == 1));
  const std::vector<std::int32_t> outside{0, vocab, 0};
  CHECK_THROWS_WITH(place.run(LogProbs{x, outside, logprob.span(), greedy.span()}),
                    "log_probs: target " + std::to_string(vocab) + " of a vocabulary of " + std::to_string(vocab));
}

TEST_CASE("the vector exp keeps its precision over its whole range", "[kernels]") {
  for (const kernels::VectorKernels* vectors : kernels::vector_kernels()) {
    CAPTURE(vectors->name);
    double worst = 0;
    for (float x = -87.3f; x < 88; x += 0.00917f) {
      const double e = std::exp(static_cast<double>(x));
      worst = std::max(worst, std::abs(vectors->sum_exp(&x, 1, 0) - e) / e);
    }
    CHECK(worst < 5e-7);
    const float cases[] = {0, -kInfinity, -1000, kNaN};
    CHECK(vectors->sum_exp(cases, 1, 0) == 1);
    CHECK(vectors->sum_exp(cases + 1, 2, 0) == 0);
    CHECK(std::isnan(vectors->sum_exp(cases, 4, 0)));
  }
}

TEST_CASE("random scores are uniform and a function of seed, head and position", "[kernels]") {
  double sum = 0, squares = 0;
  const int n = 20000;
  for (int i = 0; i < n; ++i) {
    const double x = static_cast<double>(kernels::random_score(1, i % 7, i));
    REQUIRE((x >= 0 && x < 1));
    sum += x, squares += x * x;
  }
  CHECK(std::abs(sum / n - 0.5) < 0.01);
  CHECK(std::abs(squares / n - 1.0 / 3) < 0.01);
  CHECK(kernels::random_score(1, 2, 3) == kernels::random_score(1, 2, 3));
  CHECK(kernels::random_score(1, 2, 3) != kernels::random_score(2, 2, 3));
  CHECK(kernels::random_score(1, 2, 3) != kernels::random_score(1, 3, 3));
  CHECK(kernels::random_bits(1, 2) != kernels::random_bits(2, 1));
}
