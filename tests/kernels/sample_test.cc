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
using kernels::LogitChange;
using kernels::Sample;
using kernels::SampleParams;

namespace {

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

TEST_CASE("a row without a finite logit has no token, and wrong parameters are refused", "[kernels]") {
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

TEST_CASE("min_p cuts before top_k and top_p, relative to the likeliest at this temperature", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const std::vector<float> logits{std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.3f), -kInfinity};
  const auto tokens_of = [&](SampleParams params) {
    params.key = 6;
    std::vector<std::int32_t> tokens;
    for (const auto& [token, count] : histogram(place, logits, params, 150)) tokens.push_back(token);
    return tokens;
  };
  using Ids = std::vector<std::int32_t>;
  CHECK(tokens_of({.temperature = 1, .min_p = 0.24f}) == Ids{0, 1, 2, 3});
  CHECK(tokens_of({.temperature = 1, .min_p = 0.49f}) == Ids{1, 2, 3});
  CHECK(tokens_of({.temperature = 1, .min_p = 0.51f}) == Ids{1, 3});
  CHECK(tokens_of({.temperature = 2, .min_p = 0.51f}) == Ids{1, 2, 3});  // the ratio's root
  CHECK(tokens_of({.temperature = 1, .min_p = 1}) == Ids{1});
  CHECK(tokens_of({.temperature = 1, .top_k = 2, .min_p = 0.3f}) == Ids{1, 3});
  CHECK(tokens_of({.temperature = 1, .top_k = 3, .min_p = 0.51f}) == Ids{1, 3});
  CHECK(tokens_of({.temperature = 1, .top_p = 0.56f, .min_p = 0.51f}) == Ids{1});  // of 4/7 and 3/7
  CHECK(tokens_of({.temperature = 1, .top_p = 0.56f}) == Ids{1, 3});
  CHECK(sample(place, logits, 5, {{.min_p = 0.5f}}) == Ids{1});
  CHECK_THROWS_WITH(sample(place, {1, 2}, 2, {{.temperature = 1, .min_p = 1.5f}}), Catch::Contains("0 <= min_p <= 1"));
}

namespace {

/// vLLM's definition, in fp64.
double changed(double x, const LogitChange& change) {
  x += double(change.bias);
  x = x > 0 ? x / double(change.repetition) : x * double(change.repetition);
  return x - double(change.penalty);
}

/// Checks the logits after the changes, and that the logit of each row's token is that before.
void check_changes(const Place& place, const std::vector<float>& logits, int vocab,
                   const std::vector<LogitChange>& changes) {
  const std::int64_t rows = std::ssize(logits) / vocab;
  Array x(place, logits, rows, vocab);
  const std::vector<SampleParams> params(static_cast<std::size_t>(rows), {.temperature = 3, .key = 8});
  const HostSpan<std::int32_t> token(place, params.size());
  const HostSpan<float> logit(place, params.size());
  place.run(Sample{x, params, token.span(), logit.span(), changes});
  std::vector<double> expected(logits.begin(), logits.end());
  for (const LogitChange& change : changes) {
    if (change.row < 0) continue;
    double& changes_now = expected[static_cast<std::size_t>(change.row * vocab + change.token)];
    changes_now = changed(changes_now, change);
  }
  const std::vector<float> got = x.host();
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < got.size(); ++i)
    wrong += std::isinf(expected[i]) ? double(got[i]) != expected[i]
                                     : !(std::abs(double(got[i]) - expected[i]) <= 2e-6 * (1 + std::abs(expected[i])));
  CHECK(wrong == 0);
  CHECK(token.copy() == sample(place, got, vocab, params));
  for (std::size_t r = 0; r < params.size(); ++r) {
    REQUIRE(token.copy()[r] >= 0);
    CHECK(logit.copy()[r] == logits[r * static_cast<std::size_t>(vocab) + static_cast<std::size_t>(token.copy()[r])]);
  }
}

}  // namespace

TEST_CASE("logits change by bias, repetition and penalty before a token is chosen", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  CAPTURE(place.name);
  const int vocab = 300;
  const auto logits = normal(3 * vocab, 1, 2);
  std::vector<LogitChange> changes;  // of two of three rows, more than a block of threads has
  for (int id = 0; id < 200; ++id) {
    const auto k = static_cast<float>(id % 5);
    changes.push_back({.row = 0, .token = id, .bias = k - 2, .repetition = 1 + k / 4, .penalty = 0.5f * (k - 1)});
  }
  changes.push_back({.row = 0, .token = 210, .bias = -kInfinity});
  changes.push_back({.row = 2, .token = 0, .bias = -kInfinity});
  changes.push_back({.row = 2, .token = 7, .bias = 100, .repetition = 0.5f, .penalty = -2});
  changes.push_back({.row = 2, .token = 8, .repetition = 1.3f});
  changes.resize(changes.size() + 3);  // changes of nothing
  check_changes(place, logits, vocab, changes);
  check_changes(place, logits, vocab, {});
  for (std::size_t first : {std::size_t{0}, std::size_t{201}}) {  // a row's changes alone give it the same token
    CAPTURE(first);
    check_changes(place, logits, vocab, {changes.begin() + static_cast<std::ptrdiff_t>(first), changes.end()});
  }
}

TEST_CASE("more changes than a GPU's ring holds at once", "[kernels][large]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const int vocab = 55'000;  // a change has 20 bytes, and 1 MiB goes at once
  std::vector<LogitChange> changes;
  for (int row = 0; row < 2; ++row)
    for (int id = row; id < vocab - row; ++id)
      changes.push_back({.row = row, .token = id, .repetition = 1.2f, .penalty = 0.01f * static_cast<float>(id % 7)});
  check_changes(place, normal(2 * vocab, 5, 2), vocab, changes);
}

TEST_CASE("changes that are out of order, twice or outside are refused", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  Array x(place, std::vector<float>(8, 1.0f), 2, 4);
  const std::vector<SampleParams> params(2);
  const HostSpan<std::int32_t> token(place, 2);
  const auto refused = [&](const std::vector<LogitChange>& changes, const char* words) {
    CHECK_THROWS_WITH(place.run(Sample{x, params, token.span(), {}, changes}), Catch::Contains(words));
  };
  refused({{.row = 2}}, "sample: a change of row 2, token 0; logits is [2, 4]");
  refused({{.row = 0, .token = 4}}, "row 0, token 4");
  refused({{.row = 0, .token = 1}, {.row = 0, .token = 1}}, "row 0, token 1 comes after one of a higher row or token");
  refused({{.row = 1}, {.row = 0}}, "row 0, token 0 comes after");
  refused({{}, {.row = 0}}, "row 0, token 0 comes after");
  refused({{.row = 0, .repetition = 0}}, "wanted more than 0");
}

TEST_CASE("a masked row chooses among its mask's tokens, whatever changes the others", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const int vocab = GENERATE(1, 31, 32, 300), rows = 5;
  CAPTURE(place.name, vocab);
  const auto words = static_cast<std::size_t>(kernels::mask_words(vocab));
  const auto logits = normal(rows * vocab, 1, 2);
  const std::vector<std::int32_t> mask{1, -1, 0, 2, 1};
  const HostSpan<std::uint32_t> masks(place, 3 * words);
  for (std::size_t i = 0; i < 2 * words; ++i) masks.span()[i] = i % 3 == 0 ? 0x80010005u : i % 3 == 1 ? 0 : ~0u;
  masks.span()[words] |= 1;  // the third allows all
  std::vector<LogitChange> changes;
  for (int row = 0; row < 3; ++row)
    for (int id = 0; id < vocab; id += 3) changes.push_back({.row = row, .token = id, .bias = 1.5f});
  std::vector<float> expected = logits;
  for (const LogitChange& each : changes)
    expected[static_cast<std::size_t>(each.row * vocab + each.token)] += each.bias;
  for (int row = 0; row < rows; ++row)
    for (int id = 0; id < vocab && mask[static_cast<std::size_t>(row)] >= 0; ++id) {
      const auto first = static_cast<std::size_t>(mask[static_cast<std::size_t>(row)]) * words;
      if (!(masks.span()[first + static_cast<std::size_t>(id) / 32] >> id % 32 & 1))
        expected[static_cast<std::size_t>(row * vocab + id)] = -kInfinity;
    }
  Array x(place, logits, rows, vocab);
  const std::vector<SampleParams> params(rows, {.temperature = 3, .key = 8});
  const HostSpan<std::int32_t> token(place, rows);
  const HostSpan<float> logit(place, rows);
  place.run(Sample{x, params, token.span(), logit.span(), changes, mask, masks.span()});
  CHECK(x.host() == expected);
  CHECK(token.copy() == sample(place, expected, vocab, params));
  for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r)
    CHECK((token.copy()[r] < 0 ||
           logit.copy()[r] == logits[r * static_cast<std::size_t>(vocab) + static_cast<std::size_t>(token.copy()[r])]));

  const auto refused = [&](const std::vector<std::int32_t>& wrong, std::size_t given, const char* text) {
    CHECK_THROWS_WITH(place.run(Sample{x, params, token.span(), {}, {}, wrong, masks.span().first(given)}),
                      Catch::Contains(text));
  };
  refused({0, 0}, words, "2 numbers in mask, wanted 5");
  refused({0, 0, 0, 0, 1}, words, "mask 1 of 1 masks");
  refused({0, 0, -2, 0, 0}, words, "mask -2 of 1 masks");
  refused({0, 0, 0, 0, 0}, words - 1, "mask 0 of 0 masks");
}

TEST_CASE("cuts of a large vocabulary are those of a full sort", "[kernels]") {
  const int vocab = 20011;
  const float spread = GENERATE(0.0f, 0.2f, 3.0f, 15.0f);
  std::vector<float> logits = normal(static_cast<std::size_t>(vocab), 5, 1);
  for (float& x : logits) x = std::round(x * 512) / 512 * spread;  // some are equal
  logits[7] = -kInfinity, logits[100] = kNaN;
  std::vector<std::int32_t> order;
  for (int id = 0; id < vocab; ++id)
    if (std::isfinite(logits[static_cast<std::size_t>(id)])) order.push_back(id);
  const auto logit = [&](std::int32_t id) { return static_cast<double>(logits[static_cast<std::size_t>(id)]); };
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return logit(a) > logit(b); });
  for (const int top_k : {0, 2, 3000, vocab})
    for (const float top_p : {1.0f, 0.3f, 0.97f})
      for (const float temperature : {1.0f, 0.01f, 40.0f}) {
        if (top_k == 0 && top_p == 1) continue;  // no cut: in order of ids
        const auto kept = std::min(order.size(), top_k > 0 ? static_cast<std::size_t>(top_k) : order.size());
        const auto weight = [&](std::size_t i) {
          return std::exp((logit(order[i]) - logit(order[0])) / static_cast<double>(temperature));
        };
        double total = 0, mass = 0;
        for (std::size_t i = 0; i < kept; ++i) total += weight(i);
        std::size_t nucleus = 0;
        while (nucleus < kept && mass < static_cast<double>(top_p) * total) mass += weight(nucleus++);
        if (top_p == 1) nucleus = kept, mass = total;
        for (std::uint64_t counter = 0; counter < 5; ++counter) {
          CAPTURE(spread, top_k, top_p, temperature, counter);
          const double target = kernels::unit_double(kernels::random_bits(3, counter)) * mass;
          std::size_t at = 0;
          for (double sum = weight(0); sum <= target && at + 1 < nucleus;) sum += weight(++at);
          const SampleParams params{
              .temperature = temperature, .top_p = top_p, .top_k = top_k, .key = 3, .counter = counter};
          CHECK(sample(*every_place().front(), logits, vocab, {params}) == std::vector<std::int32_t>{order[at]});
        }
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
