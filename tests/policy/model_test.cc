// tests/policy/model_test.cc: configs as models: the shipped shapes, what an absent key means, units and sublayers.
#include "policy/model.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "tests/support/files.h"

using namespace weft;
using Catch::Matchers::Contains;
using policy::ModelSpec;
using policy::Role;
using policy::Sublayer;
using policy::Unit;

namespace {

ModelSpec from(const std::string& json) {
  return policy::model_from_config(nlohmann::json::parse(json), "config.json");
}
ModelSpec opt(const std::string& keys) {
  return from(R"({"model_type":"opt")" + (keys.empty() ? "" : "," + keys) + "}");
}

ModelSpec shipped(const std::string& name) {
  return from(test::read_text(test::source_path("configs/models") / (name + ".json")));
}

}  // namespace

TEST_CASE("the shipped shapes have the published numbers of parameters", "[policy]") {
  // Billions, as the OPT (arXiv 2205.01068) and Galactica papers' released checkpoints count them.
  const std::map<std::string, double> published{{"opt-125m", 0.12524},   {"opt-350m", 0.33120}, {"opt-1.3b", 1.31576},
                                                {"opt-2.7b", 2.65160},   {"opt-6.7b", 6.65847}, {"opt-13b", 12.85302},
                                                {"opt-30b", 29.97469},   {"opt-66b", 65.71776}, {"opt-175b", 174.60468},
                                                {"galactica-30b", 29.97}};
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test::source_path("configs/models"))) {
    const std::string name = entry.path().stem();
    CAPTURE(name);
    const ModelSpec model = shipped(name);
    REQUIRE(published.count(name) == 1);
    CHECK(double(policy::parameters(model)) / 1e9 == Approx(published.at(name)).epsilon(0.005));
    CHECK(model.heads * model.head_dim == model.hidden);
    ++count;
  }
  CHECK(count == static_cast<int>(published.size()));
}

TEST_CASE("the two exact counts that are easy to check by hand", "[policy]") {
  CHECK(policy::parameters(shipped("opt-125m")) == 125'239'296);
  CHECK(policy::parameters(shipped("opt-1.3b")) == 1'315'758'080);
}

TEST_CASE("OPT-350M is post-norm with projections", "[policy]") {
  const ModelSpec model = shipped("opt-350m");
  CHECK_FALSE(model.pre_norm);
  CHECK_FALSE(model.final_norm);
  CHECK(model.embed == 512);
  CHECK(model.has_projections());
  CHECK(policy::parameters(model) == 331'196'416);
}

TEST_CASE("absent keys take the values of transformers' OPTConfig", "[policy]") {
  const ModelSpec model = opt("");
  CHECK(model.hidden == 768);
  CHECK(model.layers == 12);
  CHECK(model.ffn == 3072);
  CHECK(model.heads == 12);
  CHECK(model.vocab == 50272);
  CHECK(model.positions == 2048);
  CHECK(model.position_offset == 2);
  CHECK(model.embed == model.hidden);
  CHECK((model.pre_norm && model.final_norm && model.bias && model.norm_affine && model.tied_head));
  CHECK(model.activation == "relu");
  CHECK(model.dtype == DType::f32);
  CHECK(model.eos == std::vector<std::int32_t>{2});
  CHECK(model.bos == 2);
}

TEST_CASE("the keys of both transformers 4 and 5 are read", "[policy]") {
  CHECK(opt(R"("torch_dtype":"float16")").dtype == DType::f16);
  CHECK(opt(R"("dtype":"bfloat16")").dtype == DType::bf16);
  CHECK(opt(R"("dtype":null,"torch_dtype":"float32")").dtype == DType::f32);
  CHECK(opt(R"("eos_token_id":null)").eos.empty());
  CHECK(opt(R"("eos_token_id":[5,6])").eos == std::vector<std::int32_t>{5, 6});
  CHECK_FALSE(opt(R"("bos_token_id":null)").bos);
  CHECK(opt(R"("word_embed_proj_dim":null)").embed == 768);
  CHECK_FALSE(opt(R"("_remove_final_layer_norm":true)").final_norm);
  CHECK(opt(R"("a_key_of_some_later_version":{"x":1})").hidden == 768);
}

TEST_CASE("configs that cannot be are refused by key", "[policy]") {
  CHECK_THROWS_WITH(from(R"({"model_type":"llama"})"),
                    Contains("config.json") && Contains("'llama'") && Contains("supported: opt"));
  CHECK_THROWS_WITH(from("{}"), Contains("model_type"));
  CHECK_THROWS_WITH(from("[]"), Contains("object"));
  for (const auto& [keys, word] :
       std::map<std::string, std::string>{{R"("hidden_size":0)", "hidden_size"},
                                          {R"("hidden_size":1e3)", "hidden_size"},
                                          {R"("hidden_size":100000000000)", "hidden_size"},
                                          {R"("num_attention_heads":7)", "num_attention_heads"},
                                          {R"("enable_bias":1)", "enable_bias"},
                                          {R"("torch_dtype":"int8")", "torch_dtype"},
                                          {R"("eos_token_id":50272)", "eos_token_id"},
                                          {R"("eos_token_id":"x")", "eos_token_id"},
                                          {R"("quantization_config":{})", "quantiz"}}) {
    CAPTURE(keys);
    CHECK_THROWS_AS(opt(keys), DataError);
    CHECK_THROWS_WITH(opt(keys), Contains(word));
  }
}

TEST_CASE("units hold every tensor once, in pieces of whole rows", "[policy]") {
  for (const char* keys :
       {"", R"("tie_word_embeddings":false)", R"("word_embed_proj_dim":64,"do_layer_norm_before":false)",
        R"("enable_bias":false,"layer_norm_elementwise_affine":false)"}) {
    CAPTURE(keys);
    const ModelSpec model = opt(keys);
    const std::vector<Unit> units = policy::model_units(model);
    std::map<std::string, std::int64_t> rows;
    std::int64_t largest = 0;
    for (const Unit& unit : units)
      if (unit.kind == Unit::Kind::mlp) largest = std::max(largest, unit.elements());
    for (const Unit& unit : units) {
      CHECK(unit.elements() <= largest);
      CHECK_FALSE(unit.tensors.empty());
      for (const policy::TensorSpec& tensor : unit.tensors) {
        CHECK(tensor.first_row == rows[tensor.name]);  // pieces follow each other
        rows[tensor.name] += tensor.rows;
      }
    }
    CHECK(rows.at("embed_tokens.weight") == model.vocab);
    CHECK(rows.at("embed_positions.weight") == model.positions + 2);
    CHECK(rows.count("lm_head.weight") == (model.tied_head ? 0 : 1));
    CHECK(rows.count("project_in.weight") == (model.has_projections() ? 1 : 0));
    CHECK(rows.count("final_layer_norm.weight") == (model.final_norm && model.norm_affine ? 1 : 0));
    CHECK(rows.count("layers.0.fc1.bias") == (model.bias ? 1 : 0));

    const auto order = policy::model_sublayers(model, units);
    CHECK(order.front().kind == Sublayer::Kind::embed);
    std::int64_t head_rows = 0;
    for (const Sublayer& sub : order)
      if (sub.kind == Sublayer::Kind::head) head_rows += units[static_cast<std::size_t>(sub.unit)].tensors.front().rows;
    CHECK(head_rows == model.vocab);
    for (int layer = 0; layer < model.layers; ++layer) {
      const auto at = static_cast<std::size_t>(1 + 2 * layer);
      CHECK((order[at].kind == Sublayer::Kind::attention && order[at].layer == layer));
      CHECK((order[at + 1].kind == Sublayer::Kind::mlp && order[at + 1].layer == layer));
    }
  }
}

TEST_CASE("the flops of a token are twice its parameters and its attention", "[policy]") {
  const ModelSpec model = shipped("opt-1.3b");
  const double matrices = 24.0 * (4.0 * 2048 * 2048 + 2.0 * 2048 * 8192);
  CHECK(policy::flops_per_token(model, 0, false) == Approx(2 * matrices));
  CHECK(policy::flops_per_token(model, 0, true) == Approx(2 * (matrices + 50272.0 * 2048)));
  CHECK(policy::flops_per_token(model, 100, false) == Approx(2 * matrices + 24.0 * 4 * 100 * 2048));
}
