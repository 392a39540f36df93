// tests/fuzz/json_fuzz.cc: what the strict reader accepts it writes in a line that it reads as the same again.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "tests/fuzz/files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft;
  try {
    const nlohmann::json json = policy::parse_json(fuzz::text_of(data, size), "text", policy::Blame::usage);
    const std::string line = policy::to_line(json);
    if (line.find('\n') != std::string::npos) std::abort();
    if (policy::parse_json(line, "again", policy::Blame::usage) != json) std::abort();
  } catch (const UsageError&) {}
  return 0;
}
