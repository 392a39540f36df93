// tests/offload/engines.h: every way to talk to a disk.
#pragma once

#include <catch2/catch.hpp>

#include "offload/disk_store.h"

namespace weft::test {

inline offload::DiskEngine every_engine() {
  using offload::DiskEngine;
  return GENERATE(DiskEngine::io_uring, DiskEngine::threads, DiskEngine::buffered);
}

}  // namespace weft::test
