// Request files: lines of any cut, what a line means, and that it is still what it was when its turn comes.
#include "runtime/requests/requests.h"

#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "kernels/error.h"
#include "tests/support/request_file.h"

using namespace weft;
using namespace weft::test;
using Catch::Matchers::Contains;
using runtime::Request;
using runtime::RequestFile;
using runtime::RequestKind;

namespace {

struct Line {
  std::string text;
  std::uint64_t offset;
  std::size_t number;
  bool operator==(const Line&) const = default;
};

std::vector<Line> split_lines(const std::filesystem::path& path) {
  std::vector<Line> lines;
  runtime::for_each_line(runtime::InputFile(path),
                         [&](std::string_view text, std::uint64_t offset, std::size_t number) {
                           lines.push_back({std::string(text), offset, number});
                         });
  return lines;
}

}  // namespace

TEST_CASE("lines end in LF, with or without CR, the last with neither", "[runtime]") {
  const TemporaryFolder folder;
  write_text(folder / "f", "a\r\n\n\r\nb\rc\nlast\r");
  CHECK(split_lines(folder / "f") ==
        std::vector<Line>{{"a", 0, 1}, {"", 3, 2}, {"", 4, 3}, {"b\rc", 6, 4}, {"last\r", 10, 5}});
  write_text(folder / "f", "");
  CHECK(split_lines(folder / "f").empty());
  write_text(folder / "f", "\n");
  CHECK(split_lines(folder / "f") == std::vector<Line>{{"", 0, 1}});
}

TEST_CASE("lines are whole wherever the file's reads are cut", "[runtime]") {
  // The file is read by the MiB; lines of many lengths put every kind of byte on a cut.
  std::mt19937 random(GENERATE(1u, 2u, 3u));
  std::string text;
  std::vector<Line> expected;
  while (text.size() < (5 << 20)) {
    const std::size_t length = random() % 3 == 0 ? random() % 300'000 : random() % 40;
    expected.push_back({std::string(length, static_cast<char>('a' + random() % 26)), text.size(), expected.size() + 1});
    text += expected.back().text + (random() % 2 == 0 ? "\r\n" : "\n");
    if (text.size() % (1 << 20) < 64) text += "\n", expected.push_back({"", text.size() - 1, expected.size() + 1});
  }
  const TemporaryFolder folder;
  write_text(folder / "f", text);
  CHECK(split_lines(folder / "f") == expected);
}

TEST_CASE("a line over 16 MiB is refused before it fills the memory", "[runtime]") {
  const TemporaryFolder folder;
  write_text(folder / "f", "{}\n" + std::string(18 << 20, 'x'));
  CHECK_THROWS_WITH(split_lines(folder / "f"), Contains(":2:") && Contains("16 MiB"));
  write_text(folder / "f", "{}\n" + std::string(15 << 20, 'x'));
  CHECK(split_lines(folder / "f").size() == 2);
}

TEST_CASE("a request is read as its line says", "[runtime]") {
  const File file(
      R"({"id":"a","prompt_ids":[1,2,3],"max_tokens":5,"temperature":0.5,"top_p":0.9,"top_k":7,"stop_token_ids":[4,5]})"
      "\n\n"
      R"({"prompt_ids":[9],"id":-7})");
  const RequestFile requests = file.open();
  REQUIRE(requests.size() == 2);
  const Request first = requests.read(0), second = requests.read(1);
  CHECK(first.id == "\"a\"");
  CHECK(first.prompt == std::vector<std::int32_t>{1, 2, 3});
  CHECK(first.max_tokens == 5);
  CHECK(first.sampling.temperature == 0.5f);
  CHECK(first.sampling.top_p == 0.9f);
  CHECK(first.sampling.top_k == 7);
  CHECK(first.stop_ids == std::vector<std::int32_t>{4, 5});
  CHECK(second.id == "-7");
  CHECK(second.max_tokens == 31);  // the default, as far as the context reaches
  CHECK(second.sampling.temperature == 0);
  CHECK(requests.entry(1).line == 3);
  CHECK(requests.entry(0).prompt_tokens == 3);
  CHECK(requests.find("\"a\"") == std::size_t{0});
  CHECK(requests.find("-7") == std::size_t{1});
  CHECK_FALSE(requests.find("\"-7\""));
  CHECK_FALSE(requests.find("\"b\""));
}

TEST_CASE("nulls and whole numbers as pandas writes them are what they stand for", "[runtime]") {
  const File file(
      R"({"id":7.0,"prompt":null,"prompt_ids":[3],"max_tokens":2.0,"temperature":null,"top_k":4e1,"stop":null})"
      "\n" +
      kLast);
  const RequestFile requests = file.open();
  const Request request = requests.read(0);
  CHECK(request.id == "7");
  CHECK(requests.find("7") == 0);
  CHECK(request.max_tokens == 2);
  CHECK(request.sampling.top_k == 40);
  CHECK(request.sampling.temperature == 0);
  CHECK(request.stop_strings.empty());
  const File without("{\"id\":null,\"prompt_ids\":[3]}\n{\"prompt_ids\":[4]}\n");
  CHECK(without.open().read(0).id == "\"0\"");
}

TEST_CASE("metadata goes with a request as it is", "[runtime]") {
  const std::string metadata = R"({"label":2.0,"none":null,"choices":[1,"x"]})";
  const File file(R"({"id":"a","prompt_ids":[3],"metadata":)" + metadata + "}\n" + kLast + "\n" +
                  R"({"id":"bad","prompt_ids":[],"metadata":"m"})");
  const RequestFile requests = file.record();
  CHECK(nlohmann::json::parse(requests.read(0).metadata) == nlohmann::json::parse(metadata));
  CHECK(requests.read(1).metadata.empty());
  CHECK(requests.refusal(2).metadata == "\"m\"");
  CHECK(requests.entry(0).holds_line);
  CHECK_FALSE(requests.entry(1).holds_line);
}

TEST_CASE("random numbers are keyed by seed and id", "[runtime]") {
  const File file(R"({"id":1,"prompt_ids":[1],"seed":5})"
                  "\n"
                  R"({"id":2,"prompt_ids":[1],"seed":5})"
                  "\n"
                  R"({"id":"1","prompt_ids":[1],"seed":5})"
                  "\n"
                  R"({"id":3,"prompt_ids":[1],"seed":6})");
  const File again(R"({"id":3,"seed":6,"prompt_ids":[2,3]})");
  const RequestFile requests = file.open();
  std::vector<std::uint64_t> keys;
  for (std::size_t i = 0; i < requests.size(); ++i) keys.push_back(requests.read(i).sampling.key);
  for (std::size_t i = 0; i < keys.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) CHECK(keys[i] != keys[j]);
  CHECK(again.open().read(0).sampling.key == keys[3]);
}

TEST_CASE("the fields n, min_tokens and logprobs are read and checked", "[runtime]") {
  const File file(
      R"({"id":1,"prompt_ids":[1],"max_tokens":9,"temperature":1,"n":128,"logprobs":20,"min_tokens":9,"ignore_eos":true})"
      "\n"
      R"({"id":2,"prompt_ids":[1],"logprobs":0,"echo":false})");
  const RequestFile requests = file.open();
  const Request first = requests.read(0), second = requests.read(1);
  CHECK(first.n == 128);
  CHECK(requests.entry(0).n == 128);
  CHECK(first.logprobs == 20);
  CHECK(first.min_tokens == 9);
  CHECK(first.ignore_eos);
  CHECK((second.n == 1 && second.logprobs == 0 && second.min_tokens == 0 && !second.ignore_eos && !second.echo));
  for (const auto& [fields, words] : std::vector<std::pair<std::string, std::string>>{
           {R"("n":0,"temperature":1)", "'n' must be an integer from 1 to 128, got"},
           {R"("n":129,"temperature":1)", "'n' must be an integer from 1 to 128, got"},
           {R"("n":2)", "'n' must be 1 when using greedy sampling"},
           {R"("logprobs":21)", "'logprobs' must be an integer from 0 to 20"},
           {R"("logprobs":-1)", "'logprobs' must be an integer from 0 to 20"},
           {R"("logprobs":true)", "'logprobs' must be an integer from 0 to 20"},
           {R"("min_tokens":6,"max_tokens":5)", "'min_tokens' must be an integer from 0 to 5"},
           {R"("ignore_eos":1)", "'ignore_eos' must be true or false"},
           {R"("echo":"yes")", "'echo' must be true or false"},
           {R"("echo":true)", "'echo' needs a tokenizer"},
           {R"("echo":true,"logprobs":0)", "only beside 'prompt_logprobs'"},
           {R"("prompt_logprobs":21)", "'prompt_logprobs' must be an integer from 0 to 20"},
           {R"("prompt_logprobs":1,"n":2,"temperature":1)", "'n' must be 1 with log-probabilities of the prompt"},
           {R"("prompt_logprobs":1,"max_tokens":0)", "one token has no log-probability"}}) {
    const File bad(R"({"id":1,"prompt_ids":[1],)" + fields + "}");
    CHECK_THROWS_WITH(bad.open(), Contains("in.jsonl:1: ") && Contains(words));
    CHECK_THROWS_AS(bad.open(), UsageError);
  }
  File all(R"({"id":1,"prompt_ids":[1],"min_tokens":1,"stop_token_ids":[0,1]})");
  all.model.vocab = 3;
  CHECK_NOTHROW(all.open());
  all.model.eos = {2};
  CHECK_THROWS_WITH(all.open(), Contains("leaves nothing to choose"));
}

TEST_CASE("a score request has a continuation in place of a length", "[runtime]") {
  const File beyond(R"({"id":"x","prompt_ids":[3],"continuation_ids":[100]})");
  CHECK_THROWS_WITH(beyond.open(RequestKind::score), Contains("'continuation_ids' must be a list of token ids"));
  const File file(R"({"id":1,"prompt_ids":[1],"continuation_ids":[4,5,6]})");
  const Request request = file.open(RequestKind::score).read(0);
  CHECK(request.continuation == std::vector<std::int32_t>{4, 5, 6});
  CHECK(request.max_tokens == 3);
  CHECK_THROWS_AS(file.open(RequestKind::generate), UsageError);
}

TEST_CASE("the context bounds prompt and answer together", "[runtime]") {
  const auto with = [](int prompt, int tokens) {
    std::string ids = "1";
    for (int i = 1; i < prompt; ++i) ids += ",1";
    return File(R"({"id":1,"prompt_ids":[)" + ids + R"(],"max_tokens":)" + std::to_string(tokens) + "}");
  };
  CHECK_NOTHROW(with(31, 1).open());
  CHECK_NOTHROW(with(1, 31).open());
  CHECK_THROWS_WITH(with(32, 1).open(), Contains("in.jsonl:1:") && Contains("32 tokens") && Contains("context is 32"));
  CHECK_THROWS_WITH(with(30, 3).open(), Contains("30 tokens") && Contains("3 are to follow"));
}

TEST_CASE("where positions are rolled the context bounds the prompt alone", "[runtime]") {
  const auto with = [](int prompt, const std::string& rest) {
    std::string ids = "1";
    for (int i = 1; i < prompt; ++i) ids += ",1";
    return File(R"({"id":1,"prompt_ids":[)" + ids + "]" + rest + "}");
  };
  const std::string tokens = "h2o:4:4:positions=rolled", shares = "h2o:0.25:0.25:positions=rolled";
  CHECK(with(31, "").open_rolled(tokens).read(0).max_tokens == 128);  // the default, which the context does not cut
  CHECK(with(3, R"(,"max_tokens":5000)").open_rolled(tokens).read(0).max_tokens == 5000);
  CHECK_THROWS_WITH(with(32, "").open_rolled(tokens), Contains("32 tokens") && Contains("context is 32"));
  CHECK_NOTHROW(with(3, R"(,"max_tokens":59)").open_rolled(shares));
  CHECK_THROWS_WITH(with(3, R"(,"max_tokens":61)").open_rolled(shares), Contains("61 are to follow") &&
                                                                            Contains("the retention keeps 32") &&
                                                                            Contains("a number of tokens"));
}

TEST_CASE("ids are unique among many", "[runtime]") {
  std::string text;
  for (int i = 0; i < 3000; ++i)
    text += R"({"id":)" + std::to_string(i) +
            R"(,"prompt_ids":[1]})"
            "\n";
  const RequestFile requests = File(text).open();
  for (const int i : {0, 1, 1234, 2999}) CHECK(requests.find(std::to_string(i)) == static_cast<std::size_t>(i));
  const File repeated(text + R"({"id":1234,"prompt_ids":[2]})");
  CHECK_THROWS_WITH(repeated.open(), Contains(":3001:") && Contains("1234") && Contains("line 1235"));
}

TEST_CASE("a line that changed meanwhile is refused", "[runtime]") {
  const File file(R"({"id":1,"prompt_ids":[1,2],"max_tokens":5})"
                  "\n");
  const RequestFile requests = file.open();
  {
    std::fstream stream(file.path, std::ios::in | std::ios::out);
    stream << R"({"id":1,"prompt_ids":[1,2],"max_tokens":6})"
              "\n";
  }
  CHECK_THROWS_WITH(requests.read(0), Contains(":1:") && Contains("changed"));
}

TEST_CASE("a line that changed into another of the same length is refused", "[runtime]") {
  const File file(R"({"id":1,"prompt_ids":[1,2],"max_tokens":5})");
  const RequestFile requests = file.open();
  write_text(file.path, R"({"id":1,"prompt_ids":[1,3],"max_tokens":5})");
  CHECK_THROWS_WITH(requests.read(0), Contains(":1:") && Contains("changed"));
}

TEST_CASE("a file that was deleted meanwhile is still read", "[runtime]") {
  const File file(kGood);
  const RequestFile requests = file.open();
  std::filesystem::remove(file.path);
  CHECK(requests.read(0).prompt == std::vector<std::int32_t>{3, 4});
}

TEST_CASE("where no line has an id, its place is its id", "[runtime]") {
  const File file("{\"prompt_ids\":[1]}\n\n{\"prompt_ids\":[2]}\n");
  const RequestFile requests = file.open();
  CHECK(requests.read(0).id == "\"0\"");
  CHECK(requests.read(1).id == "\"2\"");
  CHECK(requests.find("\"2\"") == std::size_t{1});
  CHECK_FALSE(requests.find("\"1\""));
  CHECK(requests.find_line(3) == std::size_t{1});
  CHECK_FALSE(requests.find_line(2));
  CHECK_FALSE(requests.find_line(4));
}

TEST_CASE("a place is no id where lines have ids", "[runtime]") {
  const File file("{\"prompt_ids\":[1]}\n{\"id\":\"0\",\"prompt_ids\":[2]}\n{\"prompt_ids\":[3]}");
  CHECK_THROWS_WITH(file.open(), Contains("2 of 3 requests are refused") && Contains("in.jsonl:1: 'id' is missing"));
  const RequestFile requests = file.record();
  CHECK(requests.find("\"0\"") == std::size_t{1});
  CHECK(requests.refusal(2).id == "null");
}

TEST_CASE("what is kept of a request is small", "[runtime]") { CHECK(sizeof(RequestFile::Entry) <= 48); }

TEST_CASE("prompts that begin alike are found in one pass", "[requests]") {
  runtime::PrefixIndex index;
  const auto prompt = [](int beginning, std::size_t alike, std::size_t all) {
    std::vector<std::int32_t> ids(all);
    for (std::size_t i = 0; i < all; ++i) ids[i] = i < alike ? beginning + static_cast<std::int32_t>(i) : -1;
    return ids;
  };
  const auto first = index.add(0, prompt(5, 1000, 1000));
  CHECK(first.tokens == 0);
  CHECK(index.add(1, prompt(9, 70, 70)).leader != first.leader);
  const auto second = index.add(2, prompt(5, 900, 950));
  CHECK(second.leader == first.leader);
  CHECK(second.tokens == 900);
  CHECK(index.add(3, prompt(5, 63, 950)).tokens == 0);   // too few
  const auto apart = index.add(4, prompt(5, 100, 950));  // others may share more with this one
  CHECK(apart.leader != first.leader);
  CHECK(apart.tokens == 100);
  CHECK(index.add(5, prompt(5, 1000, 1000)).tokens == 999);  // the last token is a prompt's own
  CHECK(index.add(6, prompt(5, 64, 64)).leader == runtime::PrefixIndex::kNone);
  std::map<std::size_t, std::uint32_t> leaders;
  index.each_leader([&](std::size_t request, std::uint32_t tokens) { leaders[request] = tokens; });
  CHECK(leaders[0] == 999);
  CHECK(leaders[1] == 0);
}
