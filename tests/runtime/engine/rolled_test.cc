// Sequences that go on past the model's context, against others that begin with what is left of them.
#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/error.h"
#include "runtime/model/model_source.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::test;

namespace {

constexpr int kContext = 16, kSinks = 2, kRecent = 5, kBudget = kSinks + kRecent;

/// One layer: keys and values depend on their token and its position alone.
std::unique_ptr<runtime::ModelSource> one_layer(const TemporaryFolder& folder, int context) {
  write_text(folder / "config.json", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
    "torch_dtype": "float32", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300, "rms_norm_eps": 1e-5, "rope_theta": 100,
    "max_position_embeddings": )" + std::to_string(context) +
                                         "}");
  return runtime::open_model(folder / "config.json", "float32", "random:5");
}

std::vector<std::int32_t> random_tokens(std::size_t count, int vocab) {
  std::mt19937 random(3);
  std::vector<std::int32_t> tokens(count);
  for (std::int32_t& token : tokens) token = std::uniform_int_distribution<std::int32_t>(0, vocab - 1)(random);
  return tokens;
}

/// Scored behind their first `prompt` tokens.
Prompt scored(const std::vector<std::int32_t>& tokens, int prompt) {
  const std::vector<std::int32_t> rest(tokens.begin() + prompt, tokens.end());
  return {{tokens.begin(), tokens.begin() + prompt}, static_cast<std::int64_t>(rest.size()), rest};
}

std::vector<Answer> run(const runtime::ModelSource& source, const std::string& retention, std::vector<Prompt> prompts) {
  policy::PartialPolicy policy;
  policy.gpu_batch_size = static_cast<int>(prompts.size()), policy.num_gpu_batches = 1;
  policy.weights = policy.kv = policy.activations = policy::Fractions{{1, 0, 0}};
  policy.retention = policy::Retention::from_text(retention);
  return Engine(source, policy, std::move(prompts)).run();
}

std::vector<double> wide(const std::vector<float>& numbers) { return {numbers.begin(), numbers.end()}; }

}  // namespace

TEST_CASE("past the context a sequence goes on as if it began with what is left of it", "[runtime][rolled]") {
  const TemporaryFolder folder;
  const auto source = one_layer(folder, kContext);
  const std::string retention = "recent:" + std::to_string(kRecent) + ":sinks=" + std::to_string(kSinks);
  constexpr int kPrompt = 6, kTokens = 60;
  const auto tokens = random_tokens(kTokens, source->spec.vocab);
  const Answer all = run(*source, retention + ":positions=rolled", {scored(tokens, kPrompt)}).front();
  REQUIRE(all.logits.size() == kTokens - kPrompt);

  // What is stored moves for the first time before token 16, then every 9 tokens. Another sequence begins with that.
  for (int first = kContext; first < 50; first += kContext - kBudget) {
    std::vector<std::int32_t> left(tokens.begin(), tokens.begin() + kSinks);
    left.insert(left.end(), tokens.begin() + first - kRecent, tokens.end());
    const Answer anew = run(*source, retention + ":positions=rolled", {scored(left, kBudget)}).front();
    for (int token = first; token < kTokens - 1; ++token) {
      CAPTURE(first, token);
      CHECK_THAT(all.logits[static_cast<std::size_t>(token - kPrompt + 1)],
                 near(wide(anew.logits[static_cast<std::size_t>(token - first + 1)]), 2e-5));
    }
  }
  // With positions as they are in the sequence it says something else.
  const auto longer = one_layer(folder, kTokens);
  const Answer absolute = run(*longer, retention, {scored(tokens, kPrompt)}).front();
  double most = 0;
  for (int token = kContext; token < kTokens - 1; ++token)
    for (std::size_t i = 0; i < all.logits[0].size(); ++i) {
      const auto row = static_cast<std::size_t>(token - kPrompt + 1);
      most = std::max(most, std::abs(double(all.logits[row][i]) - double(absolute.logits[row][i])));
    }
  double largest = 0;
  for (const float logit : all.logits[0]) largest = std::max(largest, std::abs(double(logit)));
  CHECK(most > 2e-4 * largest);
}

TEST_CASE("where the context is not reached, rolled positions change no bit", "[runtime][rolled]") {
  const auto source = runtime::open_model(data_path("golden") / "llama-llama3-gqa-bf16", "auto", "");
  std::vector<Prompt> prompts;
  for (int i = 0; i < 5; ++i) {
    const auto tokens = random_tokens(static_cast<std::size_t>(20 + 8 * i), source->spec.vocab);
    prompts.push_back(scored(tokens, 3 + 4 * i));
  }
  const auto expected = run(*source, "h2o:4:4", prompts), rolled = run(*source, "h2o:4:4:positions=rolled", prompts);
  for (std::size_t i = 0; i < prompts.size(); ++i) CHECK(difference(expected[i], rolled[i]) == "");
  // The last token's index is the context's end here, and one beyond it there.
  const std::int64_t longest = 20 + 8 * 4 - 1;
  source->spec.positions = static_cast<int>(longest);
  const auto just = run(*source, "h2o:4:4:positions=rolled", prompts);
  for (std::size_t i = 0; i < prompts.size(); ++i) CHECK(difference(expected[i], just[i]) == "");
  source->spec.positions = static_cast<int>(longest) - 1;
  const auto beyond = run(*source, "h2o:4:4:positions=rolled", prompts);
  CHECK(difference(expected[3], beyond[3]) == "");
  CHECK(difference(expected[4], beyond[4]) == "the logits before token " + std::to_string(prompts[4].tokens - 1));
}

TEST_CASE("what cannot go on past the context is refused", "[runtime][rolled]") {
  using Catch::Matchers::Contains;
  const auto llama = runtime::open_model(data_path("golden") / "llama-llama3-gqa-bf16", "auto", "");
  llama->spec.positions = 16;
  const auto tokens = random_tokens(30, llama->spec.vocab);
  CHECK_THROWS_WITH(run(*llama, "h2o:8:8:positions=rolled", {scored(tokens, 3)}),
                    Contains("the model's context is 16") && Contains("the retention keeps 16"));
  CHECK_NOTHROW(run(*llama, "h2o:8:7:positions=rolled", {scored(tokens, 3)}));  // moves before each token
  const auto opt = runtime::open_model(data_path("golden") / "prenorm-tied-f16", "auto", "");
  CHECK_THROWS_WITH(run(*opt, "h2o:4:4:positions=rolled", {scored(random_tokens(12, opt->spec.vocab), 3)}),
                    Contains("opt adds learned positions"));
}
