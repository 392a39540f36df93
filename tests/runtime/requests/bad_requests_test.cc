// Request files with lines that are no request, or that are no request files: each is refused for its reason.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "kernels/error.h"
#include "tests/support/request_file.h"

using namespace weft;
using namespace weft::test;
using Catch::Matchers::Contains;
using runtime::OnBadRequest;
using runtime::Refusal;
using runtime::RequestFile;
using runtime::RequestKind;

namespace {

struct BadLine {
  std::string line, code, words;
};

/// Lines that are no request, each with the code and some words of what is said.
std::vector<BadLine> bad_lines() {
  std::string many = "1";
  for (int i = 1; i < 32; ++i) many += ",1";
  const auto with = [](const std::string& rest) { return R"({"id":"x","prompt_ids":[3],)" + rest + "}"; };
  std::vector<BadLine> bad{
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

}  // namespace

TEST_CASE("a bad line among good ones is refused for its reason", "[runtime]") {
  for (const BadLine& bad : bad_lines()) {
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
  for (const BadLine& bad : bad_lines()) text += bad.line + "\n", ++count;
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
