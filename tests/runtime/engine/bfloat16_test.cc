// tests/runtime/engine/bfloat16_test.cc: the arithmetic of bf16 weights where nobody chooses one, and that of levels
// which are multiplied as bf16 numbers.
#include <catch2/catch.hpp>
#include <vector>

#include "kernels/linear/linear_cpu.h"
#include "runtime/model/model_source.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::test;

namespace {

using Format = std::optional<policy::WeightFormat>;

/// The format that a run says it has, and the logits of its first token.
struct FirstToken {
  Format format;
  std::vector<float> logits;
};

FirstToken first_token(const std::string& checkpoint, const std::string& dtype, const Format& format) {
  const auto source = runtime::open_model(data_path("golden") / checkpoint, dtype, "", format);
  policy::PartialPolicy policy;
  policy.gpu_batch_size = policy.num_gpu_batches = 1;
  policy.weights = policy.kv = policy.activations = policy::Fractions{{1, 0, 0}};
  Engine engine(*source, policy, {{{3, 11, 2, 5}, 1, {}}});
  const std::vector<Answer> answers = engine.run();
  return {engine.session().policy().weight_format, answers[0].logits.at(0)};
}

}  // namespace

TEST_CASE("bf16 weights are multiplied in bfloat16 where a CPU can, unless exact products are asked for",
          "[runtime][bf16]") {
  const policy::WeightFormat exact{.dtype = DType::bf16, .arithmetic = Arithmetic::exact};
  const policy::WeightFormat pairs{.dtype = DType::bf16, .arithmetic = Arithmetic::bfloat16};
  const bool here = kernels::multiplies_bf16() && !on_gpu();
  const std::string checkpoint = "llama-llama3-gqa-bf16";
  const FirstToken by_default = first_token(checkpoint, "auto", {}), exactly = first_token(checkpoint, "auto", exact);
  CHECK(exactly.format == exact);
  if (here) {
    CHECK(by_default.format == pairs);
    CHECK(by_default.logits == first_token(checkpoint, "auto", pairs).logits);
    CHECK(by_default.logits != exactly.logits);
    CHECK(logit_deviation(exactly.logits, by_default.logits) < 0.04);
  } else {
    CHECK_FALSE(by_default.format);
    CHECK(by_default.logits == exactly.logits);
  }
}

TEST_CASE("weights of other types, and bf16 ones that are to be computed with in fp32, are multiplied exactly",
          "[runtime][bf16]") {
  CHECK_FALSE(first_token("llama-llama3-gqa-bf16", "float32", {}).format);
  CHECK_FALSE(first_token("llama-absent-keys-f16", "auto", {}).format);
  const policy::WeightFormat levels{.dtype = DType::i8, .group = 32};
  CHECK(first_token("llama-llama3-gqa-bf16", "auto", levels).format == levels);
}

TEST_CASE("levels are multiplied as bf16 numbers where that is asked for, and answers depend on no other prompt",
          "[runtime][quantised][bf16]") {
  if (on_gpu()) return;
  const auto folder = data_path("golden") / "llama-llama3-gqa-bf16";
  std::vector<Prompt> prompts;
  for (const std::int32_t length : {40, 3, 17, 1}) {
    Prompt& prompt = prompts.emplace_back();
    for (std::int32_t i = 0; i < length; ++i) prompt.ids.push_back(3 + (7 * i + length) % 100);
    prompt.tokens = 4;
  }
  const auto answers = [&](Arithmetic arithmetic, int batch) {
    const auto source = runtime::open_model(
        folder, "auto", "", policy::WeightFormat{.dtype = DType::i4, .group = 32, .arithmetic = arithmetic});
    policy::PartialPolicy policy;
    policy.gpu_batch_size = batch, policy.num_gpu_batches = 1;
    policy.weights = policy.kv = policy.activations = policy::Fractions{{1, 0, 0}};
    return Engine(*source, policy, prompts).run();
  };
  if (!kernels::multiplies_bf16()) {
    CHECK_THROWS_WITH(answers(Arithmetic::bfloat16, 4), Catch::Matchers::Contains("AVX512-BF16"));
    return;
  }
  const std::vector<Answer> together = answers(Arithmetic::bfloat16, 4), alone = answers(Arithmetic::bfloat16, 1);
  for (std::size_t i = 0; i < prompts.size(); ++i) CHECK(difference(together[i], alone[i]).empty());
  const std::vector<float> exact = answers(Arithmetic::exact, 4)[0].logits[0];
  CHECK(together[0].logits[0] != exact);
  CHECK(logit_deviation(exact, together[0].logits[0]) < 0.04);
}
