// What training frameworks leave: wrapped names, adapters, empty tensors, formats of their own.
#include "runtime/checkpoint/training_folder.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/safetensors.h"

using namespace weft;
using namespace weft::test;

namespace {

const std::string kSingle = "model.safetensors";

}  // namespace

TEST_CASE("names that training frameworks have wrapped are read as the model's own", "[runtime]") {
  const auto [stored, own] = GENERATE(table<std::string, std::string>(
      {{"_orig_mod.model.norm.weight", "model.norm.weight"},
       {"module.model.norm.weight", "model.norm.weight"},
       {"module._orig_mod.lm_head.weight", "lm_head.weight"},
       {"base_model.model.model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"},
       {"model.layers.0._fsdp_wrapped_module.mlp._checkpoint_wrapped_module.up_proj.weight",
        "model.layers.0.mlp.up_proj.weight"},
       {"model.language_model.norm.weight", "model.norm.weight"},
       {"language_model.model.norm.weight", "model.norm.weight"},
       {"language_model.lm_head.weight", "lm_head.weight"},
       {"model.model.decoder.layers.0.fc1.bias", "model.decoder.layers.0.fc1.bias"},
       {"model.gpt_neox.final_layer_norm.bias", "gpt_neox.final_layer_norm.bias"}}));
  CAPTURE(stored);
  const TemporaryFolder folder;
  write_text(folder / kSingle, file_of({stored, "other"}));
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  REQUIRE(checkpoint.find(own));
  CHECK(checkpoint.read_tensor(*checkpoint.find(own)).at(0) == std::byte{'a'});
  CHECK(checkpoint.find("other"));
  REQUIRE(checkpoint.notes().size() == 1);
  CHECK_THAT(checkpoint.notes()[0], Catch::Contains("'" + stored + "' is read as '" + own + "'"));
}

TEST_CASE("a name that is taken, or that only looks wrapped, stays", "[runtime]") {
  const TemporaryFolder folder;
  write_text(folder / kSingle,
             file_of({"model.norm.weight", "module.model.norm.weight", "submodule.x", "my_orig_mod.x"}));
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  CHECK(checkpoint.notes().empty());
  CHECK(checkpoint.read_tensor(*checkpoint.find("model.norm.weight")).at(0) == std::byte{'a'});
  for (const char* name : {"module.model.norm.weight", "submodule.x", "my_orig_mod.x"}) CHECK(checkpoint.find(name));
}

TEST_CASE("a folder without weights says what it holds, and what to do", "[runtime]") {
  const auto [file, words] = GENERATE(
      table<std::string, std::string>({{"adapter_config.json", "holds an adapter; merge it into its base model"},
                                       {"consolidated.00.pth", "holds Meta's own format"},
                                       {"lit_model.pth", "litgpt convert_from_litgpt"},
                                       {"zero_to_fp32.py", "its zero_to_fp32.py gathers the weights"},
                                       {"flax_model.msgpack", "load and save the model with transformers"}}));
  const TemporaryFolder folder;
  write_text(folder / file, "");
  const DataRefusal refusal = refusal_of([&] { Checkpoint::open(folder.path()); });
  CHECK(refusal.fault == "missing-file");
  CHECK_THAT(refusal.message, Catch::Contains(words));
}

TEST_CASE("an adapter next to a model is not used, which a note says", "[runtime]") {
  const TemporaryFolder folder;
  write_text(folder / kSingle, file_of({"a"}));
  write_text(folder / runtime::kAdapter, "{}");
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  REQUIRE(checkpoint.notes().size() == 1);
  CHECK_THAT(checkpoint.notes()[0], Catch::Contains("the adapter in this folder is not used"));
}

TEST_CASE("empty tensors are those of ZeRO-3", "[runtime]") {
  const TemporaryFolder folder;
  write_text(folder / kSingle, with_length(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})", ""));
  const std::vector<runtime::TensorNeed> needs{{"a", {3}}};
  CHECK_THROWS_WITH(Checkpoint::open(folder.path()).demand(needs),
                    Catch::Contains("tensor 'a' is empty, as DeepSpeed's ZeRO-3 saves it; gather the weights"));
}
