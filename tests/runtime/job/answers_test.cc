// tests/runtime/job/answers_test.cc: a disk that is slow or fails, and the sweeps that go on meanwhile.
#include "runtime/job/answers.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "kernels/error.h"
#include "runtime/base/files.h"
#include "runtime/results/journal.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::test;

namespace {

constexpr std::size_t kRequests = 4;
constexpr std::int64_t kLong = 40;

/// Requests of which the first ends at its first token and the others at their last, through a journal with this
/// write().
struct Run {
  explicit Run(std::function<ssize_t(int, const void*, std::size_t)> write)
      : source(runtime::open_model(data_path("golden") / "prenorm-tied-f16", "auto", "")),
        engine(*source, {}, std::vector<Prompt>(kRequests, {{1, 2, 3}, kLong, {}}), {.backend = "cpu", .threads = 1}),
        journal(folder.path() / "answers.jsonl", false,
                {.pause = std::chrono::milliseconds(1),
                 .patience = std::chrono::milliseconds(20),
                 .write = [this, write = std::move(write)](int fd, const void* data, std::size_t size) {
                   {
                     const std::lock_guard lock(mutex);
                     writes = true;
                     more.notify_all();
                   }
                   return write(fd, data, size);
                 }}) {
    journal.open();
  }
  void run() {
    runtime::Answers answers(engine.session(), journal, progress, kRequests);
    std::vector<runtime::Sequence> block;
    for (std::size_t i = 0; i < kRequests; ++i) {
      runtime::Request request;
      request.id = std::to_string(i);
      request.prompt = {1, 2, static_cast<std::int32_t>(3 + i)};
      request.max_tokens = i == 0 ? 1 : kLong;
      block.push_back(answers.begin(i, 0, request));
    }
    engine.session().executor().run(block, [&](runtime::Sequence& sequence) {
      {
        std::unique_lock lock(mutex);
        ++tokens;
        more.notify_all();
        // The journal begins with the first answer, though it be late; then nothing waits for it.
        if (tokens > static_cast<int>(kRequests)) more.wait_for(lock, std::chrono::seconds(20), [&] { return writes; });
      }
      answers.token(sequence);
    });
    answers.finish();
  }

  TemporaryFolder folder;
  std::unique_ptr<runtime::ModelSource> source;
  Engine engine;
  std::mutex mutex;
  std::condition_variable more;
  int tokens = 0;
  bool writes = false;
  runtime::Journal journal;
  runtime::Progress progress{true};
};

}  // namespace

TEST_CASE("sweeps go on while the journal waits for the disk", "[runtime]") {
  std::unique_ptr<Run> run;
  std::atomic<bool> first{true}, went_on{false};
  run = std::make_unique<Run>([&](int fd, const void* data, std::size_t size) {
    if (first.exchange(false)) {  // until sweeps later have chosen tokens, or nobody will
      std::unique_lock lock(run->mutex);
      const int by_then = run->tokens + 10 * static_cast<int>(kRequests - 1);
      went_on = run->more.wait_for(lock, std::chrono::seconds(20), [&] { return run->tokens >= by_then; });
    }
    return ::write(fd, data, size);
  });
  run->run();
  CHECK(went_on);
  CHECK(run->progress.answered() == kRequests);
  const std::string text = runtime::read_file(run->folder.path() / "answers.jsonl", 1 << 20);
  CHECK(std::count(text.begin(), text.end(), '\n') == static_cast<std::ptrdiff_t>(kRequests));
  CHECK(text.find("\"id\":0") < text.find('\n'));
}

TEST_CASE("what the journal throws ends the run", "[runtime]") {
  Run run([](int, const void*, std::size_t) -> ssize_t {
    errno = EIO;
    return -1;
  });
  CHECK_THROWS_AS(run.run(), IoError);
  CHECK(run.progress.answered() == 0);
}
