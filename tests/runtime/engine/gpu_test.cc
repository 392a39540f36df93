// The whole engine on a GPU, simulated or real, compared with the CPU and with itself.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/model/model_source.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::test;
using policy::Fractions;

namespace {

/// Of the largest |logit|: twice what either may be from exact numbers.
constexpr double kTolerance = 1e-2;

std::vector<Prompt> random_prompts(std::size_t count, int vocab, std::int64_t tokens, std::mt19937& random) {
  std::vector<Prompt> prompts(count);
  std::uniform_int_distribution<std::int32_t> id(4, vocab - 1), length(1, 60);
  for (Prompt& prompt : prompts) {
    prompt.ids.resize(static_cast<std::size_t>(length(random)));
    for (std::int32_t& token : prompt.ids) token = id(random);
    prompt.tokens = tokens;
  }
  return prompts;
}

Fractions random_fractions(std::mt19937& random) {
  std::exponential_distribution<double> share;
  Fractions f{{share(random), share(random), share(random)}};
  const double sum = f.device() + f.host() + f.disk();
  for (double& value : f.of) value /= sum;
  return f;
}

/// Whether some tokens, stored or read, have the highest bits of int8 alone.
bool few_bits(const policy::PartialPolicy& policy) { return policy.retention->cools() || policy.retention->selects(); }

policy::PartialPolicy all_on_device(const std::string& retention) {
  policy::PartialPolicy policy;
  policy.gpu_batch_size = 4, policy.num_gpu_batches = 3;
  policy.weights = policy.kv = policy.activations = Fractions{{1, 0, 0}};
  policy.retention = policy::Retention::from_text(retention);
  if (few_bits(policy)) policy.kv_format = policy::KvFormat::from_text("int8:3:2", "kv");
  return policy;
}

/// Prompts of up to `most` tokens behind `prefix` tokens that all begin with.
std::vector<Prompt> alike_prompts(int count, std::size_t most, std::int32_t prefix, int vocab, std::mt19937& random) {
  std::vector<Prompt> prompts = random_prompts(count, vocab, 4, random);
  for (Prompt& prompt : prompts) {
    prompt.ids.resize(std::min(prompt.ids.size(), most));
    for (std::int32_t token = 4; token < 4 + prefix; ++token) prompt.ids.insert(prompt.ids.begin(), token);
    prompt.prefix = prefix;
  }
  return prompts;
}

/// Between the two likeliest tokens, of the largest |logit|.
double gap(std::vector<float> logits) {
  const double most = largest_logit(logits);
  std::partial_sort(logits.begin(), logits.begin() + 2, logits.end(), std::greater<>());
  return double(logits[0] - logits[1]) / most;
}

/// Up to the first token where the expected answer's own two likeliest are closer than the tolerance, tokens are the
/// same and logits near. Returns how many tokens that were.
std::size_t compare(const Answer& expected, const Answer& got) {
  for (std::size_t i = 0; i < expected.tokens.size(); ++i) {
    CAPTURE(i);
    CHECK(logit_deviation(expected.logits[i], got.logits.at(i)) <= kTolerance);
    if (gap(expected.logits[i]) < kTolerance && expected.tokens[i] != got.tokens.at(i)) return i;
    REQUIRE(expected.tokens[i] == got.tokens.at(i));
  }
  return expected.tokens.size();
}
/// The same of all answers.
std::size_t compared(const std::vector<Answer>& expected, const std::vector<Answer>& got) {
  std::size_t tokens = 0;
  for (std::size_t i = 0; i < got.size(); ++i) tokens += compare(expected[i], got[i]);
  return tokens;
}

}  // namespace

TEST_CASE("on a GPU answers do not depend on the tiers, overlap or the disk engine", "[gpu][tiers]") {
  const std::array retentions{"full",
                              "h2o:0.1:0.1",
                              "h2o:0.2:0.1:layers=0.5,1.5,full",
                              "h2o:0.2:0.1:layers=1.5/0.5/0.5/1.5,1,full/full/1/1",
                              "h2o:4:4:positions=rolled",
                              "h2o:0.1:0.1:cold=0.6",
                              "h2o:0.4:0.1:read=0.1"};
  const int rule = GENERATE(range(0, 7));
  const std::string retention = retentions[static_cast<std::size_t>(rule)];
  const bool rolled = retention.ends_with("rolled"), by_head = retention.find('/') != std::string::npos;
  std::mt19937 random(4 + static_cast<unsigned>(rule));
  const TemporaryFolder spill;
  const auto source = runtime::open_model(data_path("golden") / (rolled    ? "llama-linear-biases-f16"
                                                                 : by_head ? "prenorm-tied-f16"
                                                                           : "sharded-bf16"),
                                          "auto", "");
  auto prompts = random_prompts(13, source->spec.vocab, rolled ? 40 : 9, random);
  if (rolled) source->spec.positions = 24;
  const std::size_t most = rolled ? 20 : exhaustive() ? 60 : 30;
  for (Prompt& prompt : prompts) prompt.ids.resize(std::min(prompt.ids.size(), most));
  const auto run = [&](const policy::PartialPolicy& policy, const std::string& engine) {
    return Engine(*source, policy, prompts,
                  {.backend = backend_name(), .disk_engine = engine, .disk_directory = spill.path().string()})
        .run();
  };
  const auto expected = run(all_on_device(retention), "auto");
  const int first = exhaustive() ? 0 : rule % 2 == 0 ? 0 : 3;  // one that overlaps, or one that does not
  for (int trial = first; trial < (exhaustive() ? 6 : first + 1); ++trial) {
    policy::PartialPolicy policy = all_on_device(retention);
    policy.weights = random_fractions(random), policy.kv = random_fractions(random),
    policy.activations = random_fractions(random);
    policy.attention_on_host = 0;
    policy.overlap = trial % 2 == 0;
    const auto answers =
        run(policy, std::array{"io_uring", "threads", "buffered"}[static_cast<std::size_t>(trial % 3)]);
    for (std::size_t i = 0; i < answers.size(); ++i) {
      CAPTURE(retention, trial, i);
      CHECK(difference(expected[i], answers[i]) == "");
    }
  }
}

TEST_CASE("on a GPU a shared prefix gives what whole prompts give within tolerance", "[gpu]") {
  const std::string retention = GENERATE("full", "h2o:0.5:0.3");
  std::mt19937 random(6);
  const auto source = runtime::open_model(data_path("golden") / "prenorm-tied-f16", "auto", "");
  const auto prompts = alike_prompts(8, 20, 80, source->spec.vocab, random);
  const policy::PartialPolicy policy = all_on_device(retention);
  const auto expected = Engine(*source, policy, prompts, {.backend = backend_name()}).run();
  Engine engine(*source, policy, prompts, {.backend = backend_name()}, true);
  const auto answers = engine.run();
  CHECK(engine.session().executor().totals().shared_prompt_tokens == 6 * 64);  // two of batches of four
  CHECK(compared(expected, answers) > 24);
}

TEST_CASE("on a GPU a prefix in the slots of an earlier sequence gives what whole prompts give within tolerance",
          "[gpu]") {
  std::mt19937 random(8);
  const auto source = runtime::open_model(data_path("golden") / "prenorm-tied-f16", "auto", "");
  const auto prompts = alike_prompts(12, 20, 80, source->spec.vocab, random);
  policy::PartialPolicy policy = all_on_device("full");
  policy.gpu_batch_size = 4, policy.num_gpu_batches = 1, policy.continuous = true;
  const auto expected = Engine(*source, policy, prompts, {.backend = backend_name()}).run();
  Engine engine(*source, policy, prompts, {.backend = backend_name()}, true);
  const auto answers = engine.run();
  CHECK(engine.session().executor().totals().shared_prompt_tokens == 11 * 64);
  CHECK(compared(expected, answers) > 36);
}

TEST_CASE("on a GPU a prompt in chunks gives what it gives in one within tolerance", "[gpu][chunks]") {
  const std::string retention = GENERATE("full", "h2o:0.5:0.3", "snapkv:0.5:0.2:window=50");
  const bool quantised = GENERATE(false, true), shares = exhaustive() ? GENERATE(false, true) : !quantised;
  CAPTURE(retention, quantised, shares);
  std::mt19937 random(7);
  const auto source = runtime::open_model(data_path("golden") / "prenorm-tied-f16", "auto", "");
  const auto prompts = alike_prompts(6, 50, 66, source->spec.vocab, random);
  policy::PartialPolicy policy = all_on_device(retention);
  if (quantised) policy.kv_format = policy::KvFormat::of(DType::i8);
  const auto expected = Engine(*source, policy, prompts, {.backend = backend_name()}).run();
  policy.max_batched_tokens = 64;
  const auto answers = Engine(*source, policy, prompts, {.backend = backend_name()}, shares).run();
  CHECK(compared(expected, answers) > 15);
}

TEST_CASE("on a GPU attention of the host's KV on the host computes the same within tolerance", "[gpu]") {
  const std::string retention = GENERATE("full", "h2o:0.25:0.25");
  std::mt19937 random(5);
  const TemporaryFolder spill;
  const auto source = runtime::open_model(data_path("golden") / "prenorm-tied-f16", "auto", "");
  const auto prompts = random_prompts(12, source->spec.vocab, 9, random);
  policy::PartialPolicy policy = all_on_device(retention);
  policy.kv = Fractions{{0.3, 0.4, 0.3}};
  const runtime::MachineOptions machine{.backend = backend_name(), .disk_directory = spill.path().string()};
  policy.attention_on_host = 0;
  const auto expected = Engine(*source, policy, prompts, machine).run();
  for (const double share : {0.4, 1.0}) {
    CAPTURE(retention, share);
    policy.attention_on_host = share;
    CHECK(compared(expected, Engine(*source, policy, prompts, machine).run()) > 60);
  }
}

TEST_CASE("on a GPU experts on the host compute the same within tolerance", "[gpu][experts]") {
  // Of moe-qwen2-f16 with int4 a token chooses other experts by how a GPU rounds, without the host too.
  const auto [name, weights] =
      GENERATE(table<std::string, std::string>({{"moe-qwen2-f16", "auto"}, {"moe-granite-f32", "int4"}}));
  CAPTURE(name, weights);
  std::mt19937 random(9);
  const TemporaryFolder spill;
  auto format = policy::weight_format_from_text(weights, "test");
  if (format) format->arithmetic = Arithmetic::exact;
  const auto source = runtime::open_model(data_path("golden") / name, "auto", "", format);
  const auto prompts = random_prompts(12, source->spec.vocab, 9, random);
  policy::PartialPolicy policy = all_on_device("full");
  policy.weights = Fractions{{0.3, 0.4, 0.3}};
  const runtime::MachineOptions machine{.backend = backend_name(), .disk_directory = spill.path().string()};
  const auto expected = Engine(*source, policy, prompts, machine).run();
  for (const double share : {0.5, 1.0}) {
    CAPTURE(share);
    policy.experts_on_host = share;
    CHECK(compared(expected, Engine(*source, policy, prompts, machine).run()) > 60);
  }
}

TEST_CASE("on a GPU cold tokens and those that are read in part give what they give on the CPU within tolerance",
          "[gpu]") {
  struct Layout {
    Fractions kv;
    double attention_on_host;
  };
  const Layout layouts[] = {{{{1, 0, 0}}, 0}, {{{0, 1, 0}}, 0}, {{{0, 1, 0}}, 1}, {{{0.3, 0.4, 0.3}}, 0.5}};
  const std::string retention =
      exhaustive() ? GENERATE("h2o:3:3:cold=1.0", "recent:4:cold=1.0", "full:read=0.2", "h2o:0.6:0.1:read=6")
                   : GENERATE("h2o:3:3:cold=1.0", "full:read=0.2");
  std::mt19937 random(8);
  const TemporaryFolder spill;
  const auto source = runtime::open_model(data_path("golden") / "prenorm-tied-f16", "auto", "");
  auto prompts = random_prompts(6, source->spec.vocab, 5, random);
  for (Prompt& prompt : prompts) prompt.forced.assign(5, 9);  // so that all runs compute the same logits
  const auto run = [&](const std::string& rule, const std::string& backend, const Layout& layout) {
    policy::PartialPolicy policy = all_on_device(rule);
    policy.gpu_batch_size = 2;
    policy.kv_format = policy::KvFormat::from_text(few_bits(policy) ? "int8:4:3" : "int8", "kv");
    policy.kv = layout.kv, policy.attention_on_host = layout.attention_on_host;
    return Engine(*source, policy, prompts, {.backend = backend, .disk_directory = spill.path().string()}).run();
  };
  const auto apart = [](const std::vector<Answer>& a, const std::vector<Answer>& b) {  // on average
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
      for (std::size_t token = 0; token < a[i].logits.size(); ++token)
        sum += logit_deviation(a[i].logits[token], b[i].logits.at(token)) / double(a[i].logits.size() * a.size());
    return sum;
  };
  // A number that the GPU's sums bring over the border of a coarse level moves by a whole one. So the measure is what
  // few bits are worth: how far answers without them are away. A CPU also rounds what high rows are multiplied with.
  const bool reads = retention.find(":read") != std::string::npos;
  const auto expected = run(retention, "cpu", layouts[0]);
  const double worth =
      apart(expected, run(retention.substr(0, retention.find(reads ? ":read" : ":cold")), "cpu", layouts[0]));
  for (const Layout& layout : layouts) {
    const double parted = apart(expected, run(retention, backend_name(), layout));
    CAPTURE(retention, worth, parted, layout.kv.host(), layout.attention_on_host);
    CHECK(parted < worth / (reads ? 4 : 20));
  }
}

TEST_CASE("the demo model's greedy tokens are the CPU's", "[gpu][exhaustive]") {
  constexpr std::size_t kPrompts = 20;
  constexpr std::int64_t kTokens = 128;
  std::mt19937 random(6);
  const auto source = runtime::open_model(source_path("models/demo"), "float16", "");
  const auto prompts = random_prompts(kPrompts, source->spec.vocab, kTokens, random);
  policy::PartialPolicy policy = all_on_device("full");
  policy.gpu_batch_size = kPrompts, policy.num_gpu_batches = 1;
  const auto expected = Engine(*source, policy, prompts, {.backend = "cpu"}).run();
  const auto answers = Engine(*source, policy, prompts, {.backend = backend_name()}).run();
  std::size_t compared = 0;
  for (std::size_t i = 0; i < kPrompts; ++i) {
    CAPTURE(i);
    const std::size_t same = compare(expected[i], answers[i]);
    if (same < kTokens)
      std::printf(
          "prompt %zu: another token at %zu, where the CPU's two likeliest are %.1e of the largest logit apart\n", i,
          same, gap(expected[i].logits[same]));
    compared += same;
  }
  std::printf("%zu of %zu greedy tokens compared\n", compared, kPrompts * static_cast<std::size_t>(kTokens));
  CHECK(compared > kPrompts * kTokens / 2);
}
