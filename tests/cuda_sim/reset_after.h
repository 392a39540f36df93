// tests/cuda_sim/reset_after.h: a simulated device that is as before when a test has ended.
#pragma once

#include "cusim.h"

namespace weft::test {

/// Resets the simulator and puts its configuration back.
struct ResetAfter {
  cusim::Config before = cusim::config();
  ~ResetAfter() {
    cusim::reset();
    cusim::config() = before;
  }
};

}  // namespace weft::test
