// tests/runtime/job/progress_test.cc: what is left of a job, by its plan and by what is done; texts of durations.
#include "runtime/job/progress.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>

#include "runtime/base/duration.h"

using namespace weft::runtime;

TEST_CASE("a forecast says what is left from the first moment, and what is seen takes over", "[runtime]") {
  const Forecast forecast{.seconds = 100, .prefill_seconds = 40};
  CHECK(*seconds_left(forecast, 0, 0, 0) == Approx(100));
  // Just as planned: it counts down.
  CHECK(*seconds_left(forecast, 20, 0.5, 0) == Approx(80));
  CHECK(*seconds_left(forecast, 40, 1, 0) == Approx(60));
  CHECK(*seconds_left(forecast, 70, 1, 0.5) == Approx(30));
  CHECK(*seconds_left(forecast, 100, 1, 1) == Approx(0).margin(1e-9));
  // Three times as slow as planned: the error of the estimate falls as work is done.
  double before = INFINITY;
  for (const double tokens : {0.0, 0.2, 0.5, 0.9}) {
    const double done = 40 + 60 * tokens, left = 3 * (100 - done);
    const double error = std::abs(*seconds_left(forecast, 3 * done, 1, tokens) - left) / left;
    CHECK(error < before);
    before = error;
  }
  CHECK(before < 0.1);
  // Answers that end early count as done, so no share is above 1.
  CHECK(*seconds_left(forecast, 50, 1, 1.5) == Approx(0).margin(1e-9));
}

TEST_CASE("without a forecast only tokens say what is left", "[runtime]") {
  CHECK_FALSE(seconds_left({}, 10, 0.5, 0));
  CHECK(*seconds_left({}, 10, 1, 0.25) == Approx(30));
}

TEST_CASE("durations as people write them", "[runtime]") {
  CHECK(duration_text(0) == "0:00");
  CHECK(duration_text(65.4) == "1:05");
  CHECK(duration_text(3600 + 61) == "1:01:01");
  CHECK(duration_text(3 * 86400 + 2 * 3600 + 600) == "3 d 02:10");
  CHECK(duration_text(-3) == "0:00");
  CHECK(duration_text(INFINITY) == "11574 d 01:46");
}

TEST_CASE("COLUMNS narrows a terminal", "[runtime]") {
  setenv("COLUMNS", "33", 1);
  CHECK(terminal_columns(-1) == 33);
  for (const char* nonsense : {"", "0", "-5", "many", "12x"}) {
    setenv("COLUMNS", nonsense, 1);
    CHECK(terminal_columns(-1) == 80);
  }
  unsetenv("COLUMNS");
}
