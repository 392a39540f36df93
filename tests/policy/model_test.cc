// tests/policy/model_test.cc: configs as models: the shipped shapes, what an absent key means, units and sublayers.
#include "policy/model/model.h"
#include "policy/model/steps.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "tests/support/files.h"
#include "tests/support/model_config.h"

using namespace weft;
using Catch::Matchers::Contains;
using policy::ModelSpec;
using policy::Role;
using policy::Sublayer;
using policy::Unit;
using test::from;

namespace {

ModelSpec opt(const std::string& keys) {
  return from(R"({"model_type":"opt")" + (keys.empty() ? "" : "," + keys) + "}");
}

}  // namespace

TEST_CASE("the shipped shapes have the published numbers of parameters", "[policy]") {
  // Billions, as the released checkpoints count them.
  const std::map<std::string, double> published{
      {"opt-125m", 0.12524},        {"opt-350m", 0.33120},    {"opt-1.3b", 1.31576},   {"opt-2.7b", 2.65160},
      {"opt-6.7b", 6.65847},        {"opt-13b", 12.85302},    {"opt-30b", 29.97469},   {"opt-66b", 65.71776},
      {"opt-175b", 174.60468},      {"galactica-30b", 29.97}, {"llama-3.1-8b", 8.03},  {"llama-3.1-70b", 70.55},
      {"qwen3-8b", 8.19},           {"qwen3-32b", 32.76},     {"gemma-3-27b", 27.01},  {"phi-4", 14.66},
      {"mistral-small-24b", 23.57}, {"gemma-2-9b", 9.24},     {"gemma-2-27b", 27.23},  {"mixtral-8x7b", 46.70},
      {"qwen3-30b-a3b", 30.53},     {"olmoe-1b-7b", 6.92},    {"glm-4.5-air", 106.85}, {"gpt-oss-20b", 20.91},
      {"gpt-oss-120b", 116.83}};
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test::source_path("configs/models"))) {
    const std::string name = entry.path().stem();
    CAPTURE(name);
    const ModelSpec model = test::shipped_model(name);
    REQUIRE(published.count(name) == 1);
    CHECK(double(policy::parameters(model)) / 1e9 == Approx(published.at(name)).epsilon(0.005));
    if (model.architecture == "opt") CHECK(model.heads * model.head_dim == model.hidden);
    ++count;
  }
  CHECK(count == static_cast<int>(published.size()));
}

TEST_CASE("the two exact counts that are easy to check by hand", "[policy]") {
  CHECK(policy::parameters(test::shipped_model("opt-125m")) == 125'239'296);
  CHECK(policy::parameters(test::shipped_model("opt-1.3b")) == 1'315'758'080);
}

TEST_CASE("OPT-350M is post-norm with projections", "[policy]") {
  const ModelSpec model = test::shipped_model("opt-350m");
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
  CHECK((model.pre_norm && model.final_norm && model.norm_affine && model.tied_head));
  CHECK((model.qkv_bias && model.output_bias && model.mlp_bias));
  CHECK_FALSE((model.rms_norm || model.gated_mlp || model.parallel_residual || !model.rotary.empty()));
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
  CHECK_THROWS_WITH(from(R"({"model_type":"mamba"})"),
                    Contains("config.json") && Contains("'mamba'") &&
                        Contains("supported: opt, llama, mistral, ministral, ministral3, mistral3, qwen2, qwen3, "
                                 "smollm3, granite, gemma, gemma2, gemma3_text, gemma3"));
  CHECK_THROWS_WITH(from("{}"), Contains("model_type"));
  CHECK_THROWS_WITH(from("[]"), Contains("object"));
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"("hidden_size":0)", "'hidden_size'"},
      {R"("hidden_size":-1)", "'hidden_size'"},
      {R"("hidden_size":"768")", "'hidden_size'"},
      {R"("hidden_size":768.0)", "'hidden_size'"},
      {R"("hidden_size":1e3)", "'hidden_size'"},
      {R"("hidden_size":null)", "'hidden_size'"},
      {R"("hidden_size":100000000000)", "'hidden_size'"},
      {R"("hidden_size":9223372036854775808)", "'hidden_size'"},
      {R"("num_hidden_layers":1000000000)", "'num_hidden_layers'"},
      {R"("num_hidden_layers":0)", "'num_hidden_layers'"},
      {R"("ffn_dim":0)", "'ffn_dim'"},
      {R"("vocab_size":0)", "'vocab_size'"},
      {R"("vocab_size":4194305)", "'vocab_size'"},
      {R"("max_position_embeddings":16777217)", "'max_position_embeddings'"},
      {R"("word_embed_proj_dim":0)", "'word_embed_proj_dim'"},
      {R"("num_attention_heads":7)", "num_attention_heads 7 does not divide hidden_size 768"},
      {R"("num_attention_heads":4097)", "'num_attention_heads'"},
      {R"("do_layer_norm_before":1)", "'do_layer_norm_before'"},
      {R"("enable_bias":1)", "'enable_bias'"},
      {R"("activation_function":5)", "'activation_function'"},
      {R"("torch_dtype":"int8")", "'torch_dtype'"},
      {R"("torch_dtype":5)", "'torch_dtype'"},
      {R"("eos_token_id":"x")", "'eos_token_id'"},
      {R"("eos_token_id":[2.0])", "'eos_token_id'"},
      {R"("bos_token_id":"x")", "'bos_token_id'"},
      {R"("is_encoder_decoder":true)", "'is_encoder_decoder'"},
      {R"("add_cross_attention":true)", "'add_cross_attention'"},
  };
  for (const auto& [keys, words] : cases) {
    CAPTURE(keys);
    CHECK_THROWS_AS(opt(keys), DataError);
    CHECK_THROWS_WITH(opt(keys), Contains("config.json") && Contains(words));
  }
  const std::vector<std::pair<std::string, std::string>> llama_cases = {
      {R"("num_attention_heads":8,"num_key_value_heads":3)", "num_key_value_heads 3 does not divide"},
      {R"("num_key_value_heads":0)", "'num_key_value_heads'"},
      {R"("num_key_value_heads":64)", "num_key_value_heads 64 does not divide num_attention_heads 32"},
      {R"("head_dim":0)", "'head_dim'"},
      {R"("head_dim":3)", "wanted an even number"},
      {R"("rms_norm_eps":0)", "'rms_norm_eps'"},
      {R"("rms_norm_eps":-1e-6)", "'rms_norm_eps'"},
      {R"("rms_norm_eps":"1e-6")", "'rms_norm_eps'"},
      {R"("rope_theta":0)", "'rope_theta'"},
      {R"("rope_theta":-1)", "'rope_theta'"},
      {R"("rope_scaling":{"rope_type":"yarn2","factor":2})", "rope_type 'yarn2' is not supported"},
      {R"("rope_scaling":{"rope_type":"linear","factor":0})", "'factor'"},
      {R"("rope_scaling":5)", "object"},
      {R"("mlp_bias":"no")", "'mlp_bias'"},
  };
  for (const auto& [keys, words] : llama_cases) {
    CAPTURE(keys);
    CHECK_THROWS_AS(from(R"({"model_type":"llama",)" + keys + "}"), DataError);
    CHECK_THROWS_WITH(from(R"({"model_type":"llama",)" + keys + "}"), Contains("config.json") && Contains(words));
  }
  const std::vector<std::pair<std::string, std::string>> neox_cases = {
      {R"("rotary_pct":0)", "0 of the 96 numbers of a head would be rotated"},
      {R"("rotary_pct":1.5)", "'rotary_pct'"},
      {R"("rotary_pct":0.14)", "13 of the 96 numbers"},
      {R"("layer_norm_eps":0)", "'layer_norm_eps'"},
      {R"("rotary_emb_base":0)", "'rotary_emb_base'"},
      {R"("use_parallel_residual":1)", "'use_parallel_residual'"},
  };
  for (const auto& [keys, words] : neox_cases) {
    CAPTURE(keys);
    CHECK_THROWS_AS(from(R"({"model_type":"gpt_neox",)" + keys + "}"), DataError);
    CHECK_THROWS_WITH(from(R"({"model_type":"gpt_neox",)" + keys + "}"), Contains("config.json") && Contains(words));
  }
}

TEST_CASE("the published models of other families have the published numbers of parameters", "[policy]") {
  const auto count = [](const std::string& config) { return policy::parameters(from(config)); };
  CHECK(count(R"({"model_type":"llama"})") == 6'738'415'616);  // LLaMA and LLaMA-2 7B
  CHECK(count(R"({"model_type":"llama","vocab_size":128256,"intermediate_size":14336,"num_key_value_heads":8})") ==
        8'030'261'248);  // Llama 3 8B
  CHECK(count(R"({"model_type":"mistral"})") == 7'241'732'096);
  CHECK(count(R"({"model_type":"qwen2","hidden_size":896,"intermediate_size":4864,"num_attention_heads":14,
                  "num_key_value_heads":2,"num_hidden_layers":24,"tie_word_embeddings":true})") == 494'032'768);
  CHECK(count(R"({"model_type":"qwen3","hidden_size":1024,"intermediate_size":3072,"num_attention_heads":16,
                  "num_key_value_heads":8,"num_hidden_layers":28,"tie_word_embeddings":true})") == 596'049'920);
  CHECK(count(R"({"model_type":"smollm3"})") == 3'075'098'624);
  CHECK(count(R"({"model_type":"gpt_neox"})") == 20'554'567'680);
}

TEST_CASE("a quantization_config that cannot be read is kept for when the weights are seen", "[policy]") {
  CHECK_THAT(from(R"({"model_type":"opt","quantization_config":{}})").unread_quantisation,
             Contains("quantization_config names no quant_method"));
  CHECK(from(R"({"model_type":"opt","quantization_config":null})").unread_quantisation.empty());
}

TEST_CASE("a switch that is null is off, as in Python", "[policy]") {
  const ModelSpec llama = from(R"({"model_type":"llama","attention_bias":null,"mlp_bias":null})");
  CHECK_FALSE(llama.qkv_bias);
  CHECK_FALSE(llama.mlp_bias);
  CHECK_FALSE(from(R"({"model_type":"smollm3","tie_word_embeddings":null})").tied_head);
  CHECK(from(R"({"model_type":"smollm3"})").tied_head);
}

TEST_CASE("with a parallel residual a layer is one unit", "[policy]") {
  const ModelSpec model = from(R"({"model_type":"gpt_neox","num_hidden_layers":2})");
  const auto units = policy::model_units(model);
  const auto order = policy::model_sublayers(model, units);
  CHECK((order[1].kind == Sublayer::Kind::attention && order[2].kind == Sublayer::Kind::attention));
  const Unit& layer = units[static_cast<std::size_t>(order[1].unit)];
  CHECK(layer.elements() == 12 * 6144LL * 6144 + 13 * 6144);  // weights; biases of 3 + 1 + 4 + 1 and two norms
  const ModelSpec sequential = from(R"({"model_type":"gpt_neox","use_parallel_residual":false})");
  CHECK(policy::model_sublayers(sequential, policy::model_units(sequential))[2].kind == Sublayer::Kind::mlp);
}

TEST_CASE("the experts of a layer come in units that hold each once", "[policy][experts]") {
  const ModelSpec model = from(R"({"model_type":"qwen3_moe","num_hidden_layers":1,"num_experts":100})");
  const auto units = policy::model_units(model);
  int next = 0, groups = 0;
  for (const Unit& unit : units) {
    if (unit.kind != Unit::Kind::experts) continue;
    CHECK(unit.first_expert == next);
    CHECK(std::ssize(unit.tensors) == 3 * unit.experts);
    CHECK(unit.tensors.back().name ==
          "layers.0.mlp.experts." + std::to_string(next + unit.experts - 1) + ".down_proj.weight");
    next += unit.experts, ++groups;
  }
  CHECK(next == 100);
  CHECK(groups <= 16);
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
    CHECK(rows.count("layers.0.fc1.bias") == (model.mlp_bias ? 1 : 0));

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
  const ModelSpec model = test::shipped_model("opt-1.3b");
  const double matrices = 24.0 * (4.0 * 2048 * 2048 + 2.0 * 2048 * 8192);
  CHECK(policy::flops_per_token(model, 0, false) == Approx(2 * matrices));
  CHECK(policy::flops_per_token(model, 0, true) == Approx(2 * (matrices + 50272.0 * 2048)));
  CHECK(policy::flops_per_token(model, 100, false) == Approx(2 * matrices + 24.0 * 4 * 100 * 2048));
}
