// tests/fuzz/inputs_fuzz.cc: any bytes as a table, packed or not, are refused, or lines of JSON with a prompt each.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "runtime/inputs/request_input.h"
#include "runtime/requests/requests.h"
#include "tests/fuzz/files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft;
  static const std::atomic<bool> goes_on{false};
  runtime::RequestInput input(fuzz::file_of("f.csv", fuzz::text_of(data, size)));
  input.columns.prompt_template = "{a} {b}";
  try {
    const runtime::OpenedRequests opened = runtime::open_requests(input, goes_on);
    runtime::for_each_line(opened.file, [&](std::string_view line, std::uint64_t, std::size_t number) {
      if (!nlohmann::json::parse(line).at("prompt").is_string()) std::abort();
      if (opened.origins.place("", number).empty()) std::abort();
    });
  } catch (const UsageError&) {}
  return 0;
}
