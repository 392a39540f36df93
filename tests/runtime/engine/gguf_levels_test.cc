// tests/runtime/engine/gguf_levels_test.cc: answers of GGUF files whose matrices are levels.
#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/model/convert.h"
#include "runtime/model/model_source.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::test;

namespace {

namespace fs = std::filesystem;

/// Of the largest |logit|: numbers of the run are float16.
constexpr double kLevelTolerance = 5e-3;
const policy::WeightFormat kOwnNvfp4{.dtype = DType::i4, .group = 16, .arithmetic = Arithmetic::exact};
const policy::WeightFormat kOwnLevels{.dtype = DType::i4, .group = 32, .arithmetic = Arithmetic::exact};

}  // namespace

TEST_CASE("a quantised GGUF file computes what its numbers compute", "[runtime][golden][gguf][cpu]") {
  const std::string model =
      GENERATE("llama-mixed", "llama-256", "llama-k", "llama-nvfp4", "llama-parts-00001-of-00003");
  const auto numbers = runtime::open_model(
      data_path("gguf") / (model.starts_with("llama-parts") ? "llama-mixed" : model), "float32", "");
  const fs::path file = data_path("gguf") / (model + ".gguf");
  CAPTURE(model);
  const std::vector<Prompt> prompts{{{3, 4, 5, 6, 7}, 8, {}}, {{9}, 8, {}}, {{30, 2, 17}, 8, {}}};
  policy::PartialPolicy policy;
  policy.gpu_batch_size = 2, policy.num_gpu_batches = 2;
  const std::vector<Answer> wanted = Engine(*numbers, policy, prompts).run();
  const auto check = [&](const runtime::ModelSource& source, double tolerance) {
    const std::vector<Answer> got = Engine(source, policy, prompts).run();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (tolerance == 0) {
        CHECK(difference(wanted[i], got[i]) == "");
        continue;
      }
      CHECK(logit_deviation(wanted[i].logits[0], got[i].logits[0]) <= tolerance);
    }
  };
  const auto floats = runtime::open_model(file, "float32", "", policy::WeightFormat{.dtype = DType::f32});
  CHECK(floats->spec.tied_head);
  CHECK(policy::parameters(floats->spec) == policy::parameters(numbers->spec));
  check(*floats, 0);

  const policy::WeightFormat own = model == "llama-nvfp4" ? kOwnNvfp4 : kOwnLevels;
  const auto levels = runtime::open_model(file, "auto", "", own);
  CHECK(levels->spec.quantisation.packing == policy::Quantisation::Packing::gguf);
  CHECK(levels->weight_format == own);
  // The head, which is tied to the embedding, keeps its levels.
  CHECK((!levels->spec.tied_head && levels->spec.quantisation.head == DType::i8));
  CHECK(policy::parameters(levels->spec) == policy::parameters(numbers->spec));
  const std::string unpacked = " is unpacked to float16, which rounds its numbers";  // the embedding is
  const std::string rounded = " keeps its levels, with scales and minima rounded to float16";
  std::vector<std::string> notes{"Q8_0" + unpacked};
  if (model == "llama-256") notes = {"Q3_K" + unpacked, "IQ4_XS, Q2_K" + rounded};
  if (model == "llama-k") notes = {"Q6_K" + unpacked, "Q2_K, Q4_K, Q5_K, Q6_K" + rounded};
  if (model == "llama-nvfp4") notes.push_back("NVFP4" + rounded);
  for (std::string& note : notes) note = file.filename().string() + ": " + note;
  CHECK(levels->notes == notes);
  check(*levels, kLevelTolerance);

  const std::atomic<bool> stop{false};
  const TemporaryFolder temporary;  // packed, it has the same bytes
  runtime::convert_checkpoint(file, temporary / "packed", "auto", stop);
  const auto packed = runtime::open_model(temporary / "packed", "auto", "");
  REQUIRE(packed->weights->unit_bytes() == levels->weights->unit_bytes());
  CHECK_FALSE(packed->packs());
  const std::vector<Answer> own_answers = Engine(*levels, policy, prompts).run();
  const auto again = runtime::open_model(temporary / "packed", "auto", "", own);
  const std::vector<Answer> packed_answers = Engine(*again, policy, prompts).run();
  for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(difference(own_answers[i], packed_answers[i]) == "");

  runtime::convert_checkpoint(file, temporary / "plain", "float32", stop, true,
                              policy::WeightFormat{.dtype = DType::f32});
  check(*runtime::open_model(temporary / "plain", "float32", ""), 0);
}

TEST_CASE("a head that keeps its levels computes what its numbers compute, wherever it is", "[runtime][golden][gguf]") {
  const auto numbers = runtime::open_model(data_path("gguf/llama-mixed"), "float32", "");
  const auto levels = runtime::open_model(data_path("gguf/llama-mixed.gguf"), "auto", "", kOwnLevels);
  REQUIRE(levels->spec.quantisation.head == DType::i8);
  std::vector<Prompt> prompts{{{3, 4, 5, 6, 7}, 3, {}}, {{9}, 3, {}}, {{30, 2, 17}, 3, {}}};
  prompts.push_back(prompts.back());  // a GPU unpacks levels for so many rows
  for (int i = 0; i < 70; ++i) prompts.back().ids.push_back(3 + 7 * i % 90);
  policy::PartialPolicy policy;
  policy.gpu_batch_size = 2, policy.num_gpu_batches = 2;
  const std::vector<Answer> wanted = Engine(*numbers, policy, prompts, {.backend = "cpu"}).run();
  const TemporaryFolder spill;
  std::vector<Answer> first;
  for (const policy::Fractions weights : {policy::Fractions{{1, 0, 0}}, {{0, 1, 0}}, {{0.3, 0.4, 0.3}}, {{0, 0, 1}}}) {
    policy.weights = weights;
    const std::vector<Answer> got =
        Engine(*levels, policy, prompts, {.backend = backend_name(), .disk_directory = spill.path().string()}).run();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      REQUIRE(got[i].logits[0].size() == wanted[i].logits[0].size());
      CHECK(logit_deviation(wanted[i].logits[0], got[i].logits[0]) <= kLevelTolerance);
      CHECK(got[i].tokens == wanted[i].tokens);
      if (!first.empty() && !on_gpu()) CHECK(difference(first[i], got[i]) == "");
    }
    if (first.empty()) first = got;
  }
}
