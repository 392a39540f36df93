// The changes that sequences ask for in their rows of logits, as vLLM defines them.
#include "runtime/engine/logit_request.h"

#include <catch2/catch.hpp>
#include <limits>
#include <map>
#include <random>

using namespace weft;
using kernels::LogitChange;
using runtime::BatchRows;
using runtime::LogitRequest;
using runtime::LogitRules;
using runtime::Sequence;

namespace {

constexpr float kForbid = -std::numeric_limits<float>::infinity();

Sequence sequence_of(std::vector<std::int32_t> prompt, const std::vector<std::int32_t>& generated, LogitRules rules) {
  Sequence sequence;
  sequence.prompt_tokens = std::ssize(prompt);
  sequence.tokens = std::move(prompt);
  sequence.tokens.insert(sequence.tokens.end(), generated.begin(), generated.end());
  sequence.max_tokens = 1000;
  sequence.rules = std::move(rules);
  return sequence;
}

LogitRequest request_of(std::vector<Sequence>& batch) {
  BatchRows rows;
  for (std::size_t i = 0; i < batch.size(); ++i) rows.sequence.push_back(static_cast<std::int32_t>(i));
  return logit_request_of(batch, rows);
}

/// "token bias repetition penalty; " of the changes of row 0.
std::string changes_of(Sequence sequence) {
  std::vector<Sequence> batch{std::move(sequence)};
  std::ostringstream text;
  for (const LogitChange& each : request_of(batch).changes)
    if (each.row == 0) text << each.token << ' ' << each.bias << ' ' << each.repetition << ' ' << each.penalty << "; ";
  return text.str();
}

}  // namespace

TEST_CASE("penalties are of the tokens of prompt and answer, or of the answer alone", "[runtime]") {
  CHECK(changes_of(sequence_of({9, 4, 9}, {7, 4, 7}, {.repetition_penalty = 1.5f})) ==
        "4 0 1.5 0; 7 0 1.5 0; 9 0 1.5 0; ");
  CHECK(changes_of(sequence_of({9, 4, 9}, {7, 4, 7}, {.presence_penalty = 0.5f, .frequency_penalty = 2})) ==
        "4 0 1 2.5; 7 0 1 4.5; ");
  CHECK(changes_of(sequence_of({9}, {}, {.presence_penalty = 0.5f})).empty());
  CHECK(changes_of(sequence_of({9}, {7}, {})).empty());
}

TEST_CASE("a bad word's last token is forbidden where the answer ends with all others", "[runtime]") {
  const LogitRules rules{.bad_words = {{5}, {1, 2, 3}, {2, 8}}};
  CHECK(changes_of(sequence_of({1, 2}, {}, rules)) == "5 -inf 1 0; ");  // the prompt does not count
  CHECK(changes_of(sequence_of({9}, {1, 2}, rules)) == "3 -inf 1 0; 5 -inf 1 0; 8 -inf 1 0; ");
  CHECK(changes_of(sequence_of({9}, {2}, rules)) == "5 -inf 1 0; 8 -inf 1 0; ");
}

TEST_CASE("what several rules say of a token is one change", "[runtime]") {
  Sequence sequence = sequence_of(
      {4}, {7, 7},
      {.repetition_penalty = 2, .frequency_penalty = 1, .bias = {{3, 1}, {7, -5}, {8, 2}}, .bad_words = {{8}}});
  CHECK(changes_of(sequence) == "3 1 1 0; 4 0 2 0; 7 -5 2 2; 8 -inf 1 0; ");
  sequence.min_tokens = 3, sequence.suppressed_until_min = {11, 2, 11};
  CHECK(changes_of(sequence) == "2 -inf 1 0; 3 1 1 0; 4 0 2 0; 7 -5 2 2; 8 -inf 1 0; 11 -inf 1 0; ");
}

TEST_CASE("rows that may have certain tokens alone have masks", "[runtime]") {
  std::vector<Sequence> batch{sequence_of({4}, {}, {}), sequence_of({4}, {}, {.allowed = {0, 31, 32, 99}}),
                              sequence_of({4}, {}, {.allowed = {5}}), sequence_of({4}, {}, {.allowed = {6}})};
  batch[2].forced = {9};
  const LogitRequest request = request_of(batch);
  CHECK(request.mask == std::vector<std::int32_t>{-1, 0, -1, 1});
  CHECK(request.masks == 2);
  std::vector<std::uint32_t> mask(4, 7);
  write_mask(batch[1], mask);
  CHECK(mask == std::vector<std::uint32_t>{0x80000001, 1, 0, 8});
  batch.resize(1);
  CHECK(request_of(batch).mask.empty());
}

TEST_CASE("counts follow a sequence while it grows, and after a resume", "[runtime]") {
  std::mt19937 random(4);
  std::vector<Sequence> batch{sequence_of({3, 1, 3}, {}, {.repetition_penalty = 1.5f, .frequency_penalty = 0.5f})};
  std::vector<std::int32_t> generated;
  for (int step = 0; step < 40; ++step) {
    const LogitRequest grown = request_of(batch);
    std::vector<Sequence> again{sequence_of({3, 1, 3}, generated, batch[0].rules)};
    const LogitRequest resumed = request_of(again);
    std::map<std::int32_t, int> counts{{1, 0}, {3, 0}};
    for (const std::int32_t token : generated) ++counts[token];
    REQUIRE(grown.changes.size() == std::bit_ceil(counts.size()));
    for (std::size_t i = 0; i < grown.changes.size(); ++i) {
      const LogitChange &one = grown.changes[i], &other = resumed.changes[i];
      CHECK((one.row == other.row && one.token == other.token && one.penalty == other.penalty));
      if (one.row < 0) continue;
      CHECK(one.penalty == 0.5f * static_cast<float>(counts.at(one.token)));
    }
    generated.push_back(static_cast<std::int32_t>(random() % 20));
    batch[0].tokens.push_back(generated.back());
  }
}

TEST_CASE("rows come in order, scored ones change nothing, and few counts of changes differ", "[runtime]") {
  std::vector<Sequence> batch{sequence_of({4}, {}, {.bias = {{1, 1}, {2, 1}}}), sequence_of({4}, {}, {}),
                              sequence_of({4}, {}, {.bias = {{0, kForbid}}})};
  batch[1].forced = {5};
  const LogitRequest request = request_of(batch);
  REQUIRE(request.changes.size() == 4);
  CHECK((request.changes[0].row == 0 && request.changes[1].row == 0 && request.changes[2].row == 2));
  CHECK(request.changes[3].row == -1);
  BatchRows rows;
  rows.sequence = {0, 1, 2};
  LogitRequest more = request;
  more.changes.resize(8);
  CHECK(request.signature(rows) != more.signature(rows));
}
