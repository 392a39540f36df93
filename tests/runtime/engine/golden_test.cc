// What Hugging Face transformers computes in fp32 with the same stored weights (scripts/fixtures/make_golden.py says
// how).
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/linear/linear_cpu.h"
#include "runtime/model/convert.h"
#include "runtime/model/model_source.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::test;

namespace {

namespace fs = std::filesystem;

[[maybe_unused]] const std::atomic<bool> kGoOn{false};

/// Of the largest |logit|. transformers in bfloat16 is as far from its answers in fp32 for some of these checkpoints.
double logit_tolerance(const std::string& dtype) {
  return dtype == "float32" ? 1e-4 : dtype == "float16" ? 5e-3 : 4e-2;
}

std::string name_of_type(DType dtype) {
  return dtype == DType::f32 ? "float32" : dtype == DType::f16 ? "float16" : "bfloat16";
}

/// The golden checkpoints, a group of families for each test case. Those of no other group are OPT's.
const std::vector<std::vector<std::string>> kGroups = {
    {},
    {"llama", "smollm", "granite"},
    {"mistral", "neox", "phi"},
    {"qwen", "glm"},
    {"gemma", "olmo"},
    {"moe"},
    {"arcee", "cohere", "ernie", "exaone", "hunyuan", "nemotron", "seed", "stablelm", "starcoder"}};

std::size_t group_of(const std::string& checkpoint) {
  for (std::size_t group = 1; group < kGroups.size(); ++group)
    for (const std::string& family : kGroups[group])
      if (checkpoint.starts_with(family)) return group;
  return 0;
}

/// Whether rounding to the 16 bits of the weights, as a GPU does after each op and products of bf16 pairs before, makes
/// some token choose other experts. transformers in bfloat16 is then as far from its answers in fp32.
bool rounds_to_other_experts(const std::string& name) {
  return name == "moe-gpt-oss-bf16" || name == "moe-qwen3-f16" || name == "moe-qwen3-stacked-bf16";
}

std::vector<std::string> golden_names(std::size_t group) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(data_path("golden")))
    if (entry.is_directory() && group_of(entry.path().filename()) == group) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  // The simulated GPU is slow: one checkpoint of each architecture and type of weights stands for the others there.
  const std::set<std::string> sample{"postnorm-projections-f16",
                                     "plain-norms-f32",
                                     "llama-llama3-gqa-bf16",
                                     "mistral-window-mqa-bf16",
                                     "neox-parallel-f16",
                                     "qwen2-tied-f16",
                                     "qwen3-tied-f16",
                                     "smollm3-interval-bf16",
                                     "mistral-slides-f16",
                                     "gemma2-slides-bf16",
                                     "gemma3-text-slides-bf16",
                                     "gemma4-slides-bf16",
                                     "gemma4-slides-experts-f32",
                                     "gemma4-slides-shared-bf16",
                                     "olmo3-slides-yarn-bf16",
                                     "phi3-longrope-bf16",
                                     "glm4-bf16",
                                     "granite-f16",
                                     "cohere2-slides-bf16",
                                     "starcoder2-slides-bf16",
                                     "moe-mixtral-slides-sharded-bf16",
                                     "moe-qwen2-shared-f16",
                                     "moe-glm4-groups-f16",
                                     "moe-gpt-oss-f32",
                                     "moe-granite-f32"};
  if (on_gpu() && !exhaustive()) std::erase_if(names, [&](const std::string& name) { return !sample.contains(name); });
  if (on_gpu()) std::erase_if(names, rounds_to_other_experts);
  return names;
}

/// The largest deviation from the expected logits, as a share of the largest |logit|.
double logit_deviation(const nlohmann::json& expected, const std::vector<float>& got) {
  const auto values = expected.at("values").get<std::vector<double>>();
  std::vector<std::size_t> ids(values.size());
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = i;
  if (expected.contains("ids")) ids = expected.at("ids").get<std::vector<std::size_t>>();
  else REQUIRE(values.size() == got.size());
  double worst = 0;
  for (std::size_t i = 0; i < ids.size(); ++i)
    worst = larger_error(worst, std::abs(double(got.at(ids[i])) - values[i]));
  return worst / expected.at("largest").get<double>();
}

struct Deviation {
  double logits = 0, logprobs = 0;  // shares of the largest |logit|
  std::size_t compared = 0;         // greedy tokens
};

/// The first `tokens` numbers of a list, which has one for each token.
template <class T> std::vector<T> first_of(const nlohmann::json& list, std::size_t tokens) {
  auto all = list.get<std::vector<T>>();
  all.resize(std::min(tokens, all.size()));
  return all;
}

/// Compares the first `tokens` tokens.
void compare(const nlohmann::json& expected, std::size_t tokens, const Answer& forced, const Answer& free,
             double tolerance, Deviation& worst) {
  for (const auto& row : expected.at("logits")) {
    const auto token = row.at("generated").get<std::size_t>();
    if (token < tokens) worst.logits = larger_error(worst.logits, logit_deviation(row, forced.logits.at(token)));
  }
  const auto logprobs = first_of<double>(expected.at("logprobs"), tokens);
  for (std::size_t i = 0; i < logprobs.size(); ++i)
    worst.logprobs = larger_error(
        worst.logprobs, std::abs(double(forced.logprobs.at(i)) - logprobs[i]) / largest_logit(forced.logits[i]));

  // Where the two most likely tokens are closer than the tolerance either may come, and another text follows.
  const auto ids = first_of<std::int32_t>(expected.at("greedy_ids"), tokens);
  const auto gaps = first_of<double>(expected.at("relative_gap"), tokens);
  const auto certain =
      std::find_if(gaps.begin(), gaps.end(), [&](double gap) { return gap < tolerance; }) - gaps.begin();
  CHECK(std::vector(free.tokens.begin(), free.tokens.begin() + certain) ==
        std::vector(ids.begin(), ids.begin() + certain));
  for (std::size_t i = 0; i < static_cast<std::size_t>(certain); ++i) {
    worst.logprobs = larger_error(worst.logprobs, std::abs(double(free.token_logprobs.chosen.at(i)) - logprobs[i]) /
                                                      largest_logit(free.logits[i]));
    REQUIRE(free.token_logprobs.top.at(i).at(0).token == ids[i]);
    REQUIRE(free.token_logprobs.top[i][0].logprob == free.token_logprobs.chosen[i]);
  }
  worst.compared += static_cast<std::size_t>(certain);
}

/// All prompts, once to generate and once to score what transformers generated, in one block of three batches. Returns
/// how many generated tokens were beyond doubt and so had to be the same.
std::size_t check_prompts(const nlohmann::json& expected, const runtime::ModelSource& source, double tolerance) {
  std::vector<Prompt> prompts;
  const std::size_t tokens = on_gpu() && !exhaustive() ? 16 : 64;  // of each
  for (const auto& prompt : expected) {
    const auto ids = prompt.at("prompt_ids").get<std::vector<std::int32_t>>();
    const auto greedy = first_of<std::int32_t>(prompt.at("greedy_ids"), tokens);
    prompts.push_back({ids, static_cast<std::int64_t>(greedy.size()), greedy});
    prompts.push_back({ids, static_cast<std::int64_t>(greedy.size()), {}});
    prompts.back().alternatives = 1;
  }
  policy::PartialPolicy policy;
  policy.num_gpu_batches = 3;
  policy.gpu_batch_size = static_cast<int>((prompts.size() + 2) / 3);
  const std::vector<Answer> answers = Engine(source, policy, prompts).run();

  Deviation worst;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    compare(expected[i], tokens, answers[2 * i], answers[2 * i + 1], tolerance, worst);
  }
  CHECK(worst.logits <= tolerance);
  CHECK(worst.logprobs <= 2 * tolerance);  // the logit's own deviation and the sum's
  return worst.compared;
}

void check_model(const fs::path& folder, const fs::path& expected_file, const std::string& dtype) {
  const auto expected = nlohmann::json::parse(read_text(expected_file)).at("prompts");
  CHECK(check_prompts(expected, *runtime::open_model(folder, dtype, ""), logit_tolerance(dtype)) > 0);
}

/// On a GPU products are taken in the type of the stored weights, whatever --dtype says.
std::vector<std::string> dtypes_of(const fs::path& folder) {
  const std::string stored = name_of_type(runtime::read_model_spec(folder).dtype);
  if (!on_gpu() && stored == "bfloat16" && kernels::multiplies_bf16() && rounds_to_other_experts(folder.filename()))
    return {"float32"};
  return stored == "float32" || on_gpu() ? std::vector{stored} : std::vector{stored, std::string("float32")};
}

void check_group(std::size_t group) {
  const std::string name = GENERATE_COPY(from_range(golden_names(group)));
  const fs::path folder = data_path("golden") / name;
  for (const std::string& dtype : dtypes_of(folder)) {
    CAPTURE(name, dtype);
    check_model(folder, folder / "expected.json", dtype);
  }
}

/// The same of quantised.json (scripts/fixtures/make_quantised_golden.py): the matrices of the layers are quantised
/// there as well.
void check_quantised(std::size_t group, DType dtype) {
  std::vector<std::string> names = golden_names(group);
  std::erase_if(names, [](const std::string& n) { return !fs::exists(data_path("golden") / n / "quantised.json"); });
  const std::string name = GENERATE_COPY(from_range(names));
  const fs::path folder = data_path("golden") / name;
  CAPTURE(name, name_of(dtype));
  const auto expected = nlohmann::json::parse(read_text(folder / "quantised.json"));
  const policy::WeightFormat format{
      .dtype = dtype, .group = expected.at("group").get<int>(), .arithmetic = Arithmetic::exact};
  const std::string stored = name_of_type(runtime::read_model_spec(folder).dtype);
  check_prompts(expected.at(name_of(dtype)), *runtime::open_model(folder, stored, "", format), logit_tolerance(stored));
}

/// The checkpoints of tests/data/quantised, of all formats that others write (scripts/fixtures/make_foreign_golden.py).
fs::path foreign_folder() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(data_path("quantised"))) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return data_path("quantised") / GENERATE_COPY(from_range(names));
}

std::unique_ptr<runtime::ModelSource> open_foreign(const fs::path& folder) {
  const policy::Quantisation own = runtime::read_model_spec(folder).quantisation;
  std::optional<policy::WeightFormat> format;
  if (own.keeps_levels()) format = {.dtype = own.dtype, .group = own.group, .arithmetic = Arithmetic::exact};
  return runtime::open_model(folder, "auto", "", format);
}

}  // namespace

TEST_CASE("every tiny OPT computes what transformers computes", "[runtime][golden]") { check_group(0); }

TEST_CASE("every tiny LLaMA, SmolLM and Granite computes what transformers computes", "[runtime][golden]") {
  check_group(1);
}

TEST_CASE("every tiny Mistral, Phi and GPT-NeoX computes what transformers computes", "[runtime][golden]") {
  check_group(2);
}

TEST_CASE("every tiny Qwen and GLM computes what transformers computes", "[runtime][golden]") { check_group(3); }

TEST_CASE("every tiny Gemma and OLMo computes what transformers computes", "[runtime][golden]") { check_group(4); }

TEST_CASE("every tiny mixture of experts computes what transformers computes", "[runtime][golden][experts]") {
  check_group(5);
}

TEST_CASE("every tiny model of the other dense families computes what transformers computes", "[runtime][golden]") {
  check_group(6);
}

TEST_CASE("GGUF files of floats compute what transformers computes", "[runtime][golden][gguf]") {
  std::vector<std::pair<std::string, std::string>> files{{"llama-f16", "llama-absent-keys-f16"},
                                                         {"gemma3-bf16", "gemma3-interval-bf16"},
                                                         {"qwen2-f16", "qwen2-tied-f16"},
                                                         {"qwen3-f16", "qwen3-tied-f16"},
                                                         {"gemma-bf16", "gemma-bf16"},
                                                         {"phi3-f16", "phi3-slides-f16"},
                                                         {"phi3-longrope-bf16", "phi3-longrope-bf16"},
                                                         {"olmo2-f16", "olmo2-f16"},
                                                         {"olmo3-bf16", "olmo3-slides-yarn-bf16"},
                                                         {"granite-f16", "granite-f16"},
                                                         {"glm4-bf16", "glm4-bf16"},
                                                         {"olmoe-f32", "moe-olmoe-f32"},
                                                         {"qwen3moe-bf16", "moe-qwen3-stacked-bf16"},
                                                         {"mixtral-f16", "moe-mixtral-f16"},
                                                         {"gpt-oss-bf16", "moe-gpt-oss-bf16"},
                                                         {"granitemoe-f32", "moe-granite-f32"},
                                                         {"qwen2moe-f16", "moe-qwen2-f16"},
                                                         {"glm4moe-f16", "moe-glm4-groups-f16"},
                                                         {"dots1-f16", "moe-dots1-groups-f16"},
                                                         {"ernie4_5-moe-f16", "moe-ernie4-f16"},
                                                         {"minimax-m2-f16", "moe-minimax-m2-f16"},
                                                         {"seed_oss-f16", "seed-oss-f16"},
                                                         {"ernie4_5-bf16", "ernie4-bf16"},
                                                         {"exaone4-bf16", "exaone4-slides-bf16"},
                                                         {"command-r-f16", "cohere-f16"},
                                                         {"command-r-plus-bf16", "cohere-head-norms-bf16"},
                                                         {"cohere2-bf16", "cohere2-slides-bf16"},
                                                         {"stablelm-f16", "stablelm-f16"},
                                                         {"hunyuan-moe-f32", "moe-hunyuan-f32"},
                                                         {"arcee-bf16", "arcee-bf16"},
                                                         {"nemotron-f16", "nemotron-f16"},
                                                         {"starcoder2-bf16", "starcoder2-slides-bf16"},
                                                         {"gemma4-bf16", "gemma4-slides-bf16"},
                                                         {"gemma4-experts-f32", "gemma4-slides-experts-f32"},
                                                         {"gemma4-shared-bf16", "gemma4-slides-shared-bf16"}};
  if (on_gpu() && !exhaustive()) files.resize(2);  // the simulated GPU is slow
  if (on_gpu()) std::erase_if(files, [](const auto& file) { return rounds_to_other_experts(file.second); });
  const auto [file, golden] = GENERATE_COPY(from_range(files));
  const fs::path path = data_path("gguf") / (file + ".gguf"), folder = data_path("golden") / golden;
  for (const std::string& dtype : dtypes_of(folder)) {
    CAPTURE(path, dtype);
    check_model(path, folder / "expected.json", dtype);
  }
}

TEST_CASE("a tiny Qwen2 with gpt-oss's sink logits computes what transformers computes", "[runtime][golden]") {
  const auto source = open_sinks();
  const auto expected = nlohmann::json::parse(read_text(data_path("sinks/expected.json"))).at("prompts");
  CHECK(check_prompts(expected, *source, logit_tolerance("bfloat16")) > 0);
  // As the Qwen2 that its config.json names it is refused: the answers would be wrong.
  CHECK_THROWS_WITH(runtime::open_model(data_path("sinks"), "auto", ""), Catch::Contains("3 sink logits, such as"));
}

TEST_CASE("quantised tiny OPTs compute what transformers computes with the same levels", "[runtime][golden][cpu]") {
  check_quantised(0, GENERATE(DType::i4, DType::i8));
}

TEST_CASE("other quantised families compute what transformers computes with the same levels",
          "[runtime][golden][cpu]") {
  const std::size_t group = GENERATE(1, 2, 3);
  check_quantised(group, GENERATE(DType::i4, DType::i8));
}

TEST_CASE("what others have quantised computes what transformers computes with the numbers it means",
          "[runtime][golden][foreign][cpu]") {
  const fs::path folder = foreign_folder();
  CAPTURE(folder);
  const auto expected = nlohmann::json::parse(read_text(folder / "expected.json")).at("prompts");
  const std::string stored = name_of_type(runtime::read_model_spec(folder).dtype);
  const bool rounds = folder.filename().string().find("-nf4-") != std::string::npos;  // the table's numbers
  check_prompts(expected, *open_foreign(folder), (rounds ? 1.5 : 1) * logit_tolerance(stored));
  // Not quantised the numbers are exactly those of the reference.
  const auto numbers = runtime::open_model(folder, "float32", "", policy::WeightFormat{.dtype = DType::f32});
  CHECK(check_prompts(expected, *numbers, logit_tolerance("float32")) > 0);
}

TEST_CASE("what others have quantised is the same wherever it is, and converted", "[runtime][foreign][cpu]") {
  const fs::path folder = foreign_folder();
  CAPTURE(folder);
  const TemporaryFolder temporary;
  runtime::convert_checkpoint(folder, temporary / "packed", "auto", kGoOn);
  const auto original = runtime::open_model(folder, "auto", "");
  const auto packed = runtime::open_model(temporary / "packed", "auto", "");
  CHECK(original->weight_format == packed->weight_format);
  CHECK_FALSE(packed->packs());
  const std::vector<Prompt> prompts{{{3, 4, 5, 6, 7}, 6, {}}, {{9}, 6, {}}, {{100, 2, 17}, 6, {}}};
  policy::PartialPolicy policy;
  policy.gpu_batch_size = 2, policy.num_gpu_batches = 2;
  policy.weights = policy::Fractions{{1, 0, 0}};
  const runtime::MachineOptions machine{.backend = backend_name(), .disk_directory = temporary.path().string()};
  const std::vector<Answer> wanted = Engine(*original, policy, prompts, machine).run();
  for (const policy::Fractions& where : {policy::Fractions{{0, 1, 0}}, policy::Fractions{{0, 0, 1}},
                                         policy::Fractions{{0.3, 0.3, 0.4}}, policy::Fractions{{1, 0, 0}}}) {
    policy.weights = where;
    for (const auto* source : {original.get(), packed.get()}) {
      const std::vector<Answer> got = Engine(*source, policy, prompts, machine).run();
      for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(difference(wanted[i], got[i]) == "");
    }
  }
}

TEST_CASE("what others have quantised is converted to plain numbers that all can read", "[runtime][foreign][cpu]") {
  const fs::path folder = foreign_folder();
  CAPTURE(folder);
  const TemporaryFolder temporary;
  const policy::WeightFormat format{.dtype = DType::f32};
  runtime::convert_checkpoint(folder, temporary / "plain", "float32", kGoOn, true, format);
  const auto plain = runtime::open_model(temporary / "plain", "float32", "");
  CHECK_FALSE(plain->spec.quantisation);
  const auto expected = nlohmann::json::parse(read_text(folder / "expected.json")).at("prompts");
  CHECK(check_prompts(expected, *plain, logit_tolerance("float32")) > 0);
  // Quantised anew it is what these numbers are quantised to.
  const policy::Quantisation own = runtime::read_model_spec(folder).quantisation;
  // Groups of other sizes keep no levels, which matrices of 8 bits and those by a table would.
  const policy::WeightFormat other{.dtype = own.dtype == DType::i8 ? DType::i4 : DType::i8,
                                   .group = own.group == 64 ? 32 : 64};
  const auto original = runtime::open_model(folder, "float32", "", other);
  const auto pack = [&](const runtime::ModelSource& source) {
    return runtime::Weights::to_pack(source.spec, source.units, *source.checkpoint, DType::f32, other);
  };
  const runtime::Weights from_levels = pack(*original), from_numbers = pack(*plain);
  REQUIRE(from_levels.unit_bytes() == from_numbers.unit_bytes());
  for (std::size_t unit = 0; unit < plain->units.size(); ++unit) {
    std::vector<std::byte> a(from_levels.unit_bytes()[unit]), b(a.size());
    from_levels.make(unit, a.data());
    from_numbers.make(unit, b.data());
    CHECK(a == b);
  }
}

TEST_CASE("the demo model computes what transformers computes", "[runtime][large]") {
  const fs::path folder = source_path("models/demo");
  for (const std::string& dtype : dtypes_of(folder)) {
    CAPTURE(dtype);
    check_model(folder, data_path("golden") / "demo.json", dtype);
  }
}
