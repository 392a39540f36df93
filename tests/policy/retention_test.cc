// tests/policy/retention_test.cc: exact shares, what each rule keeps, and the written forms.
#include "policy/layout/retention.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "kernels/error.h"

using namespace weft;
using kernels::Keep;
using policy::Amount;
using policy::Retention;

namespace {

Retention rule_from(const char* json) { return Retention::from_json(nlohmann::json::parse(json), "policy"); }

}  // namespace

TEST_CASE("a share is floored exactly", "[policy]") {
  // In binary 0.29 is below 29/100, and 0.29 * 100 below 29.
  CHECK(Amount::from_text("0.29", "x").of(100) == 29);
  for (int percent = 0; percent <= 100; ++percent) {
    const std::string digits = std::to_string(100 + percent);
    const std::string text = percent == 100 ? "1.00" : "0." + digits.substr(1);
    CAPTURE(text);
    const Amount amount = Amount::from_text(text, "x");
    CHECK(amount.is_share());
    for (const std::int64_t total : {1, 7, 99, 100, 1000, 2048, 1'000'003})
      CHECK(amount.of(total) == percent * total / 100);
  }
  CHECK(Amount::from_text("0.333333333333333333333333333333", "x").of(300'000'000) == 99'999'999);
  CHECK(Amount::from_text("1.0", "x").of(17) == 17);
  CHECK(Amount::from_text("12", "x").of(5) == 12);
  CHECK_FALSE(Amount::from_text("1", "x").is_share());
}

TEST_CASE("an amount's text reads back", "[policy]") {
  for (const char* text : {"0", "12", "1073741824", "0.0", "0.1", "0.29", "0.05", "1.0", "0.125", "0.0001"}) {
    CHECK(Amount::from_text(text, "x").text() == text);
  }
  for (const char* text : {"", ".", "1.", ".5", "1.5", "-1", "+1", "1e3", "0x1", "1..0", "a", " 1", "2000000000"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(Amount::from_text(text, "x"), UsageError);
  }
}

TEST_CASE("what each rule keeps, and the slots it needs", "[policy]") {
  struct Row {
    const char* text;
    Keep kept;
    std::int64_t slots;
  };
  // Prompt 60, generation 40.
  const Row rows[] = {
      {"full", {.heavy = 0, .recent = 100}, 99},
      {"recent:20", {.heavy = 0, .recent = 20}, 21},
      {"recent:0.29", {.heavy = 0, .recent = 29}, 30},
      {"heavy:0.1", {.heavy = 10, .recent = 0}, 11},
      {"h2o:0.1:0.1", {.heavy = 10, .recent = 10}, 21},
      {"h2o:7:0.29", {.heavy = 7, .recent = 29}, 37},
      {"h2o-flexgen:0.1:0.1", {.heavy = 10, .recent = 10, .sinks = 0, .grace = 1}, 21},
      {"random:5:6", {.heavy = 5, .recent = 6}, 12},
      {"tova:0.2", {.heavy = 20, .recent = 0}, 21},
      {"defensive:5:6:sinks=4", {.heavy = 5, .recent = 6, .sinks = 4}, 12},
      {"snapkv:0.1:0.1", {.heavy = 6, .recent = 6, .spare = 40}, 53},  // of the prompt; what comes after stays
      {"snapkv:0.1:0.1:of=prompt+generation", {.heavy = 10, .recent = 10, .spare = 40}, 61},
      {"snapkv:0.5:0.5", {.heavy = 30, .recent = 30, .spare = 40}, 99},
      {"h2o:5:6:window=8:pool=3:decay=0.5:once=false:statistic=largest", {.heavy = 5, .recent = 6}, 12},
      {"keydiff:0.1:0:sinks=4", {.heavy = 10, .recent = 0, .sinks = 4}, 11},
      {"keydiff:5:6:once=true", {.heavy = 5, .recent = 6, .spare = 40}, 52},
      {"h2o:5:6:once=true", {.heavy = 5, .recent = 6, .spare = 40}, 52},
      {"h2o:90:90", {.heavy = 90, .recent = 90}, 99},
      {"h2o:500:1.0", {.heavy = 100, .recent = 100}, 99},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    const Retention retention = Retention::from_text(row.text);
    CHECK(retention.kept(60, 40) == row.kept);
    CHECK(retention.slots(60, 40) == row.slots);
  }
  // A short sequence's shares floor to nothing; it keeps its newest token.
  CHECK(Retention::from_text("h2o:0.1:0.1").kept(5, 4) == Keep{.heavy = 0, .recent = 1});
  CHECK(Retention::from_text("h2o:0.1:0.1").slots(5, 4) == 2);
  // Prefill leaves one slot free for the token that follows, even where none does.
  CHECK(Retention{}.slots(1, 1) == 2);
  CHECK(Retention{}.slots(60, 1) == 61);
  CHECK(Retention{}.slots(60, 2) == 61);
}

TEST_CASE("a layer keeps its factor of the budget, exactly, or everything", "[policy]") {
  const Retention retention = Retention::from_text("h2o:0.1:0.2:sinks=4:layers=full,1.5,0.5,1");
  CHECK(retention.kept(60, 40, 0) == Keep{.heavy = 0, .recent = 100});
  CHECK(retention.kept(60, 40, 1) == Keep{.heavy = 15, .recent = 30, .sinks = 4});
  CHECK(retention.kept(60, 40, 2) == Keep{.heavy = 5, .recent = 10, .sinks = 4});
  CHECK(retention.kept(60, 40, 3) == Keep{.heavy = 10, .recent = 20, .sinks = 4});
  // The share is multiplied before it is floored: 1.5 * 0.1 * 45 is 6.75, and 1.5 * floor(4.5) would be 6 too, but of
  // 0.2 it is 13.5 against 1.5 * 9.
  CHECK(retention.kept(25, 20, 1) == Keep{.heavy = 6, .recent = 13, .sinks = 4});
  const policy::LayerSlots slots = retention.slots(60, 40);
  CHECK_FALSE(slots.alike());
  for (const auto& [layer, wanted] : {std::pair{0, 99}, {1, 46}, {2, 16}, {3, 31}}) CHECK(slots.of(layer) == wanted);
  CHECK(slots.most() == 99);
  // In binary 0.58 is below 58/100; 0.58 * 50 tokens are 29.
  const Retention tokens = Retention::from_text("h2o:50:7:layers=0.58,1.42");
  CHECK(tokens.kept(600, 400, 0) == Keep{.heavy = 29, .recent = 4});
  CHECK(tokens.kept(600, 400, 1) == Keep{.heavy = 71, .recent = 9});
  CHECK(Retention::from_text("recent:20:sinks=4:layers=0.5,1.5").kept(60, 40, 0) ==
        Keep{.heavy = 4, .recent = 10, .sinks = 4});
  CHECK(Retention::from_text("snapkv:0.1:0.1:layers=0.5,1.5").kept(60, 40, 1) ==
        Keep{.heavy = 9, .recent = 9, .spare = 40});
  CHECK(Retention::from_text("snapkv:0.1:0.1:layers=full,1").kept(60, 40, 0) == Keep{.heavy = 0, .recent = 100});
}

TEST_CASE("a model's sliding window holds whatever the rule", "[policy]") {
  const auto kept = [](const char* rule, std::int64_t prompt, int window) {
    return Retention::from_text(rule).kept(prompt, 40, 0, 0, window);
  };
  CHECK(kept("full", 60, 30) == Keep{.heavy = 0, .recent = 29});  // and the new token
  CHECK(kept("full", 60, 100) == Keep{.heavy = 0, .recent = 100});
  CHECK(kept("h2o:0.1:0.1", 60, 30) == Keep{.heavy = 10, .recent = 10, .window = 30});
  CHECK(kept("h2o:0.1:0.1", 60, 21) == Keep{.heavy = 0, .recent = 20});  // the window has no more
  CHECK(kept("h2o:0.1:0.1", 60, 100) == Keep{.heavy = 10, .recent = 10});
  CHECK(kept("snapkv:0.1:0.1", 60, 30) == Keep{.heavy = 6, .recent = 6, .spare = 40, .window = 30});
  const auto slots = [](const char* rule, const std::vector<int>& windows) {
    return Retention::from_text(rule).slots(60, 40, windows);
  };
  CHECK(slots("full", {}) == 99);
  CHECK_FALSE(slots("full", {30, 0}).alike());
  CHECK(slots("full", {30, 0}).of(0) == 30);
  CHECK(slots("full", {30, 0}).of(1) == 99);
  CHECK(slots("h2o:0.1:0.1", {30, 0}).of(0) == 21);
  CHECK(slots("snapkv:0.1:0.1", {30, 0}).of(0) == 30);
  CHECK(slots("snapkv:0.1:0.1", {30, 0}).of(1) == 53);
}

TEST_CASE("layers together keep no more than was asked for, and each of them less than a token less", "[policy]") {
  std::mt19937 random(8);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<int> factors(std::uniform_int_distribution<std::size_t>(2, 12)(random), 10'000);
    for (std::size_t i = 0; i + 1 < factors.size(); i += 2) {
      const int moved = std::uniform_int_distribution<int>(0, 9'999)(random);
      factors[i] -= moved, factors[i + 1] += moved;
    }
    std::string text = "h2o:0.13:0.09:layers=";
    for (const int factor : factors)
      text += (text.back() == '=' ? "" : ",") + std::to_string(factor / 10'000) + "." +
              std::to_string(10'000 + factor % 10'000).substr(1);
    CAPTURE(text);
    const Retention retention = Retention::from_text(text);
    const int prompt = std::uniform_int_distribution<int>(20, 900)(random);
    double heavy = 0, recent = 0;
    for (std::size_t layer = 0; layer < factors.size(); ++layer) {
      const Keep kept = retention.kept(prompt, 100, static_cast<int>(layer));
      heavy += kept.heavy, recent += kept.recent;
    }
    const auto layers = static_cast<double>(factors.size()), all = double(prompt + 100);
    CHECK(heavy <= 0.13 * all * layers + 1e-6);
    CHECK(heavy > 0.13 * all * layers - layers);
    CHECK(recent <= 0.09 * all * layers + layers);  // a layer that would keep nothing keeps its newest token
    CHECK(recent > 0.09 * all * layers - layers);
  }
}

TEST_CASE("of two sequences a layer has the slots of the one that needs more there", "[policy]") {
  const Retention retention = Retention::from_text("h2o:0.1:0.1:layers=full,1");
  policy::LayerSlots slots;
  slots.cover(retention.slots(60, 40));
  slots.cover(retention.slots(10, 150));
  CHECK(slots.of(0) == 159);
  CHECK(slots.of(1) == 33);
  policy::LayerSlots plain;
  plain.cover(Retention{}.slots(60, 40));
  CHECK(plain == 99);
}

TEST_CASE("layers' factors are read with their places, and refused by them", "[policy]") {
  using Catch::Matchers::Contains;
  const auto refused = [](const char* layers, const char* words) {
    CAPTURE(layers);
    CHECK_THROWS_WITH(
        rule_from((std::string(R"({"rule":"h2o","heavy":0.4,"recent":0.2,"layers":)") + layers + "}").c_str()),
        Contains(words));
  };
  refused("3", "layers must be a list with a factor or \"full\" for each layer, got 3");
  refused("[]", "layers must be a list");
  refused(R"([1.0, "ful"])",
          "layers[1] must be a factor from 0.0001 to 1000 with at most four decimals, or \"full\", or a list");
  refused("[1.0, 0]", "layers[1] must be a factor");
  refused("[1.0, -1]", "layers[1] must be a factor");
  refused("[1.0, 1.00001]", "layers[1] must be a factor");
  refused("[1e300, 1.0]", "layers[0] must be a factor");
  refused("[1.0, true]", "layers[1] must be a factor");
  refused("[1.5, 0.8]", "must be 1 on average over the layers and heads that are not full");
  refused(R"([1.5, "full"])", "they are 1.5");
  refused(R"(["full", "full"])", "take the rule 'full'");
  refused("[1.8, 0.2]", "layers[0]: 1.8 times the shares of 'heavy' and 'recent' is more than all tokens");
  CHECK_THROWS_WITH(rule_from(R"({"rule":"full","layers":[1.0]})"), Contains("layers"));
  CHECK_THROWS_WITH(Retention::from_text("h2o:4:4:sinks=3:layers=1.5,0.5"), Contains("layers[1]: 3 sinks do not fit"));
  CHECK_THROWS_WITH(Retention::from_text("h2o:4:4:layers=1,,1"), Contains("layers[1] must be a factor"));
  CHECK_NOTHROW(rule_from(R"({"rule":"h2o","heavy":0.4,"recent":0.2,"layers":[1.33,"full",0.67]})"));
  CHECK(Retention::from_text("h2o:0.4:0.2:layers=1.25,full,0.75") ==
        rule_from(R"({"rule":"h2o","heavy":0.4,"recent":0.2,"layers":[1.25,"full",0.75]})"));
  const Retention three = Retention::from_text("h2o:0.1:0.1:layers=full,1,1");
  CHECK_NOTHROW(three.require_layers(std::vector<int>(3, 2)));
  CHECK_THROWS_WITH(three.require_layers(std::vector<int>(4, 2)),
                    Contains("'layers' has 3 entries, and the model has 4 layers"));
  CHECK_NOTHROW(Retention::from_text("h2o:0.1:0.1").require_layers(std::vector<int>(4, 2)));
}

TEST_CASE("KV heads of a layer keep their own budgets, and lie together where these are alike", "[policy]") {
  const Retention retention = Retention::from_text("h2o:0.1:0.2:sinks=4:layers=1,0.5/0.5/1.5/1.5,full/1/full/1");
  CHECK(retention == rule_from(R"({"rule":"h2o","heavy":0.1,"recent":0.2,"sinks":4,
                             "layers":[1,[0.5,0.5,1.5,1.5],["full",1,"full",1]]})"));
  CHECK(retention == Retention::from_json(nlohmann::json(retention.to_json()), "test"));
  CHECK(retention.kept(60, 40, 0, 3) == Keep{.heavy = 10, .recent = 20, .sinks = 4});
  CHECK(retention.kept(60, 40, 1, 1) == Keep{.heavy = 5, .recent = 10, .sinks = 4});
  CHECK(retention.kept(60, 40, 1, 2) == Keep{.heavy = 15, .recent = 30, .sinks = 4});
  CHECK(retention.kept(60, 40, 2, 2) == Keep{.heavy = 0, .recent = 100});
  const auto runs = [&](int layer) {
    std::vector<std::pair<int, int>> all;
    for (const auto& [first, count] : retention.runs(layer, 4)) all.emplace_back(first, count);
    return all;
  };
  using Runs = std::vector<std::pair<int, int>>;
  CHECK(runs(0) == Runs{{0, 4}});
  CHECK(runs(1) == Runs{{0, 2}, {2, 2}});
  CHECK(runs(2) == Runs{{0, 1}, {1, 1}, {2, 1}, {3, 1}});
  CHECK(retention.everything(2, 0));
  CHECK_FALSE(retention.everything(2, 1));
  CHECK_FALSE(retention.everything(2));
  policy::LayerSlots slots = retention.slots(60, 40);
  CHECK(slots.of(0, 2) == 31);
  CHECK(slots.of(1, 0) == 16);
  CHECK(slots.of(1, 3) == 46);
  CHECK(slots.of(2, 2) == 99);
  CHECK(slots.most() == 99);
  slots.cover(retention.slots(100, 100));
  CHECK(slots.of(1, 0) == 31);
  CHECK(slots.of(2, 0) == 199);
  CHECK_NOTHROW(retention.require_layers(std::vector<int>(3, 4)));
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH(retention.require_layers(std::vector<int>(3, 2)),
                    Contains("layers[1] has 4 factors, and the model has 2 KV heads"));
  const auto refused = [](const char* layers, const char* words) {
    CAPTURE(layers);
    CHECK_THROWS_WITH(Retention::from_text(std::string("h2o:0.4:0.2:layers=") + layers), Contains(words));
  };
  refused("0.5/1.5,1/1/1", "layers[0] has 2 factors, and another layer has 3");
  refused("1,0.5/1.6", "must be 1 on average over the layers and heads that are not full");
  refused("1,0.5/0.5/1", "they are 0.833333");
  refused("1,0.2/1.8", "layers[1][1]: 1.8 times the shares of 'heavy' and 'recent' is more than all tokens");
  refused("full,full/full", "take the rule 'full'");
  refused("1,/1", "layers[1][0] must be a factor");
  refused("1,1/x", "layers[1][1] must be a factor");
  CHECK_THROWS_WITH(rule_from(R"({"rule":"h2o","heavy":0.4,"recent":0.2,"layers":[1,[]]})"),
                    Contains("layers[1] must be"));
  CHECK_THROWS_WITH(
      rule_from(R"({"rule":"h2o","heavy":0.4,"recent":0.2,"layers":[1,[[1],1]]})"),
      Contains("layers[1][0] must be a factor from 0.0001 to 1000 with at most four decimals, or \"full\"; "));
}

TEST_CASE("shares are of the prompt where the policy says so", "[policy]") {
  const Retention of_prompt = rule_from(R"({"rule":"h2o","heavy":0.1,"recent":0.2,"of":"prompt"})");
  CHECK(of_prompt.kept(60, 40) == Keep{.heavy = 6, .recent = 12});
  CHECK(rule_from(R"({"rule":"h2o","heavy":0.1,"recent":0.2})").kept(60, 40) == Keep{.heavy = 10, .recent = 20});
}

TEST_CASE("sinks are part of the heavy, and added to a recent window", "[policy]") {
  CHECK(rule_from(R"({"rule":"recent","recent":20,"sinks":4})").kept(60, 40) ==
        Keep{.heavy = 4, .recent = 20, .sinks = 4});
  CHECK(rule_from(R"({"rule":"h2o","heavy":10,"recent":10,"sinks":4})").kept(60, 40) ==
        Keep{.heavy = 10, .recent = 10, .sinks = 4});
  // A share may become fewer tokens than there are sinks.
  CHECK(rule_from(R"({"rule":"h2o","heavy":0.01,"recent":10,"sinks":4})").kept(60, 40) ==
        Keep{.heavy = 1, .recent = 10, .sinks = 1});
  CHECK_THROWS_AS(rule_from(R"({"rule":"h2o","heavy":3,"recent":10,"sinks":4})"), UsageError);
}

TEST_CASE("an integer in JSON is tokens, a number with a decimal point a share", "[policy]") {
  CHECK(rule_from(R"({"rule":"h2o","heavy":1,"recent":1.0})").kept(60, 40) == Keep{.heavy = 1, .recent = 100});
  CHECK(rule_from(R"({"rule":"heavy","heavy":0.29})").kept(50, 50) == Keep{.heavy = 29});
  CHECK(rule_from(R"({"rule":"heavy","heavy":1e-2})").kept(50, 50) == Keep{.heavy = 1});
}

TEST_CASE("a retention's JSON reads back as itself", "[policy]") {
  for (const char* text :
       {R"({"rule":"full"})",
        R"({"rule":"recent","recent":20,"sinks":4,"of":"prompt"})",
        R"({"rule":"heavy","heavy":0.29,"sinks":0,"of":"prompt+generation"})",
        R"({"rule":"h2o","heavy":0.1,"recent":12,"sinks":2,"of":"prompt"})",
        R"({"rule":"h2o","heavy":1.0,"recent":1,"sinks":0,"of":"prompt+generation","window":16,"decay":0.9})",
        R"({"rule":"h2o-flexgen","heavy":5,"recent":6,"sinks":0,"of":"prompt+generation"})",
        R"({"rule":"random","heavy":5,"recent":6,"sinks":0,"of":"prompt","seed":42})",
        R"({"rule":"recent","recent":6,"sinks":0,"of":"prompt","rest":true})",
        R"({"rule":"h2o","heavy":0.1,"recent":12,"sinks":0,"of":"prompt","layers":[0.5,"full",1.5,1.0],"window":16})",
        R"({"rule":"recent","recent":6,"sinks":0,"of":"prompt","rest":true,"layers":[0.0001,1.9999]})",
        R"({"rule":"recent","recent":6,"sinks":4,"of":"prompt","positions":"rolled"})",
        R"({"rule":"h2o","heavy":5,"recent":6,"sinks":0,"of":"prompt","positions":"rolled","window":16})",
        R"({"rule":"tova","heavy":5,"sinks":0,"of":"prompt","window":1,"decay":0.0})",
        R"({"rule":"h2o","heavy":5,"recent":6,"sinks":0,"of":"prompt","decay":0.5,"statistic":"largest"})",
        R"({"rule":"keydiff","heavy":5,"recent":6,"sinks":2,"of":"prompt"})",
        R"({"rule":"keydiff","heavy":5,"recent":6,"sinks":0,"of":"prompt","rest":true,"once":true})",
        R"({"rule":"h2o","heavy":0.1,"recent":12,"sinks":0,"of":"prompt","layers":[[0.5,"full",1.5],1.0]})",
        R"({"rule":"snapkv","heavy":5,"recent":6,"sinks":1,"of":"prompt","window":64,"pool":5,"once":true})",
        R"({"rule":"snapkv","heavy":5,"recent":6,"sinks":1,"of":"prompt","window":0,"pool":1,"once":false})",
        R"({"rule":"defensive","heavy":5,"recent":6,"sinks":0,"of":"prompt","window":32,"pool":5,"decay":1.0,)"
        R"("statistic":"sum"})"}) {
    CAPTURE(text);
    CHECK(rule_from(text).to_json() == nlohmann::ordered_json::parse(text));
    CHECK(rule_from(rule_from(text).to_json().dump().c_str()).to_json() == nlohmann::ordered_json::parse(text));
  }
}

TEST_CASE("the written form takes the parameters of the JSON form", "[policy]") {
  CHECK(
      Retention::from_text("h2o:0.1:12:window=16:sinks=2:of=prompt:decay=0.9:pool=3") ==
      rule_from(R"({"rule":"h2o","heavy":0.1,"recent":12,"sinks":2,"of":"prompt","window":16,"decay":0.9,"pool":3})"));
  CHECK(Retention::from_text("recent:20:sinks=4") == rule_from(R"({"rule":"recent","recent":20,"sinks":4})"));
  CHECK(Retention::from_text("random:2:3:seed=7") == rule_from(R"({"rule":"random","heavy":2,"recent":3,"seed":7})"));
  CHECK(Retention::from_text("defensive:2:3") == rule_from(R"({"rule":"defensive","heavy":2,"recent":3})"));
  CHECK(Retention::from_text("recent:20:positions=rolled") ==
        rule_from(R"({"rule":"recent","recent":20,"positions":"rolled"})"));
  CHECK(Retention::from_text("recent:20:positions=rolled").rolled());
  CHECK(Retention::from_text("recent:20:positions=absolute") == Retention::from_text("recent:20"));
  CHECK_FALSE(Retention::from_text("snapkv:2:3").keeps_scores());
  CHECK(Retention::from_text("tova:2").keeps_scores());
  CHECK(Retention::from_text("random:2:3").keeps_scores());
}

TEST_CASE("what a rule's steps keep besides scores, and whether the prompt's attention is needed", "[policy]") {
  struct Row {
    const char* text;
    bool scored, scores, key_sums;
  };
  for (const Row& row : {Row{"full", false, false, false},
                         {"recent:3", false, false, false},
                         {"h2o:2:3", true, true, false},
                         {"snapkv:2:3", true, false, false},
                         {"random:2:3", false, true, false},
                         {"keydiff:2:3", false, true, true},
                         {"keydiff:2:3:once=true", false, false, false}}) {
    CAPTURE(row.text);
    const Retention retention = Retention::from_text(row.text);
    CHECK(retention.scored() == row.scored);
    CHECK(retention.keeps_scores() == row.scores);
    CHECK(retention.keeps_key_sums(0, 0) == row.key_sums);
  }
}

TEST_CASE("bad retentions are refused with what was wanted", "[policy]") {
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH(Retention::from_text("h20:1:1"), Contains("did you mean 'h2o'?"));
  CHECK_THROWS_WITH(Retention::from_text("h2o:1"), Contains("h2o:HEAVY:RECENT"));
  CHECK_THROWS_WITH(Retention::from_text("full:1"), Contains("'full'"));
  CHECK_THROWS_WITH(Retention::from_text("recent"), Contains("recent:N"));
  CHECK_THROWS_WITH(Retention::from_text("recent:0"), Contains("needs 'recent'"));
  CHECK_THROWS_WITH(Retention::from_text("heavy:0"), Contains("needs 'heavy'"));
  CHECK_THROWS_WITH(Retention::from_text("h2o:0.1:"), Contains("recent must be"));
  CHECK_THROWS_WITH(Retention::from_text("h2o:0.9:0.2"), Contains("more than 1 together"));
  CHECK_NOTHROW(Retention::from_text("h2o:0.9:0.1"));
  CHECK_THROWS_WITH(rule_from(R"({"rule":"h2o","heavy":1e308,"recent":1})"), Contains("a share from 0 to 1"));
  CHECK_THROWS_WITH(rule_from(R"({"rule":"h2o","heavy":-0.5,"recent":1})"), Contains("a share from 0 to 1"));
  CHECK(rule_from(R"({"rule":"h2o","heavy":1e-80,"recent":1})").heavy.of(1 << 20) == 0);
  CHECK_THROWS_AS(Retention::from_text(""), UsageError);
  CHECK_THROWS_WITH(Retention::from_text("h2o:1:1:windows=3"), Contains("did you mean 'window'?"));
  CHECK_THROWS_WITH(Retention::from_text("h2o:1:1:pool=4"), Contains("'pool' must be odd"));
  CHECK_THROWS_WITH(Retention::from_text("h2o:1:1:pool=x"), Contains("pool"));
  CHECK_THROWS_WITH(Retention::from_text("h2o:1:1:sinks=1:sinks=1"), Contains("given twice"));
  CHECK_THROWS_WITH(Retention::from_text("recent:1:window=3"), Contains("window"));
  CHECK_THROWS_WITH(Retention::from_text("full:sinks=3"), Contains("sinks"));
  CHECK_THROWS_WITH(Retention::from_text("full:rest=true"), Contains("rest"));
  CHECK_THROWS_WITH(Retention::from_text("h2o:1:1:statistic=max"), Contains("'largest'"));
  CHECK_THROWS_WITH(Retention::from_text("h2o:1:1:once=1"), Contains("once"));
  CHECK_THROWS_WITH(Retention::from_text("snapkv:1:1:decay=0.5"), Contains("evict nothing"));
  CHECK_THROWS_WITH(Retention::from_text("h2o-flexgen:1:1:once=true"), Contains("once"));
  CHECK_THROWS_WITH(Retention::from_text("h2o:1:1:positions=relative"), Contains("'absolute' or 'rolled'"));
  CHECK_THROWS_WITH(Retention::from_text("full:positions=rolled"), Contains("'full' keeps everything"));
  CHECK_THROWS_WITH(Retention::from_text("snapkv:1:1:positions=rolled"), Contains("'once'"));
  CHECK_THROWS_WITH(Retention::from_text("h2o:1:1:rest=true:positions=rolled"), Contains("'rest'"));
  CHECK_THROWS_WITH(Retention::from_text("keydiff:1:1:positions=rolled"), Contains("'keydiff'"));
  for (const char* rule : {"keydiff:1:1", "random:1:1", "recent:1", "full"})
    for (const char* parameter : {"statistic=largest", "window=3", "pool=3", "decay=0.5"}) {
      const std::string text = std::string(rule) + ":" + parameter;
      CAPTURE(text);
      CHECK_THROWS_WITH(Retention::from_text(text),
                        Contains(std::string("'") + std::string(parameter).substr(0, 4)));  // by its name
    }
  for (const char* rule : {"mean:1:1", "scissorhands:1:1", "strided:1:1:stride=4", "fixed:1:1:stride=4"})
    CHECK_THROWS_WITH(Retention::from_text(rule),
                      Contains("unknown retention rule") && Contains("known: full, recent"));
  for (const char* parameter : {"weight=value", "heads=together", "stride=4", "summary=2"})
    CHECK_THROWS_WITH(Retention::from_text(std::string("h2o:1:1:") + parameter), Contains("unknown key"));
  for (const char* statistic : {"mean", "count"})
    CHECK_THROWS_WITH(Retention::from_text(std::string("h2o:1:1:statistic=") + statistic),
                      Contains("'statistic' must be 'sum' or 'largest'"));
  CHECK_THROWS_WITH(Retention::from_text("h2o:=1:1"), Contains("h2o:HEAVY:RECENT"));
  CHECK_THROWS_WITH(Retention::from_text("h2o:1:1:=1"), Contains("unknown"));
  for (const char* text :
       {R"({})", R"({"rule":"full","heavy":1})", R"({"rule":"recent","recent":4,"heavy":1})", R"({"rule":"recent"})",
        R"({"rule":"h2o","heavy":1,"recent":1,"of":"generation"})", R"({"rule":"h2o","heavy":"1","recent":1})",
        R"({"rule":"h2o","heavy":1.01,"recent":1})", R"({"rule":"h2o","heavy":1,"recent":1,"seed":1})",
        R"({"rule":"h2o","heavy":1,"recent":1,"decay":2})", R"({"rule":"h2o","heavy":18446744073709551615})"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(rule_from(text), UsageError);
  }
}
