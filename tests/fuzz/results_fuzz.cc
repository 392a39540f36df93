// tests/fuzz/results_fuzz.cc: what lies in a result file and in its checksums, up to the first NUL byte and after it,
// is scanned without a crash, and what is whole and what is damaged lie inside the file.
#include <cstdlib>

#include "kernels/error.h"
#include "policy/model/model.h"
#include "runtime/results/line_sums.h"
#include "runtime/results/result_lines.h"
#include "tests/fuzz/files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft;
  using namespace weft::runtime;
  static const RequestFile requests = [] {
    policy::ModelSpec model;
    model.vocab = 64;
    model.positions = 48;
    const auto path = fuzz::file_of("in.jsonl", "{\"id\":1,\"prompt_ids\":[3]}\n{\"id\":\"b\",\"prompt_ids\":[4]}\n");
    return RequestFile(path, RequestKind::generate, nullptr, model, 4);
  }();
  const std::string_view text = fuzz::text_of(data, size);
  const std::size_t zero = std::min(text.find('\0'), text.size());
  const auto output = fuzz::file_of("out.jsonl", text.substr(0, zero));
  fuzz::file_of("out.jsonl.sums", text.substr(std::min(zero + 1, text.size())));
  try {
    const SumSet sums = SumFile::read(output);
    const ResultScan scan = scan_results(output, requests, {.sums = &sums});
    if (scan.whole > zero || scan.done.size() != requests.size()) std::abort();
    for (const auto& range : scan.damaged)
      if (range.offset > scan.whole || range.bytes > scan.whole - range.offset) std::abort();
  } catch (const UsageError&) {
  } catch (const IoError&) {}
  return 0;
}
