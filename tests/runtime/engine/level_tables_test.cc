// tests/runtime/engine/level_tables_test.cc: answers of weights whose levels stand for others by a table.
#include <catch2/catch.hpp>
#include <vector>

#include "kernels/linear/linear_cpu.h"
#include "runtime/model/model_source.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::test;

TEST_CASE("levels by a table take half the bytes of those of 8 bits, and give the same answers to the bit",
          "[runtime][quantised]") {
  const Arithmetic arithmetic = GENERATE(Arithmetic::int8, Arithmetic::exact, Arithmetic::bfloat16);
  if (arithmetic == Arithmetic::bfloat16 && !on_gpu() && !kernels::multiplies_bf16()) return;
  const auto folder = data_path("quantised") / "llama-mxfp4-bf16";
  const auto four = runtime::open_model(
      folder, "auto", "", policy::WeightFormat{.dtype = DType::i4, .group = 32, .arithmetic = arithmetic});
  const auto eight = runtime::open_model(
      folder, "auto", "", policy::WeightFormat{.dtype = DType::i8, .group = 32, .arithmetic = arithmetic});
  REQUIRE(four->weight_format->dtype == DType::i4);
  std::uint64_t of_four = 0, of_eight = 0;
  for (std::size_t u = 0; u < four->units.size(); ++u) {
    if (four->units[u].layer < 0) continue;
    of_four += four->weights->unit_bytes()[u], of_eight += eight->weights->unit_bytes()[u];
  }
  CHECK(double(of_four) < 0.75 * double(of_eight));  // 5 bits a number for 9, and pages that are not full
  policy::PartialPolicy policy;
  policy.gpu_batch_size = 3;
  policy.num_gpu_batches = 1;
  policy.weights = policy.kv = policy.activations = policy::Fractions{{1, 0, 0}};
  std::vector<Prompt> prompts;
  for (std::int32_t i = 0; i < 3; ++i) prompts.push_back({{3 + 7 * i, 11 + i, 2}, 6, {}});
  Engine by_table(*four, policy, prompts), by_eight(*eight, policy, prompts);
  const std::vector<Answer> expected = by_eight.run(), got = by_table.run();
  for (std::size_t i = 0; i < prompts.size(); ++i) CHECK(difference(expected[i], got[i]).empty());
}
