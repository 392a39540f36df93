// tests/fuzz/run_record_fuzz.cc: a record of a run is refused by a UsageError, or is the same once written and read.
#include <cstdlib>

#include "kernels/error.h"
#include "runtime/results/run_record.h"
#include "tests/fuzz/files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft;
  using runtime::RunRecord;
  fuzz::file_of("out.jsonl.run.json", fuzz::text_of(data, size));
  try {
    const auto read = RunRecord::read(fuzz::folder() / "out.jsonl");
    read->write(fuzz::folder() / "again.jsonl");
    const auto again = RunRecord::read(fuzz::folder() / "again.jsonl");
    if (!again || !read->difference(*again).empty() || again->weights.size() != read->weights.size()) std::abort();
  } catch (const UsageError&) {}
  return 0;
}
