// tests/kernels/log_probs_test.cc: log-probabilities of tokens, and the exponentials that they and choices are made of.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/error.h"
#include "tests/support/array.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::test;
using kernels::LogProbs;
using kernels::TopLogProbs;

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
      worst = larger_error(worst, std::abs(vectors->sum_exp(&x, 1, 0) - e) / e);
    }
    CHECK(worst < 5e-7);
    const float cases[] = {0, -kInfinity, -1000, kNaN};
    CHECK(vectors->sum_exp(cases, 1, 0) == 1);
    CHECK(vectors->sum_exp(cases + 1, 2, 0) == 0);
    CHECK(std::isnan(vectors->sum_exp(cases, 4, 0)));
  }
}

TEST_CASE("weights of logits are exp's to the last bits, and the same from every instruction set", "[kernels]") {
  std::vector<float> logits;
  for (float x = 0; x > -720; x -= 0.0437f) logits.push_back(x);
  for (const float x : {-kInfinity, kInfinity, kNaN, -3e38f, -1e-30f}) logits.push_back(x);
  const std::size_t count = logits.size();
  for (const double temperature : {1.0, 0.3, 7.0}) {
    const kernels::Weighing by{.max = 0, .inverse_temperature = 1 / temperature, .least = -700};
    std::vector<double> first;
    for (const kernels::VectorKernels* vectors : kernels::vector_kernels()) {
      CAPTURE(vectors->name, temperature);
      std::vector<double> weights(count);
      const double sum = vectors->weigh(logits.data(), static_cast<std::int64_t>(count), by, weights.data());
      double expected_sum = 0, worst = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const double x = static_cast<double>(logits[i]);
        const double e = x >= -700 && x <= 0 && x / temperature > -708 ? std::exp(x * by.inverse_temperature) : 0;
        worst = larger_error(worst, e == 0 ? weights[i] : std::abs(weights[i] - e) / e);
        expected_sum += e;
      }
      CHECK(worst < 1e-15);
      CHECK(std::abs(sum - expected_sum) < 1e-13 * expected_sum);
      if (first.empty()) first = weights;
      CHECK(weights == first);
    }
  }
}
