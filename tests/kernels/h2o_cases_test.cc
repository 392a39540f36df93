// The real prefill and decode kernels of every place against exact H2O: the hand-made cases and the random ones.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>

#include "tests/support/files.h"
#include "tests/support/h2o.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::test;
using kernels::Keep;
using nlohmann::json;
using Rows = std::vector<std::vector<double>>;

namespace {

std::vector<double> numbers(const json& value) {
  std::vector<double> all;
  for (const auto& item : value) all.push_back(number(item));
  return all;
}

using Set = std::vector<int>;

Set set_of(const json& value) {
  Set set = value.get<Set>();
  std::sort(set.begin(), set.end());
  return set;
}

Set set_of(const std::map<int, double>& kept) {
  Set set;
  for (const auto& entry : kept) set.push_back(entry.first);
  return set;
}

void check_scores(const std::map<int, double>& got, const json& expected, double tolerance = kScoreTolerance) {
  REQUIRE(got.size() == expected.size());
  for (const auto& [position, score] : got) {
    const double e = number(expected.at(std::to_string(position)));
    CAPTURE(position, score, e);
    CHECK(std::abs(score - e) <= tolerance * std::max(1.0, e));
  }
}

/// A file of golden cases, found by the beginning of their names.
class Golden {
 public:
  const json& operator[](const std::string& name) const {
    for (const auto& [key, value] : file_.items())
      if (key.rfind(name, 0) == 0) return value;
    throw std::out_of_range("no golden case " + name);
  }

 private:
  json file_ = json::parse(read_text(data_path("h2o/golden_h2o.json")));
};

Rows uniform(int n) {
  Rows rows;
  for (int i = 0; i < n; ++i) rows.emplace_back(static_cast<std::size_t>(i + 1), 1.0);
  return rows;
}

H2oTrace run(const Place& place, const Rows& rows, int prompt, int steps, Keep keep, const H2oOptions& options = {}) {
  return h2o_on(place, {{{rows}, prompt, steps, keep}}, options)[0];
}

std::map<int, double> by_position(const std::vector<double>& scores) {
  std::map<int, double> map;
  for (std::size_t i = 0; i < scores.size(); ++i) map[static_cast<int>(i)] = scores[i];
  return map;
}

H2oCase parse_case(const json& j) {
  H2oCase c;
  c.weights = j.at("weights").get<std::vector<Rows>>();
  c.prompt = j.at("prompt"), c.steps = j.at("steps");
  c.keep = {j.at("heavy"), j.at("recent"), j.at("sinks"), j.at("mode") == "flexgen" ? 1 : 0};
  return c;
}

Keep keep_of(const json& j) { return {j.at("heavy"), j.at("recent"), j.at("sinks"), 0, j.at("spare")}; }

RuleParameters rule_of(const json& j) {
  return {.statistic = j.at("statistic") == "largest" ? kernels::Statistic::largest : kernels::Statistic::sum,
          .window = j.at("window"),
          .pool = j.at("pool"),
          .decay = j.at("decay")[0].get<float>() / j.at("decay")[1].get<float>()};
}

/// How clear each choice was, by the file.
std::vector<double> gaps_of(const json& expect) {
  std::vector<double> gap;
  for (const json& g : expect.at("gap"))
    gap.push_back(g.is_null() ? std::numeric_limits<double>::infinity() : g.get<double>());
  return gap;
}

/// Checks up to the first choice that is too close; returns whether there was one.
bool check_case(const H2oTrace& got, const json& expect, const std::vector<double>& gap) {
  const std::vector<double> scores = numbers(expect.at("prefill_scores"));
  CHECK_THAT(std::vector<float>(got.prefill_scores.begin(), got.prefill_scores.end()), near(scores, kScoreTolerance));
  if (gap[0] < kClearScore) return true;
  REQUIRE(set_of(got.kept[0]) == set_of(expect.at("kept")));
  const json& decode = expect.at("decode");
  REQUIRE(got.evicted.size() == decode.size());
  for (std::size_t i = 0; i < decode.size(); ++i) {
    CAPTURE(i, gap[i + 1]);
    if (gap[i + 1] < kClearScore) return true;
    REQUIRE(got.evicted[i] == (decode[i].at("evicted").is_null() ? -1 : decode[i].at("evicted").get<int>()));
    REQUIRE(set_of(got.kept[i + 1]) == set_of(decode[i].at("kept")));
    check_scores(got.kept[i + 1], decode[i].at("scores"));
  }
  return false;
}

struct Count {
  int cases = 0, close = 0;
};

/// Every `step`-th case of a file.
Count check_file(const Place& place, const json& file, bool feed, std::size_t step = 1) {
  Count count;
  for (std::size_t i = 0; i < file.size(); i += step) {
    const json& j = file[i];
    CAPTURE(j.at("name").get<std::string>());
    const H2oCase c = parse_case(j);
    count.close += check_case(h2o_on(place, {c}, {.feed = feed})[0], j.at("expect"), h2o_in_fp64(c).gap);
    ++count.cases;
  }
  return count;
}

const Rows kG2 = {{1}, {1, 7}, {1, 1, 6}, {1, 1, 6, 8}, {1, 9, 5, 1, 1}, {9, 9, 1, 1, 1, 5}};
const Rows kG7 = {{2},
                  {1, 2},
                  {6, 6, 9},
                  {6, 6, 4, 6},
                  {3, 1, 1, 9, 9},
                  {6, 1, 1, 1, 6, 4},
                  {1, 2, 6, 3, 3, 1, 1},
                  {9, 6, 1, 3, 6, 2, 3, 6},
                  {4, 1, 6, 1, 1, 4, 9, 4, 4},
                  {1, 4, 3, 9, 3, 4, 1, 4, 1, 4},
                  {6, 1, 1, 1, 3, 2, 3, 2, 4, 1, 6},
                  {4, 4, 2, 9, 1, 1, 4, 2, 9, 3, 2, 1},
                  {2, 4, 1, 3, 4, 1, 4, 1, 6, 3, 3, 9, 4}};

}  // namespace

TEST_CASE("h2o_cases: random cases in exact arithmetic", "[kernels][h2o]") {
  const json file = json::parse(read_text(data_path("h2o/h2o_cases.json")));
  for (const Place* place : every_place()) {
    CAPTURE(place->name);
    for (const bool feed : {false, true}) {
      if (feed && place->name.find("AVX") != std::string::npos && place != every_place().front()) continue;
      const std::size_t step = place->exact() || exhaustive() ? 1 : 3;  // a simulated GPU is slow
      const Count count = check_file(*place, file, feed, step);
      CHECK(count.cases == static_cast<int>(300 / step));
      CHECK(count.close == 0);
    }
  }
}

TEST_CASE("h2o_cases: the other rules in exact arithmetic", "[kernels][h2o]") {
  const json file = json::parse(read_text(data_path("h2o/rule_cases.json")));
  REQUIRE(file.size() == 180);
  for (const Place* place : every_place()) {
    int close = 0;
    for (const json& j : file) {
      CAPTURE(place->name, j.at("name").get<std::string>());
      H2oCase c;
      c.weights = j.at("weights").get<std::vector<Rows>>();
      c.prompt = j.at("prompt"), c.steps = j.at("steps"), c.keep = keep_of(j);
      const json& expect = j.at("expect");
      const std::vector<double> gap = gaps_of(expect);
      const H2oTrace got = rule_on(*place, c, rule_of(j));
      if (gap[0] >= kClearScore) check_scores(got.kept[0], expect.at("scores"));
      close += check_case(got, expect, gap);
    }
    CHECK(close == 20);
  }
}

TEST_CASE("h2o_cases: a file named by WEFT_H2O_CASES", "[kernels][h2o]") {
  const char* path = std::getenv("WEFT_H2O_CASES");
  if (!path) return;
  const json file = json::parse(read_text(path));
  for (const Place* place : every_place()) {
    const Count count = check_file(*place, file, false);
    std::cout << place->name << ": " << count.cases << " cases of " << path << ", " << count.close
              << " of them up to a choice closer than " << kClearScore << '\n';
    CHECK(count.cases == static_cast<int>(file.size()));
  }
}

TEST_CASE("h2o_cases: G1 to G4, what is kept and who leaves", "[kernels][h2o]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const H2oOptions options{.feed = GENERATE(false, true)};
  CAPTURE(place.name, options.feed);
  const Golden golden;

  const H2oTrace g1 = run(place, uniform(6), 6, 0, {2, 2}, options);
  check_scores(by_position(g1.prefill_scores), golden["G1"]["scores"]);
  CHECK(set_of(g1.kept[0]) == set_of(golden["G1"]["kept"]));

  const json &g2 = golden["G2 "], &g2b = golden["G2b"];
  const H2oTrace leaves = run(place, kG2, 4, 2, {1, 2}, options);
  check_scores(by_position(leaves.prefill_scores), g2["prefill"]);
  CHECK(set_of(leaves.kept[0]) == set_of(g2["kept"]));
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
    const json& step = g2[i == 0 ? "t4" : "t5"];
    CHECK(leaves.evicted[i] == step["evicted"].get<int>());
    check_scores(leaves.kept[i + 1], step["scores"]);
  }
  Rows other = kG2;
  other[4] = {5, 9, 1, 1, 1};
  const H2oTrace loses = run(place, other, 4, 1, {1, 2}, options);
  CHECK(loses.evicted[0] == g2b["t4"]["evicted"].get<int>());
  check_scores(loses.kept[1], g2b["t4"]["scores"]);

  const H2oTrace g3 = run(place, {{1}, {1, 1}, {2, 1, 5}, {1, 1, 1, 1}}, 4, 0, {2, 1}, {.feed = true});  // an exact tie
  check_scores(by_position(g3.prefill_scores), golden["G3"]["scores"]);
  CHECK(set_of(g3.kept[0]) == set_of(golden["G3"]["keep_newer"]));

  for (const int prompt : {3, 4, 5}) {
    const json& g4 = golden["G4 S=" + std::to_string(prompt)];
    const H2oTrace trace = run(place, uniform(8), prompt, 3, {2, 2}, options);
    CAPTURE(prompt);
    CHECK(set_of(trace.kept[0]) == set_of(g4["kept"]));
    for (std::size_t i = 0; i < 3; ++i) {
      const json& evicted = g4["evicted_next3"][i];
      CHECK(trace.evicted[i] == (evicted.is_null() ? -1 : evicted.get<int>()));
    }
    CHECK(set_of(trace.kept[3]) == set_of(g4["final"]));
  }
  const H2oTrace local = run(place, uniform(6), 5, 1, {0, 3}, options);
  CHECK(set_of(local.kept[0]) == set_of(golden["G4 H=0"]["kept"]));
  CHECK(set_of(local.kept[1]) == set_of(golden["G4 H=0"]["t5"]));
  for (const int recent : {0, 1}) {
    const json& g4 = golden["G4 R=" + std::to_string(recent)];
    const H2oTrace trace = run(place, uniform(6), 5, 1, recent == 0 ? Keep{3, 0} : Keep{2, 1}, options);
    CHECK(set_of(trace.kept[0]) == set_of(g4["kept"]));
    CHECK(trace.evicted[0] == g4["t5"]["evicted"].get<int>());
    check_scores(trace.kept[1], g4["t5"]["scores"]);
  }
}

TEST_CASE("h2o_cases: G5, the group's scores are summed", "[kernels][h2o]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const Golden golden;
  SlotsUnderTest block(place, 1, {2, 1, 4}, 5);
  const std::vector<Keep> keep{{3, 1}};
  block.prefill({std::vector<float>(32), normal(16, 1), normal(16, 2)}, {4}, keep, 1, 0, {0, 0, 0, 0});
  std::vector<std::map<int, float>> fed(2);
  for (int i = 0; i < 4; ++i) {
    fed[0][i] = golden["G5"]["A"][static_cast<std::size_t>(i)].get<float>();
    fed[1][i] = golden["G5"]["B"][static_cast<std::size_t>(i)].get<float>();
  }
  fed[0][4] = fed[1][4] = 9;  // the new token outlives the question
  const Tokens token{normal(8, 3), normal(4, 4), normal(4, 5)};
  block.step(token, {0}, {4}, keep, 1, fed);
  for (auto& p : fed)
    for (int i = 0; i <= 5; ++i) p[i] = 0;
  block.step(token, {0}, {5}, keep, 1, fed);
  Set kept;
  for (const auto& entry : block.kept(0, 0))
    if (entry.first < 4) kept.push_back(entry.first);
  CHECK(kept == set_of(golden["G5"]["sum_or_mean"]));
}

TEST_CASE("h2o_cases: G6, sequences of different lengths in one block", "[kernels][h2o]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const Golden golden;
  const json& g6 = golden["G6 ragged"];
  const auto traces = h2o_on(place, {{{uniform(9)}, 6, 3, {2, 2}}, {{uniform(6)}, 3, 3, {2, 2}}});
  const auto shifted = [](const std::map<int, double>& kept) {  // the golden file counts three pads
    std::map<int, double> moved;
    for (const auto& [position, score] : kept) moved[position + 3] = score;
    return moved;
  };
  CHECK(set_of(traces[0].kept[0]) == set_of(g6["seq0"]));
  CHECK(set_of(shifted(traces[1].kept[0])) == set_of(g6["seq1"]));
  check_scores(shifted(by_position(traces[1].prefill_scores)), g6["seq1_scores"]);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(set_of(traces[0].kept[i + 1]) == set_of(g6["steps_6_7_8"][i][0]));
    CHECK(set_of(shifted(traces[1].kept[i + 1])) == set_of(g6["steps_6_7_8"][i][1]));
  }
}

TEST_CASE("h2o_cases: G7, exact and FlexGen mode on one matrix", "[kernels][h2o]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const Golden golden;
  for (const int grace : {0, 1}) {
    const json& g7 = golden[std::string("G7 S=8 H=3 R=2 mode=") + (grace ? "flexgen" : "exact")];
    const H2oTrace trace = run(place, kG7, 8, 5, {3, 2, 0, grace});
    check_scores(by_position(trace.prefill_scores), g7["prefill"]);
    CHECK(set_of(trace.kept[0]) == set_of(g7["kept"]));
    for (std::size_t i = 0; i < 5; ++i) {
      CHECK(trace.evicted[i] == g7["trace"][i]["evicted"].get<int>());
      CHECK(set_of(trace.kept[i + 1]) == set_of(g7["trace"][i]["slots"]));
    }
  }
}

TEST_CASE("h2o_cases: G8 sinks, G10 the window scorer", "[kernels][h2o]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const Golden golden;
  const Rows rarely = {{1},
                       {1, 9},
                       {1, 9, 9},
                       {1, 30, 30, 30},
                       {1, 30, 30, 30, 30},
                       {1, 30, 30, 30, 30, 30},
                       {1, 30, 30, 30, 30, 30, 30}};
  for (const int sinks : {0, 1}) {
    const json& g8 = golden["G8 sinks=" + std::to_string(sinks)];
    const H2oTrace trace = run(place, rarely, 6, 1, {2, 2, sinks});
    check_scores(by_position(trace.prefill_scores), g8["scores"], 5e-5);  // printed with four digits
    CHECK(set_of(trace.kept[0]) == set_of(g8["kept"]));
    CHECK(set_of(trace.kept[1]) == set_of(g8["t6"]));
  }
  const Rows rows = {{1}, {1, 1}, {1, 1, 2}, {1, 1, 1, 5}, {1, 1, 1, 1, 4}, {1, 1, 1, 2, 1, 2}};
  const auto survivors = [&](const H2oOptions& options) {
    Set kept = set_of(run(place, rows, 6, 0, {2, 2}, options).kept[0]);
    kept.resize(2);
    return kept;
  };
  CHECK(survivors({}) == set_of(golden["G10"]["sum"]));
  CHECK(survivors({.window = 2}) == set_of(golden["G10"]["window_last2"]));  // three equal scores: the newest stays
  CHECK(survivors({.feed = true, .window = 2}) == set_of(golden["G10"]["window_last2"]));
}
