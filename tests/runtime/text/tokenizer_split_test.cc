// Pre-tokenizers of any sequence of splits (scripts/fixtures/make_split_fixtures.py), their regular expressions, and
// what tokenizer_config.json adds to a tokenizer.json.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>

#include "runtime/base/hash.h"
#include "runtime/text/tokenizer_regex.h"
#include "runtime/text/tokenizer_split.h"
#include "tests/support/tokenizer.h"

using namespace weft;
using namespace weft::test;
using Catch::Matchers::Contains;
using nlohmann::json;
using runtime::Regex;
using runtime::Tokenizer;

namespace {

/// FNV-1a of the ids of all strings, as the fixtures' script has it.
std::string hash_of(const Tokenizer& tokenizer, const std::vector<std::string>& strings) {
  std::string bytes;
  const auto add = [&bytes](std::uint32_t number) {
    for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(number >> shift & 255);
  };
  for (const std::string& text : strings) {
    for (const std::int32_t id : tokenizer.encode(text, true)) add(static_cast<std::uint32_t>(id));
    add(0xFFFFFFFF);
  }
  return runtime::to_hex(runtime::hash(bytes));
}

/// The strings of the fixtures: every twelfth of those with less than 2000 characters.
std::vector<std::string> some_strings() {
  std::vector<std::string> some;
  std::size_t number = 0;
  for (const std::string& each : fixture_strings()) {
    const auto characters = std::count_if(each.begin(), each.end(), [](char c) { return (c & 0xC0) != 0x80; });
    if (characters < 2000 && number++ % 12 == 0) some.push_back(each);
  }
  return some;
}

Tokenizer load(json file, const std::string& config = "") {
  const TemporaryFolder folder;
  write_text(folder / "tokenizer.json", file.dump());
  if (!config.empty()) write_text(folder / "tokenizer_config.json", config);
  return Tokenizer::load(folder.path());
}

json fixture(const std::string& name) {
  return json::parse(read_text(data_path("tokenizer/" + name + "/tokenizer.json")));
}

std::size_t match(const std::string& pattern, const std::string& text) {
  Regex::Scratch scratch;
  return Regex(pattern).match(text, 0, scratch);
}

}  // namespace

TEST_CASE("sequences of splits give the ids of Hugging Face's tokenizers", "[runtime]") {
  const json golden = json::parse(read_text(data_path("tokenizer/splits.json")));
  const std::vector<std::string> strings = some_strings();
  REQUIRE(strings.size() == golden.at("strings").get<std::size_t>());
  for (const auto& item : golden.at("cases").items()) {
    CAPTURE(item.key());
    json file = fixture(item.value().at("base").get<std::string>());
    file.update(item.value().at("parts"));
    const Tokenizer tokenizer = load(file);
    CHECK(hash_of(tokenizer, strings) == item.value().at("hash").get<std::string>());
    for (std::size_t i = 0; i < item.value().at("decoded").size(); ++i) {
      const std::string expected = item.value().at("decoded").at(i).get<std::string>();
      CHECK(tokenizer.decode(tokenizer.encode(strings[i], true)) == expected);
    }
  }
}

TEST_CASE("a regular expression matches what it says", "[runtime]") {
  constexpr auto none = std::string::npos;
  CHECK(match("ab|a", "abc") == 2);
  CHECK(match("a*?b", "aab") == 3);
  CHECK(match("a*+a", "aaa") == none);
  CHECK(match("a+$", "aaa") == 3);
  CHECK(match("a+$", "aa\na") == 2);
  CHECK(match("a+$", "aab") == none);
  CHECK(match("a$\\n", "a\n") == 2);
  CHECK(match("a{2,3}", "aaaa") == 3);
  CHECK(match("a{2,3}?", "aaaa") == 2);
  CHECK(match("a{2}", "a") == none);
  // After braces + repeats them and, if they have one number, ? makes them optional.
  CHECK(match("a{1,3}+", "aaaaa") == 5);
  CHECK(match("a{1,2}+b", "aaab") == 4);
  CHECK(match("a{2}+", "aaaaa") == 4);
  CHECK(match("a{2}?", "aaa") == 2);
  CHECK(match("a{2}?b", "b") == 1);
  CHECK(match("a{2,2}?b", "b") == none);
  CHECK(match("a{2,}", "aaaaa") == 5);
  CHECK(match("(?:a|ab)c", "abc") == 3);
  CHECK(match("(?>a|ab)c", "abc") == none);
  CHECK(match("a(?=b)", "ab") == 1);
  CHECK(match("a(?!b)", "ab") == none);
  CHECK(match("(?i:sK)", "\u017F\u212A") == 5);
  CHECK(match("(?i:\\x41)", "a") == 1);
  CHECK(match("\\d+", "1\u0663\u00B2") == 3);
  CHECK(match("[\\d.]+", "1.5a") == 3);
  CHECK(match("\\w+", "a_\u0301\u2160\u00BDb\u2474") == 10);
  CHECK(match("\\W\\D", " 1") == none);
  CHECK(match("a\\b", "a b") == 1);
  CHECK(match("a\\b", "ab") == none);
  CHECK(match("a\\B.", "ab") == 2);
  CHECK(match("a.(?<=b)", "ab") == 2);
  CHECK(match("a.(?<!b)", "ab") == none);
  CHECK(match("a.(?<![\\d\\s])", "a\u00E9") == 3);
  CHECK(match("^a\n^b", "a\nb") == 3);
  CHECK(match("a^b", "ab") == none);
  CHECK(match("a\n^", "a\n") == none);
  CHECK(match("[^\\s\\p{L}]+", "1!a") == 2);
  CHECK(match("[a-c\\-]+", "a-cd") == 3);
  CHECK(match("[\u4e00-\u9fa5]+", "\u6f22\u5b57a") == 6);
  CHECK(match("\\P{N}", "5") == none);
  CHECK(match("(a*)*b", std::string(100, 'a')) == none);
  CHECK(match("a*", "b") == 0);
  CHECK(match("(?=b)", "b") == 0);
}

TEST_CASE("punctuation is what Hugging Face's component takes for it", "[runtime]") {
  Regex::Scratch scratch;
  const auto pieces = [&](const std::string& text) {
    const runtime::SplitStep step{.kind = runtime::SplitStep::Kind::punctuation, .cut = runtime::Cut::removed};
    return runtime::split_by({step}, text, runtime::Start::text, scratch).size();
  };
  for (const char* parts : {"a!b", "a$b", "a\u00A7b", "a\u3002b", "a\u166Db", "a\U000111C9b"})
    CHECK(pieces(parts) == 2);
  for (const char* joins : {"a1b", "a\u061Db", "a\u1B7Eb", "a\u2E4Fb", "a\U0001E95Fb"}) CHECK(pieces(joins) == 1);
}

TEST_CASE("no regular expression takes long", "[runtime]") {
  const auto begin = std::chrono::steady_clock::now();
  const std::string text(20'000, 'a');
  for (const char* pattern : {"(a+)+b", "(a|a)*b", "(a*)*b", "(a|aa)+b", "(.*)*(.*)*(.*)*b", "(?:a?){30}a{30}b"})
    CHECK(match(pattern, text) == std::string::npos);
  // A search does not try again what led to nothing from an earlier place.
  const std::string spaces = std::string(200'000, ' ') + "x";
  for (const char* pattern : {"\\s+$", "\\s+(?=y)", "(?:\\s|\\p{L}\\s)+y"}) {
    const Regex regex(pattern);
    const runtime::SplitStep step{.kind = runtime::SplitStep::Kind::pattern, .regex = std::make_shared<Regex>(regex)};
    Regex::Scratch scratch;
    CHECK(runtime::split_by({step}, spaces, runtime::Start::text, scratch).size() == 1);
  }
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
  for (const char* bad : {"(", ")", "[", "a{1", "a{2000}", "a**", "\\1", "\\A", "(?<n>a)", "(?<=ab)b", "[\\W]",
                          "[[:alpha:]]", "[b-a]", "\\p{Greek}", "\\x"})
    CHECK_THROWS_WITH(Regex(bad), Contains("the pattern "));
  CHECK_THROWS_AS(Regex("(((a{100}){100}){100})"), UsageError);
  CHECK_THROWS_AS(Regex(std::string(100'000, '(')), UsageError);
}

TEST_CASE("tokens of tokenizer_config.json are added to those of tokenizer.json", "[runtime]") {
  json file = fixture("qwen2");
  const auto next = static_cast<std::int32_t>(load(file).size());
  const json token{{"content", "<new>"}, {"special", true}};
  const Tokenizer with = load(file, json{{"added_tokens_decoder", {{std::to_string(next), token}}}}.dump());
  CHECK(with.encode("a<new>b", true)[1] == next);
  CHECK(with.special_token("<new>") == next);
  CHECK(with.decode(with.encode("a<new>b", true)) == "ab");
  CHECK(load(file).encode("a<new>b", true).size() > 3);
  CHECK_THROWS_WITH(load(file, json{{"added_tokens_decoder", {{std::to_string(next + 1), token}}}}.dump()),
                    Contains("the token has id " + std::to_string(next + 1)));
  CHECK_THROWS_WITH(load(file, R"({"added_tokens_decoder":{"x":"y"}})"), Contains("a key must be a token id"));
  // A token of the vocabulary becomes a special one if it has a role.
  CHECK(load(file, R"({"eos_token":"a"})").special_token("a").has_value());
  CHECK_FALSE(load(file, R"({"eos_token":"not in it"})").special_token("not in it").has_value());
  // So does one of further special tokens, listed or named, or one that has a role of its own.
  for (const char* config : {R"({"additional_special_tokens":["a"]})", R"({"extra_special_tokens":[{"content":"a"}]})",
                             R"({"extra_special_tokens":{"image_token":"a"}})", R"({"image_token":"a"})"}) {
    CAPTURE(config);
    CHECK(load(file, config).special_token("a").has_value());
  }
  CHECK_FALSE(load(file, R"({"image_token":null,"extra_special_tokens":["not in it", null, ""]})")
                  .special_token("a")
                  .has_value());
  CHECK_THROWS_WITH(load(file, R"({"extra_special_tokens":"a"})"), Contains("must be a list of tokens"));
  CHECK_THROWS_WITH(load(file, R"({"split_special_tokens":true})"), Contains("'split_special_tokens' is true"));
  // GPT-2's add_prefix_space is that of tokenizer_config.json.
  const json neox = fixture("neox");
  CHECK(load(neox, R"({"add_prefix_space":true})").encode("It", true) == load(neox).encode(" It", true));
}

TEST_CASE("a vocabulary may lack bytes, which are left out then", "[runtime]") {
  json file = fixture("neox");
  json& vocabulary = file["model"]["vocab"];
  json kept = json::array();
  for (const json& merge : file["model"]["merges"])
    if (merge.dump().find('`') == std::string::npos) kept.push_back(merge);
  file["model"]["merges"] = kept;
  vocabulary.erase("`");
  const Tokenizer tokenizer = load(file);
  CHECK(tokenizer.decode(tokenizer.encode("a`b", false)) == "ab");
}

TEST_CASE("tokens that take white space leave it to tokens of white space", "[runtime]") {
  json file = fixture("qwen2");
  const auto next = static_cast<std::int32_t>(load(file).size());
  const auto token = [&](const char* text, std::int32_t id, bool left, bool right) {
    file["added_tokens"].push_back({{"id", id},
                                    {"content", text},
                                    {"single_word", false},
                                    {"lstrip", left},
                                    {"rstrip", right},
                                    {"normalized", false},
                                    {"special", false}});
  };
  token("<R>", next, false, true);
  token("\n", next + 1, false, false);
  token("<L>", next + 2, true, false);
  const Tokenizer tokenizer = load(file);
  CHECK(tokenizer.encode("<R>\n<L>", false) == Ids{next, next + 1, next + 2});
  CHECK(tokenizer.encode("<R> \n", false) == Ids{next, next + 1});
  CHECK(tokenizer.encode("<R>  <L>", false) == Ids{next, next + 2});
  // White space that such tokens are made of takes time in proportion to it.
  file["added_tokens"].erase(file["added_tokens"].size() - 2);
  for (const bool left : {true, false}) {
    json with = file;
    with["added_tokens"].push_back({{"id", next + 1},
                                    {"content", "\n"},
                                    {"single_word", false},
                                    {"lstrip", left},
                                    {"rstrip", !left},
                                    {"normalized", false},
                                    {"special", false}});
    const auto begin = std::chrono::steady_clock::now();
    CHECK(load(with).encode(std::string(200'000, '\n'), false).size() == 200'000);
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
  }
}
