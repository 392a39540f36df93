// tests/runtime/grammar/trial_test.cc: work in a copy of the process, and the limits that it meets.
#include "runtime/grammar/trial.h"

#include <catch2/catch.hpp>
#include <stdexcept>
#include <vector>

namespace {

using weft::runtime::try_apart;

/// Recursion that no compiler turns into a loop, with frames of a page.
std::size_t descend(std::size_t depth) {
  volatile char page[4096] = {};
  page[depth % sizeof(page)] = 1;
  return depth == SIZE_MAX ? 0 : descend(depth + 1) + static_cast<std::size_t>(page[0]);
}

TEST_CASE("work in a copy of the process is done or says why not") {
  int changed = 0;
  CHECK_FALSE(try_apart([&] { changed = 1; }));
  CHECK(changed == 0);
  CHECK(try_apart([] { throw std::runtime_error("has no end"); }) == "has no end");
  CHECK(try_apart([] { throw 1; }) == "is not understood");
}

TEST_CASE("work without an end is ended by a limit") {
  volatile bool goes_on = true;
  CHECK(try_apart(
            [&] {
              while (goes_on) continue;
            },
            {.seconds = 1}) == "takes more than 1 s to compile");
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  std::vector<std::vector<char>> all;
  CHECK(try_apart(
            [&] {
              while (goes_on) all.emplace_back(1 << 20);
            },
            {.bytes = 64 << 20}) == "takes more than 64 MiB of memory to compile");
  CHECK(try_apart([] { descend(0); }) == "is nested too deeply to be compiled");
#endif
}

}  // namespace
