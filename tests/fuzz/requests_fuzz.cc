// tests/fuzz/requests_fuzz.cc: a request file is refused by a UsageError, or each of its requests can be read again;
// and any bytes as the results of an earlier run are refused, or recovered the same way twice; or repaired.
#include <cstdlib>

#include "kernels/error.h"
#include "runtime/journal.h"
#include "runtime/requests.h"
#include "tests/fuzz/files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft;
  static const policy::ModelSpec model = [] {
    policy::ModelSpec made;
    made.vocab = 100;
    made.positions = 64;
    return made;
  }();
  const std::string_view text = fuzz::text_of(data, size);
  const auto input = fuzz::file_of("requests.jsonl", text);
  for (const auto kind : {runtime::RequestKind::generate, runtime::RequestKind::score}) try {
      const runtime::RequestFile requests(input, kind, nullptr, model, 16);
      for (std::size_t i = 0; i < requests.size(); ++i) {
        const runtime::Request request = requests.read(i);
        if (request.prompt.empty() || request.max_tokens < 1) std::abort();
        if (requests.find(request.id) != i) std::abort();
      }
    } catch (const UsageError&) {}

  const auto known = fuzz::file_of("known.jsonl", "{\"id\":1,\"prompt_ids\":[1]}\n{\"id\":\"b\",\"prompt_ids\":[1]}\n");
  const runtime::RequestFile requests(known, runtime::RequestKind::generate, nullptr, model, 16);
  const auto output = fuzz::file_of("results.jsonl", text);
  try {
    const auto first = runtime::Journal(output, true).recover(requests);
    if (runtime::Journal(output, true).recover(requests) != first) std::abort();
  } catch (const UsageError&) {}
  const auto repaired = runtime::Journal(output, true).recover(requests, true);
  if (runtime::Journal(output, true).recover(requests) != repaired) std::abort();
  std::filesystem::remove(output.string() + ".bad");
  return 0;
}
