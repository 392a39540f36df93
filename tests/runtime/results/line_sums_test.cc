// A result file whose lines have changed, and the file of checksums next to it.
#include "runtime/results/line_sums.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <functional>

#include "kernels/error.h"
#include "runtime/results/result_lines.h"
#include "tests/support/result_file.h"

using namespace weft;
using namespace weft::test;
using Catch::Matchers::Contains;
using runtime::Journal;

namespace {

/// An output with all answers, as a run has left it.
void write_answers(const Job& job, std::size_t count = kAnswers.size()) {
  Journal journal(job.output, false);
  journal.open();
  for (std::size_t i = 0; i < count; ++i) journal.append(kAnswers[i]);
  journal.finish();
}

}  // namespace

TEST_CASE("an answer that changed after it was written is damaged", "[runtime]") {
  const Job job;
  write_answers(job);
  CHECK(job.recover() == std::vector<bool>(3, true));
  std::string text = read_text(job.output);
  text.replace(text.find("[2,3]"), 5, "[2,7]");  // still JSON, and an answer
  write_text(job.output, text);
  CHECK_THROWS_WITH(job.recover(),
                    Contains("out.jsonl:3: is not what was written: out.jsonl.sums has no such checksum"));
  CHECK_THROWS_WITH(runtime::write_sorted(job.output, job.folder / "sorted", job.requests(), 3),
                    Contains("out.jsonl:3"));
  {
    Journal journal(job.output, true);
    CHECK(journal.recover(job.requests(), true) == std::vector<bool>{true, true, false});
    CHECK(journal.set_aside() == 1);
    journal.open();
    journal.append(kAnswers[2]);
    CHECK(journal.finish(job.requests(), 3) == 0);
  }
  CHECK(read_text(job.folder / "out.jsonl.bad") ==
        R"({"id":"1","text":"\"id\":","token_ids":[2,7],"finish_reason":"length"})"
        "\n");
}

TEST_CASE("checksums do not care about the order of lines, nor about lines that are gone", "[runtime]") {
  const Job job;
  write_answers(job);
  write_text(job.output, kAnswers[2] + "\n" + kAnswers[0] + "\n");
  CHECK(job.recover() == std::vector<bool>{false, true, true});
}

TEST_CASE("checksums that are not there yet are made, and lost ones at the end are no damage", "[runtime]") {
  const Job job;
  const auto sums = job.folder / "out.jsonl.sums";
  write_answers(job);
  const std::string all = read_text(sums);
  for (const std::string& left :
       {std::string(), all.substr(0, 13), all.substr(0, 13 + 17), all.substr(0, 13 + 17 + 5)}) {
    write_text(sums, left);
    CHECK(job.recover() == std::vector<bool>(3, true));
    CHECK(read_text(sums) == all);
  }
  std::filesystem::remove(sums);  // an output of an earlier version
  CHECK(job.recover() == std::vector<bool>(3, true));
  CHECK(read_text(sums) == all);
}

TEST_CASE("a file of checksums is its owner's alone, and nothing else is taken for one", "[runtime]") {
  const Job job;
  const auto sums = job.folder / "out.jsonl.sums";
  write_answers(job);
  std::filesystem::permissions(sums, std::filesystem::perms(0666));
  CHECK(job.recover() == std::vector<bool>(3, true));
  CHECK(std::filesystem::status(sums).permissions() == std::filesystem::perms(0600));
  write_text(sums, "notes of mine\n");
  CHECK_THROWS_WITH(job.recover(), Contains("out.jsonl.sums: holds no checksums of Weft's"));
  CHECK(read_text(sums) == "notes of mine\n");
  std::filesystem::rename(sums, job.folder / "mine");
  std::filesystem::create_symlink("mine", sums);
  CHECK_THROWS_WITH(job.recover(), Contains("out.jsonl.sums: is a symbolic link"));
  std::filesystem::remove(sums);
  std::filesystem::create_hard_link(job.folder / "mine", sums);
  CHECK_THROWS_WITH(job.recover(), Contains("out.jsonl.sums: is a file with several names"));
  CHECK(read_text(job.folder / "mine") == "notes of mine\n");
}

TEST_CASE("a reader of the output cannot keep its owner out, a second run is kept out by any name", "[runtime]") {
  const Job job;
  write_answers(job, 1);
  const int reader = ::open(job.output.c_str(), O_RDONLY);
  REQUIRE(flock(reader, LOCK_EX | LOCK_NB) == 0);
  const Journal journal(job.output, true);
  std::filesystem::create_symlink("out.jsonl", job.folder / "link.jsonl");
  CHECK_THROWS_WITH(Journal(job.folder / "link.jsonl", true),
                    Contains("another run") && Contains("is writing this file"));
  ::close(reader);
}

TEST_CASE("a lock is waited for no longer than a stop, and not at all where its folder is gone", "[runtime]") {
  const Job job;
  write_answers(job, 1);
  const std::atomic<bool> stop{true};
  const runtime::SumFile held(job.output);
  CHECK_THROWS_AS(runtime::SumFile(job.output, stop), runtime::Interrupted);
  CHECK_THROWS_WITH(runtime::SumFile(job.folder / "gone" / "out.jsonl"), Contains("cannot be created"));
  CHECK_THROWS_AS(runtime::SumFile("/proc/out.jsonl"), IoError);
}

TEST_CASE("what else is written to an output while a run writes it is found at the end", "[runtime]") {
  const auto finish = [](const std::function<void(const Job&)>& meddle) {
    const Job job;
    Journal journal(job.output, false);
    journal.open();
    for (const std::string& answer : kAnswers) journal.append(answer);
    meddle(job);
    try {
      journal.finish(job.requests(), 3);
    } catch (const IoError& error) {
      return std::string(error.what());
    }
    return std::string("finished");
  };
  CHECK(finish([](const Job&) {}) == "finished");
  CHECK_THAT(finish([](const Job& job) { write_text(job.output, read_text(job.output) + "half a line"); }),
             Contains("out.jsonl:4: not the beginning of a result") && Contains("--resume=repair"));
  CHECK_THAT(finish([](const Job& job) { write_text(job.output, read_text(job.output) + kAnswers[0] + "\n"); }),
             Contains("second time"));
  CHECK_THAT(finish([](const Job& job) {
               std::string text = read_text(job.output);
               text[text.find("[1]") + 1] = '4';
               write_text(job.output, text);
             }),
             Contains("out.jsonl:1: is not what was written"));
  CHECK_THAT(finish([](const Job& job) { std::filesystem::rename(job.output, job.folder / "x.jsonl"); }),
             Contains("was moved or replaced") && Contains("/x.jsonl, move that back"));
  CHECK_THAT(finish([](const Job& job) {
               std::filesystem::create_hard_link(job.output, job.folder / "y.jsonl");
               std::filesystem::remove(job.output);
             }),
             Contains("was moved or replaced"));
  CHECK_THAT(finish([](const Job& job) {
               const std::string text = read_text(job.output);
               std::filesystem::rename(job.output, job.folder / "z.jsonl");
               write_text(job.output, text);
             }),
             Contains("was moved or replaced"));
}

TEST_CASE("lines that say why there is no answer are counted", "[runtime]") {
  const Job job;
  Journal journal(job.output, false);
  journal.open();
  journal.append(kAnswers[0]);
  journal.append(R"({"id":1,"error":{"code":"non_finite_logits","message":"x"}})");
  journal.append(kAnswers[2]);
  CHECK(journal.finish(job.requests(), 3) == 1);
}

TEST_CASE("where what must come first fails, no output is created", "[runtime]") {
  const Job job;
  {
    Journal journal(job.output, false);
    CHECK_THROWS_AS(journal.open([] { throw IoError("no space for the record"); }), IoError);
  }
  CHECK_FALSE(std::filesystem::exists(job.output));
  CHECK_FALSE(std::filesystem::exists(job.folder / "out.jsonl.sums"));
}
