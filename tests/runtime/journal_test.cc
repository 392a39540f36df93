// The result file after a kill at every byte, and beside everything that is no result file.
#include "runtime/journal.h"

#include <catch2/catch.hpp>
#include <filesystem>

#include "kernels/error.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::test;
using Catch::Matchers::Contains;
using runtime::Journal;
using runtime::RequestFile;
using runtime::RequestKind;

namespace {

struct Job {
  TemporaryFolder folder;
  policy::ModelSpec model;
  std::filesystem::path input = folder / "in.jsonl", output = folder / "out.jsonl";

  Job() {
    model.vocab = 10;
    model.positions = 8;
    write_text(input, R"({"id":1,"prompt_ids":[1]})"
                      "\n"
                      R"({"id":"é","prompt_ids":[1]})"
                      "\n"
                      R"({"id":"1","prompt_ids":[1]})"
                      "\n");
  }
  RequestFile requests(RequestKind kind = RequestKind::generate) const { return {input, kind, nullptr, model, 4}; }
  std::vector<bool> recover() const {
    Journal journal(output, true);
    return journal.recover(requests());
  }
};

const std::vector<std::string> kAnswers{R"({"id":"é","text":null,"token_ids":[1],"finish_reason":"length"})",
                                        R"({"id":1,"text":"a\n","token_ids":[],"finish_reason":"stop"})",
                                        R"({"id":"1","text":"\"id\":","token_ids":[2,3],"finish_reason":"length"})"};
const std::vector<std::size_t> kRequestOf{1, 0, 2};

}  // namespace

TEST_CASE("a run killed at any byte loses and repeats nothing", "[runtime]") {
  const Job job;
  const RequestFile requests = job.requests();
  const std::string whole = kAnswers[0] + "\n" + kAnswers[1] + "\n" + kAnswers[2] + "\n";
  for (std::size_t cut = 0; cut <= whole.size(); ++cut) {
    CAPTURE(cut);
    write_text(job.output, whole.substr(0, cut));
    {
      Journal journal(job.output, true);
      const std::vector<bool> done = journal.recover(requests);
      const auto newline = whole.substr(0, cut).rfind('\n');
      const std::size_t kept = newline == std::string::npos ? 0 : newline + 1;
      REQUIRE(journal.torn_bytes() == cut - kept);
      REQUIRE(read_text(job.output) == whole.substr(0, kept));
      journal.open();
      for (std::size_t i = 0; i < kAnswers.size(); ++i) {
        REQUIRE(done[kRequestOf[i]] == (whole.find(kAnswers[i]) + kAnswers[i].size() < kept));
        if (!done[kRequestOf[i]]) journal.append(kAnswers[i]);
      }
      journal.finish();
    }
    REQUIRE(read_text(job.output) == whole);
  }
}

TEST_CASE("nothing is created before there is a result to come", "[runtime]") {
  const Job job;
  {
    Journal journal(job.output, false);
    CHECK(journal.recover(job.requests()) == std::vector<bool>(3, false));
    CHECK_FALSE(std::filesystem::exists(job.output));
    journal.open();
    CHECK(std::filesystem::exists(job.output));
  }
  CHECK_THROWS_WITH(Journal(job.output, false), Contains("out.jsonl") && Contains("--resume"));
  CHECK_NOTHROW(Journal(job.folder / "other.jsonl", true));  // --resume without an output starts
}

TEST_CASE("a file that appeared meanwhile is not written to", "[runtime]") {
  const Job job;
  Journal journal(job.output, false);
  write_text(job.output, "somebody else's\n");
  CHECK_THROWS_AS(journal.open(), IoError);
  CHECK(read_text(job.output) == "somebody else's\n");
}

TEST_CASE("places where no result file can be", "[runtime]") {
  const Job job;
  CHECK_THROWS_AS(Journal(job.folder.path(), false), UsageError);
  CHECK_THROWS_AS(Journal(job.folder.path(), true), UsageError);
  CHECK_THROWS_AS(Journal(job.folder / "nowhere/out.jsonl", false), IoError);
}

TEST_CASE("a file of something else is refused and stays as it was", "[runtime]") {
  const Job job;
  const std::string good = kAnswers[0] + "\n";
  struct Row {
    std::string text, place, words;
  };
  const std::vector<Row> rows{
      {"notes\n", ":1:", "not valid JSON"},
      {"notes without a newline", ":1:", "not the beginning of a result"},
      {R"({"name":)", ":1:", "not the beginning of a result"},
      {good + "notes", ":2:", "not the beginning of a result"},
      {"[1]\n", ":1:", "not a result"},
      {"{\"id\":1,\"prompt_ids\":[1]}\n", ":1:", "not a result of weft generate"},
      {"{\"id\":1,\"logprobs\":[],\"logprob\":0}\n", ":1:", "not a result of weft generate"},
      {good + "\n", ":2:", "empty"},
      {good + R"({"id":"2","token_ids":[1]})"
              "\n",
       ":2:", "not in the input"},
      {good + R"({"id":2.0,"token_ids":[1]})"
              "\n",
       ":2:", "not in the input"},
      {good + kAnswers[1] + "\n" + good, ":3:", "second time"},
      {good + R"({"id":"\u00e9","token_ids":[1]})"
              "\n",
       ":2:", "second time"},
      {kAnswers[0] + "\r\n" + kAnswers[1] + "\r\n", ":1:", "\\r\\n"},
      {good + R"({"id":1,"id":1,"token_ids":[1]})"
              "\n",
       ":2:", "twice"},
      {good + "{\"id\":1,\"token_ids\":[\xff]}\n", ":2:", "not valid JSON"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    write_text(job.output, row.text);
    CHECK_THROWS_AS(job.recover(), UsageError);
    CHECK_THROWS_WITH(job.recover(), Contains("out.jsonl" + row.place) && Contains(row.words));
    CHECK(read_text(job.output) == row.text);
  }
}

TEST_CASE("several choices are one answer", "[runtime]") {
  const Job job;
  write_text(job.output, R"({"id":"é","choices":[{"index":0,"token_ids":[1]},{"index":1,"token_ids":[2]}]})"
                         "\n");
  CHECK(job.recover() == std::vector<bool>{false, true, false});
}

TEST_CASE("scores resume scores", "[runtime]") {
  const Job job;
  write_text(job.input, R"({"id":1,"prompt_ids":[1],"continuation_ids":[2]})"
                        "\n");
  const RequestFile requests = job.requests(RequestKind::score);
  write_text(job.output, R"({"id":1,"logprobs":[-1.5],"logprob":-1.5,"greedy":[true]})"
                         "\n");
  CHECK(Journal(job.output, true).recover(requests) == std::vector<bool>{true});
  for (const std::string& generated : {kAnswers[1], std::string(R"({"id":1,"token_ids":[1],"logprobs":[]})")}) {
    write_text(job.output, generated + "\n");
    Journal journal(job.output, true);
    CHECK_THROWS_WITH(journal.recover(requests), Contains("weft score"));
  }
}
