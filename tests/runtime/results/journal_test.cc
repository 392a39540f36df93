// The result file after a kill at every byte, and files that are no result files.
#include "runtime/results/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <filesystem>
#include <thread>

#include "kernels/error.h"
#include "runtime/engine/storage.h"
#include "runtime/results/result_lines.h"
#include "tests/support/result_file.h"

using namespace weft;
using namespace weft::test;
using Catch::Matchers::Contains;
using runtime::Journal;
using runtime::RequestFile;
using runtime::RequestKind;

namespace {

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

TEST_CASE("a result is taken whatever its length, and so is a torn one", "[runtime]") {
  const Job job;
  std::string tokens = "7";
  while (tokens.size() < (20 << 20)) tokens += "," + tokens;
  const std::string answer = R"({"id":1,"text":null,"token_ids":[)" + tokens + R"(],"finish_reason":"length"})";
  const std::string whole = kAnswers[0] + "\n" + answer + "\n" + kAnswers[2] + "\n";
  write_text(job.output, whole);
  CHECK(job.recover() == std::vector<bool>(3, true));
  CHECK((read_text(job.output) == whole));
  runtime::write_sorted(job.output, job.folder / "sorted", job.requests(), 3);
  CHECK((read_text(job.folder / "sorted") == answer + "\n" + kAnswers[0] + "\n" + kAnswers[2] + "\n"));
  write_text(job.output, kAnswers[0] + "\n" + answer.substr(0, answer.size() - 30));
  CHECK(job.recover() == std::vector<bool>{false, true, false});
  CHECK(read_text(job.output) == kAnswers[0] + "\n");
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

TEST_CASE("a tail of NUL bytes is torn too", "[runtime]") {
  const Job job;
  const std::string good = kAnswers[0] + "\n";
  for (const std::string& tail : {std::string(1, '\0'), std::string(100, '\0'), "{\"id" + std::string(5, '\0')}) {
    write_text(job.output, good + tail);
    Journal journal(job.output, true);
    journal.recover(job.requests());
    CHECK(journal.torn_bytes() == tail.size());
    CHECK(read_text(job.output) == good);
  }
}

TEST_CASE("what is damaged is set aside, and its request is open again", "[runtime]") {
  const Job job;
  const std::string good = kAnswers[0] + "\n", damaged = "notes\n" + kAnswers[1] + "\r\n\n" + good;
  write_text(job.output, damaged.substr(0, 6) + good + damaged.substr(6) + "{\"id\":1,");
  CHECK_THROWS_WITH(job.recover(), Contains("out.jsonl:1: ") && Contains("(byte 0)") && Contains("4 such lines"));
  {
    Journal journal(job.output, true);
    CHECK(journal.recover(job.requests(), true) == std::vector<bool>{false, true, false});
    CHECK(journal.set_aside() == 4);
    CHECK(journal.torn_bytes() == 8);
    CHECK(read_text(job.output) == good);
    CHECK(read_text(job.folder / "out.jsonl.bad") == damaged);
    CHECK_THROWS_WITH(Journal(job.output, true), Contains("another run"));  // the lock outlives the old file
    journal.open();
    journal.append(kAnswers[1]);
    journal.append(kAnswers[2]);
    CHECK(journal.finish(job.requests(), 3) == 0);
  }
  CHECK(read_text(job.output) == good + kAnswers[1] + "\n" + kAnswers[2] + "\n");
}

TEST_CASE("where failures are tried again, their lines are set aside and their requests are open", "[runtime]") {
  const Job job;
  const std::string failed = R"({"id":1,"error":{"code":"c","message":"m"}})",
                    gone = R"({"id":"left","error":{"code":"c","message":"m"}})", torn = R"({"id":"1","to)";
  write_text(job.output, failed + "\n" + kAnswers[0] + "\n" + gone + "\n" + torn);
  CHECK_THROWS_WITH(job.recover(), Contains("answers a request that is not in the input"));
  Journal journal(job.output, true);
  CHECK(journal.recover(job.requests(), false, true) == std::vector<bool>{false, true, false});
  CHECK(journal.retried() == 2);
  CHECK(journal.set_aside() == 0);
  CHECK(journal.torn_bytes() == torn.size());
  CHECK(read_text(job.output) == kAnswers[0] + "\n");
  CHECK(read_text(job.folder / "out.jsonl.bad") == failed + "\n" + gone + "\n");
  journal.open();
  journal.append(kAnswers[1]);
  journal.append(failed.substr(0, 6) + R"("1")" + failed.substr(7));
  CHECK(journal.finish(job.requests(), 3) == 1);
}

TEST_CASE("where failures are tried again, damage is still refused", "[runtime]") {
  const Job job;
  const std::string before = "notes\n" + std::string(R"({"id":1,"error":{"code":"c","message":"m"}})") + "\n";
  write_text(job.output, before);
  Journal journal(job.output, true);
  CHECK_THROWS_WITH(journal.recover(job.requests(), false, true), Contains("out.jsonl:1: "));
  CHECK(read_text(job.output) == before);
}

namespace {

/// A disk that takes `room` bytes, and then says that it is full `times` times.
struct FullDisk {
  std::size_t room;
  int times, calls = 0, warnings = 0;
  runtime::JournalOptions options(std::chrono::milliseconds patience, const std::atomic<bool>* stop = nullptr) {
    return {.pause = std::chrono::milliseconds(1),
            .patience = patience,
            .stop = stop,
            .warn =
                [this](const std::string& text) {
                  CHECK_THAT(text, Contains("out.jsonl: no space for a result; trying again for "));
                  ++warnings;
                },
            .write = [this](int fd, const void* data, std::size_t bytes) -> ssize_t {
              if (room == 0 && times > 0) {
                --times, ++calls;
                errno = ENOSPC;
                return -1;
              }
              const ssize_t count = ::write(fd, data, times > 0 ? std::min(room, bytes) : bytes);
              if (times > 0) room -= static_cast<std::size_t>(count);
              return count;
            }};
  }
};

}  // namespace

TEST_CASE("a full disk is waited for, and a line that came half is cut first", "[runtime]") {
  for (std::size_t room = 0; room < 2 * kAnswers[0].size(); room += 7) {
    const Job job;
    FullDisk disk{room, 3};
    Journal journal(job.output, false, disk.options(std::chrono::seconds(60)));
    journal.open();
    journal.append(kAnswers[0]);
    journal.append(kAnswers[1]);
    journal.finish(job.requests(), 2);
    CHECK(disk.calls == (room < kAnswers[0].size() + kAnswers[1].size() + 2 ? 3 : 0));
    CHECK(disk.warnings == disk.calls);
    CHECK(read_text(job.output) == kAnswers[0] + "\n" + kAnswers[1] + "\n");
  }
}

TEST_CASE("a disk that stays full ends the run with all earlier lines whole", "[runtime]") {
  const Job job;
  FullDisk disk{kAnswers[0].size() + 20, 1 << 30};
  std::atomic<bool> stop{false};
  {
    Journal journal(job.output, false, disk.options(std::chrono::milliseconds(20), &stop));
    journal.open();
    journal.append(kAnswers[0]);
    CHECK_THROWS_WITH(journal.append(kAnswers[1]), Contains("No space left") && Contains("--resume"));
    CHECK(disk.calls > 2);
    CHECK(read_text(job.output) == kAnswers[0] + "\n");
    stop = true;
    CHECK_THROWS_AS(journal.append(kAnswers[1]), runtime::Interrupted);
  }
  CHECK(read_text(job.output) == kAnswers[0] + "\n");
  Journal journal(job.output, true);
  CHECK(journal.recover(job.requests()) == std::vector<bool>{false, true, false});
}

TEST_CASE("another error than a full disk is not waited for", "[runtime]") {
  const Job job;
  int calls = 0;
  Journal journal(job.output, false, {.write = [&](int, const void*, std::size_t) -> ssize_t {
                    ++calls;
                    errno = EIO;
                    return -1;
                  }});
  journal.open();
  CHECK_THROWS_AS(journal.append(kAnswers[0]), IoError);
  CHECK(calls == 1);
}

TEST_CASE("lines are flushed in groups", "[runtime]") {
  const Job job;
  std::atomic<int> flushes{0};
  Journal journal(job.output, false, {.durability = runtime::Durability::power, .fdatasync = [&](int) {
                                        ++flushes;
                                        return 0;
                                      }});
  journal.open();
  CHECK(flushes == 1);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 64 * 20; ++i) journal.append(kAnswers[0]);  // a full group does not wait for its time
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(3));
  CHECK(flushes >= 20);
  while (true) {  // what is left is flushed soon, without another line
    const int before = flushes;
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    if (flushes == before) break;
  }
  const int before = flushes;
  journal.append(kAnswers[0]);
  while (flushes == before) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  journal.append(kAnswers[0]);
  journal.finish();
  CHECK(flushes == before + 2);
}

TEST_CASE("a failed flush is never tried again, and its place is known", "[runtime]") {
  const Job job;
  std::atomic<int> flushes{0};
  std::uint64_t durable = 99;
  Journal journal(job.output, false, {.durability = runtime::Durability::power, .fdatasync = [&](int) {
                                        errno = EIO;
                                        return ++flushes == 3 ? -1 : 0;
                                      }});
  journal.open({}, [&](std::uint64_t bytes) { durable = bytes; });
  journal.append(kAnswers[0]);
  while (flushes < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const auto more = [&] {
    for (int i = 0; i < 2000; ++i) {
      journal.append(kAnswers[1]);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  const std::string words = "its first " + std::to_string(kAnswers[0].size() + 1) + " bytes";
  CHECK_THROWS_WITH(more(), Contains("cannot be flushed") && Contains(words));
  CHECK(durable == kAnswers[0].size() + 1);
  CHECK_THROWS_AS(journal.append(kAnswers[1]), IoError);
  CHECK_THROWS_AS(journal.finish(), IoError);
  CHECK(flushes == 3);
}

TEST_CASE("a failed last flush is an error too", "[runtime]") {
  for (const auto durability : {runtime::Durability::process, runtime::Durability::power}) {
    const Job job;
    int left = durability == runtime::Durability::power ? 1 : 0;
    std::uint64_t durable = 99;
    Journal journal(job.output, false, {.durability = durability, .fdatasync = [&](int) {
                                          errno = EIO;
                                          return left-- > 0 ? 0 : -1;
                                        }});
    journal.open({}, [&](std::uint64_t bytes) { durable = bytes; });
    journal.append(kAnswers[0]);
    CHECK_THROWS_WITH(journal.finish(job.requests(), 1),
                      Contains("cannot be flushed") && Contains("Input/output error"));
    CHECK(durable == 0);
  }
}

TEST_CASE("what may not be on disk is cut before the lines are read", "[runtime]") {
  const Job job;
  write_text(job.output, kAnswers[0] + "\n" + std::string(500, '\0') + "\n" + kAnswers[1] + "\n");
  Journal journal(job.output, true);
  CHECK_FALSE(journal.empty());
  journal.cut(kAnswers[0].size() + 1);
  CHECK(journal.recover(job.requests()) == std::vector<bool>{false, true, false});
  CHECK(journal.torn_bytes() == 0);
}

TEST_CASE("a deleted output's lines are copied", "[runtime]") {
  const Job job;
  Journal journal(job.output, false);
  journal.open();
  journal.append(kAnswers[0]);
  std::filesystem::remove(job.output);
  CHECK_THROWS_WITH(journal.append(kAnswers[1]), Contains("was deleted") && Contains("out.jsonl.recovered"));
  CHECK(read_text(job.folder / "out.jsonl.recovered") == kAnswers[0] + "\n");
  CHECK_THROWS_WITH(journal.append(kAnswers[1]), Contains("out.jsonl.recovered.2"));  // the first one stays
  CHECK_THROWS_AS(journal.finish(job.requests(), 1), IoError);
}

TEST_CASE("a file with another number of lines than requests is an error", "[runtime]") {
  const Job job;
  Journal journal(job.output, false);
  journal.open();
  journal.append(kAnswers[0]);
  CHECK_THROWS_WITH(journal.finish(job.requests(), 2), Contains("has 1 lines, wanted an answer to each of 2 requests"));
}

TEST_CASE("an output is its owner's alone, and an existing one keeps its mode", "[runtime]") {
  const Job job;
  const auto mode = [&] {
    struct stat status {};
    REQUIRE(stat(job.output.c_str(), &status) == 0);
    return status.st_mode & 07777;
  };
  {
    Journal journal(job.output, false);
    journal.open();
  }
  CHECK(mode() == 0600);
  std::filesystem::permissions(job.output, std::filesystem::perms(0644));
  Journal(job.output, true).open();
  CHECK(mode() == 0644);
}

TEST_CASE("links to nowhere and in circles are no place for results", "[runtime]") {
  const Job job;
  std::filesystem::create_symlink("nowhere", job.folder / "dangling");
  std::filesystem::create_symlink("loop", job.folder / "loop");
  CHECK_THROWS_WITH(Journal(job.folder / "dangling", false), Contains("symbolic link to nothing"));
  CHECK_THROWS_AS(Journal(job.folder / "loop", false), IoError);
}
