// tests/policy/families_test.cc: what the config class of each family means: its defaults, rotary embeddings, caps and
// experts.
#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "policy/model/model.h"
#include "tests/support/model_config.h"

using namespace weft;
using Catch::Matchers::Contains;
using policy::ModelSpec;
using test::from;

TEST_CASE("absent keys take the values of the config class of each family", "[policy]") {
  const ModelSpec llama = from(R"({"model_type":"llama"})"), mistral = from(R"({"model_type":"mistral"})"),
                  qwen2 = from(R"({"model_type":"qwen2"})"), neox = from(R"({"model_type":"gpt_neox"})");
  for (const ModelSpec* model : {&llama, &mistral, &qwen2}) {
    CAPTURE(model->architecture);
    CHECK((model->rms_norm && model->gated_mlp && model->pre_norm && model->final_norm));
    CHECK_FALSE((model->parallel_residual || model->fused_qkv || model->tied_head || model->output_bias ||
                 model->mlp_bias || model->has_projections()));
    CHECK(model->head_dim == 128);
    CHECK(model->activation == "silu");
    CHECK(model->norm_epsilon == 1e-6f);
    CHECK(model->rotary.size() == 64);
    CHECK(model->rotary[32] == Approx(1 / std::sqrt(10000.0)));
  }
  CHECK((llama.kv_heads == 32 && mistral.kv_heads == 8 && qwen2.kv_heads == 32));
  CHECK((llama.ffn == 11008 && mistral.ffn == 14336 && qwen2.ffn == 22016));
  CHECK((!llama.qkv_bias && !mistral.qkv_bias && qwen2.qkv_bias));
  CHECK((llama.bos == 1 && llama.eos == std::vector<std::int32_t>{2}));
  CHECK((!qwen2.bos && qwen2.eos.empty()));
  CHECK((mistral.positions == 131072 && mistral.windows == std::vector<int>(32, 4096)));
  CHECK(policy::context_text(mistral) == "131072");
  CHECK((neox.parallel_residual && neox.fused_qkv && neox.qkv_bias && neox.output_bias && neox.mlp_bias));
  CHECK_FALSE((neox.rms_norm || neox.gated_mlp || neox.tied_head));
  CHECK((neox.hidden == 6144 && neox.head_dim == 96 && neox.rotary.size() == 12));
  CHECK((neox.activation == "gelu" && neox.norm_epsilon == 1e-5f && neox.bos == 0));
}

TEST_CASE("Qwen3 norms heads of a size of their own, and SmolLM3 has layers without rotary embedding", "[policy]") {
  const ModelSpec qwen3 = from(R"({"model_type":"qwen3","hidden_size":1000,"num_attention_heads":64})");
  CHECK((qwen3.head_dim == 128 && qwen3.head_norm && !qwen3.qkv_bias && !qwen3.output_bias && !qwen3.tied_head));
  CHECK((qwen3.kv_heads == 32 && qwen3.ffn == 22016 && qwen3.vocab == 151936 && qwen3.eos.empty()));
  const ModelSpec biased = from(R"({"model_type":"qwen3","attention_bias":true,"head_dim":64})");
  CHECK((biased.qkv_bias && biased.output_bias && biased.head_dim == 64));

  const auto rotates = [](const std::string& keys) {
    return from(R"({"model_type":"smollm3","num_hidden_layers":5)" + keys + "}").rotary_layers;
  };
  CHECK(rotates("") == std::vector<bool>{true, true, true, false, true});
  CHECK(rotates(R"(,"no_rope_layer_interval":2)") == std::vector<bool>{true, false, true, false, true});
  CHECK(rotates(R"(,"no_rope_layers":[0,1,1,0,1,0,0])") == std::vector<bool>{false, true, true, false, true});
  const ModelSpec smollm3 = from(R"({"model_type":"smollm3"})");
  CHECK((smollm3.tied_head && smollm3.kv_heads == 4 && smollm3.bos == 128000));
  CHECK(double(smollm3.rotary[1]) == Approx(std::pow(2e6, -2.0 / 128)));
  CHECK((smollm3.rotates(0) && !smollm3.rotates(3)));
  for (const char* keys :
       {R"("no_rope_layers":[1,0])", R"("no_rope_layers":1)", R"("no_rope_layer_interval":0)",
        R"("num_hidden_layers":1,"no_rope_layers":[2])", R"("num_hidden_layers":1,"no_rope_layers":["1"])"}) {
    CAPTURE(keys);
    CHECK_THROWS_WITH(from(R"({"model_type":"smollm3",)" + std::string(keys) + "}"), Contains("'no_rope_layer"));
  }
}

TEST_CASE("rotary embeddings are read as transformers 4 and 5 write them", "[policy]") {
  const auto llama = [](const std::string& keys) { return from(R"({"model_type":"llama",)" + keys + "}"); };
  const auto second = [&](const std::string& keys) { return double(llama(keys).rotary[1]); };
  const double exponent = -2.0 / 128;
  CHECK(second(R"("rope_theta":500000)") == Approx(std::pow(500000, exponent)));
  CHECK(second(R"("rope_parameters":{"rope_theta":500000.0,"rope_type":"default"})") ==
        Approx(std::pow(500000, exponent)));
  CHECK(second(R"("rope_scaling":{"type":"linear","factor":4.0})") == Approx(std::pow(10000, exponent) / 4));
  const ModelSpec partial = llama(R"("rope_scaling":null,"rope_parameters":{"partial_rotary_factor":0.5})");
  CHECK(partial.rotary.size() == 64);  // as in transformers, which turns whole heads
  REQUIRE(partial.notes.size() == 1);
  CHECK_THAT(partial.notes[0], Contains("partial_rotary_factor is not used"));
  CHECK(llama(R"("rope_theta":null,"partial_rotary_factor":null)").rotary == llama(R"("x":0)").rotary);

  const ModelSpec scaled = llama(R"("rope_theta":500000.0,"rope_scaling":{"factor":8.0,"low_freq_factor":1.0,
      "high_freq_factor":4.0,"original_max_position_embeddings":8192,"rope_type":"llama3"})");
  const ModelSpec plain = llama(R"("rope_theta":500000.0)");
  CHECK(scaled.rotary.front() == plain.rotary.front());                            // high frequencies stay
  CHECK(double(scaled.rotary.back()) == Approx(double(plain.rotary.back()) / 8));  // low ones are slowed
  for (std::size_t i = 0; i < 64; ++i)
    CHECK((scaled.rotary[i] <= plain.rotary[i] && scaled.rotary[i] >= plain.rotary[i] / 8));

  CHECK(llama(R"("rope_scaling":{"type":"dynamic","factor":4.0})").rotary ==
        llama(R"("x":1)").rotary);  // within the context
  const auto yarn = llama(
      R"("rope_theta":500000.0,"rope_scaling":{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":512})");
  CHECK(double(yarn.rotary_magnitude) == Approx(0.1 * std::log(4) + 1));
  CHECK(yarn.rotary.front() == plain.rotary.front());
  CHECK(double(yarn.rotary.back()) == Approx(double(plain.rotary.back()) / 4));
  const auto longrope = from(R"({"model_type":"phi3","hidden_size":32,"num_attention_heads":8,
      "max_position_embeddings":131072,"original_max_position_embeddings":4096,
      "rope_scaling":{"type":"su","short_factor":[1,2],"long_factor":[3,4]}})");
  CHECK(longrope.rotary == std::vector<float>{1, 0.005f});
  CHECK(double(longrope.rotary_magnitude) == Approx(std::sqrt(1 + std::log(32) / std::log(4096))));
  CHECK(policy::context_text(longrope).starts_with("4096 (of 131072; longer sequences are computed in another way"));

  // The trained context at the top is the stronger one, for each scaling that needs it.
  for (const char* scaling : {R"("rope_type":"yarn","factor":4.0)",
                              R"("rope_type":"llama3","factor":4.0,"low_freq_factor":1.0,"high_freq_factor":4.0)",
                              R"("rope_type":"longrope","short_factor":[1,2],"long_factor":[3,4])"}) {
    CAPTURE(scaling);
    const auto trained = [&](const std::string& nested, const std::string& at_top) {
      return llama(R"("hidden_size":32,"num_attention_heads":8,"rope_scaling":{)" + (scaling + nested) + "}" + at_top);
    };
    const std::string key = R"(,"original_max_position_embeddings":)";
    const auto same = [](const ModelSpec& a, const ModelSpec& b) {
      return a.rotary == b.rotary && a.rotary_magnitude == b.rotary_magnitude && a.positions == b.positions;
    };
    CHECK(same(trained("", key + "64"), trained(key + "64", "")));
    CHECK(same(trained(key + "512", key + "64"), trained(key + "64", "")));
    CHECK(same(trained(key + "64", key + "null"), trained(key + "64", "")));
    CHECK_FALSE(same(trained("", ""), trained(key + "64", "")));
  }

  const auto neox = [](const std::string& keys) { return from(R"({"model_type":"gpt_neox",)" + keys + "}"); };
  CHECK(neox(R"("rotary_pct":1.0,"rotary_emb_base":20000)").rotary.size() == 48);
  CHECK(double(neox(R"("rotary_emb_base":20000)").rotary[1]) == Approx(std::pow(20000, -2.0 / 24)));
  CHECK(neox(R"("rope_parameters":{"partial_rotary_factor":0.5,"rope_theta":10000})").rotary.size() == 24);

  for (const auto& [keys, words] :
       std::map<std::string, std::string>{{R"("rope_scaling":{"rope_type":"axial","factor":4.0})", "rope_type 'axial'"},
                                          {R"("rope_scaling":{"rope_type":"longrope"})", "short_factor"},
                                          {R"("rope_scaling":{"rope_type":"linear"})", "factor"},
                                          {R"("rope_scaling":{"rope_type":"llama3","factor":8})", "low_freq_factor"},
                                          {R"("rope_scaling":[])", "object"},
                                          {R"("rope_theta":0)", "rope_theta"},
                                          {R"("rope_theta":"x")", "rope_theta"}}) {
    CAPTURE(keys);
    CHECK_THROWS_WITH(llama(keys), Contains(words));
  }
  CHECK_THROWS_WITH(neox(R"("rotary_pct":0.01)"), Contains("even number"));
}

TEST_CASE("Ministral, and Mistral's text models beside towers for images", "[policy]") {
  const ModelSpec small = from(R"({"model_type":"mistral3","eos_token_id":7,"text_config":{"model_type":"mistral",
      "head_dim":128,"hidden_size":5120,"sliding_window":null,"rope_theta":1000000000.0}})");
  CHECK((small.architecture == "mistral3" && small.head_dim == 128 && small.hidden == 5120));
  CHECK((small.windows.empty() && small.kv_heads == 8 && small.eos == std::vector<std::int32_t>{7}));
  CHECK(from(R"({"model_type":"mistral3","text_config":{}})").windows == std::vector<int>(32, 4096));

  const ModelSpec three = from(R"({"model_type":"ministral3"})");
  CHECK((three.layers == 34 && three.head_dim == 128 && three.vocab == 131072 && three.norm_epsilon == 1e-5f));
  CHECK((three.windows.empty() && !three.qkv_bias && !three.tied_head && three.rotary_magnitude == 1));
  CHECK((three.positions == 16384 && three.longer_positions == 262144));  // queries grow from there on
  const auto beside = [](const std::string& rope) {
    return from(R"({"model_type":"mistral3","text_config":{"model_type":"ministral3","max_position_embeddings":1000,
        "rope_parameters":{"rope_type":"yarn","rope_theta":10000.0,"factor":4.0,
        "original_max_position_embeddings":100)" +
                rope + "}}}");
  };
  CHECK(beside(R"(,"llama_4_scaling_beta":0.1)").positions == 100);
  CHECK(beside("").positions == 1000);
  const auto old = from(R"({"model_type":"ministral3","num_hidden_layers":2,"sliding_window":30,
      "layer_types":["full_attention","full_attention"],"rope_theta":10000.0,"rope_scaling":{"rope_type":"yarn",
      "factor":4.0,"original_max_position_embeddings":64,"llama_4_scaling_beta":0.1}})");
  CHECK((old.positions == 64 && old.windows == std::vector<int>{30, 30}));  // layer_types is not read

  const ModelSpec layers = from(R"({"model_type":"ministral","num_hidden_layers":2,"sliding_window":30,
      "layer_types":["full_attention","sliding_attention"]})");
  CHECK(layers.windows == std::vector<int>{0, 30});
  CHECK(from(R"({"model_type":"ministral","num_hidden_layers":2})").windows == std::vector<int>{4096, 4096});
  CHECK_THROWS_WITH(from(R"({"model_type":"mistral3","text_config":{"model_type":"llama"}})"),
                    Contains("mistral, ministral or ministral3"));
  CHECK_THROWS_WITH(from(R"({"model_type":"mistral3","text_config":1})"), Contains("text_config"));
  CHECK_THROWS_WITH(from(R"({"model_type":"mistral3"})"), Contains("text_config"));
}

TEST_CASE("caps on logits, of the families that have them", "[policy]") {
  const auto caps = [](const std::string& type, const std::string& keys) {
    const ModelSpec model = from(R"({"model_type":")" + type + "\"" + keys + "}");
    return std::pair(model.attention_cap, model.logit_cap);
  };
  const auto pair = [](float attention, float logits) { return std::pair(attention, logits); };
  CHECK(caps("gemma2", "") == pair(50, 30));
  CHECK(caps("gemma2", R"(,"attn_logit_softcapping":20,"final_logit_softcapping":null)") == pair(20, 0));
  CHECK(caps("gemma2", R"(,"attn_logit_softcapping":null,"final_logit_softcapping":7.5)") == pair(0, 7.5f));
  CHECK(caps("gemma3_text", R"(,"final_logit_softcapping":30,"attn_logit_softcapping":null)") == pair(0, 30));
  CHECK(caps("llama", R"(,"attn_logit_softcapping":null)") == pair(0, 0));
  const auto refused = [&](const std::string& type, const std::string& keys, const std::string& what) {
    CHECK_THROWS_WITH(caps(type, keys), Contains(what));
  };
  refused("gemma2", R"(,"attn_logit_softcapping":0)", "attn_logit_softcapping");
  refused("gemma2", R"(,"attn_logit_softcapping":"50")", "attn_logit_softcapping");
  refused("gemma3_text", R"(,"attn_logit_softcapping":50)", "null: gemma3_text has no such cap");
  refused("gemma3", R"(,"text_config":{"attn_logit_softcapping":50})", "null: gemma3 has no such cap");
  refused("llama", R"(,"attn_logit_softcapping":50)", "null: llama has no such cap");
  refused("qwen2", R"(,"final_logit_softcapping":30)", "null: qwen2 has no such cap");
  const ModelSpec gemma = from(R"({"model_type":"gemma2","hidden_act":"relu","query_pre_attn_scalar":64})");
  CHECK((gemma.activation == "gelu_pytorch_tanh" && gemma.attention_scale == 0.125f && !gemma.head_norm));
}

TEST_CASE("grouped heads and explicit head sizes", "[policy]") {
  const ModelSpec model = from(R"({"model_type":"llama","num_key_value_heads":8,"head_dim":64})");
  CHECK((model.kv_heads == 8 && model.head_dim == 64));
  CHECK_THROWS_WITH(from(R"({"model_type":"llama","num_key_value_heads":5})"), Contains("num_key_value_heads 5"));
  CHECK_THROWS_WITH(from(R"({"model_type":"llama","num_attention_heads":7})"), Contains("does not divide hidden_size"));
  CHECK_THROWS_WITH(from(R"({"model_type":"llama","is_encoder_decoder":true})"), Contains("is_encoder_decoder"));
}

TEST_CASE("Command R, ERNIE, EXAONE, Granite 4, Seed-OSS, StableLM and StarCoder have their classes' defaults",
          "[policy]") {
  const ModelSpec seed = from(R"({"model_type":"seed_oss"})");
  CHECK((seed.heads == 80 && seed.kv_heads == 8 && seed.head_dim == 128 && seed.qkv_bias && !seed.output_bias));
  CHECK((!seed.mlp_bias && !seed.tied_head && seed.positions == 524288 && seed.norm_epsilon == 1e-6f));
  CHECK(from(R"({"model_type":"seed_oss","attention_out_bias":true})").output_bias);
  CHECK(from(R"({"model_type":"seed_oss","hidden_size":320,"head_dim":null})").head_dim == 4);

  const ModelSpec ernie = from(R"({"model_type":"ernie4_5"})");
  CHECK((ernie.alternate_pairs && ernie.tied_head && !ernie.qkv_bias && !ernie.mlp_bias && ernie.kv_heads == 2));
  CHECK(double(ernie.rotary[1]) == Approx(std::pow(5e5, -2.0 / 128)));
  const ModelSpec biased = from(R"({"model_type":"ernie4_5","use_bias":true})");
  CHECK((biased.qkv_bias && biased.output_bias && biased.mlp_bias));

  const ModelSpec exaone = from(R"({"model_type":"exaone4","max_position_embeddings":8192})");
  CHECK((exaone.head_norm && exaone.branch_norm && !exaone.pre_norm && exaone.bos == 0));
  CHECK((exaone.window(2) == 4096 && exaone.window(3) == 0 && exaone.rotates(2) && !exaone.rotates(3)));
  const ModelSpec whole = from(R"({"model_type":"exaone4","sliding_window":null})");
  CHECK((whole.windows.empty() && whole.rotates(0) && whole.rotates(3)));
  CHECK_THROWS_WITH(from(R"({"model_type":"exaone4","sliding_window_pattern":"LLLG"})"),
                    Contains("sliding_window_pattern"));

  const ModelSpec command = from(R"({"model_type":"cohere"})");
  CHECK((command.parallel_residual && command.gated_mlp && !command.rms_norm && command.alternate_pairs));
  CHECK((command.tied_head && command.logit_scale == 0.0625f && command.kv_heads == 64 && command.rotates(0)));
  CHECK((!command.head_norm && from(R"({"model_type":"cohere","use_qk_norm":true})").head_norm));
  const ModelSpec second = from(R"({"model_type":"cohere2","sliding_window":100})");
  CHECK((second.window(0) == 100 && second.window(3) == 0 && second.rotates(0) && !second.rotates(3)));
  CHECK(second.head_dim == 128);
  const ModelSpec none = from(R"({"model_type":"cohere2","sliding_window":null})");
  CHECK((none.windows.empty() && !none.rotates(0) && !none.rotates(3)));  // as in transformers

  const ModelSpec stable = from(R"({"model_type":"stablelm"})");
  CHECK((stable.rotary.size() == 10 && !stable.rms_norm && stable.gated_mlp && !stable.qkv_bias && stable.eos[0] == 0));
  CHECK_THROWS_WITH(from(R"({"model_type":"stablelm","qk_layernorm":true})"), Contains("qk_layernorm"));
  CHECK_THROWS_WITH(from(R"({"model_type":"stablelm","use_parallel_residual":true})"),
                    Contains("use_parallel_residual"));

  const ModelSpec star = from(R"({"model_type":"starcoder2"})");
  CHECK((!star.gated_mlp && !star.rms_norm && star.tied_head && star.mlp_bias && star.windows.empty()));
  CHECK(star.activation == "gelu_pytorch_tanh");
  CHECK(from(R"({"model_type":"starcoder2","sliding_window":64})").window(0) == 64);

  const ModelSpec hunyuan = from(R"({"model_type":"hunyuan_v1_dense","head_dim":128,
      "rope_scaling":{"type":"dynamic","alpha":1000.0,"factor":1.0}})");
  CHECK((hunyuan.late_head_norm && !hunyuan.head_norm && !hunyuan.qkv_bias));
  CHECK(double(hunyuan.rotary[1]) == Approx(std::pow(11158839.9251, -2.0 / 128)));
  CHECK(double(from(R"({"model_type":"hunyuan_v1_dense"})").rotary[1]) == Approx(std::pow(1e4, -2.0 / 128)));
  const ModelSpec arcee = from(R"({"model_type":"arcee"})"), nemotron = from(R"({"model_type":"nemotron"})");
  CHECK((!arcee.gated_mlp && arcee.rms_norm && arcee.activation == "relu2" && !arcee.mlp_bias));
  CHECK((!nemotron.gated_mlp && !nemotron.rms_norm && nemotron.norm_plus_one && nemotron.rotary.size() == 32));

  const auto granite = [](const std::string& keys) {
    return from(R"({"model_type":"granitemoehybrid","num_hidden_layers":2,)" + keys + "}");
  };
  const ModelSpec turning =
      granite(R"("num_local_experts":0,"layer_types":["attention","attention"],"position_embedding_type":"rope",
                 "shared_intermediate_size":48,"residual_multiplier":0.25)");
  CHECK((turning.ffn == 48 && turning.rotates(1) && turning.residual_scale == 0.25f && turning.experts.count == 0));
  CHECK_FALSE(granite(R"("num_local_experts":0,"layer_types":["attention","full_attention"])").rotates(0));
  CHECK_THROWS_WITH(granite(R"("num_local_experts":0,"layer_types":["attention","mamba"])"), Contains("Mamba"));
  CHECK_THROWS_WITH(granite(R"("num_local_experts":0)"), Contains("layer_types"));
  CHECK_THROWS_WITH(granite(R"("num_local_experts":4,"layer_types":["attention","attention"])"),
                    Contains("num_local_experts"));
}

TEST_CASE("Qwen's text models beside towers for images", "[policy]") {
  const ModelSpec nested = from(R"({"model_type":"qwen2_5_vl","tie_word_embeddings":true,"text_config":{
      "hidden_size":128,"num_attention_heads":8,"rope_scaling":{"type":"mrope","mrope_section":[2,3,3]},
      "rope_theta":100.0}})");
  CHECK((nested.tied_head && nested.qkv_bias && !nested.output_bias && nested.kv_heads == 8 && nested.layers == 80));
  CHECK(double(nested.rotary[1]) == Approx(std::pow(100.0, -2.0 / 16)));
  const ModelSpec flat = from(R"({"model_type":"qwen2_vl","hidden_size":64,"num_attention_heads":4,
      "num_key_value_heads":2})");
  CHECK((flat.architecture == "qwen2_vl" && flat.hidden == 64 && !flat.tied_head && flat.windows.empty()));
  CHECK(double(flat.rotary[1]) == Approx(std::pow(1e6, -2.0 / 16)));

  const ModelSpec third = from(R"({"model_type":"qwen3_vl","text_config":{"tie_word_embeddings":true}})");
  CHECK((third.head_norm && !third.tied_head && third.head_dim == 128 && third.positions == 128000));
  const ModelSpec sparse = from(R"({"model_type":"qwen3_vl_moe","text_config":{"num_experts":8,
      "num_experts_per_tok":2}})");
  CHECK((sparse.experts.count == 8 && sparse.experts.chosen == 2 && sparse.experts.normalise && sparse.head_norm));
  CHECK_THROWS_WITH(from(R"({"model_type":"qwen2","rope_scaling":{"type":"mrope"}})"), Contains("mrope"));
}

TEST_CASE("families with experts have the defaults of their config classes", "[policy][experts]") {
  const ModelSpec mixtral = from(R"({"model_type":"mixtral"})");
  CHECK((mixtral.experts.count == 8 && mixtral.experts.chosen == 2 && mixtral.experts.ffn == 14336));
  CHECK((mixtral.experts.normalise && !mixtral.experts.sigmoid && mixtral.windows.empty() && mixtral.is_sparse(0)));
  const ModelSpec olmoe = from(R"({"model_type":"olmoe"})");
  CHECK((olmoe.experts.count == 64 && olmoe.experts.chosen == 8 && !olmoe.experts.normalise && olmoe.head_norm));
  const ModelSpec qwen2 = from(R"({"model_type":"qwen2_moe","mlp_only_layers":[0,3],"decoder_sparse_step":2})");
  CHECK((qwen2.experts.count == 60 && qwen2.experts.shared_ffn == 5632 && qwen2.experts.shared_gate && qwen2.qkv_bias));
  CHECK((!qwen2.is_sparse(0) && qwen2.is_sparse(1) && !qwen2.is_sparse(2) && !qwen2.is_sparse(3)));
  const ModelSpec qwen3 = from(R"({"model_type":"qwen3_moe","num_local_experts":16,"num_experts_per_tok":4})");
  CHECK((qwen3.experts.count == 16 && qwen3.experts.chosen == 4 && qwen3.experts.ffn == 768 && qwen3.head_norm));
  const ModelSpec glm =
      from(R"({"model_type":"glm4_moe","n_group":8,"topk_group":4,"n_shared_experts":2,"head_dim":128})");
  CHECK((glm.experts.sigmoid && glm.experts.score_bias && glm.experts.normalise && glm.experts.groups == 8));
  CHECK((glm.experts.shared_ffn == 2816 && glm.next_layers == 1 && !glm.is_sparse(0) && glm.is_sparse(1)));
  CHECK(from(R"({"model_type":"qwen3_moe","num_hidden_layers":2,"mlp_only_layers":[0,1]})").experts.count == 0);
  const ModelSpec oss = from(R"({"model_type":"gpt_oss","num_hidden_layers":4})");
  CHECK((oss.experts.count == 128 && oss.experts.chosen == 4 && oss.experts.normalise && oss.experts.biases));
  CHECK((oss.experts.gate_slope == 1.702f && oss.experts.gate_limit == 7 && oss.sinks && oss.qkv_bias));
  CHECK((oss.windows == std::vector<int>{128, 0, 128, 0} && oss.head_dim == 64 && oss.output_bias));
  // Its rotary embedding is YaRN's, whether config.json says so or not.
  CHECK(oss.rotary_magnitude == Approx(0.1 * std::log(32) + 1));
  CHECK(oss.rotary == from(R"({"model_type":"gpt_oss","rope_theta":150000,"rope_scaling":{"rope_type":"yarn",)"
                           R"("factor":32,"beta_fast":32,"beta_slow":1,"truncate":false,)"
                           R"("original_max_position_embeddings":4096}})")
                          .rotary);
  const ModelSpec hunyuan =
      from(R"({"model_type":"hunyuan_v1_moe","num_experts":[8,8],"moe_topk":[3,3],"intermediate_size":96})");
  CHECK((hunyuan.experts.count == 8 && hunyuan.experts.chosen == 3 && hunyuan.experts.normalise));
  CHECK((hunyuan.experts.ffn == 96 && hunyuan.experts.shared_ffn == 96 && hunyuan.late_head_norm));
  CHECK_THROWS_WITH(from(R"({"model_type":"hunyuan_v1_moe","num_experts":[8,9]})"), Contains("num_experts"));
  CHECK_THROWS_WITH(from(R"({"model_type":"hunyuan_v1_moe","num_experts":4,"moe_topk":5})"), Contains("moe_topk"));
  const ModelSpec granite = from(R"({"model_type":"granitemoe","residual_multiplier":0.25,"logits_scaling":8})");
  CHECK((granite.experts.count == 8 && granite.experts.chosen == 2 && granite.experts.normalise));
  CHECK((granite.experts.scale == 0.25f && granite.residual_scale == 0.25f && granite.logit_scale == 0.125f));
  const ModelSpec dots = from(R"({"model_type":"dots1","n_routed_experts":16,"num_experts_per_tok":3,
      "n_shared_experts":2,"first_k_dense_replace":1})");
  CHECK((dots.experts.sigmoid && dots.experts.score_bias && !dots.experts.normalise && dots.head_norm));
  CHECK((dots.experts.shared_ffn == 2816 && !dots.is_sparse(0) && dots.is_sparse(1) && dots.next_layers == 0));
  const ModelSpec ernie = from(R"({"model_type":"ernie4_5_moe","moe_layer_interval":2,"moe_layer_end_index":5})");
  CHECK((ernie.experts.count == 64 && ernie.experts.chosen == 6 && ernie.experts.score_bias && !ernie.experts.sigmoid));
  CHECK((ernie.experts.normalise && ernie.experts.shared_ffn == 3072 && ernie.alternate_pairs && ernie.tied_head));
  CHECK(
      (!ernie.is_sparse(0) && ernie.is_sparse(1) && !ernie.is_sparse(2) && ernie.is_sparse(5) && !ernie.is_sparse(7)));
  CHECK(from(R"({"model_type":"ernie4_5_moe","moe_num_shared_experts":0})").experts.shared_ffn == 0);
  const ModelSpec minimax = from(R"({"model_type":"minimax_m2","rotary_dim":64})");
  CHECK((minimax.experts.count == 256 && minimax.experts.ffn == 1536 && minimax.experts.sigmoid && minimax.head_norm));
  CHECK((minimax.rotary.size() == 32 && minimax.head_dim == 128 && minimax.eos[0] == 200020));

  const auto refused = [](const char* config, const char* says) { CHECK_THROWS_WITH(from(config), Contains(says)); };
  refused(R"({"model_type":"dots1","num_experts_per_tok":3,"n_shared_experts":2})", "n_routed_experts");
  refused(R"({"model_type":"ernie4_5_moe","use_bias":true})", "use_bias");
  refused(R"({"model_type":"ernie4_5_moe","moe_k":65})", "moe_k");
  refused(R"({"model_type":"ernie4_5_moe","moe_norm_min":0.5})", "moe_norm_min");
  refused(R"({"model_type":"minimax_m2","rotary_dim":200})", "rotary_dim");
  refused(R"({"model_type":"mixtral","num_experts_per_tok":9})", "num_experts_per_tok");
  refused(R"({"model_type":"mixtral","num_local_experts":0})", "num_local_experts");
  refused(R"({"model_type":"olmoe","num_experts":100000})", "num_experts");
  refused(R"({"model_type":"olmoe","clip_qkv":8})", "clip_qkv");
  refused(R"({"model_type":"glm4_moe","head_dim":128,"n_group":7})", "n_group");
  refused(R"({"model_type":"glm4_moe","head_dim":128,"n_group":64,"topk_group":2})", "num_experts_per_tok");
  refused(R"({"model_type":"qwen3_moe","mlp_only_layers":["a"]})", "mlp_only_layers");
  refused(R"({"model_type":"gpt_oss","num_local_experts":2})", "num_experts_per_tok");
  refused(R"({"model_type":"gpt_oss","swiglu_limit":0})", "swiglu_limit");
  refused(R"({"model_type":"granitemoe","num_local_experts":1})", "num_experts_per_tok");
}
