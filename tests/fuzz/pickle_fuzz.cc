// tests/fuzz/pickle_fuzz.cc: any bytes are refused by a CheckpointError, or make values whose indices are values.
#include <cstdlib>

#include "runtime/checkpoint/checkpoint_error.h"
#include "runtime/checkpoint/pickle.h"
#include "tests/fuzz/files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft;
  for (const bool legacy : {false, true}) try {
      const runtime::Pickle pickle =
          runtime::read_pickle({.text = fuzz::text_of(data, size), .begin = 0, .where = "data.pkl", .legacy = legacy});
      if (pickle.root >= pickle.values.size() || pickle.end > size) std::abort();
      for (const runtime::PickleValue& value : pickle.values)
        for (const std::uint32_t item : value.items)
          if (item >= pickle.values.size()) std::abort();
    } catch (const runtime::CheckpointError&) {}
  return 0;
}
