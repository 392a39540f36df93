// A job in parts: who answers which request, and what becomes of the parts.
#include "runtime/results/merge.h"

#include <catch2/catch.hpp>
#include <filesystem>

#include "kernels/error.h"
#include "runtime/base/hash.h"
#include "runtime/requests/shard.h"
#include "runtime/results/run_record.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::test;
using Catch::Matchers::Contains;
using runtime::Shard;
namespace fs = std::filesystem;

namespace {

std::string answer(const std::string& id, const std::string& text = "x") {
  return R"({"id":)" + id + R"(,"text":")" + text + R"(","token_ids":[1]})" + "\n";
}

struct Merge {
  TemporaryFolder folder;
  fs::path input = folder / "in.jsonl", output = folder / "all.jsonl", one = folder / "1.jsonl",
           two = folder / "2.jsonl";
  std::atomic<bool> stop = false;

  Merge() {
    write_text(input,
               "\xef\xbb\xbf{\"id\":1,\"prompt\":\"a\"}\r\n"
               "\n"
               "{\"prompt\":\"a\",\"id\":\"1\"}\n"
               "{\"id\":\"\\u00e9\",\"prompt\":\"a\"}\n"
               "{\"id\":4,\"prompt\":\"a\"}");
  }
  std::size_t merge(const std::string& first, const std::string& second) {
    write_text(one, first);
    write_text(two, second);
    return runtime::merge(input, {one, two}, output, stop);
  }
  /// Neither the output nor any other file was written.
  bool wrote_nothing() const {
    return std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 3;
  }
};

}  // namespace

TEST_CASE("a mark at the beginning of a shard stays there", "[runtime]") {
  Merge job;
  REQUIRE(job.merge(answer(R"("1")") + answer("4"), "\xef\xbb\xbf" + answer("1") + answer(R"("\u00e9")")) == 4);
  CHECK(read_text(job.output).find("\xef\xbb\xbf") == std::string::npos);
  CHECK(read_text(job.output).starts_with(answer("1")));
}

TEST_CASE("shards of requests that have changed since are refused", "[runtime]") {
  Merge job;
  const auto describe = [&](std::uint64_t fingerprint) {
    runtime::RunRecord record;
    record.set("requests", runtime::describe_requests(4, fingerprint));
    write_text(job.two, "");
    for (const fs::path& part : {job.one, job.two}) record.write(part);
  };
  std::uint64_t fingerprint = 0;
  for (const std::string line :
       {"\xef\xbb\xbf"
        R"({"id":1,"prompt":"a"})",
        R"({"prompt":"a","id":"1"})", R"({"id":"\u00e9","prompt":"a"})", R"({"id":4,"prompt":"a"})"})
    fingerprint = runtime::mix(fingerprint ^ runtime::hash(line));
  const auto merge = [&] { return job.merge(answer("1") + answer("4"), answer(R"("1")") + answer(R"("\u00e9")")); };
  describe(fingerprint + 1);
  CHECK_THROWS_WITH(merge(), Contains("1.jsonl: answers other requests") && Contains("which may have changed since"));
  describe(fingerprint);
  CHECK(merge() == 4);
}

TEST_CASE("every request is in one shard", "[runtime]") {
  for (std::size_t requests = 0; requests < 12; ++requests)
    for (std::size_t count = 1; count < 15; ++count) {
      std::vector<int> owners(requests, 0);
      for (std::size_t number = 1; number <= count; ++number) {
        const Shard shard = Shard::from_text(std::to_string(number) + "/" + std::to_string(count));
        CHECK(shard.text() == std::to_string(number) + "/" + std::to_string(count));
        std::size_t mine = 0;
        for (std::size_t i = 0; i < requests; ++i)
          if (shard.has(i)) ++owners[i], ++mine;
        REQUIRE(mine == shard.size(requests));
      }
      REQUIRE(owners == std::vector<int>(requests, 1));
    }
  CHECK(Shard().size(7) == 7);
  CHECK(Shard::from_text("2/3").has(1));
  CHECK_FALSE(Shard::from_text("2/3").has(2));
}

TEST_CASE("what is no shard is refused in one line", "[runtime]") {
  for (const std::string text : {"",
                                 "1",
                                 "/",
                                 "1/",
                                 "/2",
                                 "0/2",
                                 "3/2",
                                 "-1/2",
                                 "+1/2",
                                 " 1/2",
                                 "1/2 ",
                                 "1 /2",
                                 "1/2/3",
                                 "1/0",
                                 "0/0",
                                 "1.0/2",
                                 "0x1/2",
                                 "1/1000001",
                                 "1/99999999999999999999",
                                 "1-2",
                                 "a/b"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(Shard::from_text(text), UsageError);
    CHECK_THROWS_WITH(Shard::from_text(text), Contains("K/N") && Contains("got '" + text + "'"));
  }
}

TEST_CASE("merge brings the shards' answers into the order of the requests, byte for byte", "[runtime]") {
  Merge job;
  const std::string accent = "{\"token_ids\":[], \"id\":\"\xc3\xa9\"}\n", score = "{\"id\":4,\"logprobs\":[-1]}\n";
  CHECK(job.merge(accent + answer("1", "\\n"), score + answer("\"1\"", std::string(18 << 20, 'y'))) == 4);
  CHECK(read_text(job.output) == answer("1", "\\n") + answer("\"1\"", std::string(18 << 20, 'y')) + accent + score);
  CHECK(job.merge(accent + answer("1") + score + answer("\"1\""), "") == 4);  // a shard may have no requests
  CHECK(read_text(job.output) == answer("1") + answer("\"1\"") + accent + score);
}

TEST_CASE("merge knows requests by OpenAI's custom_id", "[runtime]") {
  Merge job;
  write_text(job.input, "{\"custom_id\":\"a\",\"body\":{}}\n{\"custom_id\":\"b\",\"body\":{}}\n");
  const std::string a = "{\"id\":\"x\",\"custom_id\":\"a\",\"response\":{},\"error\":null}\n",
                    b = "{\"id\":\"x\",\"custom_id\":\"b\",\"response\":{},\"error\":null}\n";
  CHECK(job.merge(b, a) == 2);
  CHECK(read_text(job.output) == a + b);
}

TEST_CASE("merge refuses what is not all answers once", "[runtime]") {
  Merge job;
  const std::string all = answer("1") + answer("\"1\"") + answer("\"\\u00e9\"");
  struct Row {
    std::string two;
    std::vector<std::string> words;
  };
  const std::vector<Row> rows{
      {"", {"in.jsonl: 1 of 4 requests are not answered: 4 of line 5; "}},
      {R"({"id":4,"token_)", {"2.jsonl:1: is cut short", "--resume"}},
      {R"({"id":4,"token_ids":[1]})", {"2.jsonl:1: is cut short"}},
      {answer("4") + answer("4"), {"2.jsonl:2: answers 4 a second time, after ", "2.jsonl:1;"}},
      {answer("4") + answer("1"), {"2.jsonl:2: answers 1 a second time, after ", "1.jsonl:1;"}},
      {answer("\"4\""), {R"(2.jsonl:1: answers "4", which is not in )", "in.jsonl"}},
      {"{\"id\":4,\"prompt\":\"a\"}\n", {"2.jsonl:1: not a result of weft"}},
      {"{\"id\":4.0,\"token_ids\":[]}\n", {"2.jsonl:1: answers 4.0, which is not in "}},
      {"{\"token_ids\":[]}\n", {"2.jsonl:1: not a result of weft"}},
      {"{\"id\":null,\"line\":99,\"error\":{}}\n", {"2.jsonl:1: answers null, which is not in "}},
      {"[4]\n", {"2.jsonl:1: ", "object"}},
      {answer("4") + "\n", {"2.jsonl:2: ", "empty"}},
      {answer("4") + "notes\n", {"2.jsonl:2: ", "not valid JSON"}},
      {"{\"id\":4,\"id\":4,\"token_ids\":[]}\n", {"2.jsonl:1: ", "twice"}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.two);
    CHECK_THROWS_AS(job.merge(all, row.two), UsageError);
    for (const std::string& words : row.words) CHECK_THROWS_WITH(job.merge(all, row.two), Contains(words));
    CHECK(job.wrote_nothing());
  }
}

TEST_CASE("merge names the first requests without an answer, and counts all", "[runtime]") {
  Merge job;
  std::string requests;
  for (int i = 0; i < 9; ++i) requests += "{\"id\":" + std::to_string(i) + "}\n";
  write_text(job.input, requests);
  CHECK_THROWS_WITH(
      job.merge(answer("4"), answer("0")),
      Contains("7 of 9 requests are not answered: 1 of line 2, 2 of line 3, 3 of line 4, 5 of line 6, 6 of "
               "line 7, ...; "));
}

TEST_CASE("merge takes requests that were refused, by their lines, and those whose place is their id", "[runtime]") {
  Merge job;
  write_text(job.input, "{\"id\":1}\nnonsense\n\n{\"id\":1}\n{\"prompt\":\"a\"}\n");
  const auto refused = [](int line) {
    return "{\"id\":null,\"line\":" + std::to_string(line) + ",\"error\":{\"code\":\"x\"}}\n";
  };
  CHECK(job.merge(refused(5) + refused(2), answer("1") + refused(4)) == 4);
  CHECK(read_text(job.output) == answer("1") + refused(2) + refused(4) + refused(5));
  CHECK_THROWS_WITH(job.merge(refused(5), answer("1") + refused(4)),
                    Contains("1 of 4 requests are not answered: null of line 2"));

  write_text(job.input, "{\"prompt\":\"a\"}\n{\"prompt\":\"b\"}\n");
  CHECK(job.merge(answer("\"1\""), answer("\"0\"")) == 2);
  CHECK(read_text(job.output) == answer("\"0\"") + answer("\"1\""));

  write_text(job.input, "{\"custom_id\":\"a\",\"body\":{}}\n{\"url\":1}\n");
  const std::string
      a = "{\"id\":\"x\",\"custom_id\":\"a\",\"response\":{},\"error\":null}\n",
      none = "{\"id\":\"x\",\"custom_id\":null,\"response\":{\"body\":{\"error\":{\"line\":2}}},\"error\":null}\n";
  CHECK(job.merge(none, a) == 2);
  CHECK(read_text(job.output) == a + none);
}

TEST_CASE("merge refuses requests that no run takes", "[runtime]") {
  Merge job;
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::string>>{
           {"", "no requests"},
           {"\n \n", "no requests"},
           {"{\"id\":1}\n{\"id\":1}\n", "1 of 2 requests are not answered: 1 of line 2"},
           {"{\"prompt\":\"a\"}\n", "answers 1, which is not in"},
           {"x\n", "answers 1, which is not in"},
       }) {
    CAPTURE(text);
    write_text(job.input, text);
    CHECK_THROWS_AS(job.merge(answer("1"), ""), UsageError);
    CHECK_THROWS_WITH(job.merge(answer("1"), ""), Contains(words));
    CHECK(job.wrote_nothing());
  }
}

TEST_CASE("a merge that is stopped writes nothing", "[runtime]") {
  Merge job;
  job.stop = true;
  CHECK(job.merge(answer("1"), "") == 0);
  CHECK(job.wrote_nothing());
}
