// Sequences whose prompts begin alike, decoded side by side and one by one.
#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

#include "runtime/model/model_source.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::test;

namespace {

/// Prompts of which all begin with the same `common` tokens.
std::vector<Prompt> prompts_of(std::int64_t common, int vocab) {
  std::mt19937 random(7);
  const auto id = [&] { return static_cast<std::int32_t>(random() % static_cast<unsigned>(vocab - 4) + 4); };
  std::vector<std::int32_t> beginning;
  for (std::int64_t t = 0; t < common; ++t) beginning.push_back(id());
  std::vector<Prompt> prompts(4);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    prompts[i].ids = beginning;
    for (std::size_t t = 0; t < 1 + 4 * i; ++t) prompts[i].ids.push_back(id());
    prompts[i].tokens = 40;
  }
  return prompts;
}

}  // namespace

TEST_CASE("answers to prompts that begin alike are those of each alone, whatever was evicted of the prompts",
          "[runtime][identity]") {
  const std::string name = GENERATE("smollm2-gqa-tied-bf16", "neox-parallel-f16", "mistral-window-mqa-bf16",
                                    "gemma3-text-slides-bf16", "moe-gpt-oss-bf16");
  const std::string rule =
      GENERATE("full", "h2o:0.3:0.3", "h2o:0.3:0.3:once=true", "recent:0.8", "snapkv:0.3:0.2:window=4",
               "snapkv:40:6:window=3", "snapkv:60:20:window=4", "keydiff:0.4:0.3:once=true", "tova:60");
  CAPTURE(name, rule);
  const auto source = runtime::open_model(data_path("golden") / name, "auto", "");
  const std::vector<Prompt> prompts = prompts_of(48, source->spec.vocab);
  const auto run = [&](std::vector<Prompt> some, int batch) {
    policy::PartialPolicy policy;
    policy.gpu_batch_size = batch, policy.num_gpu_batches = 1;
    policy.weights = policy.kv = policy.activations = policy::Fractions{};
    policy.attention_on_host = 0;
    policy.retention = policy::Retention::from_text(rule);
    return Engine(*source, policy, std::move(some)).run();
  };
  const std::vector<Answer> together = run(prompts, 4);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    CAPTURE(i);
    CHECK(difference(run({prompts[i]}, 1).front(), together[i]).empty());
  }
}
