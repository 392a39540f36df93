#include "policy/architecture.h"

#include <algorithm>
#include <array>

namespace weft::policy {
namespace {

/// Names and shapes as transformers' OPTForCausalLM has them.
constexpr std::array kOpt{
    TensorRow{Unit::Kind::embedding, Role::token_embedding, "embed_tokens.weight", Dim::vocab, Dim::embed},
    TensorRow{Unit::Kind::positions, Role::position_embedding, "embed_positions.weight", Dim::positions, Dim::hidden},
    TensorRow{Unit::Kind::input, Role::project_in, "project_in.weight", Dim::hidden, Dim::embed, When::projections},
    TensorRow{Unit::Kind::attention, Role::k_weight, "layers.#.self_attn.k_proj.weight", Dim::kv_rows, Dim::hidden},
    TensorRow{Unit::Kind::attention, Role::k_bias, "layers.#.self_attn.k_proj.bias", Dim::one, Dim::kv_rows,
              When::qkv_bias},
    TensorRow{Unit::Kind::attention, Role::v_weight, "layers.#.self_attn.v_proj.weight", Dim::kv_rows, Dim::hidden},
    TensorRow{Unit::Kind::attention, Role::v_bias, "layers.#.self_attn.v_proj.bias", Dim::one, Dim::kv_rows,
              When::qkv_bias},
    TensorRow{Unit::Kind::attention, Role::q_weight, "layers.#.self_attn.q_proj.weight", Dim::q_rows, Dim::hidden},
    TensorRow{Unit::Kind::attention, Role::q_bias, "layers.#.self_attn.q_proj.bias", Dim::one, Dim::q_rows,
              When::qkv_bias},
    TensorRow{Unit::Kind::attention, Role::o_weight, "layers.#.self_attn.out_proj.weight", Dim::hidden, Dim::q_rows},
    TensorRow{Unit::Kind::attention, Role::o_bias, "layers.#.self_attn.out_proj.bias", Dim::one, Dim::hidden,
              When::output_bias},
    TensorRow{Unit::Kind::attention, Role::norm1_weight, "layers.#.self_attn_layer_norm.weight", Dim::one, Dim::hidden,
              When::norm},
    TensorRow{Unit::Kind::attention, Role::norm1_bias, "layers.#.self_attn_layer_norm.bias", Dim::one, Dim::hidden,
              When::norm},
    TensorRow{Unit::Kind::mlp, Role::up_weight, "layers.#.fc1.weight", Dim::ffn, Dim::hidden},
    TensorRow{Unit::Kind::mlp, Role::up_bias, "layers.#.fc1.bias", Dim::one, Dim::ffn, When::mlp_bias},
    TensorRow{Unit::Kind::mlp, Role::down_weight, "layers.#.fc2.weight", Dim::hidden, Dim::ffn},
    TensorRow{Unit::Kind::mlp, Role::down_bias, "layers.#.fc2.bias", Dim::one, Dim::hidden, When::mlp_bias},
    TensorRow{Unit::Kind::mlp, Role::norm2_weight, "layers.#.final_layer_norm.weight", Dim::one, Dim::hidden,
              When::norm},
    TensorRow{Unit::Kind::mlp, Role::norm2_bias, "layers.#.final_layer_norm.bias", Dim::one, Dim::hidden, When::norm},
    TensorRow{Unit::Kind::output, Role::final_norm_weight, "final_layer_norm.weight", Dim::one, Dim::hidden,
              When::final_norm},
    TensorRow{Unit::Kind::output, Role::final_norm_bias, "final_layer_norm.bias", Dim::one, Dim::hidden,
              When::final_norm},
    TensorRow{Unit::Kind::output, Role::project_out, "project_out.weight", Dim::embed, Dim::hidden, When::projections},
    TensorRow{Unit::Kind::head, Role::head, "lm_head.weight", Dim::vocab, Dim::embed, When::untied},
};

/// LlamaForCausalLM's; Mistral and Qwen2 differ in their biases alone.
constexpr std::array kLlama{
    TensorRow{Unit::Kind::embedding, Role::token_embedding, "embed_tokens.weight", Dim::vocab, Dim::embed},
    TensorRow{Unit::Kind::attention, Role::norm1_weight, "layers.#.input_layernorm.weight", Dim::one, Dim::hidden},
    TensorRow{Unit::Kind::attention, Role::q_weight, "layers.#.self_attn.q_proj.weight", Dim::q_rows, Dim::hidden},
    TensorRow{Unit::Kind::attention, Role::q_bias, "layers.#.self_attn.q_proj.bias", Dim::one, Dim::q_rows,
              When::qkv_bias},
    TensorRow{Unit::Kind::attention, Role::k_weight, "layers.#.self_attn.k_proj.weight", Dim::kv_rows, Dim::hidden},
    TensorRow{Unit::Kind::attention, Role::k_bias, "layers.#.self_attn.k_proj.bias", Dim::one, Dim::kv_rows,
              When::qkv_bias},
    TensorRow{Unit::Kind::attention, Role::v_weight, "layers.#.self_attn.v_proj.weight", Dim::kv_rows, Dim::hidden},
    TensorRow{Unit::Kind::attention, Role::v_bias, "layers.#.self_attn.v_proj.bias", Dim::one, Dim::kv_rows,
              When::qkv_bias},
    TensorRow{Unit::Kind::attention, Role::o_weight, "layers.#.self_attn.o_proj.weight", Dim::hidden, Dim::q_rows},
    TensorRow{Unit::Kind::attention, Role::o_bias, "layers.#.self_attn.o_proj.bias", Dim::one, Dim::hidden,
              When::output_bias},
    TensorRow{Unit::Kind::mlp, Role::norm2_weight, "layers.#.post_attention_layernorm.weight", Dim::one, Dim::hidden},
    TensorRow{Unit::Kind::mlp, Role::gate_weight, "layers.#.mlp.gate_proj.weight", Dim::ffn, Dim::hidden},
    TensorRow{Unit::Kind::mlp, Role::gate_bias, "layers.#.mlp.gate_proj.bias", Dim::one, Dim::ffn, When::mlp_bias},
    TensorRow{Unit::Kind::mlp, Role::up_weight, "layers.#.mlp.up_proj.weight", Dim::ffn, Dim::hidden},
    TensorRow{Unit::Kind::mlp, Role::up_bias, "layers.#.mlp.up_proj.bias", Dim::one, Dim::ffn, When::mlp_bias},
    TensorRow{Unit::Kind::mlp, Role::down_weight, "layers.#.mlp.down_proj.weight", Dim::hidden, Dim::ffn},
    TensorRow{Unit::Kind::mlp, Role::down_bias, "layers.#.mlp.down_proj.bias", Dim::one, Dim::hidden, When::mlp_bias},
    TensorRow{Unit::Kind::output, Role::final_norm_weight, "norm.weight", Dim::one, Dim::hidden},
    TensorRow{Unit::Kind::head, Role::head, "lm_head.weight", Dim::vocab, Dim::embed, When::untied},
};

/// GPTNeoXForCausalLM's.
constexpr std::array kNeox{
    TensorRow{Unit::Kind::embedding, Role::token_embedding, "embed_in.weight", Dim::vocab, Dim::embed},
    TensorRow{Unit::Kind::attention, Role::norm1_weight, "layers.#.input_layernorm.weight", Dim::one, Dim::hidden},
    TensorRow{Unit::Kind::attention, Role::norm1_bias, "layers.#.input_layernorm.bias", Dim::one, Dim::hidden},
    TensorRow{Unit::Kind::attention, Role::qkv_weight, "layers.#.attention.query_key_value.weight", Dim::qkv_rows,
              Dim::hidden},
    TensorRow{Unit::Kind::attention, Role::qkv_bias, "layers.#.attention.query_key_value.bias", Dim::one, Dim::qkv_rows,
              When::qkv_bias},
    TensorRow{Unit::Kind::attention, Role::o_weight, "layers.#.attention.dense.weight", Dim::hidden, Dim::q_rows},
    TensorRow{Unit::Kind::attention, Role::o_bias, "layers.#.attention.dense.bias", Dim::one, Dim::hidden,
              When::output_bias},
    TensorRow{Unit::Kind::mlp, Role::norm2_weight, "layers.#.post_attention_layernorm.weight", Dim::one, Dim::hidden},
    TensorRow{Unit::Kind::mlp, Role::norm2_bias, "layers.#.post_attention_layernorm.bias", Dim::one, Dim::hidden},
    TensorRow{Unit::Kind::mlp, Role::up_weight, "layers.#.mlp.dense_h_to_4h.weight", Dim::ffn, Dim::hidden},
    TensorRow{Unit::Kind::mlp, Role::up_bias, "layers.#.mlp.dense_h_to_4h.bias", Dim::one, Dim::ffn},
    TensorRow{Unit::Kind::mlp, Role::down_weight, "layers.#.mlp.dense_4h_to_h.weight", Dim::hidden, Dim::ffn},
    TensorRow{Unit::Kind::mlp, Role::down_bias, "layers.#.mlp.dense_4h_to_h.bias", Dim::one, Dim::hidden},
    TensorRow{Unit::Kind::output, Role::final_norm_weight, "final_layer_norm.weight", Dim::one, Dim::hidden},
    TensorRow{Unit::Kind::output, Role::final_norm_bias, "final_layer_norm.bias", Dim::one, Dim::hidden},
    TensorRow{Unit::Kind::head, Role::head, "embed_out.weight", Dim::vocab, Dim::embed, When::untied},
};

constexpr std::array kOptPrefixes{"model.decoder.", "decoder.", "model.", ""};
constexpr std::array kLlamaPrefixes{"model.", ""};
constexpr std::array kNeoxPrefixes{"gpt_neox.", ""};

constexpr std::array kArchitectures{
    Architecture{"opt", kOpt, kOptPrefixes, opt_from_config},
    Architecture{"llama", kLlama, kLlamaPrefixes, llama_from_config},
    Architecture{"mistral", kLlama, kLlamaPrefixes, mistral_from_config},
    Architecture{"qwen2", kLlama, kLlamaPrefixes, qwen2_from_config},
    Architecture{"gpt_neox", kNeox, kNeoxPrefixes, neox_from_config},
};

}  // namespace

const Architecture* find_architecture(const std::string& model_type) {
  const auto* const found = std::find_if(kArchitectures.begin(), kArchitectures.end(),
                                         [&](const Architecture& a) { return model_type == a.model_type; });
  return found == kArchitectures.end() ? nullptr : found;
}

std::string known_architectures() {
  std::string names;
  for (const Architecture& architecture : kArchitectures)
    names += (names.empty() ? "" : ", ") + std::string(architecture.model_type);
  return names;
}

}  // namespace weft::policy
