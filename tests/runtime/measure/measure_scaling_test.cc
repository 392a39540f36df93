#include "runtime/measure/measure_scaling.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

using namespace weft;

TEST_CASE("what a second thread gains is measured for every op that has threads", "[lanes]") {
  runtime::ScalingSizes sizes;
  sizes.rows = 3, sizes.width = 128, sizes.vocab = 500, sizes.heads = 2, sizes.prompt = 24, sizes.slots = 12;
  sizes.kv = 64 << 10, sizes.seconds = 1e-6, sizes.repetitions = 2;
  const auto report = runtime::measure_scaling(sizes);
  std::set<std::string> kinds;
  for (const auto& [name, cell] : report.items()) {
    CAPTURE(name, cell.dump());
    const double one = cell["one_thread_seconds"], two = cell["two_threads_seconds"];
    CHECK(one > 0);
    CHECK(cell["times"].get<double>() == one / two);
    CHECK(cell["of_memory_read"].get<double>() > 0);
    kinds.insert(name.substr(0, name.find_first_of(',')));
  }
  CHECK(kinds == std::set<std::string>{"memory_read",
                                       "convert",
                                       "add",
                                       "scale",
                                       "multiply",
                                       "gather",
                                       "layer_norm",
                                       "take_heads",
                                       "rotary",
                                       "hadamard",
                                       "linear_float32",
                                       "linear_float16",
                                       "linear_bfloat16",
                                       "linear_int8",
                                       "linear_int4",
                                       "unpack_int8",
                                       "unpack_int4",
                                       "quantise_int8",
                                       "quantise_int4",
                                       "prefill_attention",
                                       "column_sums",
                                       "decode_attention_float16",
                                       "decode_attention_int8",
                                       "decode_attention_int4",
                                       "keep_prompt",
                                       "reposition",
                                       "sample",
                                       "log_probs",
                                       "top_log_probs"});
}
