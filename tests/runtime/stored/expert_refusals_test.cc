// tests/runtime/stored/expert_refusals_test.cc: checkpoints of experts that are not what their config.json says.
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/error.h"
#include "runtime/model/model_source.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::test;
using Catch::Contains;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

/// A copy of a golden checkpoint.
class Copy {
 public:
  explicit Copy(const std::string& name) {
    fs::copy(data_path("golden") / name, folder_.path(), fs::copy_options::recursive);
  }
  void say(const std::string& key, const json& value) const {
    json config = json::parse(read_text(folder_ / "config.json"));
    config[key] = value;
    write_text(folder_ / "config.json", config.dump());
  }
  /// Gives a tensor another name of the same length.
  void rename(const std::string& from, const std::string& to) const {
    REQUIRE(from.size() == to.size());
    std::string bytes = read_text(folder_ / "model.safetensors");
    const auto at = bytes.find("\"" + from + "\"");
    REQUIRE(at != std::string::npos);
    write_text(folder_ / "model.safetensors", bytes.replace(at + 1, to.size(), to));
  }
  auto open() const { return runtime::open_model(folder_.path(), "auto", ""); }

 private:
  TemporaryFolder folder_;
};

}  // namespace

TEST_CASE("a config that contradicts the tensors of experts is refused, with the tensor's name", "[runtime][experts]") {
  struct Case {
    const char *model, *key;
    json value;
    const char *tensor, *says;
  };
  const auto& [model, key, value, tensor, says] = GENERATE(values<Case>({
      // More experts than there are, and fewer.
      {"moe-olmoe-f32", "num_experts", 21, "mlp.gate.weight", "is [20, 48], wanted [21, 48]"},
      {"moe-olmoe-f32", "num_experts", 19, "mlp.gate.weight", "is [20, 48], wanted [19, 48]"},
      {"moe-mixtral-f16", "num_local_experts", 3, "block_sparse_moe.gate.weight", "is [4, 64], wanted [3, 64]"},
      {"moe-qwen3-stacked-bf16", "num_local_experts", 7, "mlp.", "wanted [7, 64"},
      {"moe-qwen3-stacked-bf16", "num_local_experts", 5, "mlp.", "wanted [5, 64"},
      {"moe-gpt-oss-f32", "num_local_experts", 4, "mlp.", "wanted [4"},
      // Experts of another width.
      {"moe-olmoe-f32", "intermediate_size", 40, "mlp.experts.0.gate_proj.weight", "is [32, 48], wanted [40, 48]"},
      {"moe-qwen2-shared-f16", "moe_intermediate_size", 32, "mlp.experts.0.gate_proj.weight",
       "is [24, 48], wanted [32, 48]"},
      {"moe-qwen3-stacked-bf16", "moe_intermediate_size", 16, "mlp.experts.", "wanted [6, "},
      // Shared experts of another width, or number.
      {"moe-qwen2-shared-f16", "shared_expert_intermediate_size", 24, "mlp.shared_expert.",
       "is [40, 48], wanted [24, 48]"},
      {"moe-glm4-groups-f16", "n_shared_experts", 1, "mlp.shared_experts.", "is [64, 64], wanted [32, 64]"},
      // Dense layers that are sparse, and sparse ones that are dense.
      {"moe-qwen2-shared-f16", "mlp_only_layers", json::array(), "layers.1.mlp.", "is missing"},
      {"moe-qwen2-shared-f16", "mlp_only_layers", json::array({0, 1}), "layers.0.mlp.", "is missing"},
      {"moe-glm4-groups-f16", "first_k_dense_replace", 2, "layers.1.mlp.", "is missing"},
      {"moe-glm4-groups-f16", "first_k_dense_replace", 0, "layers.0.mlp.", "is missing"},
  }));
  CAPTURE(model, key, value.dump());
  const Copy copy(model);
  CHECK_NOTHROW(copy.open());
  copy.say(key, value);
  CHECK_THROWS_AS(copy.open(), DataError);
  CHECK_THROWS_WITH(copy.open(), Contains(tensor) && Contains(says));
}

TEST_CASE("routers that choose more experts than there are, or none, are refused", "[runtime][experts]") {
  const auto& [model, key, value] = GENERATE(table<const char*, const char*, int>({
      {"moe-olmoe-f32", "num_experts_per_tok", 21},
      {"moe-mixtral-f16", "num_experts_per_tok", 5},
      {"moe-gpt-oss-f32", "num_experts_per_tok", 6},
      {"moe-glm4-groups-f16", "num_experts_per_tok", 5},  // of 2 groups of 2
      {"moe-olmoe-f32", "num_experts_per_tok", 0},
      {"moe-olmoe-f32", "num_experts_per_tok", -1},
  }));
  CAPTURE(model, value);
  const Copy copy(model);
  copy.say(key, value);
  CHECK_THROWS_AS(copy.open(), DataError);
  CHECK_THROWS_WITH(copy.open(), Contains(key));
}

TEST_CASE("a missing expert is refused by the name of its tensor", "[runtime][experts]") {
  const char* const part = GENERATE("gate_proj", "up_proj", "down_proj");
  const Copy copy("moe-olmoe-f32");
  const std::string name = std::string("model.layers.1.mlp.experts.13.") + part + ".weight";
  std::string other = name;
  other.replace(other.find("13"), 2, "20");
  copy.rename(name, other);
  CHECK_THROWS_AS(copy.open(), DataError);
  CHECK_THROWS_WITH(copy.open(), Contains(name) && Contains("missing"));
}

TEST_CASE("a missing router, score bias or tensor of all experts is refused by name", "[runtime][experts]") {
  const auto& [model, name, other] = GENERATE(table<const char*, const char*, const char*>({
      {"moe-olmoe-f32", "model.layers.0.mlp.gate.weight", "model.layers.0.mlp.gata.weight"},
      {"moe-glm4-groups-f16", "model.layers.1.mlp.gate.e_score_correction_bias",
       "model.layers.1.mlp.gate.e_score_correction_bios"},
      {"moe-qwen2-shared-f16", "model.layers.0.mlp.shared_expert_gate.weight",
       "model.layers.0.mlp.shared_expert_gata.weight"},
      {"moe-gpt-oss-bf16", "model.layers.1.mlp.router.bias", "model.layers.1.mlp.router.bios"},
      {"moe-qwen3-stacked-bf16", "model.layers.1.mlp.experts.gate_up_proj", "model.layers.1.mlp.experts.gate_up_praj"},
  }));
  CAPTURE(model, name);
  const Copy copy(model);
  copy.rename(name, other);
  CHECK_THROWS_AS(copy.open(), DataError);
  CHECK_THROWS_WITH(copy.open(), Contains("missing"));
}
