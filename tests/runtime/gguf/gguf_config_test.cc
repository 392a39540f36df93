// tests/runtime/gguf/gguf_config_test.cc: metadata and names of GGUF files in the words of Hugging Face, family by
// family, and what is refused.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/gguf/gguf.h"
#include "runtime/gguf/gguf_names.h"
#include "runtime/gguf/gguf_texts.h"
#include "tests/support/gguf.h"

using namespace weft;
using namespace weft::runtime;
using namespace weft::test;
using Catch::Matchers::Contains;

namespace {

nlohmann::ordered_json config_of(const GgufFile& file) {
  const WrittenGguf written(file.bytes());
  return gguf_config(GgufModel::open(written.path));
}

/// A tiny Gemma 4: a layer with a window, and one without, which takes keys for values. The keys in `without`, or its
/// divisors, are not there.
GgufFile tiny_gemma4(std::string_view without = "", float stays = 1e30f) {
  GgufFile file;
  const auto has = [&](std::string_view key) {
    return (" " + std::string(without) + " ").find(" " + std::string(key) + " ") == std::string::npos;
  };
  const auto add = [&](std::string_view key, std::uint32_t value) {
    if (has(key)) file.integer("gemma4." + std::string(key), value);
  };
  file.text("general.architecture", "gemma4")
      .number("gemma4.attention.layer_norm_rms_epsilon", 1e-6f)
      .number("gemma4.rope.freq_base", 1e6f);
  add("block_count", 2), add("context_length", 64), add("embedding_length", 32), add("feed_forward_length", 32);
  add("attention.head_count", 2), add("attention.key_length", 32), add("attention.value_length", 32);
  add("attention.key_length_swa", 16), add("attention.value_length_swa", 16), add("attention.sliding_window", 8);
  add("attention.shared_kv_layers", 0), add("embedding_length_per_layer_input", 0);
  add("rope.dimension_count", 32), add("rope.dimension_count_swa", 16);
  const auto add_list = [&](std::string_view key, std::int32_t first, std::int32_t second) {
    if (has(key)) file.integers("gemma4." + std::string(key), {first, second});
  };
  add_list("attention.head_count_kv", 2, 1), add_list("attention.sliding_window_pattern", 1, 0);
  std::string divisors;
  for (int i = 0; i < 16; ++i) divisors += bytes_of_number(i < 4 ? 1.0f : stays);
  if (has("rope_freqs")) file.tensor("rope_freqs.weight", {16}, 0, divisors);
  return file.tensor("token_embd.weight", {32, 8}, 0, std::string(std::size_t{32} * 8 * 4, '\0'))
      .tensor("blk.0.attn_v.weight", {32, 32}, 0, std::string(std::size_t{32} * 32 * 4, '\0'));
}

}  // namespace

TEST_CASE("GGUF metadata becomes the config.json that it may have been made of", "[runtime][gguf]") {
  GgufFile file = tiny_gguf();
  file.number("llama.rope.freq_base", 1e6f).integer("llama.attention.head_count_kv", 1);
  file.integer("tokenizer.ggml.bos_token_id", 1)
      .integer("tokenizer.ggml.eos_token_id", 2)
      .integer("tokenizer.ggml.eot_token_id", 3);
  const WrittenGguf written(file.bytes());
  const GgufModel model = GgufModel::open(written.path);
  const auto config = gguf_config(model);
  CHECK(config == nlohmann::ordered_json::parse(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "torch_dtype": "float16", "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 64, "vocab_size": 8,
    "rms_norm_eps": 1e-05, "tie_word_embeddings": true, "rope_theta": 1000000.0, "bos_token_id": 1, "eos_token_id": 2})"));
  CHECK(gguf_generation_config(model).at("eos_token_id") == nlohmann::ordered_json::parse("[2, 3]"));
}

TEST_CASE("a GGUF model's answers end where a turn ends", "[runtime][gguf]") {
  const auto ends = [](GgufFile file) {
    file.texts("tokenizer.ggml.tokens", {"<eos>", "<end_of_turn>", "<|im_end|>", "<|end|>"})
        .integers("tokenizer.ggml.token_type", {3, 3, 3, 1});
    const WrittenGguf written(file.bytes());
    return gguf_generation_config(GgufModel::open(written.path)).at("eos_token_id").dump();
  };
  CHECK(ends(tiny_gguf().integer("tokenizer.ggml.eos_token_id", 0)) == "[0,1,2]");
  CHECK(ends(tiny_gguf()) == "[1,2]");
  CHECK(ends(tiny_gguf().integer("tokenizer.ggml.eos_token_id", 0).integer("tokenizer.ggml.eot_token_id", 1)) ==
        "[0,1]");
  CHECK(ends(tiny_gguf().integer("tokenizer.ggml.eot_token_id", 1)) == "1");
  const WrittenGguf gemma4(
      tiny_gguf()
          .text("tokenizer.ggml.model", "gemma4")
          .texts("tokenizer.ggml.tokens", {"<eos>", "<|turn>", "<turn|>", "<|tool_response>", "</s>"})
          .integers("tokenizer.ggml.token_type", {3, 3, 3, 4, 1})
          .integer("tokenizer.ggml.eos_token_id", 2)
          .integer("tokenizer.ggml.eot_token_id", 2)
          .bytes());
  CHECK(gguf_generation_config(GgufModel::open(gemma4.path)).at("eos_token_id").dump() == "[2,0,3]");
}

TEST_CASE("a GGUF model's format is that of its layers' matrices", "[runtime][gguf]") {
  const auto format = [](const std::vector<std::uint32_t>& types) {
    GgufFile file = tiny_gguf();
    for (std::size_t i = 0; i < types.size(); ++i)
      file.tensor("blk." + std::to_string(i) + ".attn_v.weight", {256, 2}, types[i], std::string(2048, '\0'));
    const WrittenGguf written(file.bytes());
    return gguf_quantisation(GgufModel::open(written.path));
  };
  constexpr std::uint32_t f16 = 1, q4_0 = 2, q8_0 = 8, q2_k = 10, q6_k = 14;
  CHECK_FALSE(format({}));
  CHECK_FALSE(format({f16}));
  CHECK(format({q8_0, f16}).dtype == DType::i8);
  CHECK(format({q8_0, q4_0, q6_k}).dtype == DType::i4);
  CHECK(format({q6_k}).dtype == DType::i8);
  CHECK((format({q6_k, q2_k}).dtype == DType::i4 && format({q6_k, q2_k}).group == 16));
  CHECK(format({q6_k, q8_0}).group == 32);
  const policy::Quantisation four = format({q4_0});
  CHECK((four.packing == policy::Quantisation::Packing::gguf && four.group == 32 && four.uniform));
}

TEST_CASE("Llama 3.1's divisors become its scaling, and others are refused", "[runtime][gguf]") {
  const auto config = [](float change) {
    GgufFile file = tiny_gguf();
    file.number("llama.rope.freq_base", 500000.0f);
    std::string divisors;
    for (int i = 0; i < 8; ++i) {  // as transformers scales: factor 8, 1 to 4, trained with 8192
      const double wave = 2 * 3.14159265358979 * std::pow(500000.0, i / 8.0);
      const double smooth = std::min(1.0, std::max(0.0, (8192 / wave - 1) / 3));
      divisors += bytes_of_number(static_cast<float>(1 / ((1 - smooth) / 8 + smooth)) * (i == 4 ? change : 1));
    }
    file.tensor("rope_freqs.weight", {8}, 0, divisors);
    const WrittenGguf written(file.bytes());
    return gguf_config(GgufModel::open(written.path));
  };
  CHECK(config(1).at("rope_scaling") == nlohmann::ordered_json::parse(R"({"rope_type": "llama3", "factor": 8.0,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})"));
  CHECK_THROWS_WITH(config(1.01f), Contains("other divisors than those of Llama 3.1"));
}

TEST_CASE("GGUF's other scalings are those of config.json, or refused", "[runtime][gguf]") {
  const auto config = [](GgufFile file) {
    const WrittenGguf written(file.number("llama.rope.scaling.factor", 4).bytes());
    return gguf_config(GgufModel::open(written.path));
  };
  const auto scaled = [](std::string_view type) { return tiny_gguf().text("llama.rope.scaling.type", type); };
  CHECK_FALSE(config(scaled("none")).contains("rope_scaling"));
  // Without a type a factor scales linearly; it may have its oldest name.
  for (const char* key : {"llama.rope.scaling.factor", "llama.rope.scale_linear"}) {
    const auto with = [key](float factor) { return config_of(tiny_gguf().number(key, factor)); };
    CHECK(with(4).at("rope_scaling") == nlohmann::ordered_json{{"rope_type", "linear"}, {"factor", 4.0}});
    CHECK_FALSE((with(0).contains("rope_scaling") || with(1).contains("rope_scaling")));
  }
  CHECK_THROWS_WITH(config_of(tiny_gguf().number("llama.rope.scaling.attn_factor", 2)),
                    Contains("'llama.rope.scaling.attn_factor', which is not read"));
  CHECK(config(scaled("linear")).at("rope_scaling") ==
        nlohmann::ordered_json::parse(R"({"rope_type": "linear", "factor": 4.0})"));
  CHECK(
      config(scaled("yarn").integer("llama.rope.scaling.original_context_length", 16)).at("rope_scaling") ==
      nlohmann::ordered_json::parse(R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16})"));
  CHECK_THROWS_WITH(config(scaled("yarn")), Contains("has no 'llama.rope.scaling.original_context_length'"));
  CHECK_THROWS_WITH(config(scaled("longrope")), Contains("'longrope'; read are linear and yarn"));
  CHECK_THROWS_WITH(config(scaled("linear").number("llama.rope.scaling.attn_factor", 2)),
                    Contains("'llama.rope.scaling.attn_factor', which is not read"));
}

TEST_CASE("GGUF models that Weft does not compute are refused by name", "[runtime][gguf]") {
  const auto refused = [](const GgufFile& file, const std::string& words) {
    const WrittenGguf written(file.bytes());
    CHECK_THROWS_WITH(gguf_config(GgufModel::open(written.path)), Contains(words) && Contains(written.path.string()));
  };
  refused(tiny_gguf("bloom"), "architecture 'bloom', which Weft does not compute; of GGUF files it reads llama, qwen2");
  refused(tiny_gguf("qwen2").integer("qwen2.expert_count", 8), "mixture of experts");
  refused(tiny_gguf().integer("llama.expert_count", 8), "has no 'llama.expert_used_count'");
  refused(tiny_gguf().integer("llama.expert_count", 8).integer("llama.expert_shared_count", 1),
          "'llama.expert_shared_count', which is not read");
  refused(tiny_gguf().integer("llama.attention.sliding_window", 8),
          "'llama.attention.sliding_window', which is not read");
  refused(tiny_gguf().integer("llama.rope.dimension_count", 8), "rotates 8 of the 16 numbers of a head");
  refused(tiny_gguf().integers("llama.attention.head_count_kv", {1, 2}), "is a list of whole numbers");
  refused(GgufFile().text("general.architecture", "llama"), "has no");

  GgufFile file = tiny_gguf();
  file.tensor("blk.0.attn_q.bias", {32}, 0, std::string(128, '\0'));
  const WrittenGguf written(file.bytes());
  const Gguf gguf = written.read();
  CHECK_THROWS_WITH(gguf_name(gguf, gguf_architecture(gguf), gguf.tensors[1]),
                    Contains("'blk.0.attn_q.bias' is in no layer of llama"));
  CHECK(gguf_name(gguf, gguf_architecture(gguf), gguf.tensors[0]).name == "model.embed_tokens.weight");
}

TEST_CASE("GGUF's families have their own keys in config.json", "[runtime][gguf]") {
  const auto gemma3 = config_of(tiny_gguf("gemma3").integer("gemma3.attention.sliding_window", 8));
  CHECK(gemma3.at("model_type") == "gemma3_text");
  CHECK(gemma3.at("hidden_activation") == "gelu_pytorch_tanh");
  CHECK(gemma3.at("query_pre_attn_scalar") == 16);
  CHECK(gemma3.at("rope_local_base_freq") == 10000);
  CHECK(gemma3.at("sliding_window") == 8);
  CHECK(gemma3.at("layer_types") == nlohmann::ordered_json::array({"sliding_attention"}));
  const auto unwindowed = config_of(tiny_gguf("gemma3"));
  CHECK(unwindowed.at("sliding_window").is_null());
  CHECK(unwindowed.at("layer_types") == nlohmann::ordered_json::array({"full_attention"}));
  const auto gemma2 = config_of(tiny_gguf("gemma2").integer("gemma2.attention.sliding_window", 8));
  CHECK(gemma2.at("model_type") == "gemma2");
  CHECK((gemma2.at("attn_logit_softcapping") == 50 && gemma2.at("final_logit_softcapping") == 30));
  CHECK(gemma2.at("query_pre_attn_scalar") == 16);
  CHECK(gemma2.at("layer_types") == nlohmann::ordered_json::array({"sliding_attention"}));
  CHECK(config_of(tiny_gguf("gemma2").number("gemma2.attn_logit_softcapping", 20)).at("attn_logit_softcapping") == 20);
  const auto gpt_oss = [] {
    return tiny_gguf("gpt-oss").integer("gpt-oss.expert_count", 4).integer("gpt-oss.expert_used_count", 2);
  };
  CHECK(config_of(gpt_oss()).at("rope_scaling") == nlohmann::ordered_json{{"rope_type", "default"}});
  CHECK_THROWS_WITH(
      config_of(gpt_oss().integer("gpt-oss.attention.sliding_window", 8).number("gpt-oss.rope.freq_base_swa", 5)),
      Contains("'gpt-oss.rope.freq_base_swa', which is not read"));
  CHECK(config_of(tiny_gguf("olmo2")).at("model_type") == "olmo2");
  const auto olmo3 = tiny_gguf("olmo2").integer("olmo2.attention.sliding_window", 8);
  CHECK(config_of(olmo3).at("model_type") == "olmo3");
  CHECK(config_of(GgufFile(olmo3).integers("olmo2.attention.sliding_window_pattern", {0})).at("layer_types") ==
        nlohmann::ordered_json::array({"full_attention"}));
  const auto granite = config_of(tiny_gguf("granite").number("granite.logit_scale", 8));
  CHECK(granite.at("logits_scaling") == 8);
  CHECK(granite.at("attention_multiplier") == 0.25);
  CHECK(config_of(tiny_gguf("glm4").integer("glm4.rope.dimension_count", 10)).at("partial_rotary_factor") == 0.625);
  CHECK(config_of(tiny_gguf("glm4")).at("attention_bias") == false);
  CHECK(config_of(tiny_gguf("phi3").integer("phi3.attention.sliding_window", 0)).at("sliding_window").is_null());
}

TEST_CASE("a GGUF file of Gemma 4 has heads, rotation and experts of its own in config.json", "[runtime][gguf]") {
  const auto config = config_of(tiny_gemma4());
  CHECK(config == nlohmann::ordered_json::parse(R"({"architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text",
    "torch_dtype": "float32", "hidden_act": "gelu_pytorch_tanh", "hidden_size": 32, "intermediate_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 64, "vocab_size": 8, "rms_norm_eps": 1e-06, "tie_word_embeddings": true,
    "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"],
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
    "global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": true,
    "rope_parameters": {
      "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
      "sliding_attention": {"rope_type": "default", "rope_theta": 10000}},
    "final_logit_softcapping": null, "enable_moe_block": false, "bos_token_id": null, "eos_token_id": null})"));
  const auto own_values = config_of(tiny_gemma4("attention.head_count_kv")
                                        .number("gemma4.final_logit_softcapping", 30)
                                        .number("gemma4.rope.freq_base_swa", 5000)
                                        .tensor("blk.1.attn_v.weight", {32, 64}, 0, std::string(8192, '\0')));
  CHECK((own_values.at("attention_k_eq_v") == false && own_values.at("final_logit_softcapping") == 30));
  CHECK((own_values.at("num_key_value_heads") == 2 && !own_values.contains("num_global_key_value_heads")));
  CHECK(own_values.at("rope_parameters").at("sliding_attention").at("rope_theta") == 5000);
  CHECK(config_of(tiny_gemma4("", 1).text("gemma4.rope.scaling.type", "none"))
            .at("rope_parameters")
            .at("full_attention")
            .at("partial_rotary_factor") == 1);
  const auto experts = [] {
    return tiny_gemma4().integer("gemma4.expert_count", 4).integer("gemma4.expert_used_count", 2);
  };
  const auto mixture = config_of(experts().integer("gemma4.expert_feed_forward_length", 24));
  CHECK((mixture.at("enable_moe_block") == true && mixture.at("num_experts") == 4 && mixture.at("top_k_experts") == 2));
  CHECK(mixture.at("moe_intermediate_size") == 24);

  const auto all_global = [] {
    return tiny_gemma4("attention.head_count_kv attention.sliding_window_pattern")
        .integers("gemma4.attention.sliding_window_pattern", {0, 0});
  };
  const auto refused = [](const GgufFile& file, const std::string& words) {
    CHECK_THROWS_WITH(config_of(file), Contains(words));
  };
  refused(experts(), "has no 'gemma4.expert_feed_forward_length'");
  const auto wide = [](const std::vector<std::int32_t>& widths) {
    return tiny_gemma4("attention.shared_kv_layers feed_forward_length")
        .integer("gemma4.attention.shared_kv_layers", 1)
        .integers("gemma4.feed_forward_length", widths);
  };
  const auto sharing = config_of(wide({32, 64}));
  CHECK((sharing.at("num_kv_shared_layers") == 1 && sharing.at("use_double_wide_mlp") == true));
  CHECK((sharing.at("intermediate_size") == 32 && sharing.at("attention_k_eq_v") == false));
  CHECK(config_of(wide({32, 32})).at("use_double_wide_mlp") == false);
  for (const auto& widths : std::vector<std::vector<std::int32_t>>{{32}, {32, 96}, {0, 0}})
    refused(wide(widths), "'gemma4.feed_forward_length' is no list of 2 widths");
  refused(tiny_gemma4("feed_forward_length").integers("gemma4.feed_forward_length", {32, 64}),
          "is no list of 2 widths");
  const auto with_inputs = [] {
    return tiny_gemma4("embedding_length_per_layer_input").integer("gemma4.embedding_length_per_layer_input", 4);
  };
  refused(with_inputs(), "has no matrix 'per_layer_token_embd.weight'");
  const auto inputs = config_of(with_inputs().tensor("per_layer_token_embd.weight", {8, 9}, 0, std::string(288, '\0')));
  CHECK((inputs.at("hidden_size_per_layer_input") == 4 && inputs.at("vocab_size_per_layer_input") == 9));
  refused(tiny_gemma4("attention.sliding_window"), "has no 'gemma4.attention.sliding_window'");
  refused(tiny_gemma4("attention.key_length_swa"), "has no 'gemma4.attention.key_length_swa'");
  refused(tiny_gemma4("attention.value_length").integer("gemma4.attention.value_length", 16),
          "'gemma4.attention.value_length' is 16, wanted 32 as 'gemma4.attention.key_length'");
  refused(tiny_gemma4("rope.dimension_count").integer("gemma4.rope.dimension_count", 8),
          "'gemma4.rope.dimension_count' is 8, wanted 32");
  refused(tiny_gemma4("attention.head_count_kv").integers("gemma4.attention.head_count_kv", {2}), "is no list of 2");
  refused(tiny_gemma4("attention.head_count_kv").integers("gemma4.attention.head_count_kv", {2, 0}), "is no list of 2");
  refused(tiny_gemma4("attention.sliding_window_pattern").integers("gemma4.attention.sliding_window_pattern", {0, 0}),
          "the same in all layers with a window, and in all others");
  refused(all_global(), "has no 'attn_v.weight' in 1 of the 2 layers without a window, wanted all or none");
  refused(tiny_gemma4().text("gemma4.rope.scaling.type", "linear"), "'gemma4.rope.scaling.type', which is not read");
  refused(tiny_gemma4().number("gemma4.rope.scaling.factor", 2), "'gemma4.rope.scaling.factor', which is not read");
  refused(tiny_gemma4("rope_freqs"), "has no tensor 'rope_freqs.weight', which says how much of a head turns");
  refused(tiny_gemma4("", 8), "does not hold 16 numbers of which the first are 1 and the others 1e30");
  refused(tiny_gemma4("rope_freqs").tensor("rope_freqs.weight", {1}, 0, bytes_of_number(1.0f)), "does not hold 16");
}

TEST_CASE("GGUF's families with experts of DeepSeek's kind have their keys in config.json", "[runtime][gguf]") {
  const auto glm = [] {
    return tiny_gguf("glm4moe")
        .integer("glm4moe.expert_count", 8)
        .integer("glm4moe.expert_used_count", 2)
        .integer("glm4moe.expert_shared_count", 1)
        .integer("glm4moe.expert_gating_func", 2);
  };
  const auto config =
      config_of(glm().integer("glm4moe.leading_dense_block_count", 1).number("glm4moe.expert_weights_scale", 1.5f));
  CHECK((config.at("n_routed_experts") == 8 && config.at("n_shared_experts") == 1 && config.at("n_group") == 1));
  CHECK((config.at("first_k_dense_replace") == 1 && config.at("routed_scaling_factor") == 1.5));
  CHECK((config.at("norm_topk_prob") == false && config.at("use_qk_norm") == false));
  CHECK((config.at("num_hidden_layers") == 1 && config.at("num_nextn_predict_layers") == 0));
  CHECK_THROWS_WITH(config_of(glm().integer("glm4moe.nextn_predict_layers", 1)), Contains("nextn_predict_layers"));

  const auto ernie = [] {
    return tiny_gguf("ernie4_5-moe")
        .integer("ernie4_5-moe.expert_count", 8)
        .integer("ernie4_5-moe.expert_used_count", 2)
        .integer("ernie4_5-moe.expert_shared_count", 2)
        .integer("ernie4_5-moe.expert_feed_forward_length", 24);
  };
  const auto shared = config_of(ernie().integer("ernie4_5-moe.expert_shared_feed_forward_length", 48));
  CHECK((shared.at("moe_k") == 2 && shared.at("moe_num_experts") == 8 && shared.at("moe_intermediate_size") == 24));
  CHECK_THROWS_WITH(config_of(ernie().integer("ernie4_5-moe.expert_shared_feed_forward_length", 24)),
                    Contains("is 24, wanted 48"));
  CHECK_THROWS_WITH(config_of(ernie().integer("ernie4_5-moe.expert_gating_func", 2)), Contains("wanted 1, a softmax"));
}

TEST_CASE("what GGUF's families say wrong is refused by name", "[runtime][gguf]") {
  const auto refused = [](const GgufFile& file, const std::string& words) {
    CHECK_THROWS_WITH(config_of(file), Contains(words));
  };
  const auto gemma3 = [] { return tiny_gguf("gemma3").integer("gemma3.attention.sliding_window", 8); };
  refused(tiny_gguf("gemma3").number("gemma3.attention.sliding_window", 8), "is a float, wanted a whole number");
  refused(tiny_gguf("gemma3").raw("gemma3.attention.sliding_window", 11, bytes_of_number(std::int64_t{-1})),
          "sliding_window' is -1, wanted 0 to");
  refused(gemma3().integer("gemma3.attention.sliding_window_pattern", 0), "pattern' is 0, wanted 1 to");
  refused(gemma3().integers("gemma3.attention.sliding_window_pattern", {1, 0}),
          "no list of a bool for each of 1 layers");
  refused(gemma3().integers("gemma3.attention.sliding_window_pattern", {2}), "no list of a bool for each of 1 layers");
  refused(gemma3().text("gemma3.attention.sliding_window_pattern", "x"), "is a text, wanted a whole number");
  refused(gemma3().number("gemma3.attn_logit_softcapping", 50), "'gemma3.attn_logit_softcapping', which is not read");
  refused(gemma3().text("gemma3.rope.freq_base_swa", "x"), "is a text, wanted a float");
  refused(tiny_gguf().number("llama.final_logit_softcapping", 30), "'llama.final_logit_softcapping'");
  refused(tiny_gguf().boolean("llama.attention.causal", false), "tokens attend to those that follow");
  refused(tiny_gguf("olmo2").integer("olmo2.attention.sliding_window", 8).number("olmo2.rope.freq_base_swa", 5),
          "'olmo2.rope.freq_base_swa', which is not read");
  refused(tiny_gguf("gemma3").number("gemma3.rope.local.freq_base", 5), "'gemma3.rope.local.freq_base'");
  refused(tiny_gguf("granite"), "has no 'granite.logit_scale'");
  refused(tiny_gguf("granite").number("granite.logit_scale", 8).boolean("granite.rope.scaling.finetuned", false),
          "a Granite without positions");
  refused(tiny_gguf("glm4").integer("glm4.rope.dimension_count", 18), "rotates 18 of the 16 numbers of a head");
  refused(tiny_gguf("glm4").integer("glm4.nextn_predict_layers", 1), "'glm4.nextn_predict_layers'");
  const std::string factors(8 * 4, '\0');
  refused(tiny_gguf("phi3").tensor("rope_factors_short.weight", {8}, 0, factors),
          "has no 'phi3.rope.scaling.original_context_length'");
  const auto phi3 = [] { return tiny_gguf("phi3").integer("phi3.rope.scaling.original_context_length", 8); };
  refused(phi3().tensor("rope_factors_short.weight", {8}, 0, factors), "has no tensor 'rope_factors_long.weight'");
  refused(phi3().tensor("rope_factors_long.weight", {2, 4}, 0, factors), "is no list of at most");
  refused(tiny_gguf().tensor("rope_factors_long.weight", {8}, 0, factors), "is not read in a model of llama");
}

TEST_CASE("names and norms of a GGUF layer are those of its family", "[runtime][gguf]") {
  const auto named = [](const std::string& architecture, const std::string& name) {
    const WrittenGguf written(tiny_gguf(architecture).tensor(name, {32}, 0, std::string(128, '\0')).bytes());
    const Gguf gguf = written.read();
    return gguf_name(gguf, gguf_architecture(gguf), gguf.tensors[1]);
  };
  CHECK(named("llama", "blk.3.ffn_norm.weight").name == "model.layers.3.post_attention_layernorm.weight");
  CHECK(named("gemma3", "blk.3.ffn_norm.weight").name == "model.layers.3.pre_feedforward_layernorm.weight");
  CHECK(named("gemma3", "blk.3.post_attention_norm.weight").name == "model.layers.3.post_attention_layernorm.weight");
  CHECK(named("glm4", "blk.3.post_attention_norm.weight").name == "model.layers.3.post_self_attn_layernorm.weight");
  CHECK(named("glm4", "blk.3.post_ffw_norm.weight").name == "model.layers.3.post_mlp_layernorm.weight");
  CHECK(named("gemma2", "blk.3.post_ffw_norm.weight").name == "model.layers.3.post_feedforward_layernorm.weight");
  CHECK(named("gemma2", "blk.3.ffn_norm.weight").plus_one);
  CHECK_THROWS_WITH(named("gemma2", "blk.0.attn_q_norm.weight"), Contains("is in no layer of gemma2"));
  CHECK(named("gemma3", "blk.3.attn_q_norm.weight").plus_one);
  CHECK(named("gemma", "output_norm.weight").plus_one);
  CHECK_FALSE(named("llama", "output_norm.weight").plus_one);
  CHECK_THROWS_WITH(named("phi3", "blk.0.attn_q.bias"), Contains("'blk.0.attn_q.bias' is in no layer of phi3"));
  CHECK_THROWS_WITH(named("olmo2", "blk.0.attn_norm.weight"), Contains("is in no layer of olmo2"));
  CHECK(named("seed_oss", "blk.0.post_attention_norm.weight").name == "model.layers.0.post_attention_layernorm.weight");
  CHECK(named("starcoder2", "blk.0.ffn_up.bias").name == "model.layers.0.mlp.c_fc.bias");
  CHECK(named("stablelm", "output_norm.bias").name == "model.norm.bias");
  CHECK(named("minimax-m2", "blk.0.exp_probs_b.bias").name ==
        "model.layers.0.block_sparse_moe.e_score_correction_bias");
  CHECK(named("qwen2moe", "blk.0.ffn_up_shexp.weight").name == "model.layers.0.mlp.shared_expert.up_proj.weight");
  CHECK(named("dots1", "blk.0.ffn_up_shexp.weight").name == "model.layers.0.mlp.shared_experts.up_proj.weight");
  CHECK(named("dots1", "blk.1.nextn.eh_proj.weight").name ==
        "model.layers.1.nextn.eh_proj.weight");  // it has one layer
  CHECK(named("gemma4", "blk.0.layer_output_scale.weight").name == "model.layers.0.layer_scalar");
  CHECK_FALSE(named("gemma4", "blk.0.attn_norm.weight").plus_one);
  CHECK_THROWS_WITH(named("gemma4", "blk.0.ffn_gate_inp.scale"), Contains("is in no layer of gemma4_text"));
  CHECK_THROWS_WITH(named("gemma4", "blk.0.inp_gate.weight"), Contains("is in no layer of gemma4_text"));
  CHECK(named("command-r", "blk.0.attn_q_norm.weight").name == "model.layers.0.self_attn.q_norm.weight");
  CHECK_THROWS_WITH(named("cohere2", "blk.0.attn_q_norm.weight"), Contains("is in no layer of cohere2"));
}

TEST_CASE("names of a GGUF layer of Gemma 4 with experts are those of its router, norms and stacks",
          "[runtime][gguf]") {
  const auto [name, wanted] =
      GENERATE(table<std::string, std::string>({{"ffn_gate_inp.weight", "router.proj.weight"},
                                                {"ffn_gate_inp.scale", "router.scale"},
                                                {"ffn_down_exps.scale", "router.per_expert_scale"},
                                                {"ffn_gate_up_exps.weight", "experts.gate_up_proj"},
                                                {"ffn_gate_exps.weight", "experts.*.gate_proj.weight"},
                                                {"ffn_up_exps.weight", "experts.*.up_proj.weight"},
                                                {"ffn_down_exps.weight", "experts.*.down_proj.weight"},
                                                {"pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight"},
                                                {"post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight"},
                                                {"post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight"},
                                                {"post_ffw_norm.weight", "post_feedforward_layernorm.weight"},
                                                {"ffn_down.weight", "mlp.down_proj.weight"}}));
  GgufFile file = tiny_gguf("gemma4").integer("gemma4.expert_count", 4);
  const WrittenGguf written(file.tensor("blk.7." + name, {32}, 0, std::string(128, '\0')).bytes());
  const Gguf gguf = written.read();
  CHECK(gguf_name(gguf, gguf_architecture(gguf), gguf.tensors[1]).name == "model.layers.7." + wanted);
}
