// Request files: lines of any cut, what a line means, and that it is still what it was when its turn comes.
#include "runtime/requests/requests.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <random>

#include "kernels/error.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::test;
using Catch::Matchers::Contains;
using runtime::OnBadRequest;
using runtime::Refusal;
using runtime::Request;
using runtime::RequestFile;
using runtime::RequestKind;

namespace {

policy::ModelSpec small_model() {
  policy::ModelSpec model;
  model.vocab = 100;
  model.positions = 32;
  return model;
}

/// A request file in a folder of its own.
struct File {
  TemporaryFolder folder;
  policy::ModelSpec model = small_model();
  std::filesystem::path path = folder / "in.jsonl";

  explicit File(std::string_view text) { write_text(path, text); }
  RequestFile open(RequestKind kind = RequestKind::generate) const { return {path, kind, nullptr, model, 128}; }
  RequestFile open_rolled(const std::string& retention) const {
    return {runtime::InputFile(path),
            RequestKind::generate,
            nullptr,
            model,
            128,
            {},
            OnBadRequest::fail,
            nullptr,
            {policy::Retention::from_text(retention)}};
  }
  RequestFile record() const { return {path, RequestKind::generate, nullptr, model, 128, {}, OnBadRequest::record}; }
};

const std::string kGood = R"({"id":"good","prompt_ids":[3,4],"max_tokens":4})";
const std::string kLast = R"({"id":"last","prompt_ids":[3],"max_tokens":1})";

struct Bad {
  std::string line, code, words;
};

/// Lines that are no request, each with the code and some words of what is said.
std::vector<Bad> bad_lines() {
  std::string many = "1";
  for (int i = 1; i < 32; ++i) many += ",1";
  const auto with = [](const std::string& rest) { return R"({"id":"x","prompt_ids":[3],)" + rest + "}"; };
  std::vector<Bad> bad{
      {R"({"id":"x","prompt_i)", "invalid_json_line", "byte 19: not valid JSON"},
      {kGood + " " + kLast, "invalid_json_line", "not valid JSON"},
      {R"({"id":"x",)", "invalid_json_line", "not valid JSON"},
      {R"([{"id":"x","prompt_ids":[3]}])", "invalid_value", "must be an object, got an array of 1"},
      {R"("text")", "invalid_value", "must be an object, got the string"},
      {"7", "invalid_value", "must be an object, got 7"},
      {"null", "invalid_value", "must be an object, got null"},
      {with(R"("max_tokens":1,)"), "invalid_json_line", "not valid JSON"},
      {"{'id':'x'}", "invalid_json_line", "not valid JSON"},
      {with(R"("temperature":NaN)"), "invalid_json_line", "not valid JSON"},
      {"{\"id\":\"\xC3\x28\",\"prompt_ids\":[3]}", "invalid_json_line", "UTF-8"},
      {R"({"id":"\ud83d","prompt_ids":[3]})", "invalid_json_line", "not valid JSON"},
      {std::string("{\"id\":\"a\0b\",\"prompt_ids\":[3]}", 29), "invalid_json_line", "NUL byte"},
      {"{\"id\":\"a\tb\",\"prompt_ids\":[3]}", "invalid_json_line", "not valid JSON"},
      {std::string(100'000, '['), "invalid_json_line", "nested deeper than 32 levels"},
      {R"({"id":"x","id":"y","prompt_ids":[3]})", "invalid_json_line", "twice"},
      {R"({"id":"good","prompt_ids":[3]})", "duplicate_custom_id",
       R"(id "good" is also that of line 1; ids must be unique)"},
      {R"({"id":"go\u006fd","prompt_ids":[3]})", "duplicate_custom_id", "also that of line 1"},
      {R"({"id":null,"prompt_ids":[3]})", "missing_required_parameter", "'id' is missing, and other lines have one"},
      {R"({"id":"","prompt_ids":[3]})", "invalid_value", "'id' must be an integer or a string of 1 to 512 bytes"},
      {R"({"id":"a\nb","prompt_ids":[3]})", "invalid_value", "'id' must be an integer or a string of 1 to 512 bytes"},
      {R"({"id":")" + std::string(600, 'x') + R"(","prompt_ids":[3]})", "invalid_value", "'id' must be"},
      {R"({"id":1.5,"prompt_ids":[3]})", "invalid_value", "'id' must be"},
      {R"({"prompt_ids":[3]})", "missing_required_parameter", "'id' is missing, and other lines have one"},
      {R"({"id":"x"})", "missing_required_parameter", "either 'prompt' or 'prompt_ids', found neither"},
      {R"({"id":"x","prompt":"a","prompt_ids":[3]})", "invalid_value", "found both"},
      {R"({"id":"x","prompt_ids":[]})", "invalid_value", "'prompt_ids' must be a non-empty list"},
      {R"({"id":"x","prompt_ids":[)" + many + "]}", "context_length_exceeded", "the prompt has 32 tokens; the model's"},
      {R"({"id":"x","prompt_ids":[1,1,1],"max_tokens":30})", "context_length_exceeded",
       "3 tokens and 30 are to follow"},
      {with(R"("temperature":1e400)"), "invalid_json_line", "a number is too large"},
      {with(R"("n":2)"), "invalid_value", "'n' must be 1 when using greedy sampling"},
      {with(R"("max_token":5)"), "unsupported_parameter", "unknown key 'max_token'; did you mean 'max_tokens'?"},
      {with(R"("reference":"x")"), "unsupported_parameter", "what the answer is to carry goes into 'metadata'"},
      {with(R"("seed":18446744073709551616)"), "invalid_json_line", "does not fit 64 bits"},
      {R"({"custom_id":"x","method":"POST","url":"/v1/completions","body":{}})", "missing_required_parameter",
       "'id' is missing"},
  };
  for (const char* ids : {"[-1]", "[100]", "[1.0]", "[\"3\"]", "[9223372036854775808]"})
    bad.push_back({R"({"id":"x","prompt_ids":)" + std::string(ids) + "}", "invalid_value", "token ids from 0 to 99"});
  for (const char* value : {"0", "-1", "0.0", "2.5", "1e30", "true", "\"5\"", "2147483648"})
    bad.push_back({with(R"("max_tokens":)" + std::string(value)), "invalid_value", "'max_tokens' must be an integer"});
  for (const char* value : {"-1", "\"0\"", "101"})
    bad.push_back({with(R"("temperature":)" + std::string(value)), "invalid_value", "'temperature' must be a number"});
  for (const char* value : {"0", "1.1", "-0.5"})
    bad.push_back({with(R"("top_p":)" + std::string(value)), "invalid_value", "'top_p' must be a number"});
  for (const char* value : {"-1", "9223372036854775808", "1.5"})
    bad.push_back({with(R"("seed":)" + std::string(value)), "invalid_value", "'seed' must be an integer"});
  for (const char* value : {"\"\"", "[\"\"]", "[1]", "1"})
    bad.push_back({with(R"("stop":)" + std::string(value)), "invalid_value", "'stop' must be"});
  return bad;
}

struct Line {
  std::string text;
  std::uint64_t offset;
  std::size_t number;
  bool operator==(const Line&) const = default;
};

std::vector<Line> lines_of(const std::filesystem::path& path) {
  std::vector<Line> lines;
  runtime::for_each_line(runtime::InputFile(path),
                         [&](std::string_view text, std::uint64_t offset, std::size_t number) {
                           lines.push_back({std::string(text), offset, number});
                         });
  return lines;
}

}  // namespace

TEST_CASE("lines end in \\n, with or without \\r, the last with neither", "[runtime]") {
  const TemporaryFolder folder;
  write_text(folder / "f", "a\r\n\n\r\nb\rc\nlast\r");
  CHECK(lines_of(folder / "f") ==
        std::vector<Line>{{"a", 0, 1}, {"", 3, 2}, {"", 4, 3}, {"b\rc", 6, 4}, {"last\r", 10, 5}});
  write_text(folder / "f", "");
  CHECK(lines_of(folder / "f").empty());
  write_text(folder / "f", "\n");
  CHECK(lines_of(folder / "f") == std::vector<Line>{{"", 0, 1}});
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
  CHECK(lines_of(folder / "f") == expected);
}

TEST_CASE("a line over 16 MiB is refused before it fills the memory", "[runtime]") {
  const TemporaryFolder folder;
  write_text(folder / "f", "{}\n" + std::string(18 << 20, 'x'));
  CHECK_THROWS_WITH(lines_of(folder / "f"), Contains(":2:") && Contains("16 MiB"));
  write_text(folder / "f", "{}\n" + std::string(15 << 20, 'x'));
  CHECK(lines_of(folder / "f").size() == 2);
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
  CHECK(requests.entry(0).has_metadata);
  CHECK_FALSE(requests.entry(1).has_metadata);
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
           {R"("echo":true,"logprobs":0)", "weft score gives those of a text"}}) {
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

TEST_CASE("a folder without a tokenizer is one error of the job, whatever becomes of bad requests", "[runtime]") {
  const TemporaryFolder folder;
  const runtime::ModelTexts files(folder.path());
  const auto refused = [&](const std::string& line, const std::string& words) {
    const File file(line + "\n" + line + "\n");
    for (const OnBadRequest on_bad : {OnBadRequest::fail, OnBadRequest::record})
      CHECK_THROWS_WITH(RequestFile(file.path, RequestKind::generate, nullptr, file.model, 128,
                                    {.model_names = {}, .files = &files, .chat = {}}, on_bad),
                        Contains("in.jsonl:1: " + words) && !Contains("2 of 2"));
  };
  refused(R"({"prompt":"a"})", "'prompt' needs a tokenizer. " + folder.path().string() + ": has no tokenizer.json");
  refused(R"({"prompt_ids":[1],"stop":"x"})", "'stop' needs a tokenizer. ");
  write_text(folder / "tokenizer.model", "SentencePiece");
  refused(R"({"prompt":"a"})",
          "'prompt' needs a tokenizer. " + folder.path().string() + ": has only SentencePiece's tokenizer.model");
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

TEST_CASE("a bad line among good ones is refused for its reason", "[runtime]") {
  for (const Bad& bad : bad_lines()) {
    CAPTURE(bad.line.substr(0, 200));
    const File file(kGood + "\n\n" + bad.line + "\n" + kLast);
    CHECK_THROWS_AS(file.open(), UsageError);
    CHECK_THROWS_WITH(file.open(), Contains("in.jsonl:3: ") && Contains(bad.words) && !Contains("\n"));
    const RequestFile requests = file.record();
    REQUIRE(requests.size() == 3);
    CHECK(requests.refused(1));
    const Refusal refusal = requests.refusal(1);
    CHECK(refusal.code == bad.code);
    CHECK(refusal.line == 3);
    CHECK_THAT(refusal.reason, Contains(bad.words) && !Contains("in.jsonl"));
    CHECK((refusal.id == "null" || refusal.id == "\"x\""));
    CHECK(requests.read(0).id == "\"good\"");
    CHECK(requests.read(2).id == "\"last\"");
  }
}

TEST_CASE("all bad lines together are listed, the first twenty of them", "[runtime]") {
  std::string text = kGood + "\n";
  std::size_t count = 0;
  for (const Bad& bad : bad_lines()) text += bad.line + "\n", ++count;
  const File file(text + kLast);
  const RequestFile requests = file.record();
  REQUIRE(requests.size() == count + 2);
  CHECK_FALSE(requests.refused(0));
  CHECK_FALSE(requests.refused(count + 1));
  for (std::size_t i = 1; i <= count; ++i) CHECK(requests.refused(i));
  try {
    file.open();
    FAIL("a file with bad lines was accepted");
  } catch (const UsageError& error) {
    const std::string said = error.what();
    CHECK_THAT(said, Contains(std::to_string(count) + " of " + std::to_string(count + 2) + " requests are refused"));
    CHECK(std::count(said.begin(), said.end(), '\n') == 20);
    CHECK_THAT(said, Contains("in.jsonl:2: ") && Contains("in.jsonl:21: ") && !Contains("in.jsonl:22: "));
  }
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

TEST_CASE("files that are no JSONL are refused with what they are", "[runtime]") {
  struct Row {
    std::string text, words;
  };
  const std::vector<Row> rows{
      {"", "no requests"},
      {"\n  \r\n", "no requests"},
      {"[" + kGood + ",\n" + kLast + "]", "in.jsonl:1: this is JSON, not JSONL"},
      {"\xEF\xBB\xBF[\n" + kGood + "\n]", "in.jsonl:1: this is JSON, not JSONL"},
      {std::string("\xFF\xFE{\0}\0\n\0", 8), "in.jsonl:1: this is UTF-16"},
      {std::string("\xFE\xFF\0{\0}", 6), "in.jsonl:1: this is UTF-16"},
      {"\x1F\x8B\x08 and so on\n", "in.jsonl: is compressed; unpack it first"},
      {R"({"id":1,"messages":[]})", "'messages' needs a tokenizer"},
      {"{\"id\":1,\n\"prompt_ids\":[3]}\n", "2 of 2 requests are refused"},
      {"{}\n" + std::string(17 << 20, 'x'), "in.jsonl:2: the line is longer than 16 MiB"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.words);
    CHECK_THROWS_WITH(File(row.text).open(), Contains(row.words));
  }
}

TEST_CASE("what is kept of a request is small", "[runtime]") { CHECK(sizeof(RequestFile::Entry) <= 40); }
