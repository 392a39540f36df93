// tests/policy/windows_test.cc: sliding windows of each family, and what else belongs to the kind of a layer.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "policy/model/model.h"
#include "tests/support/model_config.h"

using namespace weft;
using Catch::Matchers::Contains;
using policy::ModelSpec;
using test::from;

TEST_CASE("sliding windows are of the layers that transformers gives them", "[policy]") {
  using Windows = std::vector<int>;
  CHECK(from(R"({"model_type":"mistral","sliding_window":null})").windows.empty());
  CHECK(from(R"({"model_type":"mistral","sliding_window":131072})").windows.empty());  // no sequence is longer
  CHECK(from(R"({"model_type":"qwen2","sliding_window":100})").windows.empty());
  const auto qwen = [](const std::string& keys) {
    return from(R"({"model_type":"qwen2","num_hidden_layers":4,"sliding_window":100,"use_sliding_window":true)" + keys +
                "}");
  };
  CHECK(qwen("").positions == 32768);
  CHECK(qwen("").windows.empty());  // max_window_layers is 28
  CHECK(qwen(R"(,"max_window_layers":3)").windows == Windows{0, 0, 0, 100});
  CHECK(qwen(R"(,"layer_types":["sliding_attention","full_attention","sliding_attention","full_attention"])").windows ==
        Windows{100, 0, 100, 0});
  CHECK(from(R"({"model_type":"olmo3","num_hidden_layers":5,"max_position_embeddings":8192})").windows ==
        Windows{4096, 4096, 4096, 0, 4096});
  CHECK(from(R"({"model_type":"gemma3_text","num_hidden_layers":4,"sliding_window":512,"sliding_window_pattern":2})")
            .windows == Windows{512, 0, 512, 0});
  CHECK(from(R"({"model_type":"gemma2","num_hidden_layers":3})").windows == Windows{4096, 0, 4096});
  CHECK(from(R"({"model_type":"phi3","sliding_window":2047,"num_hidden_layers":2})").windows == Windows{2047, 2047});
  const auto smollm3 = [](const std::string& keys) {
    return from(R"({"model_type":"smollm3","num_hidden_layers":2,"no_rope_layers":[1,0],"sliding_window":64)" + keys +
                "}");
  };
  CHECK(smollm3("").windows.empty());
  CHECK(smollm3(R"(,"use_sliding_window":true)").windows == Windows{0, 64});
  CHECK(smollm3(R"(,"layer_types":["sliding_attention","full_attention"])").windows == Windows{64, 0});
  CHECK_THROWS_WITH(qwen(R"(,"layer_types":["chunked_attention",0,0,0])"), Contains("layer_types"));
  CHECK_THROWS_WITH(qwen(R"(,"layer_types":["full_attention"])"), Contains("each of the 4 layers"));
  CHECK_THROWS_WITH(from(R"({"model_type":"mistral","sliding_window":1})"), Contains("sliding_window"));
}

TEST_CASE("a layer rotates by its kind, whether or not its window is shorter than the context", "[policy]") {
  for (const std::string type : {"gemma3_text", "olmo3"})
    for (const std::string context : {"513", "512", "256"}) {
      const ModelSpec model =
          from(R"({"model_type":")" + type + R"(","sliding_window":512,"num_hidden_layers":4,"layer_types":)" +
               R"(["sliding_attention","full_attention","sliding_attention","full_attention"],"rope_parameters":{)" +
               R"("full_attention":{"rope_theta":1000000},"sliding_attention":{"rope_theta":10000}},)" +
               R"("max_position_embeddings":)" + context + "}");
      CAPTURE(type, context);
      CHECK(model.windows.empty() == (context != "513"));
      const auto base = [&](int layer) {
        const auto& frequencies = model.frequencies(layer);
        return std::pow(frequencies.back(), -double(frequencies.size()) / double(frequencies.size() - 1));
      };
      for (const int layer : {0, 2}) CHECK(base(layer) == Approx(1e4).epsilon(1e-3));
      for (const int layer : {1, 3}) CHECK(base(layer) == Approx(1e6).epsilon(1e-3));
    }
}

namespace {

const std::string kSmallGemma4 =
    R"("hidden_size":64,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":16,)"
    R"("num_hidden_layers":6,"max_position_embeddings":1024,"hidden_size_per_layer_input":0)";

ModelSpec gemma4(const std::string& keys) {
  return from(R"({"model_type":"gemma4_text",)" + kSmallGemma4 + keys + "}");
}

void gemma4_refused(const std::string& keys, const std::string& key) {
  CAPTURE(keys);
  CHECK_THROWS_WITH(gemma4(keys), Contains(key));
}

}  // namespace

TEST_CASE("layers with a window and others each have the magnitude of their own YaRN", "[policy]") {
  const std::string yarn =
      R"({"rope_type":"yarn","rope_theta":10000,"factor":8,"original_max_position_embeddings":32})";
  const std::string plain = R"({"rope_type":"default","rope_theta":10000})";
  const auto magnitude = Approx(0.1 * std::log(8) + 1);
  for (const std::string type : {"gemma3_text", "gemma4_text", "olmo3"})
    for (const bool window : {true, false}) {
      CAPTURE(type, window);
      const ModelSpec model = from(R"({"model_type":")" + type + R"(","max_position_embeddings":256,)" +
                                   R"("sliding_window":16,"rope_parameters":{"sliding_attention":)" +
                                   (window ? yarn : plain) + R"(,"full_attention":)" + (window ? plain : yarn) + "}}");
      const int sliding = 0, whole = type == "olmo3" ? 3 : 5;
      REQUIRE((model.window(sliding) == 16 && model.window(whole) == 0));
      CHECK(double{model.magnitude(window ? sliding : whole)} == magnitude);
      CHECK(model.magnitude(window ? whole : sliding) == 1);
    }
}

TEST_CASE("Gemma 4's layers without a window have heads of their own", "[policy]") {
  const ModelSpec published = gemma4(R"(,"global_head_dim":32,"num_global_key_value_heads":1,"attention_k_eq_v":true)");
  CHECK(published.windows == std::vector<int>{512, 512, 512, 512, 512, 0});
  CHECK((published.kv_heads_of(0) == 2 && published.head_dim_of(0) == 16 && !published.is_global(0)));
  CHECK((published.kv_heads_of(5) == 1 && published.head_dim_of(5) == 32 && published.values_of_keys));
  CHECK(policy::kv_heads_of_layers(published) == std::vector<int>{2, 2, 2, 2, 2, 1});
  CHECK((published.attention_scale == 1 && published.value_norm && published.layer_scale && !published.norm_plus_one));
  // A quarter of a head's pairs turn, by the frequencies that whole heads have.
  REQUIRE(published.rotary.size() == 16);
  CHECK((published.rotary[0] == 1 && published.rotary[3] == Approx(std::pow(1e6, -6 / 32.0))));
  CHECK((published.rotary[4] == 0 && published.rotary[15] == 0));
  CHECK((published.window_rotary.size() == 8 && published.window_rotary[7] == Approx(std::pow(1e4, -14 / 16.0))));
  // As transformers 5.24 writes the same, and as it fills in what is absent.
  const ModelSpec written =
      gemma4(R"(,"per_layer_config":{"5":{"head_dim":32,"num_key_value_heads":1}},"attention_k_eq_v":true)");
  CHECK((written.global_head_dim == 32 && written.global_kv_heads == 1));
  const ModelSpec absent = gemma4(R"(,"num_global_key_value_heads":1)");
  CHECK((absent.global_head_dim == 512 && absent.global_kv_heads == 2 && !absent.values_of_keys));
  // In a context without room for a window the heads differ all the same.
  CHECK((gemma4(R"(,"sliding_window":2048)").windows.empty() && gemma4(R"(,"sliding_window":2048)").is_global(5)));
  const ModelSpec forced = gemma4(R"(,"layer_types":["full_attention","sliding_attention","sliding_attention",)"
                                  R"("sliding_attention","sliding_attention","sliding_attention"])");
  CHECK(forced.windows == std::vector<int>{0, 512, 512, 512, 512, 0});
  CHECK(forced.notes.size() == 1);
  const ModelSpec inner =
      from(R"({"model_type":"gemma4","text_config":{"model_type":"gemma4_text",)" + kSmallGemma4 + "}}");
  CHECK((inner.architecture == "gemma4" && inner.global_head_dim == 512));
  CHECK(from(R"({"model_type":"gemma4_unified","text_config":{"model_type":"gemma4_unified_text"}})").hidden == 2304);

  CHECK(from(R"({"model_type":"gemma4_text","hidden_size_per_layer_input":null,"num_kv_shared_layers":null})").layers ==
        30);
  gemma4_refused(R"(,"use_bidirectional_attention":"all")", "use_bidirectional_attention");
  gemma4_refused(R"(,"attention_bias":true)", "attention_bias");
  gemma4_refused(R"(,"global_head_dim":0)", "global_head_dim");
  gemma4_refused(R"(,"num_global_key_value_heads":3,"attention_k_eq_v":true)", "3 KV heads");
  gemma4_refused(R"(,"per_layer_config":[])", "per_layer_config");
  gemma4_refused(R"(,"per_layer_config":{"0":{"head_dim":32}})", "the same heads in all layers");
  gemma4_refused(R"(,"per_layer_config":{"5":{"hidden_size":32}})", "hidden_size");
}

TEST_CASE("Gemma 4's layers have inputs of their own, and the last ones attend to keys of others", "[policy]") {
  const ModelSpec defaults = from(R"({"model_type":"gemma4_text"})");
  CHECK((defaults.layer_input == 256 && defaults.layer_vocab == 262144 && defaults.layer_input_scale == 16));
  CHECK((defaults.sharing_layers == 0 && !defaults.shares_kv(29) && !defaults.lends_kv(28)));
  // The sizes of E2B, less wide.
  const ModelSpec small = from(
      R"({"model_type":"gemma4","text_config":{"model_type":"gemma4_text","hidden_size":64,"num_attention_heads":8,
          "num_key_value_heads":1,"head_dim":16,"num_hidden_layers":10,"num_kv_shared_layers":4,"vocab_size":100,
          "use_double_wide_mlp":true,"intermediate_size":96,"layer_types":["sliding_attention","sliding_attention",
          "full_attention","sliding_attention","full_attention","sliding_attention","full_attention",
          "sliding_attention","full_attention","full_attention"]}})");
  const auto every = [&](const auto& of) {
    std::vector<int> all;
    for (int layer = 0; layer < small.layers; ++layer) all.push_back(of(layer));
    return all;
  };
  CHECK(every([&](int layer) { return small.shares_kv(layer) ? 1 : 0; }) == std::vector{0, 0, 0, 0, 0, 0, 1, 1, 1, 1});
  CHECK(every([&](int layer) { return small.lends_kv(layer) ? 1 : 0; }) == std::vector{0, 0, 0, 0, 1, 1, 0, 0, 0, 0});
  CHECK((small.kv_source(6) == 4 && small.kv_source(7) == 5 && small.kv_source(9) == 4));
  CHECK((small.ffn_of(5) == 96 && small.ffn_of(6) == 192 && small.vocab == 100));
  const auto units = policy::model_units(small);
  const auto has = [&](int layer, policy::Role role) {
    return std::any_of(units.begin(), units.end(), [&](const policy::Unit& unit) {
      return unit.layer == layer && std::any_of(unit.tensors.begin(), unit.tensors.end(),
                                                [&](const policy::TensorSpec& tensor) { return tensor.role == role; });
    });
  };
  for (const policy::Role role : {policy::Role::k_weight, policy::Role::v_weight, policy::Role::k_norm})
    CHECK((has(5, role) && !has(6, role)));
  CHECK((has(6, policy::Role::q_norm) && has(6, policy::Role::layer_gate) && has(-1, policy::Role::layer_inputs)));

  gemma4_refused(R"(,"num_kv_shared_layers":6)", "a layer of each kind keys and values");
  gemma4_refused(R"(,"num_kv_shared_layers":1)", "num_kv_shared_layers");  // the only layer without a window
  gemma4_refused(R"(,"num_kv_shared_layers":1000000)", "num_kv_shared_layers");
  const std::string inputs =
      R"({"model_type":"gemma4_text","num_attention_heads":4,"hidden_size":64,"vocab_size":300,)";
  CHECK_THROWS_WITH(from(inputs + R"("vocab_size_per_layer_input":299})"), Contains("vocab_size (300) or more"));
  CHECK_THROWS_WITH(from(inputs + R"("hidden_size_per_layer_input":-1})"), Contains("hidden_size_per_layer_input"));
  CHECK_THROWS_WITH(
      from(inputs + R"("enable_moe_block":true,"num_experts":4,"top_k_experts":2,)" + R"("moe_intermediate_size":8})"),
      Contains("enable_moe_block is true"));
}

TEST_CASE("Gemma 4's experts stand beside an mlp", "[policy]") {
  const std::string experts = R"(,"enable_moe_block":true,"num_experts":8,"moe_intermediate_size":24)";
  const ModelSpec mixture = gemma4(experts + R"(,"top_k_experts":2)");
  CHECK((mixture.experts.count == 8 && mixture.experts.chosen == 2 && mixture.experts.ffn == 24));
  CHECK((mixture.experts.beside_mlp && mixture.experts.normalise && mixture.experts.router_scale == 0.125f));
  CHECK(gemma4(R"(,"num_experts":8)").experts.count == 0);
  gemma4_refused(experts, "top_k_experts");
  gemma4_refused(experts + R"(,"top_k_experts":null)", "enable_moe_block is true");
  gemma4_refused(experts + R"(,"top_k_experts":9)", "top_k_experts");
  gemma4_refused(R"(,"enable_moe_block":true,"num_experts":513)", "num_experts");
}
